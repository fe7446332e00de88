// y[row, i] = silu(g[row, i]) * g[row, n + i]; gate and up stand side by side in g. The result goes out as f32, as 8-bit
// blocks, as both, or as f16 (half.wgsl).

struct Params {
  n: u32,    // feed-forward size / 4
  ldg: u32,  // row stride of g in vec4
  ldy: u32,  // row stride of y in vec4
  mp: u32,   // rows that the 8-bit buffers hold
}

@group(0) @binding(0) var<storage, read> g: array<vec4<f32>>;
//#if HALF
//#include half.wgsl
@group(0) @binding(1) var<storage, read_write> y: array<vec2<u32>>;
//#else
//#if FLOATS
@group(0) @binding(1) var<storage, read_write> y: array<vec4<f32>>;
//#end
//#end
@group(0) @binding({{1+FLOATS+2*Q8}}) var<uniform> p: Params;
//#if Q8
//#include q8.wgsl
//#end

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
  let i = group.y * 128u + t;
  let inside = i < p.n;
  var v = vec4<f32>(0.0);
  if (inside) {
    let a = g[group.x * p.ldg + i];
    v = a / (vec4<f32>(1.0) + exp(-a)) * g[group.x * p.ldg + p.n + i];
//#if HALF
    y[group.x * p.ldy + i] = half_values(v);
//#else
//#if FLOATS
    y[group.x * p.ldy + i] = v;
//#end
//#end
  }
//#if Q8
  store_q8(t, group.x, i, v, inside);
//#end
}
