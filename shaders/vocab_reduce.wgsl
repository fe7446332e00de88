// Joins 256 threads' (maximum, first index, sum of exponentials) in a fixed order; the result stands at place 0.

var<workgroup> best: array<f32, 256>;
var<workgroup> index: array<u32, 256>;
var<workgroup> sum: array<f32, 256>;

fn reduce(t: u32, m: f32, at: u32, s: f32) {
  best[t] = m;
  index[t] = at;
  sum[t] = s;
  workgroupBarrier();
//#for k in 0..8
  if (t < (128u >> {{k}}u)) {
    let u = t + (128u >> {{k}}u);
    let a = best[t];
    let b = best[u];
    let top = max(a, b);
    sum[t] = sum[t] * exp(a - top) + sum[u] * exp(b - top);
    if (b > a || (b == a && index[u] < index[t])) {
      index[t] = index[u];
    }
    best[t] = top;
  }
  workgroupBarrier();
//#end
}
