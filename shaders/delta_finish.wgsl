// After the scan: o = RMSNorm(o, weight) * silu(z) for each head of 128 values (norm first, gate after), one workgroup a (row, head).
// The workgroups behind them keep the convolution's last three inputs of each channel, oldest first, one thread a channel, which
// reads all it needs before it writes, so that a segment may keep its slot.

struct Params {
  ld: u32,        // row stride of x in f32
  channels: u32,
  ldo: u32,       // row stride of o
  rows: u32,
  heads: u32,
  segments: u32,
  eps: f32,
}
//#include delta_input.wgsl

@group(0) @binding(0) var<storage, read> x: array<f32>;             // [rows, ld]: q | k | v, then z
@group(0) @binding(1) var<storage, read> weight: array<f32>;
@group(0) @binding(2) var<storage, read> segments: array<Segment>;
@group(0) @binding(3) var<storage, read_write> states: array<f32>;  // [slots, 3, channels]
@group(0) @binding(4) var<storage, read_write> o: array<f32>;       // in place
@group(0) @binding(5) var<uniform> p: Params;

var<workgroup> part: array<f32, 128>;

fn keep(index: u32, t: u32) {
  let groups = p.channels / 128u;
  if (index >= p.segments * groups) {
    return;
  }
  let s = segments[index / groups];
  if (s.state_out == 0xffffffffu) {
    return;
  }
  let channel = (index % groups) * 128u + t;
  let n = i32(s.rows);
  let a = input(n - 3, s, channel);
  let b = input(n - 2, s, channel);
  let c = input(n - 1, s, channel);
  let to = s.state_out * 3u * p.channels + channel;
  states[to] = a;
  states[to + p.channels] = b;
  states[to + 2u * p.channels] = c;
}

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
  if (group.x >= p.rows) {
    keep((group.x - p.rows) * p.heads + group.y, t);
    return;
  }
  let at = group.x * p.ldo + group.y * 128u + t;
  let v = o[at];
  part[t] = v * v;
  workgroupBarrier();
//#for k in 0..7
  if (t < (64u >> {{k}}u)) {
    part[t] += part[t + (64u >> {{k}}u)];
  }
  workgroupBarrier();
//#end
  let g = x[group.x * p.ld + p.channels + group.y * 128u + t];
  o[at] = v / sqrt(part[0] / 128.0 + p.eps) * weight[t] * (g / (1.0 + exp(-g)));
}
