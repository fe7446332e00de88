// x[row, :] = dequantised row tokens[row] of the embedding matrix, for the tokens that lie in this part of it.
//#include weight.wgsl

struct Params {
  first: u32,     // first vocabulary row of this part
  count: u32,     // vocabulary rows of this part
  blocks: u32,    // columns / 32
  ldx: u32,       // row stride of x in vec4
  token_at: u32,  // first entry of tokens
}

@group(0) @binding({{PLANES}}) var<storage, read> tokens: array<u32>;
@group(0) @binding({{PLANES+1}}) var<storage, read_write> x: array<vec4<f32>>;
@group(0) @binding({{PLANES+2}}) var<uniform> p: Params;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
  let row = group.x;
  let token = tokens[p.token_at + row] - p.first;
  if (token >= p.count) {
    return;
  }
  for (var c = t; c < p.blocks * 8u; c += 64u) {
    x[row * p.ldx + c] = weight4(token, c * 4u, p.blocks);
  }
}
