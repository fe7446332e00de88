// The gated delta rule, one position after the other. A value head's state S is [128 keys, 128 values]; its columns do not meet,
// so a thread keeps one column in registers:  S <- e^g S;  d = beta (v - k.S);  S <- S + k d;  o = q.S.
// Sequential in the position, so that a cut between two dispatches changes no bit. One workgroup a (value head, segment).

struct Params {
  ld: u32,           // row stride of the projections in f32
  alpha_at: u32,     // first column of alpha
  beta_at: u32,      // first column of beta
  channels: u32,     // row stride of y in vec4-free f32: q | k | v
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
@group(0) @binding(1) var<storage, read> y: array<f32>;             // [rows, channels] after the convolution
@group(0) @binding(2) var<storage, read> a: array<f32>;             // [value_heads] -exp(A)
@group(0) @binding(3) var<storage, read> dt: array<f32>;            // [value_heads]
@group(0) @binding(4) var<storage, read> segments: array<Segment>;
@group(0) @binding(5) var<storage, read_write> states: array<f32>;  // [slots, value_heads, 128 keys, 128 values]
@group(0) @binding(6) var<storage, read_write> o: array<f32>;       // [rows, value_heads * 128]
@group(0) @binding(7) var<uniform> p: Params;

var<workgroup> sq: array<array<vec4<f32>, 32>, 8>;
var<workgroup> sk: array<array<vec4<f32>, 32>, 8>;
var<workgroup> gates: array<vec2<f32>, 8>;  // e^g, beta

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
  let s = segments[group.y];
  let head = group.x;
  let key_head = head % p.key_heads;
  let from_in = s.state_in != 0xffffffffu;
  let at_in = (select(s.state_in, 0u, !from_in) * p.value_heads + head) * 16384u + t;
  let at_out = (s.state_out * p.value_heads + head) * 16384u + t;
//#for i in 0..32
  var s{{i}} = vec4<f32>(0.0);
//#end
  if (from_in) {
//#for i in 0..32
    s{{i}} = vec4<f32>(states[at_in + {{i*512}}u], states[at_in + {{i*512+128}}u], states[at_in + {{i*512+256}}u], states[at_in + {{i*512+384}}u]);
//#end
  }
  for (var first = 0u; first < s.rows; first += 8u) {
    let n = min(8u, s.rows - first);
    workgroupBarrier();
    for (var i = 0u; i < n; i++) {
      let at = (s.row + first + i) * p.channels + key_head * 128u + t;
      sq[i][t >> 2u][t & 3u] = y[at];
      sk[i][t >> 2u][t & 3u] = y[at + p.key_heads * 128u];
    }
    if (t < n) {
      let row = (s.row + first + t) * p.ld;
      let z = x[row + p.alpha_at + head] + dt[head];
      let softplus = select(log(1.0 + exp(z)), z, z > 20.0);
      gates[t] = vec2<f32>(exp(a[head] * softplus), 1.0 / (1.0 + exp(-x[row + p.beta_at + head])));
    }
    workgroupBarrier();
    for (var i = 0u; i < n; i++) {
      let row = s.row + first + i;
      let gate = gates[i];
      let v = y[row * p.channels + (2u * p.key_heads + head) * 128u + t];
      var read = vec4<f32>(0.0);
//#for j in 0..32
      read = fma(sk[i][{{j}}], s{{j}}, read);
//#end
      let d = gate.y * (v - gate.x * ((read.x + read.y) + (read.z + read.w)));
      var out = vec4<f32>(0.0);
//#for j in 0..32
      s{{j}} = fma(sk[i][{{j}}], vec4<f32>(d), s{{j}} * gate.x);
      out = fma(sq[i][{{j}}], s{{j}}, out);
//#end
      o[row * p.value_heads * 128u + head * 128u + t] = (out.x + out.y) + (out.z + out.w);
    }
  }
  if (s.state_out == 0xffffffffu) {
    return;
  }
//#for i in 0..32
//#for e in 0..4
  states[at_out + {{i*512+e*128}}u] = s{{i}}[{{e}}];
//#end
//#end
}
