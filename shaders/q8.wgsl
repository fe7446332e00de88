// 8-bit activations: in each block of 32 columns a scale d = max |v| / 127, 32 integers v / d, and d * their sum for weights with minima.
// 128 threads hand in 4 columns each, 8 threads a block; the layout is the products': blocks of all rows side by side.
// The kernel that includes this has `mp` (rows that the buffers hold) in its parameters, and binds from {{B_Q8}}.

@group(0) @binding({{B_Q8}}) var<storage, read_write> xq: array<u32>;          // [k / 32][mp][8 words of 4 columns]
@group(0) @binding({{B_Q8+1}}) var<storage, read_write> xs: array<vec2<f32>>;  // [k / 32][mp]: d, d * sum

var<workgroup> block_most: array<f32, 128>;
var<workgroup> block_sum: array<i32, 128>;

// Columns 4 i .. 4 i + 3 of a row. All threads call it, `inside` or not.
fn store_q8(t: u32, row: u32, i: u32, v: vec4<f32>, inside: bool) {
  let a = abs(v);
  block_most[t] = max(max(a.x, a.y), max(a.z, a.w));
  workgroupBarrier();
  let first = t & 120u;
  var most = block_most[first];
//#for e in 1..8
  most = max(most, block_most[first + {{e}}u]);
//#end
  let d = most * (1.0 / 127.0);
  // A block of zeros (or of what is next to zero) has no scale to divide by.
  let by = select(0.0, 127.0 / most, most > 1e-30);
  let q = vec4<i32>(round(v * by));
  block_sum[t] = q.x + q.y + q.z + q.w;
  workgroupBarrier();
  if (inside) {
    let at = (i >> 3u) * p.mp + row;
    let b = vec4<u32>(q) & vec4<u32>(255u);
    xq[at * 8u + (i & 7u)] = b.x | (b.y << 8u) | (b.z << 16u) | (b.w << 24u);
    if (t == first) {
      var sum = block_sum[first];
//#for e in 1..8
      sum += block_sum[first + {{e}}u];
//#end
      xs[at] = vec2<f32>(d, d * f32(sum));
    }
  }
}
