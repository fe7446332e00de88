// The gated delta rule, one position after the other. A value head's state S is [128 keys, 128 values]:
//   S <- e^g S;  d = beta (v - k.S);  S <- S + k d;  o = q.S.
// Its columns do not meet: a workgroup takes 32 of them, and a thread keeps 32 keys of one column in registers. Sums over the keys are
// those of four threads. Sequential in the position, so that a cut between two dispatches changes no bit; eight positions are
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
var<workgroup> reads: array<f32, 256>;      // [position & 1][part of the keys 4][column 32]
var<workgroup> outs: array<f32, 1024>;      // [position 8][part 4][column 32]

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
  let s = segments[group.z];
  let head = group.x;
  let column = t & 31u;
  let slice = t >> 5u;
  let from_in = s.state_in != 0xffffffffu;
  let own = head * 16384u + slice * 4096u + group.y * 32u + column;
//#for i in 0..8
  var s{{i}} = vec4<f32>(0.0);
//#end
  if (from_in) {
    let at = s.state_in * p.value_heads * 16384u + own;
//#for i in 0..8
    s{{i}} = vec4<f32>(states[at + {{i*512}}u], states[at + {{i*512+128}}u], states[at + {{i*512+256}}u], states[at + {{i*512+384}}u]);
//#end
  }
  // This thread loads a vec4 of q and k of two positions, half the threads one of v, eight the gates.
  let c4 = p.channels >> 2u;
  let q_at = (head % p.key_heads) * 32u + column;
  let k_at = q_at + p.key_heads * 32u;
  let v_at = (2u * p.key_heads + head) * 32u + group.y * 8u + (t & 7u);
  let end = s.row + s.rows - 1u;
  var row = min(s.row + slice * 2u, end) * c4;
  var next = min(s.row + slice * 2u + 1u, end) * c4;
  var q0 = y[row + q_at];
  var q1 = y[next + q_at];
  var k0 = y[row + k_at];
  var k1 = y[next + k_at];
  var v0 = y[min(s.row + ((t >> 3u) & 7u), end) * c4 + v_at];
  var alpha = x[min(s.row + (t & 7u), end) * p.ld + p.alpha_at + head];
  var beta = x[min(s.row + (t & 7u), end) * p.ld + p.beta_at + head];
  for (var first = 0u; first < s.rows; first += 8u) {
    let n = min(8u, s.rows - first);
    sq[slice * 64u + column] = q0;
    sq[slice * 64u + 32u + column] = q1;
    sk[slice * 64u + column] = k0;
    sk[slice * 64u + 32u + column] = k1;
    if (t < 64u) {
      sv[t] = v0;
    }
    if (t < 8u) {
      let z = alpha + dt[head];
      let softplus = select(log(1.0 + exp(z)), z, z > 20.0);
      gates[t] = vec2<f32>(exp(a[head] * softplus), 1.0 / (1.0 + exp(-beta)));
    }
    workgroupBarrier();
    // Positions past the end repeat the last one and are not computed.
    let ahead = s.row + first + 8u;
    row = min(ahead + slice * 2u, end) * c4;
    next = min(ahead + slice * 2u + 1u, end) * c4;
    q0 = y[row + q_at];
    q1 = y[next + q_at];
    k0 = y[row + k_at];
    k1 = y[next + k_at];
    v0 = y[min(ahead + ((t >> 3u) & 7u), end) * c4 + v_at];
    alpha = x[min(ahead + (t & 7u), end) * p.ld + p.alpha_at + head];
    beta = x[min(ahead + (t & 7u), end) * p.ld + p.beta_at + head];
    for (var i = 0u; i < n; i++) {
      let at = i * 32u + slice * 8u;
//#for j in 0..8
      let k{{j}}_ = sk[at + {{j}}u];
//#end
      var even = k0_ * s0;
      var odd = k1_ * s1;
//#for j in 1..4
      even = fma(k{{2*j}}_, s{{2*j}}, even);
      odd = fma(k{{2*j+1}}_, s{{2*j+1}}, odd);
//#end
      let both = even + odd;
      let to = (i & 1u) * 128u + column;
      reads[to + slice * 32u] = (both.x + both.y) + (both.z + both.w);
      workgroupBarrier();
      let gate = gates[i];
      let read = (reads[to] + reads[to + 32u]) + (reads[to + 64u] + reads[to + 96u]);
      let v = sv[i * 8u + (column >> 2u)][column & 3u];
      let d = gate.y * (v - gate.x * read);
//#for j in 0..8
      s{{j}} = fma(k{{j}}_, vec4<f32>(d), s{{j}} * gate.x);
//#end
      even = sq[at] * s0;
      odd = sq[at + 1u] * s1;
//#for j in 1..4
      even = fma(sq[at + {{2*j}}u], s{{2*j}}, even);
      odd = fma(sq[at + {{2*j+1}}u], s{{2*j+1}}, odd);
//#end
      let out = even + odd;
      outs[i * 128u + t] = (out.x + out.y) + (out.z + out.w);
    }
    workgroupBarrier();
    for (var i = slice; i < n; i += 4u) {
      let from_parts = i * 128u + column;
      let sum = (outs[from_parts] + outs[from_parts + 32u]) + (outs[from_parts + 64u] + outs[from_parts + 96u]);
      o[(s.row + first + i) * p.value_heads * 128u + head * 128u + group.y * 32u + column] = sum;
    }
  }
  if (s.state_out == 0xffffffffu) {
    return;
  }
  let to = s.state_out * p.value_heads * 16384u + own;
//#for i in 0..8
//#for e in 0..4
  states[to + {{i*512+e*128}}u] = s{{i}}[{{e}}];
//#end
//#end
}
