// Parameters and buffers of the tiled products in f32 (matmul.wgsl, matmul_plain.wgsl), behind the planes of the weights.

struct Params {
  n: u32,        // rows of this part
  blocks: u32,   // k / 32
  ldx: u32,      // row stride of x in vec4
  ldy: u32,      // row stride of y in f32
  y_at: u32,     // first column of this part in y
  n_groups: u32, // row groups of 32 in this part
  bias_at: u32,  // first bias of this part
  rows: u32,     // rows of x
  span: u32,     // blocks of one split of k
}

@group(0) @binding({{PLANES}}) var<storage, read> x: array<vec4<f32>>;        // [rows padded to {{BM}}, k]
@group(0) @binding({{PLANES+1}}) var<storage, read_write> y: array<f32>;      // [rows, ldy]; of a split: [split][rows][n]
//#if BIAS
@group(0) @binding({{PLANES+2}}) var<storage, read> bias: array<f32>;         // [n]
@group(0) @binding({{PLANES+3}}) var<uniform> p: Params;
//#else
@group(0) @binding({{PLANES+2}}) var<uniform> p: Params;
//#end
