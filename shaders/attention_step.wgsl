// Attention of a generation step: one query row, so the keys are cut into pieces of 64 at absolute positions, each for a workgroup
// of its own. Here each piece's softmax about its own maximum; attention_join.wgsl joins the pieces.
// A workgroup takes {{H}} query heads of one key head, of size {{D}}.

struct Params {
  heads: u32,
  kv_heads: u32,
  q_stride: u32,  // distance of two query heads in vec4
  position: u32,  // of the query; the keys are 0 ..= position
  chunks: u32,    // workgroups a key head: query heads of a group / {{H}}, rounded up
  scale: f32,
}

@group(0) @binding(0) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> keys: array<vec4<f32>>;    // [slots, kv_heads, D]
@group(0) @binding(2) var<storage, read> values: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> pages: array<u32>;         // pages of 32 keys
@group(0) @binding(4) var<storage, read_write> pieces: array<vec4<f32>>;  // [piece, head, D / 4 + 1]: weighted sum, then (maximum, sum of weights)
@group(0) @binding(5) var<uniform> p: Params;

const D4 = {{D/4}}u;
const VS = {{VS}}u;  // slices of the keys when values are summed
var<workgroup> sq: array<vec4<f32>, {{H*D/4}}>;
var<workgroup> red: array<vec4<f32>, {{RED}}>;     // scores: f32 [head, part 8][key 64 + 1]; sums: [head 2][slice][D4]
var<workgroup> score: array<vec4<f32>, {{H*16}}>;  // [head][key / 4]
var<workgroup> weight: array<vec4<f32>, {{H*16}}>;
var<workgroup> most: array<f32, 4>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
  let piece = group.x;
  let kv = group.y / p.chunks;
  let per = p.heads / p.kv_heads;
  let first = (group.y % p.chunks) * {{H}}u;
  let stride = p.kv_heads * D4;
  // Keys past the query are masked; the page they would lie in may not exist.
  let page0 = pages[piece * 2u];
  let page1 = pages[min(piece * 2u + 1u, p.position >> 5u)];
  for (var i = t; i < {{H*D/4}}u; i += 256u) {
    let head = kv * per + min(first + i / D4, per - 1u);
    sq[i] = q[head * p.q_stride + i % D4];
  }
  let part = t & 7u;
  let key = t >> 3u;
  let at0 = (page0 * 32u + key) * stride + kv * D4 + part;
  let at1 = (page1 * 32u + key) * stride + kv * D4 + part;
//#for i in 0..D/32
  let k0_{{i}} = keys[at0 + {{i*8}}u];
  let k1_{{i}} = keys[at1 + {{i*8}}u];
//#end
  let column = t % D4;
  let slice = min(t / D4, VS - 1u);
//#for k in 0..64/VS
  let key_{{k}} = slice * {{64/VS}}u + {{k}}u;
  let v_{{k}} = values[(select(page0, page1, key_{{k}} >= 32u) * 32u + (key_{{k}} & 31u)) * stride + kv * D4 + column];
//#end
  workgroupBarrier();
//#for h in 0..H
  {
    var a = vec4<f32>(0.0);
    var b = vec4<f32>(0.0);
//#for i in 0..D/32
    {
      let head = sq[{{h}}u * D4 + part + {{i*8}}u];
      a = fma(k0_{{i}}, head, a);
      b = fma(k1_{{i}}, head, b);
    }
//#end
    let to = ({{h*8}}u + part) * 65u + key;
    red[to >> 2u][to & 3u] = (a.x + a.y) + (a.z + a.w);
    red[(to + 32u) >> 2u][(to + 32u) & 3u] = (b.x + b.y) + (b.z + b.w);
  }
//#end
  workgroupBarrier();
  let h = t >> 6u;
  let own = t & 63u;
  var s = -1e30;
  if (h < {{H}}u) {
    var sum = 0.0;
//#for i in 0..8
    {
      let source = (h * 8u + {{i}}u) * 65u + own;
      sum += red[source >> 2u][source & 3u];
    }
//#end
    s = select(-1e30, sum * p.scale, piece * 64u + own <= p.position);
    score[h * 16u + (own >> 2u)][own & 3u] = s;
  }
  workgroupBarrier();
  if (h < {{H}}u) {
    var top = score[h * 16u];
//#for i in 1..16
    top = max(top, score[h * 16u + {{i}}u]);
//#end
    let m = max(max(top.x, top.y), max(top.z, top.w));
    weight[h * 16u + (own >> 2u)][own & 3u] = exp(s - m);
    if (own == 0u) {
      most[h] = m;
    }
  }
  workgroupBarrier();
//#for h in 0..H
  var o_{{h}} = vec4<f32>(0.0);
//#end
//#for k in 0..64/VS
//#for h in 0..H
  o_{{h}} = fma(vec4<f32>(weight[{{h*16}}u + (key_{{k}} >> 2u)][key_{{k}} & 3u]), v_{{k}}, o_{{h}});
//#end
//#end
//#for round in 0..H/TOGETHER
  workgroupBarrier();
  if (t < D4 * VS) {
//#for g in 0..TOGETHER
    red[{{g}}u * D4 * VS + t] = o_{{round*TOGETHER+g}};
//#end
  }
  workgroupBarrier();
  {
    let g = t / D4;
    let head = {{round*TOGETHER}}u + g;
    if (g < {{TOGETHER}}u && first + head < per) {
      var sum = red[g * D4 * VS + column];
      for (var i = 1u; i < VS; i++) {
        sum += red[(g * VS + i) * D4 + column];
      }
      let to = (piece * p.heads + kv * per + first + head) * (D4 + 1u);
      pieces[to + column] = sum;
      if (column == 0u) {
        var l = weight[head * 16u];
        for (var i = 1u; i < 16u; i++) {
          l += weight[head * 16u + i];
        }
        pieces[to + D4] = vec4<f32>(most[head], (l.x + l.y) + (l.z + l.w), 0.0, 0.0);
      }
    }
  }
//#end
}
