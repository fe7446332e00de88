// y = RMSNorm(o, weight) * silu(z) for each head of 128 values; norm first, gate after. One workgroup a (row, head).

struct Params {
  ldo: u32,   // row stride of o and y in f32
  ldz: u32,   // row stride of z
  z_at: u32,  // first column of z
  eps: f32,
}

@group(0) @binding(0) var<storage, read> z: array<f32>;
@group(0) @binding(1) var<storage, read> weight: array<f32>;
@group(0) @binding(2) var<storage, read_write> o: array<f32>;  // in place
@group(0) @binding(3) var<uniform> p: Params;

var<workgroup> part: array<f32, 128>;

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
  let at = group.x * p.ldo + group.y * 128u + t;
  let v = o[at];
  part[t] = v * v;
  workgroupBarrier();
//#for k in 0..7
  if (t < (64u >> {{k}}u)) {
    part[t] += part[t + (64u >> {{k}}u)];
  }
  workgroupBarrier();
//#end
  let g = z[group.x * p.ldz + p.z_at + group.y * 128u + t];
  o[at] = v / sqrt(part[0] / 128.0 + p.eps) * weight[t] * (g / (1.0 + exp(-g)));
}
