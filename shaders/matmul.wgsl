// y[m, n] (+)= sum over k of x[m, k] * w[n, k] (+ bias[n]): one f32 accumulator an output, k strictly ascending, explicit fma,
// so that an output's bits depend neither on the tile nor on how many rows are in flight; the split of k (grid z) is a function of the
// weight's shape.
// Tile {{BM}} x 64, 128 threads, each {{RM}} x 4 outputs; 16 values of k a stage.
//#include weight.wgsl
//#include matmul_io.wgsl

var<workgroup> sx: array<vec4<f32>, {{16*(BM/4+1)}}>;  // [k 16][row / 4, one vec4 of padding]
var<workgroup> sw: array<vec4<f32>, 272>;              // [k 16][column / 4, one vec4 of padding]

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
  let m0 = group.x * {{BM}}u;
  let n0 = group.y * 64u;
  let tx = t & 15u;
  let ty = t >> 4u;
  let last = p.n_groups * 32u - 1u;
//#for i in 0..RM
  var c{{i}} = vec4<f32>(0.0);
//#end
  let stop = min((group.z + 1u) * p.span, p.blocks) * 2u;
  for (var s = group.z * p.span * 2u; s < stop; s++) {
//#for i in 0..BM/32
    let xv{{i}} = x[(m0 + {{i*32}}u + (t >> 2u)) * p.ldx + s * 4u + (t & 3u)];
//#end
//#for i in 0..2
    let wv{{i}} = weight4(min(n0 + {{i*32}}u + (t >> 2u), last), s * 16u + (t & 3u) * 4u, p.blocks);
//#end
    workgroupBarrier();
    let k0 = (t & 3u) * 4u;
//#for i in 0..BM/32
    {
      let row = {{i*32}}u + (t >> 2u);
//#for e in 0..4
      sx[(k0 + {{e}}u) * {{BM/4+1}}u + (row >> 2u)][row & 3u] = xv{{i}}[{{e}}];
//#end
    }
//#end
//#for i in 0..2
    {
      let row = {{i*32}}u + (t >> 2u);
//#for e in 0..4
      sw[(k0 + {{e}}u) * 17u + (row >> 2u)][row & 3u] = wv{{i}}[{{e}}];
//#end
    }
//#end
    workgroupBarrier();
//#for k in 0..16
    {
      let b = sw[{{k*17}}u + tx];
//#for j in 0..RM/4
      let a{{j}} = sx[{{k*(BM/4+1)+j*8}}u + ty];
//#for i in 0..4
      c{{j*4+i}} = fma(vec4<f32>(a{{j}}[{{i}}]), b, c{{j*4+i}});
//#end
//#end
    }
//#end
  }
//#for j in 0..RM/4
//#for i in 0..4
  {
    let m = m0 + {{j*32+i}}u + ty * 4u;
    if (m < p.rows) {
//#if PARTS
      let at = (group.z * p.rows + m) * p.n;
//#else
      let at = m * p.ldy + p.y_at;
//#end
//#for e in 0..4
      {
        let n = n0 + tx * 4u + {{e}}u;
        if (n < p.n) {
          var v = c{{j*4+i}}[{{e}}];
//#if BIAS
          v += bias[p.bias_at + n];
//#end
//#if ADD
          v += y[at + n];
//#end
          y[at + n] = v;
        }
      }
//#end
    }
  }
//#end
//#end
}
