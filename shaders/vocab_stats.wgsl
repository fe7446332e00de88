// Statistics of one row of full-vocabulary logits: of a part of it for each workgroup, the maximum, the sum of
// exp(logit - maximum) and the first index of the maximum. vocab_join.wgsl joins the parts.

struct Params {
  n: u32,      // vocabulary
  at: u32,     // first logit
  chunk: u32,  // logits a workgroup
}

@group(0) @binding(0) var<storage, read> logits: array<f32>;
@group(0) @binding(1) var<storage, read_write> parts: array<vec4<u32>>;  // maximum, sum, index
@group(0) @binding(2) var<uniform> p: Params;
//#include vocab_reduce.wgsl

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
  var m = -3.4e38;
  var at = 0xffffffffu;
  var s = 0.0;
  let end = min(p.n, (group.x + 1u) * p.chunk);
  for (var i = group.x * p.chunk + t; i < end; i += 256u) {
    let v = logits[p.at + i];
    if (v > m) {
      s = s * exp(m - v) + 1.0;
      m = v;
      at = i;
    } else {
      s += exp(v - m);
    }
  }
  reduce(t, m, at, s);
  if (t == 0u) {
    parts[group.x] = vec4<u32>(bitcast<u32>(best[0]), bitcast<u32>(sum[0]), index[0], 0u);
  }
}
