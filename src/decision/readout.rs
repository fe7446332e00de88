//! From option logits to probabilities: the readout of a decision.

/// Probabilities of the options and what they say about the decision.
#[derive(Clone, Debug, PartialEq)]
pub struct Readout {
    /// Softmax over the option logits, in option order; sums to 1.
    pub probabilities: Vec<f64>,
    /// Index of the most probable option; the first one wins a tie.
    pub top: usize,
    /// Shannon entropy in nats: 0 when certain, ln(n) when undecided.
    pub entropy: f64,
    /// Probability of the best option minus that of the second best.
    pub margin: f64,
    /// Log-sum-exp of the option logits.
    pub lse: f64,
}

/// Logits that no distribution can be read from.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadoutError {
    #[error("there are no option logits")]
    Empty,
    #[error("the logit of option {0} is not a finite number: the model or the GPU computed nonsense")]
    NotFinite(char),
}

/// Softmax in f64 with the maximum subtracted, summed left to right.
///
/// # Errors
/// No logits, or one that is NaN or infinite: such a readout would look like a decision.
pub fn readout(logits: &[f32]) -> Result<Readout, ReadoutError> {
    if let Some(bad) = logits.iter().position(|l| !l.is_finite()) {
        return Err(ReadoutError::NotFinite(super::letter(bad.min(25))));
    }
    let mut top = 0;
    for (i, logit) in logits.iter().enumerate() {
        if *logit > logits[top] {
            top = i;
        }
    }
    let max = f64::from(*logits.get(top).ok_or(ReadoutError::Empty)?);
    let mut probabilities: Vec<f64> = logits.iter().map(|l| (f64::from(*l) - max).exp()).collect();
    let mut sum = 0.0;
    for p in &probabilities {
        sum += p;
    }
    let mut entropy = 0.0;
    let mut second = 0.0f64;
    for (i, p) in probabilities.iter_mut().enumerate() {
        *p /= sum;
        if *p > 0.0 {
            entropy -= *p * p.ln();
        }
        if i != top {
            second = second.max(*p);
        }
    }
    let margin = probabilities[top] - second;
    Ok(Readout { probabilities, top, entropy: entropy.max(0.0), margin, lse: max + sum.ln() })
}

/// Share of the whole vocabulary's probability that the answer letters hold: `exp(lse(slots) - lse(vocabulary))`.
/// Rounding cannot push it above 1.
pub fn allowed_token_mass(slots_lse: f64, vocabulary_lse: f64) -> f64 {
    (slots_lse - vocabulary_lse).exp().min(1.0)
}

/// An entropy in nats for people: in bits, beside the most that so many options can have.
pub fn entropy_in_bits(nats: f64, options: usize) -> String {
    format!("{:.2} of {:.2} bits", nats / std::f64::consts::LN_2, (options as f64).log2())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_distribution() {
        let r = readout(&[1.0, 3.0, 2.0]).unwrap();
        // numpy: exp(x - 3) / sum
        for (p, expected) in r.probabilities.iter().zip([0.09003057317038046, 0.6652409557748219, 0.24472847105479767]) {
            assert!((p - expected).abs() < 1e-15, "{p} {expected}");
        }
        assert_eq!(r.top, 1);
        assert!((r.entropy - 0.8323955818399389).abs() < 1e-12, "{}", r.entropy);
        assert!((r.margin - (0.6652409557748219 - 0.24472847105479767)).abs() < 1e-15);
        assert!((r.lse - 3.4076059644443806).abs() < 1e-14);
    }

    #[test]
    fn ties_extremes_and_order() {
        let r = readout(&[5.0, 7.0, 7.0]).unwrap();
        assert_eq!((r.top, r.margin), (1, 0.0));
        let r = readout(&[f32::MAX, -f32::MAX]).unwrap();
        assert_eq!((r.probabilities.as_slice(), r.entropy, r.margin), (&[1.0, 0.0][..], 0.0, 1.0));
        let r = readout(&[-3e38; 20]).unwrap();
        assert!((r.entropy - 20f64.ln()).abs() < 1e-12 && (r.probabilities.iter().sum::<f64>() - 1.0).abs() < 1e-12);
        assert_eq!(readout(&[0.0]).unwrap().probabilities, [1.0]);
    }

    #[test]
    fn nonsense_is_refused() {
        assert_eq!(readout(&[]), Err(ReadoutError::Empty));
        assert_eq!(readout(&[0.0, f32::NAN]), Err(ReadoutError::NotFinite('B')));
        assert_eq!(readout(&[f32::INFINITY, 0.0]), Err(ReadoutError::NotFinite('A')));
    }

    #[test]
    fn bits() {
        let undecided = readout(&[2.0; 4]).unwrap();
        assert_eq!(entropy_in_bits(undecided.entropy, 4), "2.00 of 2.00 bits");
        assert_eq!(entropy_in_bits(0.0, 3), "0.00 of 1.58 bits");
    }

    #[test]
    fn mass() {
        let logits = [1.0f32, 2.0, 0.5, -1.0];
        let vocabulary = readout(&logits).unwrap();
        let slots = readout(&logits[..2]).unwrap();
        let mass = allowed_token_mass(slots.lse, vocabulary.lse);
        assert!((mass - vocabulary.probabilities[..2].iter().sum::<f64>()).abs() < 1e-15);
        assert_eq!(allowed_token_mass(1.0 + 1e-12, 1.0), 1.0);
    }
}
