// y[i, :] = x[rows[i], :]: the few rows whose logits are wanted, before the last layer's second half.

struct Params {
  n: u32,    // columns / 4
  ldx: u32,  // row stride of x in vec4
  ldy: u32,  // row stride of y in vec4
  row_at: u32,  // first entry of rows
}

@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> rows: array<u32>;
@group(0) @binding(2) var<storage, read_write> y: array<vec4<f32>>;
@group(0) @binding(3) var<uniform> p: Params;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
  let source = rows[p.row_at + group.x] * p.ldx;
  for (var i = t; i < p.n; i += 64u) {
    y[group.x * p.ldy + i] = x[source + i];
  }
}
