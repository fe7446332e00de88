// After the scan: o = RMSNorm(o, weight) * silu(z) for each head of 128 values (norm first, gate after), 32 threads a head, four heads a
// workgroup. The result goes out in place, as 8-bit blocks, as both, or as f16 (half.wgsl).
// The workgroups behind them keep the convolution's last three inputs of each channel, oldest first, one thread a channel, which
// reads all it needs before it writes, so that a segment may keep its slot.

struct Params {
  ld: u32,        // row stride of x in f32
  channels: u32,
  ldo: u32,       // row stride of o in vec4
  rows: u32,
  heads: u32,
  segments: u32,
  eps: f32,
  ldy: u32,       // row stride of y in units of 4
  mp: u32,        // rows that the 8-bit buffers hold
}
//#include delta_input.wgsl

@group(0) @binding(0) var<storage, read> x: array<f32>;             // [rows, ld]: q | k | v, then z
@group(0) @binding(1) var<storage, read> weight: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> segments: array<Segment>;
@group(0) @binding(3) var<storage, read_write> states: array<f32>;  // [slots, 3, channels]
//#if IN_PLACE
@group(0) @binding(4) var<storage, read_write> o: array<vec4<f32>>;
//#else
@group(0) @binding(4) var<storage, read> o: array<vec4<f32>>;
//#end
//#if HALF
//#include half.wgsl
@group(0) @binding(5) var<storage, read_write> y: array<vec2<u32>>;
//#end
//#if Q8
//#include q8.wgsl
//#end
@group(0) @binding({{5+HALF+2*Q8}}) var<uniform> p: Params;

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
    keep((group.x - p.rows) * ((p.heads + 3u) / 4u) + group.y, t);
    return;
  }
  let i = group.y * 128u + t;
  let inside = i < p.heads * 32u;
  let at = group.x * p.ldo + i;
  var v = vec4<f32>(0.0);
  if (inside) {
    v = o[at];
  }
  part[t] = dot(v, v);
  workgroupBarrier();
//#for k in 0..5
  if ((t & 31u) < (16u >> {{k}}u)) {
    part[t] += part[t + (16u >> {{k}}u)];
  }
  workgroupBarrier();
//#end
  if (inside) {
    let gate = group.x * p.ld + p.channels + i * 4u;
    let g = vec4<f32>(x[gate], x[gate + 1u], x[gate + 2u], x[gate + 3u]);
    v = v / sqrt(part[t & 96u] / 128.0 + p.eps) * weight[t & 31u] * (g / (vec4<f32>(1.0) + exp(-g)));
//#if IN_PLACE
    o[at] = v;
//#end
//#if HALF
    y[group.x * p.ldy + i] = half_values(v);
//#end
  }
//#if Q8
  store_q8(t, group.x, i, v, inside);
//#end
}
