// Depthwise causal convolution (4 taps) and SiLU over the channels q | k | v, then for query and key heads the L2 norm (and
// 1/sqrt(128) for queries). One workgroup a (row, head of 128 channels).

struct Params {
  ld: u32,         // row stride of the input in f32
  channels: u32,   // row stride of the output
  key_heads: u32,
  eps: f32,
}

//#include delta_input.wgsl

@group(0) @binding(0) var<storage, read> x: array<f32>;            // [rows, ld]
@group(0) @binding(1) var<storage, read> taps: array<vec4<f32>>;   // [channels]
@group(0) @binding(2) var<storage, read> states: array<f32>;       // [slots, 3, channels], oldest first
@group(0) @binding(3) var<storage, read> segments: array<Segment>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;      // [rows, channels]
@group(0) @binding(5) var<uniform> p: Params;

var<workgroup> part: array<f32, 128>;

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
  let s = segments[group.z];
  if (group.x >= s.rows) {
    return;
  }
  let row = i32(group.x);
  let channel = group.y * 128u + t;
  let w = taps[channel];
  let c = fma(w.w, input(row, s, channel), fma(w.z, input(row - 1, s, channel), fma(w.y, input(row - 2, s, channel), w.x * input(row - 3, s, channel))));
  var v = c / (1.0 + exp(-c));
  if (group.y < 2u * p.key_heads) {
    part[t] = v * v;
    workgroupBarrier();
//#for k in 0..7
    if (t < (64u >> {{k}}u)) {
      part[t] += part[t + (64u >> {{k}}u)];
    }
    workgroupBarrier();
//#end
    v = v / sqrt(part[0] + p.eps);
    if (group.y < p.key_heads) {
      v *= 0.08838834764831845;
    }
  }
  y[(s.row + group.x) * p.channels + channel] = v;
}
