// y[row, :] = x[row, :] / sqrt(mean(x[row, :]^2) + eps) * w. One workgroup a row; the sum is taken in one fixed order.
// The result goes out as f32, as 8-bit blocks, as both, or as f16 (half.wgsl).
//#if LEFT
// Before that, the pieces of a product are added to x, in the order of add_parts.wgsl.
//#end

struct Params {
  n: u32,    // columns / 4
  ldx: u32,  // row stride of x in vec4
  ldy: u32,  // row stride of y in vec4
  eps: f32,
  mp: u32,   // rows that the 8-bit buffers hold
//#if LEFT
  count: u32,   // pieces
  ldp: u32,     // their row stride in vec4
  stride: u32,  // distance of two of them in vec4
//#end
}

//#if LEFT
@group(0) @binding(0) var<storage, read_write> x: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> pieces: array<vec4<f32>>;
//#else
@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
//#end
@group(0) @binding(1) var<storage, read> w: array<vec4<f32>>;
//#if HALF
//#include half.wgsl
@group(0) @binding({{2+LEFT}}) var<storage, read_write> y: array<vec2<u32>>;
//#else
//#if FLOATS
@group(0) @binding({{2+LEFT}}) var<storage, read_write> y: array<vec4<f32>>;
//#end
//#end
@group(0) @binding({{2+LEFT+FLOATS+2*Q8}}) var<uniform> p: Params;
//#if Q8
//#include q8.wgsl
//#end

var<workgroup> part: array<f32, 128>;

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
  let at = group.x * p.ldx;
  var c = 0.0;
  for (var i = t; i < p.n; i += 128u) {
//#if LEFT
    var v = x[at + i];
    for (var s = 0u; s < p.count; s++) {
      v += pieces[s * p.stride + group.x * p.ldp + i];
    }
    x[at + i] = v;
//#else
    let v = x[at + i];
//#end
    c = fma(v.x, v.x, c);
    c = fma(v.y, v.y, c);
    c = fma(v.z, v.z, c);
    c = fma(v.w, v.w, c);
  }
  part[t] = c;
  workgroupBarrier();
//#for s in 0..7
  if (t < (64u >> {{s}}u)) {
    part[t] += part[t + (64u >> {{s}}u)];
  }
  workgroupBarrier();
//#end
  let scale = 1.0 / sqrt(part[0] / f32(p.n * 4u) + p.eps);
//#if Q8
  for (var first = 0u; first < p.n; first += 128u) {
    let i = first + t;
    let inside = i < p.n;
    var v = vec4<f32>(0.0);
    if (inside) {
      v = x[at + i] * scale * w[i];
//#if FLOATS
      y[group.x * p.ldy + i] = v;
//#end
    }
    store_q8(t, group.x, i, v, inside);
  }
//#else
  for (var i = t; i < p.n; i += 128u) {
    let v = x[at + i] * scale * w[i];
//#if HALF
    y[group.x * p.ldy + i] = half_values(v);
//#else
    y[group.x * p.ldy + i] = v;
//#end
  }
//#end
}
