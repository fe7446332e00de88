// Rows of one sequence in a batch, and what the convolution sees of them: the three inputs before a segment's first row come from its
// convolution state. The includer has x, states and p with ld and channels.

struct Segment {
  row: u32,        // first row of the batch
  rows: u32,
  state_in: u32,   // state slot before it, 0xffffffff for zeros
  state_out: u32,  // state slot after it, 0xffffffff: the state is not kept
}

fn input(row: i32, s: Segment, channel: u32) -> f32 {
  if (row >= 0) {
    return x[(s.row + u32(row)) * p.ld + channel];
  }
  if (s.state_in == 0xffffffffu) {
    return 0.0;
  }
  return states[(s.state_in * 3u + u32(row + 3)) * p.channels + channel];
}
