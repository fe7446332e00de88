// 8-bit blocks of x.

struct Params {
  n: u32,    // columns / 4
  ldx: u32,  // row stride of x in vec4
  mp: u32,   // rows that the 8-bit buffers hold
}

@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(3) var<uniform> p: Params;
//#include q8.wgsl

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
  let i = group.y * 128u + t;
  let inside = i < p.n;
  var v = vec4<f32>(0.0);
  if (inside) {
    v = x[group.x * p.ldx + i];
  }
  store_q8(t, group.x, i, v, inside);
}
