// The product of matmul.wgsl, to the bit, for adapters that are processors: there a barrier costs more than what it saves, and a load far
// more than a multiplication. No thread shares anything with another. Tile {{BM}} x {{WG*CN}}, {{WG}} threads, each {{BM}} x {{CN}} outputs.
//#include weight.wgsl
//#include matmul_io.wgsl

@compute @workgroup_size({{WG}})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
  let m0 = group.x * {{BM}}u;
  let n0 = group.y * {{WG*CN}}u + t;
  let last = p.n_groups * 32u - 1u;
//#for i in 0..BM
//#for j in 0..CN
  var c{{i}}_{{j}} = 0.0;
//#end
//#end
  let stop = min((group.z + 1u) * p.span, p.blocks) * 8u;
  for (var s = group.z * p.span * 8u; s < stop; s++) {
//#for j in 0..CN
    let w{{j}} = weight4(min(n0 + {{j*WG}}u, last), s * 4u, p.blocks);
//#end
//#for i in 0..BM
    {
      let a = x[(m0 + {{i}}u) * p.ldx + s];
//#for e in 0..4
//#for j in 0..CN
      c{{i}}_{{j}} = fma(a[{{e}}], w{{j}}[{{e}}], c{{i}}_{{j}});
//#end
//#end
    }
//#end
  }
//#for i in 0..BM
  if (m0 + {{i}}u < p.rows) {
//#if PARTS
    let at = (group.z * p.rows + m0 + {{i}}u) * p.n;
//#else
    let at = (m0 + {{i}}u) * p.ldy + p.y_at;
//#end
//#for j in 0..CN
    {
      let n = n0 + {{j*WG}}u;
      if (n < p.n) {
        var v = c{{i}}_{{j}};
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
//#end
}
