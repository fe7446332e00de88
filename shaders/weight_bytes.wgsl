// Weights as signed bytes with scales: what integer products read. Needs weight.wgsl with WIDE set. All forms come down to
// value = scale * byte (+ minimum), with one scale for 32 values, or one for each 16 (form `signed`).

// Where a row's block 0 stands: b in units of blocks, s in units of super-blocks of 256 values.
struct RowAt {
  b: u32,
  s: u32,
}

struct RawHalf {
  q: vec4<u32>,
  high: u32,
}

struct RawScale {
  d: u32,
  sub: u32,
}

fn weight_row(row: u32, blocks: u32) -> RowAt {
  return RowAt((row >> 5u) * blocks * 32u + (row & 31u), (row >> 5u) * (blocks >> 3u) * 32u + (row & 31u));
}

// The stored bits of values 16 half .. 16 half + 15 of block kb (of the whole block, where both halves share 16 bytes).
fn raw_half(at: RowAt, kb: u32, half: u32) -> RawHalf {
  let b = at.b + kb * 32u;
//#if BITS == 8
  return RawHalf(wq[2u * b - (b & 31u) + half * 32u], 0u);
//#end
//#if BITS == 4
  return RawHalf(wq[b], 0u);
//#end
//#if BITS == 5
  return RawHalf(wq[b], wh[b]);
//#end
//#if BITS == 6
  return RawHalf(wq[b], wh[b * 2u + half]);
//#end
}

// The same 16 values as bytes, without scale.
fn half_bytes(raw: RawHalf, half: u32) -> vec4<u32> {
//#if BITS == 8
  return raw.q;
//#else
  var v = (raw.q >> vec4<u32>(half * 4u)) & vec4<u32>(0x0f0f0f0fu);
//#if BITS == 5
  // Four bits to four bytes: the copies of the factor do not meet.
  let bits = (vec4<u32>(raw.high >> (half * 16u)) >> vec4<u32>(0u, 4u, 8u, 12u)) & vec4<u32>(15u);
  v |= ((bits * 0x00204081u) & vec4<u32>(0x01010101u)) << vec4<u32>(4u);
//#end
//#if BITS == 6
  let pairs = (vec4<u32>(raw.high) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(255u);
  v |= ((pairs & vec4<u32>(3u)) | ((pairs & vec4<u32>(12u)) << vec4<u32>(6u))
    | ((pairs & vec4<u32>(48u)) << vec4<u32>(12u)) | ((pairs & vec4<u32>(192u)) << vec4<u32>(18u))) << vec4<u32>(4u);
//#end
//#if CENTRE != 0
  // Byte by byte minus {{CENTRE}}: with the top bits set nothing borrows.
  v = ((v | vec4<u32>(0x80808080u)) - vec4<u32>({{CENTRE*16843009}}u)) ^ vec4<u32>(0x80808080u);
//#end
  return v;
//#end
}

fn raw_scale(at: RowAt, kb: u32) -> RawScale {
  let b = at.b + kb * 32u;
//#if FORM == centred
  return RawScale(u16_at(ws[b >> 1u], b), 0u);
//#end
//#if FORM == offset
  return RawScale(ws[b], 0u);
//#end
//#if FORM == super
  return RawScale(ws[at.s + (kb >> 3u) * 32u], u16_at(w2[b >> 1u], b));
//#end
//#if FORM == signed
  let s = at.s + (kb >> 3u) * 32u;
  return RawScale(u16_at(ws[s >> 1u], s), u16_at(w2[b >> 1u], b));
//#end
}

//#if FORM == centred
// The scale.
fn scale_values(raw: RawScale) -> f32 {
  return half_bits(raw.d);
}
//#end
//#if FORM == offset
// Scale and minimum.
fn scale_values(raw: RawScale) -> vec2<f32> {
  return vec2<f32>(half_bits(raw.d & 0xffffu), half_bits(raw.d >> 16u));
}
//#end
//#if FORM == super
// Scale and minimum.
fn scale_values(raw: RawScale) -> vec2<f32> {
  return vec2<f32>(half_bits(raw.d & 0xffffu) * f32(raw.sub & 255u), -(half_bits(raw.d >> 16u) * f32(raw.sub >> 8u)));
}
//#end
//#if FORM == signed
// The scales of both halves.
fn scale_values(raw: RawScale) -> vec2<f32> {
  return half_bits(raw.d) * vec2<f32>(f32(i32(raw.sub << 24u) >> 24u), f32(i32(raw.sub << 16u) >> 24u));
}
//#end
