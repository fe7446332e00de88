// y[row, i] = silu(g[row, i]) * g[row, n + i]; gate and up stand side by side in g.

struct Params {
  n: u32,    // feed-forward size / 4
  ldg: u32,  // row stride of g in vec4
  ldy: u32,  // row stride of y in vec4
}

@group(0) @binding(0) var<storage, read> g: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> y: array<vec4<f32>>;
@group(0) @binding(2) var<uniform> p: Params;

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
  let i = group.y * 128u + t;
  if (i < p.n) {
    let a = g[group.x * p.ldg + i];
    y[group.x * p.ldy + i] = a / (vec4<f32>(1.0) + exp(-a)) * g[group.x * p.ldg + p.n + i];
  }
}
