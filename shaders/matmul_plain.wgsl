// The product of matmul.wgsl, to the bit, for adapters that are processors: there a barrier costs more than what it saves, and a load far
// more than a multiplication. No thread shares anything with another. Tile {{BM}} x {{WG*CN}}, {{WG}} threads, each {{BM}} x {{CN}} outputs.
//#include weight.wgsl

struct Params {
  n: u32,        // rows of this part
  blocks: u32,   // k / 32
  ldx: u32,      // row stride of x in vec4
  ldy: u32,      // row stride of y in f32
  y_at: u32,     // first column of this part in y
  n_groups: u32, // row groups of 32 in this part
  bias_at: u32,  // first bias of this part
  rows: u32,     // rows of x
  span: u32,     // blocks of one split of k
}

@group(0) @binding({{PLANES}}) var<storage, read> x: array<vec4<f32>>;        // [rows padded to {{BM}}, k]
@group(0) @binding({{PLANES+1}}) var<storage, read_write> y: array<f32>;      // [rows, ldy]; of a split: [split][rows][n]
//#if BIAS
@group(0) @binding({{PLANES+2}}) var<storage, read> bias: array<f32>;         // [n]
@group(0) @binding({{PLANES+3}}) var<uniform> p: Params;
//#else
@group(0) @binding({{PLANES+2}}) var<uniform> p: Params;
//#end

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
