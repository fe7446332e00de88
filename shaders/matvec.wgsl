// y[n] (+)= sum over k of x[k] * w[n, k] (+ bias[n]) for a single row x: generation, and full-vocabulary logits of one row.
// A workgroup takes {{R}} rows of w and cuts k into {{256/R}} slices, a block of 32 values each in turn; they are joined in a fixed order.
//#if NORM
// NORM: x stands for RMSNorm(x) * norm. The row's scale is known only when all of x is, so it multiplies the finished sums.
//#end
//#if PAIR
// PAIR: rows n and p.up + n of w are gate and up; what is stored is silu(gate) * up.
//#end
//#include weight_dot.wgsl

struct Params {
  n: u32,        // rows of this part (with PAIR: pairs)
  blocks: u32,   // k / 32
  x_at: u32,     // first vec4 of x
  y_at: u32,     // first f32 of y for this part
  groups_x: u32, // workgroups in the x dimension of the grid (the grid is folded)
  bias_at: u32,  // first bias of this part
  up: u32,       // first row of up
  eps: f32,
}

@group(0) @binding({{PLANES}}) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding({{PLANES+1}}) var<storage, read_write> y: array<f32>;
//#if BIAS
@group(0) @binding({{PLANES+2}}) var<storage, read> bias: array<f32>;
//#end
//#if NORM
@group(0) @binding({{PLANES+2+BIAS}}) var<storage, read> norm: array<vec4<f32>>;
//#end
@group(0) @binding({{PLANES+2+BIAS+NORM}}) var<uniform> p: Params;

var<workgroup> part: array<f32, 256>;
var<workgroup> part2: array<f32, 64>;
//#if PAIR
var<workgroup> upper: array<f32, 256>;
var<workgroup> upper2: array<f32, 64>;
//#end
//#if NORM
var<workgroup> sx: array<vec4<f32>, {{NORM_COLS/4}}>;
var<workgroup> square: array<f32, 256>;
var<workgroup> square2: array<vec4<f32>, 16>;
//#end

fn values(kb: u32) -> Values {
  var v: Values;
//#for i in 0..8
//#if NORM
  v.v{{i}} = sx[kb * 8u + {{i}}u];
//#else
  v.v{{i}} = x[p.x_at + kb * 8u + {{i}}u];
//#end
//#end
  return v;
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
  let row = (group.y * p.groups_x + group.x) * {{R}}u + t % {{R}}u;
  let slice = t / {{R}}u;
  let inside = row < p.n;
  let last = p.blocks - 1u;
  // Rows past the end read the last row and store nothing.
  let source = min(row, p.n - 1u);
//#for u in 0..DEEP
  var w{{u}} = load_block(source, min(slice + {{u*(256/R)}}u, last), p.blocks);
//#if PAIR
  var u{{u}} = load_block(p.up + source, min(slice + {{u*(256/R)}}u, last), p.blocks);
//#end
//#end
//#if NORM
  var ss = 0.0;
  for (var i = t; i < p.blocks * 8u; i += 256u) {
    let v = x[p.x_at + i];
    ss = fma(v.x, v.x, ss);
    ss = fma(v.y, v.y, ss);
    ss = fma(v.z, v.z, ss);
    ss = fma(v.w, v.w, ss);
    sx[i] = v * norm[i];
  }
  square[t] = ss;
  workgroupBarrier();
//#end
  var c = 0.0;
//#if PAIR
  var d = 0.0;
//#end
  var kb = slice;
  while (kb < p.blocks) {
//#for u in 0..DEEP
    if (kb + {{u*(256/R)}}u < p.blocks) {
      let v = values(kb + {{u*(256/R)}}u);
      c += dot_block(w{{u}}, v);
//#if PAIR
      d += dot_block(u{{u}}, v);
//#end
    }
//#end
    kb += {{DEEP*(256/R)}}u;
    if (kb < p.blocks) {
//#for u in 0..DEEP
      w{{u}} = load_block(source, min(kb + {{u*(256/R)}}u, last), p.blocks);
//#if PAIR
      u{{u}} = load_block(p.up + source, min(kb + {{u*(256/R)}}u, last), p.blocks);
//#end
//#end
    }
  }
  part[t] = c;
//#if PAIR
  upper[t] = d;
//#end
  workgroupBarrier();
  if (t < 64u) {
    let at = (t / {{R}}u) * {{4*R}}u + t % {{R}}u;
    part2[t] = (part[at] + part[at + {{R}}u]) + (part[at + {{2*R}}u] + part[at + {{3*R}}u]);
//#if PAIR
    upper2[t] = (upper[at] + upper[at + {{R}}u]) + (upper[at + {{2*R}}u] + upper[at + {{3*R}}u]);
//#end
//#if NORM
    square2[t >> 2u][t & 3u] = (square[t] + square[t + 64u]) + (square[t + 128u] + square[t + 192u]);
//#end
  }
  workgroupBarrier();
  if (t < {{R}}u && inside) {
    var v = part2[t];
//#for s in 1..64/R
    v += part2[t + {{s*R}}u];
//#end
//#if PAIR
    var up = upper2[t];
//#for s in 1..64/R
    up += upper2[t + {{s*R}}u];
//#end
//#end
//#if NORM
    var sum = square2[0];
//#for s in 1..16
    sum += square2[{{s}}];
//#end
    let scale = 1.0 / sqrt(sum4(sum) / f32(p.blocks * 32u) + p.eps);
    v *= scale;
//#if PAIR
    up *= scale;
//#end
//#end
//#if BIAS
    v += bias[p.bias_at + row];
//#end
//#if PAIR
    v = v / (1.0 + exp(-v)) * up;
//#end
//#if ADD
    v += y[p.y_at + row];
//#end
    y[p.y_at + row] = v;
  }
}
