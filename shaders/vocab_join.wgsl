// Joins the parts of vocab_stats.wgsl.

struct Params {
  parts: u32,    // at most 256
  out_at: u32,   // first word of the result: maximum, sum, index
  token_at: u32, // where the index also goes as the next token
}

@group(0) @binding(0) var<storage, read> parts: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> stats: array<u32>;
@group(0) @binding(2) var<storage, read_write> tokens: array<u32>;
@group(0) @binding(3) var<uniform> p: Params;
//#include vocab_reduce.wgsl

@compute @workgroup_size(256)
fn main(@builtin(local_invocation_index) t: u32) {
  var part = vec4<u32>(bitcast<u32>(-3.4e38), 0u, 0xffffffffu, 0u);
  if (t < p.parts) {
    part = parts[t];
  }
  reduce(t, bitcast<f32>(part.x), part.z, bitcast<f32>(part.y));
  if (t == 0u) {
    stats[p.out_at] = bitcast<u32>(best[0]);
    stats[p.out_at + 1u] = bitcast<u32>(sum[0]);
    stats[p.out_at + 2u] = index[0];
    tokens[p.token_at] = index[0];
  }
}
