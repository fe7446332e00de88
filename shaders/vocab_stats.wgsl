// Over one row of full-vocabulary logits: the maximum, the sum of exp(logit - maximum) and the first index of the maximum.
// One workgroup; each thread runs over its own stripe, then the stripes are joined in a fixed order.

struct Params {
  n: u32,       // vocabulary
  at: u32,      // first logit
  out_at: u32,  // first word of the result: maximum, sum, index
  token_at: u32, // where the index also goes as the next token
}

@group(0) @binding(0) var<storage, read> logits: array<f32>;
@group(0) @binding(1) var<storage, read_write> stats: array<u32>;
@group(0) @binding(2) var<storage, read_write> tokens: array<u32>;
@group(0) @binding(3) var<uniform> p: Params;

var<workgroup> best: array<f32, 256>;
var<workgroup> index: array<u32, 256>;
var<workgroup> sum: array<f32, 256>;

@compute @workgroup_size(256)
fn main(@builtin(local_invocation_index) t: u32) {
  var m = -3.4e38;
  var at = 0xffffffffu;
  var s = 0.0;
  for (var i = t; i < p.n; i += 256u) {
    let v = logits[p.at + i];
    if (v > m) {
      s = s * exp(m - v) + 1.0;
      m = v;
      at = i;
    } else {
      s += exp(v - m);
    }
  }
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
  if (t == 0u) {
    stats[p.out_at] = bitcast<u32>(best[0]);
    stats[p.out_at + 1u] = bitcast<u32>(sum[0]);
    stats[p.out_at + 2u] = index[0];
    tokens[p.token_at] = index[0];
  }
}
