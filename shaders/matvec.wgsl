// y[n] (+)= sum over k of x[k] * w[n, k] (+ bias[n]) for a single row x: generation, and full-vocabulary logits of one row.
// A workgroup takes 32 rows of w; eight slices of k are summed apart and joined in a fixed order.
//#include weight.wgsl

struct Params {
  n: u32,       // rows of this part
  blocks: u32,  // k / 32
  x_at: u32,    // first vec4 of x
  y_at: u32,    // first f32 of y for this part
  groups_x: u32, // workgroups in the x dimension of the grid (the grid is folded)
  bias_at: u32,  // first bias of this part
}

@group(0) @binding({{PLANES}}) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding({{PLANES+1}}) var<storage, read_write> y: array<f32>;
//#if BIAS
@group(0) @binding({{PLANES+2}}) var<storage, read> bias: array<f32>;
@group(0) @binding({{PLANES+3}}) var<uniform> p: Params;
//#else
@group(0) @binding({{PLANES+2}}) var<uniform> p: Params;
//#end

var<workgroup> part: array<f32, 256>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
  let row = (group.y * p.groups_x + group.x) * 32u + (t & 31u);
  let inside = row < p.n;
  var c = 0.0;
  if (inside) {
    for (var kb = t >> 5u; kb < p.blocks; kb += 8u) {
//#for e in 0..8
      {
        let k = kb * 32u + {{e*4}}u;
        let a = weight4(row, k, p.blocks);
        let b = x[p.x_at + (k >> 2u)];
        c = fma(a.x, b.x, c);
        c = fma(a.y, b.y, c);
        c = fma(a.z, b.z, c);
        c = fma(a.w, b.w, c);
      }
//#end
    }
  }
  part[t] = c;
  workgroupBarrier();
  if (t < 32u && inside) {
    var v = part[t];
//#for s in 1..8
    v += part[t + {{s*32}}u];
//#end
//#if BIAS
    v += bias[p.bias_at + row];
//#end
//#if ADD
    v += y[p.y_at + row];
//#end
    y[p.y_at + row] = v;
  }
}
