// Weight planes of one matrix part and how four consecutive values of a row are read from them (layout: src/quant).
// Rows stand in groups of 32. g = row / 32, r = row % 32, kb = block of 32 values along the row.

//#if WIDE
@group(0) @binding(0) var<storage, read> wq: array<vec4<u32>>;  // quants, 16-byte units
//#else
@group(0) @binding(0) var<storage, read> wq: array<u32>;  // quants, 16-byte units
//#end
//#if HIGH
@group(0) @binding({{B_HIGH}}) var<storage, read> wh: array<u32>;  // high bits
//#end
//#if SCALES
@group(0) @binding({{B_SCALES}}) var<storage, read> ws: array<u32>;  // f16 scales (and minima), raw bits
//#end
//#if SCALES2
@group(0) @binding({{B_SCALES2}}) var<storage, read> w2: array<u32>;  // integer sub-scales
//#end

//#include bits.wgsl

//#if WIDE
//#else
// The values at columns k..k+3 (k a multiple of 4) of a row; `blocks` = columns / 32.
fn weight4(row: u32, k: u32, blocks: u32) -> vec4<f32> {
  let g = row >> 5u;
  let r = row & 31u;
  let kb = k >> 5u;
  let e = k & 31u;
//#if TYPE == F32
  let unit = ((g * blocks + kb) * 8u + (e >> 2u)) * 32u + r;
  return vec4<f32>(bitcast<f32>(wq[unit * 4u]), bitcast<f32>(wq[unit * 4u + 1u]), bitcast<f32>(wq[unit * 4u + 2u]), bitcast<f32>(wq[unit * 4u + 3u]));
//#end
//#if TYPE == F16
  let unit = ((g * blocks + kb) * 4u + (e >> 3u)) * 32u + r;
  let at = unit * 4u + ((e & 7u) >> 1u);
  let a = wq[at];
  let b = wq[at + 1u];
  return vec4<f32>(half_bits(a & 0xffffu), half_bits(a >> 16u), half_bits(b & 0xffffu), half_bits(b >> 16u));
//#end
//#if TYPE == BF16
  let unit = ((g * blocks + kb) * 4u + (e >> 3u)) * 32u + r;
  let at = unit * 4u + ((e & 7u) >> 1u);
  let a = wq[at];
  let b = wq[at + 1u];
  return bitcast<vec4<f32>>(vec4<u32>(a << 16u, a & 0xffff0000u, b << 16u, b & 0xffff0000u));
//#end
//#if BITS == 8
  let b = (g * blocks + kb) * 32u + r;
  let unit = ((g * blocks + kb) * 2u + (e >> 4u)) * 32u + r;
  return signed_bytes(wq[unit * 4u + ((e & 15u) >> 2u)]) * half_bits(u16_at(ws[b >> 1u], b));
//#end
//#if PACKED
  let b = (g * blocks + kb) * 32u + r;
  var q = (wq[b * 4u + ((e & 15u) >> 2u)] >> ((e >> 4u) * 4u)) & 0x0f0f0f0fu;
//#if BITS == 5
  let h = wh[b] >> e;
  q |= ((h & 1u) | ((h & 2u) << 7u) | ((h & 4u) << 14u) | ((h & 8u) << 21u)) << 4u;
//#end
//#if BITS == 6
  let h = wh[b * 2u + (e >> 4u)] >> (2u * (e & 15u));
  q |= ((h & 3u) | ((h & 12u) << 6u) | ((h & 48u) << 12u) | ((h & 192u) << 18u)) << 4u;
//#end
  let v = unsigned_bytes(q);
//#if FORM == centred
  return (v - vec4<f32>({{CENTRE}}.0)) * half_bits(u16_at(ws[b >> 1u], b));
//#end
//#if FORM == offset
  let dm = ws[b];
  return v * half_bits(dm & 0xffffu) + vec4<f32>(half_bits(dm >> 16u));
//#end
//#if FORM == super
  let dm = ws[(g * (blocks >> 3u) + (kb >> 3u)) * 32u + r];
  let sm = u16_at(w2[b >> 1u], b);
  return v * (half_bits(dm & 0xffffu) * f32(sm & 255u)) - vec4<f32>(half_bits(dm >> 16u) * f32(sm >> 8u));
//#end
//#if FORM == signed
  let s = (g * (blocks >> 3u) + (kb >> 3u)) * 32u + r;
  let sm = u16_at(w2[b >> 1u], b);
  let scale = f32(i32(select(sm & 255u, sm >> 8u, e >= 16u) << 24u) >> 24u);
  return (v - vec4<f32>(32.0)) * (half_bits(u16_at(ws[s >> 1u], s)) * scale);
//#end
//#end
}
//#end
