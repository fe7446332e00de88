// The gated delta rule, one position after the other. A value head's state S is [128 keys, 128 values]:
//   S <- e^g S;  d = beta (v - k.S);  S <- S + k d;  o = q.S.
// Its columns do not meet: a workgroup takes 32 of them, and a thread keeps 16 keys of one column in registers. Sums over the keys are
// those of eight threads. Sequential in the position, so that a cut between two dispatches changes no bit; eight positions are
// loaded together, while the eight before them are computed. Grid: (value head, quarter of its columns, segment).

struct Params {
  ld: u32,           // row stride of the projections in f32
  alpha_at: u32,     // first column of alpha
  beta_at: u32,      // first column of beta
  channels: u32,     // row stride of y in f32: q | k | v
  key_heads: u32,
  value_heads: u32,
}

struct Segment {
  row: u32,
  rows: u32,
  state_in: u32,
  state_out: u32,  // 0xffffffff: the state is not kept
}

@group(0) @binding(0) var<storage, read> x: array<f32>;             // [rows, ld] projections
@group(0) @binding(1) var<storage, read> y: array<vec4<f32>>;       // [rows, channels] after the convolution
@group(0) @binding(2) var<storage, read> a: array<f32>;             // [value_heads] -exp(A)
@group(0) @binding(3) var<storage, read> dt: array<f32>;            // [value_heads]
@group(0) @binding(4) var<storage, read> segments: array<Segment>;
@group(0) @binding(5) var<storage, read_write> states: array<f32>;  // [slots, value_heads, 128 keys, 128 values]
@group(0) @binding(6) var<storage, read_write> o: array<f32>;       // [rows, value_heads * 128]
@group(0) @binding(7) var<uniform> p: Params;

var<workgroup> sq: array<vec4<f32>, 256>;   // [position 8][key / 4, 32]
var<workgroup> sk: array<vec4<f32>, 256>;
var<workgroup> sv: array<vec4<f32>, 64>;    // [position 8][value / 4, 8]
var<workgroup> gates: array<vec2<f32>, 8>;  // e^g, beta
var<workgroup> reads: array<f32, 512>;      // [position & 1][part of the keys 8][column 32]
var<workgroup> outs: array<f32, 512>;       // the same

// The sum of the eight parts of a column.
fn read_sum(at: u32) -> f32 {
  return ((reads[at] + reads[at + 32u]) + (reads[at + 64u] + reads[at + 96u])) + ((reads[at + 128u] + reads[at + 160u]) + (reads[at + 192u] + reads[at + 224u]));
}

fn out_sum(at: u32) -> f32 {
  return ((outs[at] + outs[at + 32u]) + (outs[at + 64u] + outs[at + 96u])) + ((outs[at + 128u] + outs[at + 160u]) + (outs[at + 192u] + outs[at + 224u]));
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
  let s = segments[group.z];
  let head = group.x;
  let column = t & 31u;
  let slice = t >> 5u;
  let from_in = s.state_in != 0xffffffffu;
  let own = head * 16384u + slice * 2048u + group.y * 32u + column;
//#for i in 0..4
  var s{{i}} = vec4<f32>(0.0);
//#end
  if (from_in) {
    let at = s.state_in * p.value_heads * 16384u + own;
//#for i in 0..4
    s{{i}} = vec4<f32>(states[at + {{i*512}}u], states[at + {{i*512+128}}u], states[at + {{i*512+256}}u], states[at + {{i*512+384}}u]);
//#end
  }
  // This thread loads a vec4 of q and k of one position, a quarter of the threads one of v, eight the gates.
  let c4 = p.channels >> 2u;
  let q_at = (head % p.key_heads) * 32u + column;
  let k_at = q_at + p.key_heads * 32u;
  let v_at = (2u * p.key_heads + head) * 32u + group.y * 8u + (t & 7u);
  let end = s.row + s.rows - 1u;
  var row = min(s.row + slice, end) * c4;
  var q_next = y[row + q_at];
  var k_next = y[row + k_at];
  var v_next = y[min(s.row + ((t >> 3u) & 7u), end) * c4 + v_at];
  var alpha = x[min(s.row + (t & 7u), end) * p.ld + p.alpha_at + head];
  var beta = x[min(s.row + (t & 7u), end) * p.ld + p.beta_at + head];
  let o_at = s.row * p.value_heads * 128u + head * 128u + group.y * 32u + column;
  for (var first = 0u; first < s.rows; first += 8u) {
    let n = min(8u, s.rows - first);
    sq[t] = q_next;
    sk[t] = k_next;
    if (t < 64u) {
      sv[t] = v_next;
    }
    if (t < 8u) {
      let z = alpha + dt[head];
      let softplus = select(log(1.0 + exp(z)), z, z > 20.0);
      gates[t] = vec2<f32>(exp(a[head] * softplus), 1.0 / (1.0 + exp(-beta)));
    }
    workgroupBarrier();
    // Positions past the end repeat the last one and are not computed.
    let ahead = s.row + first + 8u;
    row = min(ahead + slice, end) * c4;
    q_next = y[row + q_at];
    k_next = y[row + k_at];
    v_next = y[min(ahead + ((t >> 3u) & 7u), end) * c4 + v_at];
    alpha = x[min(ahead + (t & 7u), end) * p.ld + p.alpha_at + head];
    beta = x[min(ahead + (t & 7u), end) * p.ld + p.beta_at + head];
    for (var i = 0u; i < n; i++) {
      let at = i * 32u + slice * 4u;
//#for j in 0..4
      let k{{j}}_ = sk[at + {{j}}u];
//#end
      let both = fma(k2_, s2, k0_ * s0) + fma(k3_, s3, k1_ * s1);
      let to = (i & 1u) * 256u + column;
      reads[to + slice * 32u] = (both.x + both.y) + (both.z + both.w);
      workgroupBarrier();
      let gate = gates[i];
      let v = sv[i * 8u + (column >> 2u)][column & 3u];
      let d = gate.y * (v - gate.x * read_sum(to));
      // One of the eight sums up the position before, whose place is written again only after the next barrier.
      if (i > 0u && slice == i) {
        o[o_at + (first + i - 1u) * p.value_heads * 128u] = out_sum(column + 256u - (i & 1u) * 256u);
      }
//#for j in 0..4
      s{{j}} = fma(k{{j}}_, vec4<f32>(d), s{{j}} * gate.x);
//#end
      let out = fma(sq[at + 2u], s2, sq[at] * s0) + fma(sq[at + 3u], s3, sq[at + 1u] * s1);
      outs[to + slice * 32u] = (out.x + out.y) + (out.z + out.w);
    }
    workgroupBarrier();
    if (slice == 0u) {
      o[o_at + (first + n - 1u) * p.value_heads * 128u] = out_sum(column + ((n - 1u) & 1u) * 256u);
    }
  }
  if (s.state_out == 0xffffffffu) {
    return;
  }
  let to = s.state_out * p.value_heads * 16384u + own;
//#for i in 0..4
//#for e in 0..4
  states[to + {{i*512+e*128}}u] = s{{i}}[{{e}}];
//#end
//#end
}
