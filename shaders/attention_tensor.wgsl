// Causal attention with grouped queries in f16 cooperative matrices: o = softmax(q k^T * scale) v, written as activations of the
// tensor tier. A workgroup takes one KV head and up to 64 packed rows (position, query head of the group), 16 a warp, and goes through
// the keys in tiles of {{BC}} that lie at absolute positions, so that a row's bits do not depend on its company.
//
// A row's reference is an integer (in powers of two) that is raised only when a score exceeds it by 8. Each row decides that for
// itself, and its factor is an exact power of two, so that accumulators, which WGSL cannot scale by row, go through workgroup memory
// only when some row of the workgroup asks for it, and rows that did not ask keep their bits. Keys beyond a row's position weigh exactly
// zero, also in tiles that only other rows need.
//
// Sizes of workgroup arrays are multiples of 16 bytes: a driver aligns vec4<f16> to 8 but reads 16.
enable f16;
enable wgpu_cooperative_matrix;
//#include half.wgsl

struct Params {
  heads: u32,
  kv_heads: u32,
  ld: u32,        // row stride of q in vec4
  q_stride: u32,  // distance of two query heads in vec4
  ldo: u32,       // row stride of o in units of 4 values
  tile_at: u32,   // first entry of tiles
  scale: f32,     // log2(e) / sqrt(head size)
}

struct Tile {
  q_row: u32,     // first row of q
  o_row: u32,     // first row of o
  positions: u32, // positions in this tile (1 ..= 64 / group)
  position: u32,  // absolute position of the first one
  page_at: u32,   // first entry of pages for this sequence
}

@group(0) @binding(0) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> keys: array<vec4<f32>>;    // [slots, kv_heads, {{D}}]
@group(0) @binding(2) var<storage, read> values: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> tiles: array<Tile>;
@group(0) @binding(4) var<storage, read> pages: array<u32>;
@group(0) @binding(5) var<storage, read_write> o: array<vec2<u32>>;  // [rows, heads, {{D}}] f16, see half.wgsl
@group(0) @binding(6) var<uniform> p: Params;

var<workgroup> kv: array<vec4<f16>, {{64*LK}}>;   // queries [row 64][dimension], then a tile's keys, then its values
var<workgroup> sc: array<vec4<f32>, {{64*LS}}>;   // scores [row 64][key], or {{BC}} columns of the outputs
var<workgroup> pp: array<vec4<f16>, {{64*LP}}>;   // weights [row 64][key]
var<workgroup> factors: array<f32, 128>;
var<workgroup> flag: array<u32, 4>;

fn half_of(v: vec4<f32>) -> vec4<f16> {
  return vec4<f16>(clamp(v, vec4<f32>(-65504.0), vec4<f32>(65504.0)));
}

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) t: u32) {
  // The longest first.
  let tile = tiles[p.tile_at + groups.x - 1u - group.x];
  let kv_head = group.y;
  let per = p.heads / p.kv_heads;
  let count = tile.positions * per;
  let lane = t & 31u;
  let w16 = (t >> 5u) * 16u;
  // Staging: {{128/(D/4)}} rows of {{D/4}} vec4 at a time.
  let lr = t / {{D/4}}u;
  let lc = t % {{D/4}}u;
  for (var i = 0u; i < {{64/(128/(D/4))}}u; i++) {
    let r = lr + i * {{128/(D/4)}}u;
    // Rows past the tile's end repeat the last one; nothing is stored for them.
    let row = min(r, count - 1u);
    kv[r * {{LK}}u + lc] = half_of(q[(tile.q_row + row / per) * p.ld + (kv_head * per + row % per) * p.q_stride + lc] * p.scale);
  }
  workgroupBarrier();
//#for i in 0..D/16
  let q{{i}} = coopLoadT<coop_mat16x16<f16,A>>(&kv[w16 * {{LK}}u + {{i*4}}u], {{LK}}u);
//#end
//#for i in 0..D/16
  var o{{i}} = coop_mat16x16<f32,C>();
//#end
  let row = t >> 1u;
  let half = t & 1u;
  let position = tile.position + min(row, count - 1u) / per;
  let last = tile.position + tile.positions - 1u;
  let last_page = last >> 5u;
  let stride = p.kv_heads * {{D/4}}u;
  let column = kv_head * {{D/4}}u + lc;
  var reference = -1e30;
  var sum = 0.0;
//#for i in 0..NL
  var r{{i}}: vec4<f32>;
//#end
//#for g in 0..BC/32
  var page{{g}} = pages[tile.page_at + min({{g}}u, last_page)] * 32u;
//#end
//#for i in 0..NL
  r{{i}} = keys[(page{{i*(128/(D/4))/32}} + lr + {{i*(128/(D/4))%32}}u) * stride + column];
//#end
  let stop = last / {{BC}}u + 1u;
  for (var j = 0u; j < stop; j++) {
    workgroupBarrier();
//#for i in 0..NL
    kv[(lr + {{i*(128/(D/4))}}u) * {{LK}}u + lc] = half_of(r{{i}});
//#end
    if (t == 0u) {
      flag[0] = 0u;
    }
//#for i in 0..NL
    r{{i}} = values[(page{{i*(128/(D/4))/32}} + lr + {{i*(128/(D/4))%32}}u) * stride + column];
//#end
    workgroupBarrier();
    {
//#for k in 0..BC/16
      var s{{k}} = coop_mat16x16<f32,C>();
//#end
//#for i in 0..D/16
//#for k in 0..BC/16
      {
        let b = coopLoad<coop_mat16x16<f16,B>>(&kv[{{k*16*LK+i*4}}u], {{LK}}u);
        s{{k}} = coopMultiplyAdd(q{{i}}, b, s{{k}});
      }
//#end
//#end
//#for k in 0..BC/16
      {
        let to = w16 * {{LS}}u + {{k*4}}u;
        coopStoreT(s{{k}}, &sc[to], {{LS}}u);
      }
//#end
    }
    workgroupBarrier();
//#for i in 0..NL
    kv[(lr + {{i*(128/(D/4))}}u) * {{LK}}u + lc] = half_of(r{{i}});
//#end
    {
      let next = min(j + 1u, stop - 1u) * {{BC/32}}u;
//#for g in 0..BC/32
      page{{g}} = pages[tile.page_at + min(next + {{g}}u, last_page)] * 32u;
//#end
//#for i in 0..NL
      r{{i}} = keys[(page{{i*(128/(D/4))/32}} + lr + {{i*(128/(D/4))%32}}u) * stride + column];
//#end
    }
    // Two threads a row: both take the maximum over all keys of the tile, each the weights of every other four.
    let at = row * {{LS}}u;
//#for mask in 0..2
//#if mask
    if (j * {{BC}}u + {{BC-1}}u > tile.position) {
      let limit = i32(position) - i32(j * {{BC}}u);
//#for i in 0..BC/4
      let z{{i}} = select(vec4<f32>(-1e30), sc[at + {{i}}u], vec4<i32>({{i*4}}, {{i*4+1}}, {{i*4+2}}, {{i*4+3}}) <= vec4<i32>(limit));
//#end
//#else
    if (j * {{BC}}u + {{BC-1}}u <= tile.position) {
//#for i in 0..BC/4
      let z{{i}} = sc[at + {{i}}u];
//#end
//#end
      var most4 = z0;
//#for i in 1..BC/4
      most4 = max(most4, z{{i}});
//#end
      let most = max(max(most4.x, most4.y), max(most4.z, most4.w));
      var factor = 1.0;
      if (most > reference + 8.0) {
        let raised = ceil(most);
        factor = exp2(reference - raised);
        reference = raised;
        sum = sum * factor;
        if (j > 0u) {
          flag[0] = 1u;
        }
      }
      if (half == 0u) {
        factors[row] = factor;
      }
//#for i in 0..BC/8
      {
        let e = vec4<f16>(exp2(select(z{{2*i}}, z{{2*i+1}}, half == 1u) - reference));
        pp[row * {{LP}}u + {{2*i}}u + half] = e;
        let f = vec4<f32>(e);
        sum += (f.x + f.y) + (f.z + f.w);
      }
//#end
    }
//#end
    workgroupBarrier();
    if (flag[0] != 0u) {
//#for g in 0..D/BC
//#for i in 0..BC/16
      {
        let to = w16 * {{LS}}u + {{i*4}}u;
        coopStoreT(o{{g*(BC/16)+i}}, &sc[to], {{LS}}u);
      }
//#end
      workgroupBarrier();
      {
        let factor = factors[row];
        for (var i = half; i < {{BC/4}}u; i += 2u) {
          sc[at + i] *= factor;
        }
      }
      workgroupBarrier();
//#for i in 0..BC/16
      {
        let from_at = w16 * {{LS}}u + {{i*4}}u;
        o{{g*(BC/16)+i}} = coopLoadT<coop_mat16x16<f32,C>>(&sc[from_at], {{LS}}u);
      }
//#end
      workgroupBarrier();
//#end
    }
//#for k in 0..BC/16
    {
      let a = coopLoadT<coop_mat16x16<f16,A>>(&pp[w16 * {{LP}}u + {{k*4}}u], {{LP}}u);
//#for i in 0..D/16
      {
        let b = coopLoadT<coop_mat16x16<f16,B>>(&kv[{{k*16*LK+i*4}}u], {{LK}}u);
        o{{i}} = coopMultiplyAdd(a, b, o{{i}});
      }
//#end
    }
//#end
  }
  workgroupBarrier();
  factors[t] = sum;
  // A warp writes its own rows, {{BC}} columns at a time.
//#for g in 0..D/BC
  workgroupBarrier();
//#for i in 0..BC/16
  {
    let to = w16 * {{LS}}u + {{i*4}}u;
    coopStoreT(o{{g*(BC/16)+i}}, &sc[to], {{LS}}u);
  }
//#end
  workgroupBarrier();
//#for e in 0..BC/8
  {
    let r = w16 + {{e*32/(BC/4)}}u + lane / {{BC/4}}u;
    let c = lane % {{BC/4}}u;
    if (r < count) {
      let head = kv_head * per + r % per;
      var v = sc[r * {{LS}}u + c] / (factors[r * 2u] + factors[r * 2u + 1u]);
//#if GATE
      v = v / (vec4<f32>(1.0) + exp(-q[(tile.q_row + r / per) * p.ld + head * p.q_stride + {{D/4+g*(BC/4)}}u + c]));
//#end
      o[(tile.o_row + r / per) * p.ldo + head * {{D/4}}u + {{g*(BC/4)}}u + c] = half_values(v);
    }
  }
//#end
//#end
}
