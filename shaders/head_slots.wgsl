// logits[row, i] = w[ids[i], :] . h[row, :] for the few vocabulary rows that are answer slots, where they lie in this part.
//#include weight.wgsl

struct Params {
  first: u32,   // first vocabulary row of this part
  count: u32,   // vocabulary rows of this part
  blocks: u32,  // columns / 32
  ldh: u32,     // row stride of h in vec4
  ids: u32,     // number of ids, the row stride of logits
  row_at: u32,  // first row of logits
}

@group(0) @binding({{PLANES}}) var<storage, read> h: array<vec4<f32>>;
@group(0) @binding({{PLANES+1}}) var<storage, read> ids: array<u32>;
@group(0) @binding({{PLANES+2}}) var<storage, read_write> logits: array<f32>;
@group(0) @binding({{PLANES+3}}) var<uniform> p: Params;

var<workgroup> part: array<f32, 64>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
  let token = ids[group.x] - p.first;
  if (token >= p.count) {
    return;
  }
  var c = 0.0;
  for (var i = t; i < p.blocks * 8u; i += 64u) {
    let a = weight4(token, i * 4u, p.blocks);
    let b = h[group.y * p.ldh + i];
    c = fma(a.w, b.w, fma(a.z, b.z, fma(a.y, b.y, fma(a.x, b.x, c))));
  }
  part[t] = c;
  workgroupBarrier();
//#for s in 0..6
  if (t < (32u >> {{s}}u)) {
    part[t] += part[t + (32u >> {{s}}u)];
  }
  workgroupBarrier();
//#end
  if (t == 0u) {
    logits[(p.row_at + group.y) * p.ids + group.x] = part[0];
  }
}
