// Joins the pieces of attention_step.wgsl for each query head: one workgroup a head, {{VS}} slices of the pieces, joined in a fixed order.

struct Params {
  heads: u32,
  pieces: u32,
  q_stride: u32,  // distance of two query heads in vec4
}

@group(0) @binding(0) var<storage, read> pieces: array<vec4<f32>>;  // [piece, head, D / 4 + 1]
//#if GATE
@group(0) @binding(1) var<storage, read> q: array<vec4<f32>>;       // a gate stands behind each query head
//#end
@group(0) @binding({{1+GATE}}) var<storage, read_write> o: array<vec4<f32>>;   // [head, D / 4]
@group(0) @binding({{2+GATE}}) var<uniform> p: Params;

const D4 = {{D/4}}u;
var<workgroup> sums: array<vec4<f32>, {{D/4*VS}}>;
var<workgroup> parts: array<vec2<f32>, {{VS}}>;  // maximum, sum of weights

@compute @workgroup_size({{D/4*VS}})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
  let head = group.x;
  let column = t % D4;
  let slice = t / D4;
  var m = -1e30;
  var l = 0.0;
  var sum = vec4<f32>(0.0);
  for (var i = slice; i < p.pieces; i += {{VS}}u) {
    let at = (i * p.heads + head) * (D4 + 1u);
    let v = pieces[at + column];
    let part = pieces[at + D4];
    let n = max(m, part.x);
    let old = exp(m - n);
    let fresh = exp(part.x - n);
    l = fma(l, old, part.y * fresh);
    sum = fma(sum, vec4<f32>(old), v * fresh);
    m = n;
  }
  sums[t] = sum;
  if (column == 0u) {
    parts[slice] = vec2<f32>(m, l);
  }
  workgroupBarrier();
  if (slice == 0u) {
    var top = parts[0].x;
    for (var i = 1u; i < {{VS}}u; i++) {
      top = max(top, parts[i].x);
    }
    l = 0.0;
    sum = vec4<f32>(0.0);
    for (var i = 0u; i < {{VS}}u; i++) {
      // A slice without pieces has weight exp(-1e30 - top) = 0.
      let f = exp(parts[i].x - top);
      l = fma(parts[i].y, f, l);
      sum = fma(sums[i * D4 + column], vec4<f32>(f), sum);
    }
//#if GATE
    o[head * D4 + column] = sum / l / (vec4<f32>(1.0) + exp(-q[head * p.q_stride + D4 + column]));
//#else
    o[head * D4 + column] = sum / l;
//#end
  }
}
