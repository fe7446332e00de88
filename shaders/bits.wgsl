// How raw weight bits become f32; every kernel that reads planes includes it.

// Exact f16 bits -> f32. unpack2x16float may flush subnormals to zero, and real files are full of them.
fn half_bits(h: u32) -> f32 {
  let x = (h & 0x7fffu) << 13u;
  let normal = bitcast<f32>(x + 0x38000000u);
  let subnormal = bitcast<f32>(x + 0x38800000u) - bitcast<f32>(0x38800000u);
  let v = select(normal, subnormal, x < 0x00800000u);
  return select(v, -v, (h & 0x8000u) != 0u);
}

fn u16_at(word: u32, index: u32) -> u32 {
  return (word >> ((index & 1u) * 16u)) & 0xffffu;
}

fn signed_bytes(w: u32) -> vec4<f32> {
  return vec4<f32>(vec4<i32>(i32(w << 24u), i32(w << 16u), i32(w << 8u), i32(w)) >> vec4<u32>(24u));
}

fn unsigned_bytes(w: u32) -> vec4<f32> {
  return vec4<f32>(vec4<u32>(w & 255u, (w >> 8u) & 255u, (w >> 16u) & 255u, w >> 24u));
}
