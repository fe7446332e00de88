// Copies whole pages of the key and value caches of one layer: pairs (source page, target page).

struct Params {
  n: u32,  // vec4 of a page
}

@group(0) @binding(0) var<storage, read> pairs: array<vec2<u32>>;
@group(0) @binding(1) var<storage, read_write> keys: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> values: array<vec4<f32>>;
@group(0) @binding(3) var<uniform> p: Params;

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
  let pair = pairs[group.x];
  let i = group.y * 128u + t;
  if (i < p.n) {
    keys[pair.y * p.n + i] = keys[pair.x * p.n + i];
    values[pair.y * p.n + i] = values[pair.x * p.n + i];
  }
}
