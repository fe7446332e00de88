// The convolution state after a segment: the last three inputs of each channel, oldest first. One thread a channel, which reads
// all it needs before it writes, so that a segment may keep its slot.

struct Params {
  ld: u32,        // row stride of the input in f32
  channels: u32,
}

struct Segment {
  row: u32,
  rows: u32,
  state_in: u32,
  state_out: u32,  // 0xffffffff: the state is not kept
}

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> segments: array<Segment>;
@group(0) @binding(2) var<storage, read_write> states: array<f32>;  // [slots, 3, channels]
@group(0) @binding(3) var<uniform> p: Params;

fn input(row: i32, s: Segment, channel: u32) -> f32 {
  if (row >= 0) {
    return x[(s.row + u32(row)) * p.ld + channel];
  }
  if (s.state_in == 0xffffffffu) {
    return 0.0;
  }
  return states[(s.state_in * 3u + u32(row + 3)) * p.channels + channel];
}

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
  let s = segments[group.y];
  if (s.state_out == 0xffffffffu) {
    return;
  }
  let channel = group.x * 128u + t;
  let n = i32(s.rows);
  let a = input(n - 3, s, channel);
  let b = input(n - 2, s, channel);
  let c = input(n - 1, s, channel);
  let to = s.state_out * 3u * p.channels + channel;
  states[to] = a;
  states[to + p.channels] = b;
  states[to + 2u * p.channels] = c;
}
