// The weights of a part as matmul_tensor.wgsl sees them, for the test of their decoding on adapters without matrices:
// y[row, :] = w[row, :], four values in the order 0, 2, 1, 3, times 16. One workgroup of 32 threads a (row group, block).
enable f16;
//#include tensor_weight.wgsl

struct Params {
  blocks: u32,  // columns / 32
}

@group(0) @binding({{PLANES}}) var<storage, read_write> y: array<vec4<f32>>;
@group(0) @binding({{PLANES+1}}) var<uniform> p: Params;

@compute @workgroup_size(32)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) r: u32) {
  let at = ((group.x * 32u + r) * p.blocks + group.y) * 8u;
  for (var h = 0u; h < {{UNITS}}u; h++) {
    let raw = fetch(group.x * p.blocks + group.y, h, r);
    let s = scales(raw, r);
//#for j in 0..FOURS
    y[at + h * {{FOURS}}u + {{j}}u] = vec4<f32>(four_{{j}}(raw, s));
//#end
  }
}
