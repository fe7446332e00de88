// y[m, n] (+)= sum over k of x[m, k] * w[n, k] (+ bias[n]) in f16 cooperative matrices with f32 accumulators.
// Tile {{BM}} x {{BN}}, {{BK}} values of k a step; {{WARPS}} warps, each {{TM}} x {{TN}} outputs. Warp = index / 32: subgroups must be 32 wide.
//
// K is cut into parts of `part_blocks` blocks, a function of (K, N) alone. A part is summed up in k order from zero, and parts are
// added in order, so an output's bits depend neither on the tile, nor on how many rows are in flight, nor on whether one workgroup
// takes all parts (grid z = 1) or one each (into scratch that tensor_reduce.wgsl adds up).
//
// Why it is written so: both operands through workgroup memory as vec4<f16> (NVIDIA's compiler takes no integer pointee, array<f16>
// is stored two bytes at a time); rows padded to an odd number of 16-byte units against bank conflicts; one buffer and two barriers
// (a second buffer was slower); the next step's loads are issued before the second barrier. Sizes of workgroup arrays are multiples
// of 16 bytes, as the driver aligns to 8 but reads 16. Accumulators go to y as matrices, whole tiles of them; another form of the kernel
// (CHECKED), which takes them through workgroup memory and looks at every output's place, costs a third more time on large products and
// takes only the columns that fill no tile.
enable f16;
enable wgpu_cooperative_matrix;
//#include tensor_weight.wgsl

struct Params {
  n: u32,            // rows of this part of the matrix
  blocks: u32,       // k / 32
  ldx: u32,          // row stride of x in 16-byte units
  ldy: u32,          // row stride of y in its elements
  y_at: u32,         // first column of this part in y, in its elements
  col_at: u32,       // first column of this dispatch in this part
  groups: u32,       // row groups of 32 in this part
  rows: u32,         // rows of x
  part_blocks: u32,  // blocks of 32 in a part of K (a multiple of {{BK/32}})
  parts: u32,        // parts of K that a workgroup takes, one after the other (one if not built for it)
  part_stride: u32,  // distance of two parts' outputs in elements of y (scratch), else 0
  add: u32,          // add to y instead of replacing it
}

@group(0) @binding({{PLANES}}) var<storage, read> x: array<vec4<u32>>;           // [rows padded to {{BM}}, k] f16, see half.wgsl
@group(0) @binding({{PLANES+1}}) var<storage, read_write> y: array<{{Y}}>;  // [rows padded to {{BM}}, ldy]
@group(0) @binding({{PLANES+2}}) var<uniform> p: Params;

var<workgroup> sx: array<vec4<f16>, {{BM*LD*2}}>;  // [row][k], {{LD}} 16-byte units a row
var<workgroup> sw: array<vec4<f16>, {{BN*LD*2}}>;  // [column][k]
//#if CHECKED
var<workgroup> sy: array<vec4<f32>, {{64*LY}}>;    // [warp][row 16][column / 4], two vec4 of padding a row
//#end

@compute @workgroup_size({{THREADS}})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
  let m0 = group.x * {{BM}}u;
  let n0 = p.col_at + group.y * {{BN}}u;
  let g0 = n0 >> 5u;
  let warp = t >> 5u;
  let lane = t & 31u;
  let warp_row = (warp % {{WM}}u) * {{TM}}u;
  let warp_col = (warp / {{WM}}u) * {{TN}}u;
  let x_at = (m0 + t / {{XU}}u) * p.ldx + t % {{XU}}u;
  let x_to = ((t / {{XU}}u) * {{LD}}u + t % {{XU}}u) * 2u;
  let steps = p.blocks / {{BK/32}}u;
  let part_steps = p.part_blocks / {{BK/32}}u;
//#for i in 0..NX
  var x{{i}}: vec4<u32>;
//#end
  // Units of w a step: rows of a group lie side by side, so that a warp reads 512 bytes in a row.
//#for i in 0..NW
  let unit{{i}} = warp + {{i*WARPS}}u;
  let block{{i}} = min(g0 + unit{{i}} / {{BK/32*UNITS}}u, p.groups - 1u) * p.blocks + unit{{i}} % {{BK/32*UNITS}}u / {{UNITS}}u;
  let h{{i}} = unit{{i}} % {{UNITS}}u;
  let w_to{{i}} = ((unit{{i}} / {{BK/32*UNITS}}u * 32u + lane) * {{LD}}u + unit{{i}} % {{BK/32*UNITS}}u / {{UNITS}}u * 4u) * 2u + h{{i}} * {{FOURS}}u;
  var w{{i}}: Raw;
//#end
  let out = group.z * p.part_stride + p.y_at;
  let ld = p.ldy;
//#if LOOP
//#if CHECKED
//#else
  // Sums start from what stands in y, or from zero.
  if (p.add == 0u) {
    let zero = coop_mat16x16<f32,C>();
//#for i in 0..TM/16
//#for j in 0..TN/16
    {
      let to = out + (m0 + warp_row + {{i*16}}u) * ld + ((n0 + warp_col) >> 2u) + {{j*4}}u;
      coopStoreT(zero, &y[to], ld);
    }
//#end
//#end
  }
//#end
  for (var part = 0u; part < p.parts; part++) {
    let first = (group.z * p.parts + part) * part_steps;
//#else
  {
    let part = 0u;
    let first = group.z * part_steps;
//#end
    let stop = min(first + part_steps, steps);
//#for i in 0..TM/16
//#for j in 0..TN/16
    var c{{i}}_{{j}} = coop_mat16x16<f32,C>();
//#end
//#end
    {
      let step = first;
//#include matmul_tensor_load.wgsl
    }
    for (var k = first; k < stop; k++) {
      workgroupBarrier();
//#for i in 0..NX
      sx[x_to + {{i*(THREADS/XU)*LD*2}}u] = half4(x{{i}}.x, x{{i}}.y);
      sx[x_to + {{i*(THREADS/XU)*LD*2+1}}u] = half4(x{{i}}.z, x{{i}}.w);
//#end
//#for i in 0..NW
      {
        let s = scales(w{{i}}, lane);
//#for j in 0..FOURS
        sw[w_to{{i}} + {{j}}u] = four_{{j}}(w{{i}}, s);
//#end
      }
//#end
      {
        let step = min(k + 1u, stop - 1u);
//#include matmul_tensor_load.wgsl
      }
      workgroupBarrier();
      let a_at = warp_row * {{LD*2}}u;
      let b_at = warp_col * {{LD*2}}u;
//#for s in 0..BK/16
      {
//#for i in 0..TM/16
        let a{{i}} = coopLoadT<coop_mat16x16<f16,A>>(&sx[a_at + {{i*16*LD*2+s*4}}u], {{LD*2}}u);
//#end
//#for j in 0..TN/16
        let b{{j}} = coopLoad<coop_mat16x16<f16,B>>(&sw[b_at + {{j*16*LD*2+s*4}}u], {{LD*2}}u);
//#for i in 0..TM/16
        c{{i}}_{{j}} = coopMultiplyAdd(a{{i}}, b{{j}}, c{{i}}_{{j}});
//#end
//#end
      }
//#end
    }
//#if CHECKED
    // Accumulators have no elements that WGSL could reach: sixteen rows at a time go through workgroup memory.
    let y_row = warp * {{16*LY}}u;
//#for i in 0..TM/16
    workgroupBarrier();
//#for j in 0..TN/16
    {
      let to = y_row + {{j*4}}u;
      coopStoreT(c{{i}}_{{j}}, &sy[to], {{LY}}u);
    }
//#end
    workgroupBarrier();
    for (var e = lane; e < {{16*TN}}u; e += 32u) {
      let row = e / {{TN}}u;
      let col = e % {{TN}}u;
      let m = m0 + warp_row + {{i*16}}u + row;
      let n = n0 + warp_col + col;
      if (m < p.rows && n < p.n) {
        let at = out + m * p.ldy + n;
        var v = sy[y_row + row * {{LY}}u + (col >> 2u)][col & 3u];
        if (part > 0u || p.add != 0u) {
          v += y[at];
        }
        y[at] = v;
      }
    }
//#end
//#else
//#if LOOP
    storageBarrier();
//#end
//#for i in 0..TM/16
//#for j in 0..TN/16
    {
      let to = out + (m0 + warp_row + {{i*16}}u) * ld + ((n0 + warp_col) >> 2u) + {{j*4}}u;
//#if LOOP
      c{{i}}_{{j}} = c{{i}}_{{j}} + coopLoadT<coop_mat16x16<f32,C>>(&y[to], ld);
//#end
      coopStoreT(c{{i}}_{{j}}, &y[to], ld);
    }
//#end
//#end
//#end
  }
}
