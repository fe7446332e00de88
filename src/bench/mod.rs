//! Benches, the same on the desktop and in a tab: deterministic work on a loaded model, timed. They print nothing; results are plain data.

pub mod kernels;
pub mod peaks;
pub mod products;
pub mod references;
pub mod shared;
pub mod speed;
mod story;
pub mod suite;
pub mod synthetic;

/// Tokens from a seed: ids below `vocab` from xorshift64, the same everywhere.
pub struct Tokens(u64);

impl Tokens {
    /// A source; equal seeds give equal tokens.
    pub fn new(seed: u64) -> Tokens {
        Tokens(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The next `count` ids below `vocab`.
    pub fn take(&mut self, count: usize, vocab: u32) -> Vec<u32> {
        let mut next = || {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            ((self.0 >> 20) % u64::from(vocab.max(1))) as u32
        };
        (0..count).map(|_| next()).collect()
    }
}

/// The smallest value that at least a share `p` of the values do not exceed; 0 without values.
pub fn percentile(values: &[f64], p: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (p * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.clamp(1, sorted.len().max(1)) - 1).copied().unwrap_or(0.0)
}

/// Token ids that are read as if they were the letters A to T.
pub fn labels(vocab: u32) -> Vec<u32> {
    (0..20).map(|i| (32 + i) % vocab.max(1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values() {
        let values = [4.0, 1.0, 3.0, 2.0];
        assert_eq!([0.0, 0.25, 0.5, 0.51, 0.95, 1.0].map(|p| percentile(&values, p)), [1.0, 1.0, 2.0, 3.0, 4.0, 4.0]);
        assert_eq!((percentile(&[7.0], 0.5), percentile(&[], 0.5)), (7.0, 0.0));
    }

    #[test]
    fn tokens_are_the_same_everywhere() {
        let a = Tokens::new(3).take(1000, 500);
        assert_eq!(a, Tokens::new(3).take(1000, 500));
        assert_ne!(a, Tokens::new(4).take(1000, 500));
        assert!(a.iter().all(|id| *id < 500) && a.iter().max() > Some(&450));
    }
}
