// The product of matvec.wgsl without a norm and without pairs, for adapters that are processors: no memory of a workgroup, no barrier.
// A thread computes {{CN}} outputs whole, so that it loads x once for all of them; a workgroup takes {{R}} rows of w.
//#include weight_dot.wgsl

struct Params {
  n: u32,        // rows of this part
  blocks: u32,   // k / 32
  x_at: u32,     // first vec4 of x
  y_at: u32,     // first f32 of y for this part
  groups_x: u32, // workgroups in the x dimension of the grid (the grid is folded)
  bias_at: u32,  // first bias of this part
  up: u32,       // unused
  eps: f32,      // unused
}

@group(0) @binding({{PLANES}}) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding({{PLANES+1}}) var<storage, read_write> y: array<f32>;
//#if BIAS
@group(0) @binding({{PLANES+2}}) var<storage, read> bias: array<f32>;
//#end
@group(0) @binding({{PLANES+2+BIAS}}) var<uniform> p: Params;

@compute @workgroup_size({{R/CN}})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
  let first = (group.y * p.groups_x + group.x) * {{R}}u + t;
//#for j in 0..CN
  // Rows past the end read the last row and store nothing.
  let row{{j}} = min(first + {{j*(R/CN)}}u, p.n - 1u);
  var c{{j}} = 0.0;
//#end
  for (var kb = 0u; kb < p.blocks; kb++) {
    var v: Values;
//#for i in 0..8
    v.v{{i}} = x[p.x_at + kb * 8u + {{i}}u];
//#end
//#for j in 0..CN
    c{{j}} += dot_block(load_block(row{{j}}, kb, p.blocks), v);
//#end
  }
//#for j in 0..CN
  {
    let n = first + {{j*(R/CN)}}u;
    if (n < p.n) {
      var v = c{{j}};
//#if BIAS
      v += bias[p.bias_at + n];
//#end
//#if ADD
      v += y[p.y_at + n];
//#end
      y[p.y_at + n] = v;
    }
  }
//#end
}
