// A row's block of 32 weights, loaded as whole 16-byte units, and its product with 32 values of x. Loading and multiplying are apart,
// so that several blocks can be in flight. Layout: src/quant/planes.rs.

@group(0) @binding(0) var<storage, read> wq: array<vec4<u32>>;  // quants, 16-byte units
//#if HIGH
//#if BITS == 6
@group(0) @binding({{B_HIGH}}) var<storage, read> wh: array<vec2<u32>>;  // high bits
//#else
@group(0) @binding({{B_HIGH}}) var<storage, read> wh: array<u32>;
//#end
//#end
//#if SCALES
@group(0) @binding({{B_SCALES}}) var<storage, read> ws: array<u32>;  // f16 scales (and minima), raw bits
//#end
//#if SCALES2
@group(0) @binding({{B_SCALES2}}) var<storage, read> w2: array<u32>;  // integer sub-scales
//#end
//#include bits.wgsl

struct Block {
//#for i in 0..UNITS
  q{{i}}: vec4<u32>,
//#end
//#if HIGH
//#if BITS == 6
  high: vec2<u32>,
//#else
  high: u32,
//#end
//#end
//#if SCALES
  scale: u32,
//#end
//#if SCALES2
  scale2: u32,
//#end
}

// 32 consecutive values of x.
struct Values {
//#for i in 0..8
  v{{i}}: vec4<f32>,
//#end
}

fn load_block(row: u32, kb: u32, blocks: u32) -> Block {
  let g = row >> 5u;
  let r = row & 31u;
  let block = g * blocks + kb;
  let b = block * 32u + r;
  var w: Block;
//#for i in 0..UNITS
  w.q{{i}} = wq[(block * {{UNITS}}u + {{i}}u) * 32u + r];
//#end
//#if HIGH
  w.high = wh[b];
//#end
//#if FORM == centred
  w.scale = u16_at(ws[b >> 1u], b);
//#end
//#if FORM == offset
  w.scale = ws[b];
//#end
//#if FORM == super
  w.scale = ws[(g * (blocks >> 3u) + (kb >> 3u)) * 32u + r];
  w.scale2 = u16_at(w2[b >> 1u], b);
//#end
//#if FORM == signed
  let s = (g * (blocks >> 3u) + (kb >> 3u)) * 32u + r;
  w.scale = u16_at(ws[s >> 1u], s);
  w.scale2 = u16_at(w2[b >> 1u], b);
//#end
  return w;
}

fn sum4(v: vec4<f32>) -> f32 {
  return (v.x + v.y) + (v.z + v.w);
}

//#if FORM != plain
// The sum of 32 values, for types with a minimum.
fn sum_of(x: Values) -> f32 {
  return sum4(((x.v0 + x.v1) + (x.v2 + x.v3)) + ((x.v4 + x.v5) + (x.v6 + x.v7)));
}
//#end

//#if PACKED
//#if BITS == 5
fn spread(h: u32) -> u32 {
  return ((h & 1u) | ((h & 2u) << 7u) | ((h & 4u) << 14u) | ((h & 8u) << 21u)) << 4u;
}
//#end
//#if BITS == 6
fn spread(h: u32) -> u32 {
  return ((h & 3u) | ((h & 12u) << 6u) | ((h & 48u) << 12u) | ((h & 192u) << 18u)) << 4u;
}
//#end

// Four quants: those of word j of the unit, low nibbles (values 4 j ..) or high ones (values 16 + 4 j ..).
fn low(w: Block, word: u32, j: u32) -> vec4<f32> {
//#if BITS == 4
  let q = unsigned_bytes(word & 0x0f0f0f0fu);
//#end
//#if BITS == 5
  let q = unsigned_bytes((word & 0x0f0f0f0fu) | spread(w.high >> (4u * j)));
//#end
//#if BITS == 6
  let q = unsigned_bytes((word & 0x0f0f0f0fu) | spread(w.high.x >> (8u * j)));
//#end
//#if FORM == centred
  return q - vec4<f32>({{CENTRE}}.0);
//#else
//#if FORM == signed
  return q - vec4<f32>(32.0);
//#else
  return q;
//#end
//#end
}

fn high(w: Block, word: u32, j: u32) -> vec4<f32> {
//#if BITS == 4
  let q = unsigned_bytes((word >> 4u) & 0x0f0f0f0fu);
//#end
//#if BITS == 5
  let q = unsigned_bytes(((word >> 4u) & 0x0f0f0f0fu) | spread(w.high >> (16u + 4u * j)));
//#end
//#if BITS == 6
  let q = unsigned_bytes(((word >> 4u) & 0x0f0f0f0fu) | spread(w.high.y >> (8u * j)));
//#end
//#if FORM == centred
  return q - vec4<f32>({{CENTRE}}.0);
//#else
//#if FORM == signed
  return q - vec4<f32>(32.0);
//#else
  return q;
//#end
//#end
}
//#end

fn dot_block(w: Block, x: Values) -> f32 {
  var a = vec4<f32>(0.0);
  var b = vec4<f32>(0.0);
//#if TYPE == F32
//#for i in 0..8
  a = fma(bitcast<vec4<f32>>(w.q{{i}}), x.v{{i}}, a);
//#end
  return sum4(a);
//#end
//#if TYPE == F16
//#for i in 0..4
  a = fma(vec4<f32>(half_bits(w.q{{i}}.x & 0xffffu), half_bits(w.q{{i}}.x >> 16u), half_bits(w.q{{i}}.y & 0xffffu), half_bits(w.q{{i}}.y >> 16u)), x.v{{i*2}}, a);
  b = fma(vec4<f32>(half_bits(w.q{{i}}.z & 0xffffu), half_bits(w.q{{i}}.z >> 16u), half_bits(w.q{{i}}.w & 0xffffu), half_bits(w.q{{i}}.w >> 16u)), x.v{{i*2+1}}, b);
//#end
  return sum4(a + b);
//#end
//#if TYPE == BF16
//#for i in 0..4
  a = fma(bitcast<vec4<f32>>(vec4<u32>(w.q{{i}}.x << 16u, w.q{{i}}.x & 0xffff0000u, w.q{{i}}.y << 16u, w.q{{i}}.y & 0xffff0000u)), x.v{{i*2}}, a);
  b = fma(bitcast<vec4<f32>>(vec4<u32>(w.q{{i}}.z << 16u, w.q{{i}}.z & 0xffff0000u, w.q{{i}}.w << 16u, w.q{{i}}.w & 0xffff0000u)), x.v{{i*2+1}}, b);
//#end
  return sum4(a + b);
//#end
//#if BITS == 8
//#for i in 0..4
  a = fma(signed_bytes(w.q0[{{i}}]), x.v{{i}}, a);
  b = fma(signed_bytes(w.q1[{{i}}]), x.v{{i+4}}, b);
//#end
  return half_bits(w.scale) * sum4(a + b);
//#end
//#if PACKED
//#for i in 0..4
  a = fma(low(w, w.q0[{{i}}], {{i}}u), x.v{{i}}, a);
  b = fma(high(w, w.q0[{{i}}], {{i}}u), x.v{{i+4}}, b);
//#end
//#if FORM == centred
  return half_bits(w.scale) * sum4(a + b);
//#end
//#if FORM == offset
  return fma(half_bits(w.scale & 0xffffu), sum4(a + b), half_bits(w.scale >> 16u) * sum_of(x));
//#end
//#if FORM == super
  return (half_bits(w.scale & 0xffffu) * f32(w.scale2 & 255u)) * sum4(a + b) - (half_bits(w.scale >> 16u) * f32(w.scale2 >> 8u)) * sum_of(x);
//#end
//#if FORM == signed
  let d = half_bits(w.scale);
  let first = f32(i32(w.scale2 << 24u) >> 24u);
  let second = f32(i32(w.scale2 << 16u) >> 24u);
  return d * fma(first, sum4(a), second * sum4(b));
//#end
//#end
}
