// y[row, :] = x[row, :] as activations of the tensor tier.
//#include half.wgsl

struct Params {
  n: u32,    // columns / 4
  ldx: u32,  // row stride of x in vec4
}

@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> y: array<vec2<u32>>;  // [rows, n]
@group(0) @binding(2) var<uniform> p: Params;

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
  let i = group.y * 128u + t;
  if (i < p.n) {
    y[group.x * p.n + i] = half_values(x[group.x * p.ldx + i]);
  }
}
