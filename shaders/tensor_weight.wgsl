// Weight planes of one matrix part (layout: src/quant) as f16, four values at a time, for the cooperative matrix kernels.
// Every value is multiplied by 16, as the f16 activations are divided by 16 (half.wgsl): scales that are subnormal in the file
// become normal, activations up to a million fit, and products are unchanged. The four values come in the order 0, 2, 1, 3:
// that is how a byte mask finds them, and the f16 activations are stored in the same order.
// The includer says `enable f16;`.

@group(0) @binding(0) var<storage, read> wq: array<vec4<u32>>;  // quants
//#if HIGH
//#if BITS == 6
@group(0) @binding({{B_HIGH}}) var<storage, read> wh: array<vec2<u32>>;  // high bits of both halves of a block
//#else
@group(0) @binding({{B_HIGH}}) var<storage, read> wh: array<u32>;  // high bits of a block
//#end
//#end
//#if SCALES
@group(0) @binding({{B_SCALES}}) var<storage, read> ws: array<u32>;  // f16 scales (and minima)
//#end
//#if SCALES2
@group(0) @binding({{B_SCALES2}}) var<storage, read> w2: array<u32>;  // integer sub-scales
//#end

// A 16-byte unit of quants ({{UNITS}} in a block of 32 values) and what belongs to it, as loaded: nothing is computed from it
// before it is stored to workgroup memory, so that the loads stay in flight meanwhile.
struct Raw {
  q: vec4<u32>,
  h: vec2<u32>,
  s: u32,
  m: u32,
}

// Unit `h` of row `r` of a row group in `block` = group * (columns / 32) + block in the row.
fn fetch(block: u32, h: u32, r: u32) -> Raw {
  var raw: Raw;
  let b = block * 32u + r;
  raw.q = wq[block * {{UNITS*32}}u + h * 32u + r];
//#if HIGH
//#if BITS == 6
  raw.h = wh[b];
//#else
  raw.h.x = wh[b];
//#end
//#end
//#if FORM == centred
  raw.s = ws[b >> 1u];
//#end
//#if FORM == offset
  raw.s = ws[b];
//#end
//#if FORM == super
  raw.s = ws[(block >> 3u) * 32u + r];
  raw.m = w2[b >> 1u];
//#end
//#if FORM == signed
  raw.s = ws[((block >> 3u) * 32u + r) >> 1u];
  raw.m = w2[b >> 1u];
//#end
  return raw;
}

// Two f16 from their bits: there is no bitcast<vec2<f16>>(u32) yet, and compilers fold this to nothing.
fn half2(bits: u32) -> vec2<f16> {
  return vec2<f16>(unpack2x16float(bits));
}

fn half4(a: u32, b: u32) -> vec4<f16> {
  return vec4<f16>(half2(a), half2(b));
}

// What turns integers into 16 times the values, by form:
// centred: scale; offset: scale, summand; signed (Q6_K): the scales of both halves;
// super (Q4_K, Q5_K): sub-scale, -1024 sub-scale, d, summand. Their sub-scale times the integer is exact in f16, so that each value is
// rounded once. A rounded product of both scales would be off in the same direction for 32 values, and by as much as the summand is large.
fn scales(raw: Raw, r: u32) -> vec4<f16> {
//#if FORM == plain
  return vec4<f16>(16.0h);
//#end
//#if FORM == centred
  let d = half2(raw.s);
  return vec4<f16>(select(d.x, d.y, (r & 1u) == 1u) * 16.0h);
//#end
//#if FORM == offset
  let d = half2(raw.s) * 16.0h;
  return vec4<f16>(d, d);
//#end
//#if FORM == super
  let d = half2(raw.s) * 16.0h;
  let sm = raw.m >> ((r & 1u) * 16u);
  let n = half2((sm & 255u) | ((sm & 0xff00u) << 8u) | 0x64006400u) - vec2<f16>(1024.0h);
  return vec4<f16>(n.x, n.x * -1024.0h, d.x, d.y * -n.y);
//#end
//#if FORM == signed
  let d = half2(raw.s);
  let sm = raw.m >> ((r & 1u) * 16u);
  let n = half2(((sm & 255u) | ((sm & 0xff00u) << 8u)) ^ 0x64806480u) - vec2<f16>(1152.0h);
  let s = n * (select(d.x, d.y, (r & 1u) == 1u) * 16.0h);
  return vec4<f16>(s, s);
//#end
}

// Values 4 j to 4 j + 3 of the unit (packed types: of the block), in the order 0, 2, 1, 3. Integers become f16 without a
// conversion: 0x6400 | u is the number 1024 + u.
//#for j in 0..FOURS
fn four_{{j}}(raw: Raw, s: vec4<f16>) -> vec4<f16> {
//#if BITS == 32
  return vec4<f16>(clamp(bitcast<vec4<f32>>(raw.q).xzyw * 16.0, vec4<f32>(-65504.0), vec4<f32>(65504.0)));
//#end
//#if BITS == 16
  let a = raw.q[{{j*2}}];
  let b = raw.q[{{j*2+1}}];
//#if TYPE == BF16
  let v = bitcast<vec4<f32>>(vec4<u32>(a << 16u, b << 16u, a & 0xffff0000u, b & 0xffff0000u));
  return vec4<f16>(clamp(v * 16.0, vec4<f32>(-65504.0), vec4<f32>(65504.0)));
//#else
  let v = half4((a & 0xffffu) | (b << 16u), (a >> 16u) | (b & 0xffff0000u));
  return clamp(v * 16.0h, vec4<f16>(-65504.0h), vec4<f16>(65504.0h));
//#end
//#end
//#if BITS == 8
  let q = raw.q[{{j}}];
  return (half4((q & 0x00ff00ffu) ^ 0x64806480u, ((q >> 8u) & 0x00ff00ffu) ^ 0x64806480u) - vec4<f16>(1152.0h)) * s.x;
//#end
//#if PACKED
  let q = raw.q[{{j%4}}] >> {{j/4*4}}u;
//#if BITS == 4
  let v = half4((q & 0x000f000fu) | 0x64006400u, ((q >> 8u) & 0x000f000fu) | 0x64006400u);
//#end
//#if BITS == 5
  // Four bits to bit 4 of four bytes: the copies of the product do not meet.
  let u = (q & 0x0f0f0f0fu) | ((((raw.h.x >> {{j*4}}u) & 15u) * 0x02040810u) & 0x10101010u);
  let v = half4((u & 0x00ff00ffu) | 0x64006400u, ((u >> 8u) & 0x00ff00ffu) | 0x64006400u);
//#end
//#if BITS == 6
  // Four pairs of bits: those of values 2 and 3 beside those of 0 and 1, in the upper half.
  let byte = (raw.h[{{j/4}}] >> {{j%4*8}}u) & 255u;
  let u = byte | (byte << 12u);
  let v = half4((q & 0x000f000fu) | ((u << 4u) & 0x00300030u) | 0x64006400u, ((q >> 8u) & 0x000f000fu) | ((u << 2u) & 0x00300030u) | 0x64006400u);
//#end
//#if FORM == centred
  return (v - vec4<f16>({{1024+CENTRE}}.0h)) * s.x;
//#end
//#if FORM == offset
  return fma(v - vec4<f16>(1024.0h), vec4<f16>(s.x), vec4<f16>(s.y));
//#end
//#if FORM == super
  return fma(fma(v, vec4<f16>(s.x), vec4<f16>(s.y)), vec4<f16>(s.z), vec4<f16>(s.w));
//#end
//#if FORM == signed
  return (v - vec4<f16>(1056.0h)) * s[{{j/4}}];
//#end
//#end
}
//#end
