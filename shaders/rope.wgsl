// After the q|k|v projection, for each row and head: RMSNorm of the head (q and k, if the model has it), RoPE, then q stays in
// place, k and v go to their cache slots. One workgroup a (row, head); heads run q, k, v.

struct Params {
  heads: u32,     // query heads
  kv_heads: u32,
  head_dim: u32,
  rotated: u32,   // dimensions that RoPE turns (the first ones of a head)
  ld: u32,        // row stride of qkv in f32
  q_stride: u32,  // distance of two query heads in f32
  k_at: u32,      // first column of k
  v_at: u32,      // first column of v
  row_at: u32,    // first entry of rows
  eps: f32,
}

struct Row {
  position: u32,
  slot: u32,  // row of the key and value caches
}

@group(0) @binding(0) var<storage, read_write> qkv: array<f32>;  // [rows, ld]
@group(0) @binding(1) var<storage, read> rows: array<Row>;
@group(0) @binding(2) var<storage, read> turns: array<vec2<f32>>;  // [positions, rotated / 2] cosine and sine
@group(0) @binding(3) var<storage, read_write> keys: array<f32>;    // [slots, kv_heads * head_dim]
@group(0) @binding(4) var<storage, read_write> values: array<f32>;
//#if QK_NORM
@group(0) @binding(5) var<storage, read> q_norm: array<f32>;
@group(0) @binding(6) var<storage, read> k_norm: array<f32>;
@group(0) @binding(7) var<uniform> p: Params;
//#else
@group(0) @binding(5) var<uniform> p: Params;
//#end

var<workgroup> head: array<f32, 256>;
var<workgroup> part: array<f32, 64>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
  let row = rows[p.row_at + group.x];
  let at = group.x * p.ld;
  let out = row.slot * p.kv_heads * p.head_dim;
  let h = group.y;
  if (h >= p.heads + p.kv_heads) {
    let kv = h - p.heads - p.kv_heads;
    for (var i = t; i < p.head_dim; i += 64u) {
      values[out + kv * p.head_dim + i] = qkv[at + p.v_at + kv * p.head_dim + i];
    }
    return;
  }
  let is_key = h >= p.heads;
  let source = at + select(h * p.q_stride, p.k_at + (h - p.heads) * p.head_dim, is_key);
//#if QK_NORM
  var c = 0.0;
  for (var i = t; i < p.head_dim; i += 64u) {
    let v = qkv[source + i];
    c = fma(v, v, c);
  }
  part[t] = c;
  workgroupBarrier();
//#for s in 0..6
  if (t < (32u >> {{s}}u)) {
    part[t] += part[t + (32u >> {{s}}u)];
  }
  workgroupBarrier();
//#end
  let scale = 1.0 / sqrt(part[0] / f32(p.head_dim) + p.eps);
  for (var i = t; i < p.head_dim; i += 64u) {
    head[i] = qkv[source + i] * scale * select(q_norm[i], k_norm[i], is_key);
  }
//#else
  for (var i = t; i < p.head_dim; i += 64u) {
    head[i] = qkv[source + i];
  }
//#end
  workgroupBarrier();
  let half = p.rotated >> 1u;
  for (var i = t; i < p.head_dim; i += 64u) {
    var v = head[i];
    if (i < p.rotated) {
//#if PAIRS == adjacent
      let pair = i >> 1u;
      let first = (i & 1u) == 0u;
      let other = head[i ^ 1u];
//#else
      let pair = select(i, i - half, i >= half);
      let first = i < half;
      let other = head[select(i + half, i - half, i >= half)];
//#end
      let turn = turns[row.position * half + pair];
      v = select(fma(v, turn.x, other * turn.y), fma(v, turn.x, -(other * turn.y)), first);
    }
    if (is_key) {
      keys[out + (h - p.heads) * p.head_dim + i] = v;
    } else {
      qkv[source + i] = v;
    }
  }
}
