//! The RoPE table: cosine and sine for every position and pair, computed in f64 on the CPU.
//!
//! WGSL promises little about `sin` and `cos` of large arguments, and an f32 angle of 8000 radians is already wrong in the
//! fourth digit; a table of a few megabytes is exact and the same on every adapter.

use super::config::Attention;

/// `[positions, rotated / 2]` pairs (cosine, sine). `factors` divides the frequency of each pair (`rope_freqs`).
pub fn table(attention: &Attention, factors: Option<&[f32]>, positions: u32) -> Vec<[f32; 2]> {
    let half = attention.heads.rotated / 2;
    let frequencies: Vec<f64> = (0..half)
        .map(|i| {
            let f = attention.rope_base.powf(-2.0 * f64::from(i) / f64::from(attention.heads.rotated));
            f / factors.and_then(|v| v.get(i as usize)).map_or(1.0, |v| f64::from(*v)) / attention.rope_divisor
        })
        .collect();
    let angles = (0..positions).flat_map(|p| frequencies.iter().map(move |f| f64::from(p) * f));
    angles.map(|a| [a.cos() as f32, a.sin() as f32]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::rope::{Heads, Pairs};

    #[test]
    fn follows_the_definition() {
        let heads = Heads { heads: 1, kv_heads: 1, head_dim: 8, rotated: 4, q_stride: 8 };
        let attention = Attention { heads, pairs: Pairs::Halves, rope_base: 100.0, rope_divisor: 2.0, gated: false };
        let t = table(&attention, Some(&[1.0, 4.0]), 3);
        assert_eq!(t.len(), 6);
        // Position 2, pair 1: 2 * 100^(-2/4) / 4 / 2 = 0.025.
        assert_eq!(t[5], [0.025f64.cos() as f32, 0.025f64.sin() as f32]);
        assert_eq!(t[4], [1f64.cos() as f32, 1f64.sin() as f32]);
        assert_eq!(t[0], [1.0, 0.0]);
    }
}
