// Causal attention with grouped queries: o = softmax(q k^T * scale) v, online over tiles of 32 keys that lie at absolute
// positions 32 j .. 32 j + 31, so that a row's bits do not depend on its company. A workgroup takes one KV head and up to
// {{16*RPT}} packed rows (position, query head of the group). Keys and values are read page by page (a page = one tile).
// Head size {{D}}; {{16*TX}} threads = 16 x {{TX}}; each thread holds {{RPT}} rows (ty + 16 i) x {{32/TX}} keys (tx + {{TX}} i) of the
// scores, then the same rows x {{D/TX}} output dimensions. Queries and keys pass through workgroup memory 16 dimensions at a time, values
// {{VK}} keys at a time; the loads of each stage are under way while the stage before is computed. The order of every sum is
// the same for any {{RPT}}.

struct Params {
  heads: u32,
  kv_heads: u32,
  ld: u32,        // row stride of q in vec4
  q_stride: u32,  // distance of two query heads in vec4
  ldo: u32,       // row stride of o in vec4
  tile_at: u32,   // first entry of tiles
  scale: f32,     // with log2(e) in it
}

struct Tile {
  q_row: u32,     // first row of q
  o_row: u32,     // first row of o
  positions: u32, // positions in this tile (1 ..= {{16*RPT}} / group)
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
const THREADS = {{16*TX}}u;
const QR = {{16*RPT+1}}u;  // rows of a query stage, with padding
const V4 = {{VK*D/4}}u;    // vec4 of a stage of values
// Queries [dimension / 4, 4][row] and keys [dimension / 4, 4][key 32 + 1]; or values [key {{VK}}][D4]; or row maxima.
var<workgroup> stage: array<vec4<f32>, {{STAGE}}>;
var<workgroup> sp: array<vec{{RPT}}<f32>, 544>;  // weights: [key 32][ty 16 + 1], the rows of a thread together

fn dot4(a: vec4<f32>, b: vec4<f32>, c: f32) -> f32 {
  return fma(a.w, b.w, fma(a.z, b.z, fma(a.y, b.y, fma(a.x, b.x, c))));
}

@compute @workgroup_size({{16*TX}})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) t: u32) {
  // The last tiles see the most keys: they start first.
  let tile = tiles[p.tile_at + groups.x - 1u - group.x];
  let kv = group.y;
  let per = p.heads / p.kv_heads;
  let count = tile.positions * per;
  let tx = t % {{TX}}u;
  let ty = t / {{TX}}u;
//#for r in 0..RPT
  let p{{r}} = tile.position + (ty + {{r*16}}u) / per;
  var m{{r}} = -1e30;
  var l{{r}} = 0.0;
//#for c in 0..D/4/TX
  var o{{r}}_{{c}} = vec4<f32>(0.0);
//#end
//#end
  // What this thread loads in each stage: a vec4 of some rows of q, of one key, and of values.
  let c4 = t & 3u;
  let load_row = t >> 2u;
//#for i in 0..QL
  // Rows past the tile's end repeat the last one; nothing is stored for them.
  let row_{{i}} = min(load_row + {{i*4*TX}}u, count - 1u);
  let q_{{i}} = (tile.q_row + row_{{i}} / per) * p.ld + (kv * per + row_{{i}} % per) * p.q_stride + c4;
  var nq{{i}} = q[q_{{i}}];
//#end
  let stride = p.kv_heads * D4;
  let key_at = (load_row & 31u) * stride + kv * D4 + c4;
  let last = (tile.position + tile.positions - 1u) >> 5u;
  var page = pages[tile.page_at] * 32u * stride;
  var nk = keys[page + key_at];
  for (var j = 0u; j <= last; j++) {
//#for r in 0..RPT
//#for i in 0..32/TX
    var s{{r}}_{{i}} = 0.0;
//#end
//#end
//#for i in 0..VL
    var nv{{i}} = vec4<f32>(0.0);
//#end
    let value_at = page + kv * D4;
    for (var d = 0u; d < {{D/16}}u; d++) {
      workgroupBarrier();
//#for i in 0..QL
      if (load_row + {{i*4*TX}}u < {{16*RPT}}u) {
        stage[c4 * QR + load_row + {{i*4*TX}}u] = nq{{i}};
      }
//#end
      if (load_row < 32u) {
        stage[4u * QR + c4 * 33u + load_row] = nk;
      }
      workgroupBarrier();
      if (d < {{D/16-1}}u) {
//#for i in 0..QL
        nq{{i}} = q[q_{{i}} + (d + 1u) * 4u];
//#end
        nk = keys[page + key_at + (d + 1u) * 4u];
      } else {
//#for i in 0..VL
        {
          let u = min(t + {{i}}u * THREADS, V4 - 1u);
          nv{{i}} = values[value_at + (u / D4) * stride + u % D4];
        }
//#end
      }
//#for c in 0..4
      {
//#for i in 0..32/TX
        let b{{i}} = stage[4u * QR + {{c*33+i*TX}}u + tx];
//#end
//#for r in 0..RPT
        let a{{r}} = stage[{{c}}u * QR + {{r*16}}u + ty];
//#for i in 0..32/TX
        s{{r}}_{{i}} = dot4(a{{r}}, b{{i}}, s{{r}}_{{i}});
//#end
//#end
      }
//#end
    }
    // The maximum of each row over this tile.
    workgroupBarrier();
//#for r in 0..RPT
//#for i in 0..32/TX
    s{{r}}_{{i}} = select(-1e30, s{{r}}_{{i}} * p.scale, j * 32u + tx + {{i*TX}}u <= p{{r}});
//#end
    var n{{r}} = s{{r}}_0;
//#for i in 1..32/TX
    n{{r}} = max(n{{r}}, s{{r}}_{{i}});
//#end
    stage[(ty + {{r*16}}u) * {{TX/4}}u + (tx >> 2u)][tx & 3u] = n{{r}};
//#end
    workgroupBarrier();
//#for r in 0..RPT
    {
      var top = stage[(ty + {{r*16}}u) * {{TX/4}}u];
//#for i in 1..TX/4
      top = max(top, stage[(ty + {{r*16}}u) * {{TX/4}}u + {{i}}u]);
//#end
      // A row whose keys in this tile are all masked keeps its maximum; exp2(-1e30 - m) is exactly zero.
      n{{r}} = max(m{{r}}, max(max(top.x, top.y), max(top.z, top.w)));
      let f = exp2(m{{r}} - n{{r}});
      m{{r}} = n{{r}};
//#for i in 0..32/TX
      s{{r}}_{{i}} = exp2(s{{r}}_{{i}} - n{{r}});
//#end
//#if TX == 8
      l{{r}} = fma(l{{r}}, f, (s{{r}}_0 + s{{r}}_1) + (s{{r}}_2 + s{{r}}_3));
//#else
      l{{r}} = fma(l{{r}}, f, s{{r}}_0 + s{{r}}_1);
//#end
//#for c in 0..D/4/TX
      o{{r}}_{{c}} *= f;
//#end
    }
//#end
//#for i in 0..32/TX
//#if RPT == 4
    sp[(tx + {{i*TX}}u) * 17u + ty] = vec4<f32>(s0_{{i}}, s1_{{i}}, s2_{{i}}, s3_{{i}});
//#else
    sp[(tx + {{i*TX}}u) * 17u + ty] = vec2<f32>(s0_{{i}}, s1_{{i}});
//#end
//#end
    for (var v = 0u; v < {{32/VK}}u; v++) {
      workgroupBarrier();
//#for i in 0..VL
      if (t + {{i}}u * THREADS < V4) {
        stage[t + {{i}}u * THREADS] = nv{{i}};
      }
//#end
      workgroupBarrier();
      if (v < {{32/VK-1}}u) {
//#for i in 0..VL
        {
          let u = min(t + {{i}}u * THREADS, V4 - 1u);
          nv{{i}} = values[value_at + ((v + 1u) * {{VK}}u + u / D4) * stride + u % D4];
        }
//#end
      } else if (j < last) {
        page = pages[tile.page_at + j + 1u] * 32u * stride;
//#for i in 0..QL
        nq{{i}} = q[q_{{i}}];
//#end
        nk = keys[page + key_at];
      }
//#for k in 0..VK
      {
        let w = sp[(v * {{VK}}u + {{k}}u) * 17u + ty];
//#for c in 0..D/4/TX
        {
          let b = stage[{{k}}u * D4 + {{c*TX}}u + tx];
//#for r in 0..RPT
          o{{r}}_{{c}} = fma(vec4<f32>(w[{{r}}]), b, o{{r}}_{{c}});
//#end
        }
//#end
      }
//#end
    }
  }
  // The parts of each row's sum of weights, joined in one order.
  workgroupBarrier();
//#for r in 0..RPT
  stage[(ty + {{r*16}}u) * {{TX/4}}u + (tx >> 2u)][tx & 3u] = l{{r}};
//#end
  workgroupBarrier();
//#for r in 0..RPT
  {
    var sum = stage[(ty + {{r*16}}u) * {{TX/4}}u];
//#for i in 1..TX/4
    sum += stage[(ty + {{r*16}}u) * {{TX/4}}u + {{i}}u];
//#end
    let l = (sum.x + sum.y) + (sum.z + sum.w);
    let row = ty + {{r*16}}u;
    if (row < count) {
      let head = kv * per + row % per;
      let to = (tile.o_row + row / per) * p.ldo + head * D4 + tx;
//#if GATE
      let gate = (tile.q_row + row / per) * p.ld + head * p.q_stride + D4 + tx;
//#end
//#for c in 0..D/4/TX
//#if GATE
      o[to + {{c*TX}}u] = o{{r}}_{{c}} / l / (vec4<f32>(1.0) + exp(-q[gate + {{c*TX}}u]));
//#else
      o[to + {{c*TX}}u] = o{{r}}_{{c}} / l;
//#end
//#end
    }
  }
//#end
}
