// y[m, n] (+)= sum over k of x[m, k] * w[n, k] (+ bias[n]) with x in 8-bit blocks: integer dot products inside a block of 32 columns, one
// f32 accumulator an output over the blocks in ascending order, explicit fma. An output's bits depend neither on the tile nor on how many
// rows are in flight; the split of k (grid z) is a function of the weight's shape.
// Tile {{BM}} x {{BN}}, {{TY}} x 16 threads, each {{RM}} x {{RN}} outputs, strided so that workgroup memory is read without conflicts; one
// block of 32 a stage, two stages in workgroup memory. Registers are what is short: a row of w for each thread keeps indices few.
//#include weight.wgsl
//#include weight_bytes.wgsl

struct Params {
  n: u32,        // rows of this part
  blocks: u32,   // k / 32
  mp: u32,       // rows that the buffers of x hold
  ldy: u32,      // row stride of y in f32
  y_at: u32,     // first column of this part in y
  n_groups: u32, // row groups of 32 in this part
  bias_at: u32,  // first bias of this part
  rows: u32,     // rows of x
  span: u32,     // blocks of one split of k
}

@group(0) @binding({{PLANES}}) var<storage, read> x: array<vec4<u32>>;      // [k / 32][mp][2]: int8
@group(0) @binding({{PLANES+1}}) var<storage, read> xs: array<vec2<f32>>;   // [k / 32][mp]: scale, scale * sum of the block
@group(0) @binding({{PLANES+2}}) var<storage, read_write> y: array<f32>;    // [rows, ldy]; of a split: [split][rows][n]
//#if BIAS
@group(0) @binding({{PLANES+3}}) var<storage, read> bias: array<f32>;       // [n]
//#end
@group(0) @binding({{PLANES+3+BIAS}}) var<uniform> p: Params;

// [stage][half of the block][row, four of padding]
var<workgroup> sx: array<vec4<u32>, {{4*(BM+4)}}>;
var<workgroup> sw: array<vec4<u32>, {{4*(BN+4)}}>;
// [stage][row]
//#if PAIR
var<workgroup> dw: array<vec2<f32>, {{2*BN}}>;
//#else
var<workgroup> dw: array<f32, {{2*BN}}>;
//#end
//#if MINIMA
var<workgroup> dx: array<vec2<f32>, {{2*BM}}>;
//#else
var<workgroup> dx: array<f32, {{2*BM}}>;
//#end

//#if FORM == signed
// Half a block; the sum starts at the bits of 1.5 * 2^23, so that it is a float's mantissa and no conversion is needed.
fn dot_half(a: vec4<u32>, b: vec4<u32>) -> f32 {
  var r = 0x4B400000i;
  r += dot4I8Packed(a.x, b.x);
  r += dot4I8Packed(a.y, b.y);
  r += dot4I8Packed(a.z, b.z);
  r += dot4I8Packed(a.w, b.w);
  return bitcast<f32>(r) - 12582912.0;
}
//#else
// A block; the sum starts at the bits of 1.5 * 2^23, so that it is a float's mantissa and no conversion is needed.
fn dot_block(a0: vec4<u32>, a1: vec4<u32>, b0: vec4<u32>, b1: vec4<u32>) -> f32 {
  var r = 0x4B400000i;
  r += dot4I8Packed(a0.x, b0.x);
  r += dot4I8Packed(a0.y, b0.y);
  r += dot4I8Packed(a0.z, b0.z);
  r += dot4I8Packed(a0.w, b0.w);
  r += dot4I8Packed(a1.x, b1.x);
  r += dot4I8Packed(a1.y, b1.y);
  r += dot4I8Packed(a1.z, b1.z);
  r += dot4I8Packed(a1.w, b1.w);
  return bitcast<f32>(r) - 12582912.0;
}
//#end

@compute @workgroup_size({{16*TY}})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
  let m0 = group.x * {{BM}}u;
  let n0 = group.y * {{BN}}u;
  let tx = t & 15u;
  let ty = t >> 4u;
  let last = p.n_groups * 32u - 1u;
//#for i in 0..RM
//#for j in 0..RN
  var c{{i}}_{{j}} = 0.0;
//#end
//#end
  let start = group.z * p.span;
  let stop = min(start + p.span, p.blocks);

  // What this thread brings to a stage: halves of rows of x and of w, and scales of both. Those that not every thread brings are the
  // business of different ones.
  let back = {{16*TY-1}}u - t;
//#for l in 0..XL
  let xu{{l}} = back + {{16*TY*l}}u;
  let xr{{l}} = m0 * 2u + min(xu{{l}}, {{2*BM-1}}u);
//#end
//#if SHARE
  let su = t;
  let sr = weight_row(min(n0 + t, last), p.blocks);
//#for l in 0..WL
  let wu{{l}} = t;
  let half{{l}} = {{l}}u;
  let wr{{l}} = sr;
//#end
//#else
  let su = back;
  let sr = weight_row(min(n0 + back % {{BN}}u, last), p.blocks);
//#for l in 0..WL
  let wu{{l}} = (t + {{16*TY*l}}u) % {{BN}}u;
  let half{{l}} = (t + {{16*TY*l}}u) / {{BN}}u;
  let wr{{l}} = weight_row(min(n0 + wu{{l}}, last), p.blocks);
//#end
//#end
  let er = m0 + t % {{BM}}u;

  // Block kb + 1 goes into the other stage when block kb is multiplied; it was fetched just before that, or (DEEP) one block earlier.
//#for phase in 0..3
//#if phase == 0
  {
    let kn = start;
    let next = kn & 1u;
//#end
//#if phase == 1
  let kn = min(start + 1u, stop - 1u);
//#end
//#if phase == 2
  for (var kb = start; kb < stop; kb++) {
    let kn = min(kb + {{1+DEEP}}u, stop - 1u);
    let next = (kb + 1u) & 1u;
//#end
//#if phase == 1
//#if DEEP
//#for l in 0..XL
  var xv{{l}} = x[kn * p.mp * 2u + xr{{l}}];
//#end
//#for l in 0..WL
  var wv{{l}} = raw_half(wr{{l}}, kn, half{{l}});
//#end
  var sv = raw_scale(sr, kn);
  var ev = xs[kn * p.mp + er];
//#end
//#else
//#for l in 0..XL
    let xn{{l}} = x[kn * p.mp * 2u + xr{{l}}];
//#end
//#for l in 0..WL
    let wn{{l}} = raw_half(wr{{l}}, kn, half{{l}});
//#end
    let sn = raw_scale(sr, kn);
    let en = xs[kn * p.mp + er];
//#end
//#if phase == 2
    workgroupBarrier();
    {
      let stage = kb & 1u;
      let xo = stage * {{2*(BM+4)}}u + ty;
      let wo = stage * {{2*(BN+4)}}u + tx;
//#for i in 0..RM
      let a{{i}}_0 = sx[xo + {{i*TY}}u];
      let a{{i}}_1 = sx[xo + {{i*TY+BM+4}}u];
      let e{{i}} = dx[stage * {{BM}}u + ty + {{i*TY}}u];
//#end
//#for j in 0..RN
      {
        let b0 = sw[wo + {{j*16}}u];
        let b1 = sw[wo + {{j*16+BN+4}}u];
        let f = dw[stage * {{BN}}u + tx + {{j*16}}u];
//#for i in 0..RM
//#if MINIMA
        c{{i}}_{{j}} = fma(e{{i}}.y, f.y, fma(dot_block(a{{i}}_0, a{{i}}_1, b0, b1), e{{i}}.x * f.x, c{{i}}_{{j}}));
//#else
//#if FORM == signed
        c{{i}}_{{j}} = fma(dot_half(a{{i}}_1, b1), e{{i}} * f.y, fma(dot_half(a{{i}}_0, b0), e{{i}} * f.x, c{{i}}_{{j}}));
//#else
        c{{i}}_{{j}} = fma(dot_block(a{{i}}_0, a{{i}}_1, b0, b1), e{{i}} * f, c{{i}}_{{j}});
//#end
//#end
//#end
      }
//#end
    }
//#end
//#if phase != 1
    {
      // What goes into the stage: in a deep loop what was fetched one block before.
//#if phase == 0
//#for l in 0..XL
      let xp{{l}} = xn{{l}};
//#end
//#for l in 0..WL
      let wp{{l}} = wn{{l}};
//#end
      let sp = sn;
      let ep = en;
//#else
//#for l in 0..XL
      let xp{{l}} = {{OLD_X}}{{l}};
//#end
//#for l in 0..WL
      let wp{{l}} = {{OLD_W}}{{l}};
//#end
      let sp = {{OLD_S}};
      let ep = {{OLD_E}};
//#end
//#for l in 0..XL
      if (xu{{l}} < {{2*BM}}u) {
        sx[(next * 2u + (xu{{l}} & 1u)) * {{BM+4}}u + (xu{{l}} >> 1u)] = xp{{l}};
      }
//#end
//#for l in 0..WL
      sw[(next * 2u + half{{l}}) * {{BN+4}}u + wu{{l}}] = half_bytes(wp{{l}}, half{{l}});
//#end
//#if SHARE
      dw[next * {{BN}}u + su] = scale_values(sp);
//#else
      if (su < {{BN}}u) {
        dw[next * {{BN}}u + su] = scale_values(sp);
      }
//#end
      if (t < {{BM}}u) {
//#if MINIMA
        dx[next * {{BM}}u + t] = ep;
//#else
        dx[next * {{BM}}u + t] = ep.x;
//#end
      }
    }
//#if phase == 2
//#if DEEP
//#for l in 0..XL
    xv{{l}} = xn{{l}};
//#end
//#for l in 0..WL
    wv{{l}} = wn{{l}};
//#end
    sv = sn;
    ev = en;
//#end
//#end
  }
//#end
//#end

//#for i in 0..RM
  {
    let m = m0 + ty + {{i*TY}}u;
    if (m < p.rows) {
//#if PARTS
      let at = (group.z * p.rows + m) * p.n;
//#else
      let at = m * p.ldy + p.y_at;
//#end
//#for j in 0..RN
      {
        let n = n0 + tx + {{j*16}}u;
        if (n < p.n) {
          var v = c{{i}}_{{j}};
//#if BIAS
          v += bias[p.bias_at + n];
//#end
//#if ADD
          v += y[at + n];
//#end
          y[at + n] = v;
        }
      }
//#end
    }
  }
//#end
}
