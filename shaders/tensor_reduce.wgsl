// y[m, n] (+)= the parts of K that matmul_tensor.wgsl left in scratch, added in order, and a bias: the bits that one workgroup for all
// parts gives. With no parts only the bias is added to what stands in y.

struct Params {
  n: u32,            // rows of this part of the matrix
  ldp: u32,          // row stride of the scratch
  ldy: u32,          // row stride of y
  y_at: u32,         // first column of this part in y
  bias_at: u32,      // first bias of this part
  parts: u32,        // parts of K
  part_stride: u32,  // distance of two parts in the scratch
  bias: u32,         // add bias[n]
  add: u32,          // add to y instead of replacing it
}

@group(0) @binding(0) var<storage, read> parts: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<storage, read> bias: array<f32>;
@group(0) @binding(3) var<uniform> p: Params;

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
  let n = group.y * 128u + t;
  if (n < p.n) {
    let first = group.x * p.ldp + n;
    let at = group.x * p.ldy + p.y_at + n;
    var v = 0.0;
    if (p.add != 0u) {
      v = y[at];
    }
    for (var i = 0u; i < p.parts; i++) {
      v += parts[first + i * p.part_stride];
    }
    if (p.bias != 0u) {
      v += bias[p.bias_at + n];
    }
    y[at] = v;
  }
}
