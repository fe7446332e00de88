// Activations of the tensor tier: f16 of a sixteenth (the weights carry the 16), four values in the order 0, 2, 1, 3 as the weights
// come (tensor_weight.wgsl). Up to a million fits; what is larger saturates instead of becoming infinite. A fixed power of two and
// not one a row: f32 sums need none, and a row's smallest values are off by at most 5e-7.
fn half_values(v: vec4<f32>) -> vec2<u32> {
  let c = clamp(v * 0.0625, vec4<f32>(-65504.0), vec4<f32>(65504.0));
  return vec2<u32>(pack2x16float(c.xz), pack2x16float(c.yw));
}
