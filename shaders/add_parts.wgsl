// y[m, y_at + n] = (y[m, y_at + n]) + parts[0][m, n] + parts[1][m, n] + ... (+ bias[n]), always in this order: the end of a product whose k
// was split. rms_norm.wgsl can do it too.

struct Params {
  n: u32,       // columns of the parts
  rows: u32,
  split: u32,
  ldy: u32,     // row stride of y
  y_at: u32,    // first column in y
  bias_at: u32, // first bias
}

@group(0) @binding(0) var<storage, read> parts: array<f32>;       // [split][rows][n]
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
//#if BIAS
@group(0) @binding(2) var<storage, read> bias: array<f32>;
//#end
@group(0) @binding({{2+BIAS}}) var<uniform> p: Params;

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
  let n = group.y * 128u + t;
  if (n < p.n) {
    let m = group.x;
    let at = m * p.ldy + p.y_at + n;
//#if ADD
    var v = y[at] + parts[m * p.n + n];
//#else
    var v = parts[m * p.n + n];
//#end
    for (var s = 1u; s < p.split; s++) {
      v += parts[(s * p.rows + m) * p.n + n];
    }
//#if BIAS
    v += bias[p.bias_at + n];
//#end
    y[at] = v;
  }
}
