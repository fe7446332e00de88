// Causal attention with grouped queries: o = softmax(q k^T * scale) v, online over tiles of 32 keys that lie at absolute
// positions 32 j .. 32 j + 31, so that a row's bits do not depend on its company. A workgroup takes one KV head and up to
// 32 packed rows (position, query head of the group). Keys and values are read page by page (a page = one tile).
// Head size {{D}}; 128 threads = 16 row pairs x 8; each thread holds 2 rows x {{D/8}} output dimensions.

struct Params {
  heads: u32,
  kv_heads: u32,
  ld: u32,        // row stride of q in vec4
  q_stride: u32,  // distance of two query heads in vec4
  ldo: u32,       // row stride of o in vec4
  tile_at: u32,   // first entry of tiles
  scale: f32,
}

struct Tile {
  q_row: u32,     // first row of q
  o_row: u32,     // first row of o
  positions: u32, // positions in this tile (1 ..= 32 / group)
  position: u32,  // absolute position of the first one
  page_at: u32,   // first entry of pages for this sequence
}

@group(0) @binding(0) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> keys: array<vec4<f32>>;    // [slots, kv_heads, D]
@group(0) @binding(2) var<storage, read> values: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> tiles: array<Tile>;
@group(0) @binding(4) var<storage, read> pages: array<u32>;
@group(0) @binding(5) var<storage, read_write> o: array<vec4<f32>>;
@group(0) @binding(6) var<uniform> p: Params;

const D4 = {{D/4}}u;
var<workgroup> sq: array<vec4<f32>, 264>;  // [dimension / 4, 8][row 32 + 1]
var<workgroup> sk: array<vec4<f32>, 264>;  // keys: [dimension / 4, 8][key 32 + 1]; values: [key 32][dimension / 4, 8]
var<workgroup> sp: array<f32, 1056>;       // [row 32][key 32 + 1]
var<workgroup> red: array<f32, 256>;       // [row 32][8]

fn dot4(a: vec4<f32>, b: vec4<f32>, c: f32) -> f32 {
  return fma(a.w, b.w, fma(a.z, b.z, fma(a.y, b.y, fma(a.x, b.x, c))));
}

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
  let tile = tiles[p.tile_at + group.x];
  let kv = group.y;
  let per = p.heads / p.kv_heads;
  let count = tile.positions * per;
  let tx = t & 7u;
  let ty = t >> 3u;
  let r0 = ty * 2u;
  let r1 = r0 + 1u;
  let p0 = tile.position + r0 / per;
  let p1 = tile.position + r1 / per;
//#for c in 0..D/32
  var o0_{{c}} = vec4<f32>(0.0);
  var o1_{{c}} = vec4<f32>(0.0);
//#end
  var m0 = -1e30;
  var m1 = -1e30;
  var l0 = 0.0;
  var l1 = 0.0;
  let stride = p.kv_heads * D4;
  let last = tile.position + tile.positions - 1u;
  for (var j = 0u; j <= (last >> 5u); j++) {
    let base = pages[tile.page_at + j] * 32u * stride + kv * D4;
//#for i in 0..4
    var s0_{{i}} = 0.0;
    var s1_{{i}} = 0.0;
//#end
    for (var d = 0u; d < {{D/32}}u; d++) {
      workgroupBarrier();
      for (var u = t; u < 256u; u += 128u) {
        let r = u >> 3u;
        let c = u & 7u;
        // Rows past the tile's end repeat the last one; nothing is stored for them.
        let row = min(r, count - 1u);
        let head = kv * per + row % per;
        sq[c * 33u + r] = q[(tile.q_row + row / per) * p.ld + head * p.q_stride + d * 8u + c];
        sk[c * 33u + r] = keys[base + r * stride + d * 8u + c];
      }
      workgroupBarrier();
      for (var c = 0u; c < 8u; c++) {
        let a0 = sq[c * 33u + r0];
        let a1 = sq[c * 33u + r1];
//#for i in 0..4
        {
          let b = sk[c * 33u + tx + {{i*8}}u];
          s0_{{i}} = dot4(a0, b, s0_{{i}});
          s1_{{i}} = dot4(a1, b, s1_{{i}});
        }
//#end
      }
    }
//#for i in 0..4
    {
      let key = j * 32u + tx + {{i*8}}u;
      s0_{{i}} = select(-1e30, s0_{{i}} * p.scale, key <= p0);
      s1_{{i}} = select(-1e30, s1_{{i}} * p.scale, key <= p1);
    }
//#end
    red[r0 * 8u + tx] = max(max(s0_0, s0_1), max(s0_2, s0_3));
    red[r1 * 8u + tx] = max(max(s1_0, s1_1), max(s1_2, s1_3));
    workgroupBarrier();
    var n0 = m0;
    var n1 = m1;
//#for i in 0..8
    n0 = max(n0, red[r0 * 8u + {{i}}u]);
    n1 = max(n1, red[r1 * 8u + {{i}}u]);
//#end
    workgroupBarrier();
    // A row whose keys in this tile are all masked keeps its maximum; exp(-1e30 - m) is exactly zero.
//#for i in 0..4
    let e0_{{i}} = exp(s0_{{i}} - n0);
    let e1_{{i}} = exp(s1_{{i}} - n1);
    sp[r0 * 33u + tx + {{i*8}}u] = e0_{{i}};
    sp[r1 * 33u + tx + {{i*8}}u] = e1_{{i}};
//#end
    red[r0 * 8u + tx] = (e0_0 + e0_1) + (e0_2 + e0_3);
    red[r1 * 8u + tx] = (e1_0 + e1_1) + (e1_2 + e1_3);
    workgroupBarrier();
    var t0 = red[r0 * 8u];
    var t1 = red[r1 * 8u];
//#for i in 1..8
    t0 += red[r0 * 8u + {{i}}u];
    t1 += red[r1 * 8u + {{i}}u];
//#end
    let f0 = exp(m0 - n0);
    let f1 = exp(m1 - n1);
    l0 = fma(l0, f0, t0);
    l1 = fma(l1, f1, t1);
    m0 = n0;
    m1 = n1;
//#for c in 0..D/32
    o0_{{c}} *= f0;
    o1_{{c}} *= f1;
//#end
//#for c in 0..D/32
    workgroupBarrier();
    for (var u = t; u < 256u; u += 128u) {
      sk[u] = values[base + (u >> 3u) * stride + {{c*8}}u + (u & 7u)];
    }
    workgroupBarrier();
    for (var k = 0u; k < 32u; k++) {
      let v = sk[k * 8u + tx];
      o0_{{c}} = fma(vec4<f32>(sp[r0 * 33u + k]), v, o0_{{c}});
      o1_{{c}} = fma(vec4<f32>(sp[r1 * 33u + k]), v, o1_{{c}});
    }
//#end
  }
//#for r in 0..2
  if (r{{r}} < count) {
    let head = kv * per + r{{r}} % per;
    let to = (tile.o_row + r{{r}} / per) * p.ldo + head * D4 + tx;
//#if GATE
    let gate = (tile.q_row + r{{r}} / per) * p.ld + head * p.q_stride + D4 + tx;
//#end
//#for c in 0..D/32
//#if GATE
    o[to + {{c*8}}u] = o{{r}}_{{c}} / l{{r}} / (vec4<f32>(1.0) + exp(-q[gate + {{c*8}}u]));
//#else
    o[to + {{c*8}}u] = o{{r}}_{{c}} / l{{r}};
//#end
//#end
  }
//#end
}
