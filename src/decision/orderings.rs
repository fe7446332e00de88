//! One decision in several orders of its options: which orders, what they say together, and when the rest cannot matter.
//!
//! A model leans towards some letters. Reading the same options in other orders and averaging log-probabilities by option takes that
//! lean out; how much the orders disagree says how far it went.

use serde::{Deserialize, Serialize};

use super::readout::{Readout, ReadoutError, readout};

/// Most options for which every ordering is read: 4! = 24 prompts.
pub const MOST_FOR_ALL: usize = 4;

/// Which orders of a row's options are read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Orderings {
    /// Every option stands first once: as many orders as options.
    Rotations,
    /// Every permutation; rows of at most [`MOST_FOR_ALL`] options.
    All,
    /// As given and back to front.
    Reverse,
    /// Rotations, until [`settled`] at this confidence.
    Adaptive {
        /// In (0.5, 1]; 1 reads all rotations.
        confidence: f64,
    },
}

impl Orderings {
    /// The orders for `n` options, the given one first. `order[position]` is the index of the option that stands there.
    ///
    /// # Errors
    /// Too many options for [`Orderings::All`], in words.
    pub fn orders(self, n: usize) -> Result<Vec<Vec<usize>>, String> {
        let given: Vec<usize> = (0..n).collect();
        Ok(match self {
            Orderings::Reverse => vec![given.clone(), given.into_iter().rev().collect()],
            Orderings::Rotations | Orderings::Adaptive { .. } => {
                // Far apart ones first, so that an early stop has seen different neighbours.
                let step = stride(n);
                (0..n).map(|i| (0..n).map(|at| (i * step + at) % n).collect()).collect()
            }
            Orderings::All if n > MOST_FOR_ALL => {
                return Err(format!(
                    "all orderings are read of at most {MOST_FOR_ALL} options, this row has {n}: use rotations, reverse or adaptive"
                ));
            }
            Orderings::All => {
                let mut all = vec![Vec::new()];
                for _ in 0..n {
                    let longer = |short: &Vec<usize>| {
                        let rest = (0..n).filter(|i| !short.contains(i));
                        rest.map(|i| short.iter().copied().chain([i]).collect()).collect::<Vec<_>>()
                    };
                    all = all.iter().flat_map(longer).collect();
                }
                all
            }
        })
    }

    /// Name for result rows: rows of one file have the same.
    pub fn name(self) -> String {
        match self {
            Orderings::Rotations => "rotations".to_owned(),
            Orderings::All => "all".to_owned(),
            Orderings::Reverse => "reverse".to_owned(),
            Orderings::Adaptive { confidence } => format!("adaptive {confidence}"),
        }
    }
}

/// A step near 0.618 n without a common divisor with n: i * step mod n visits every rotation, spread out from the start.
fn stride(n: usize) -> usize {
    let gcd = |mut a: usize, mut b: usize| {
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let near = (n as f64 * 0.618) as usize;
    (near.max(1)..n.max(2)).find(|step| gcd(*step, n) == 1).unwrap_or(1)
}

/// One ordering's reading, in a result row.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OrderReading {
    /// Option ids as they stood in the prompt; the two lists below follow this order.
    pub order: Vec<String>,
    pub probabilities: Vec<f64>,
    pub option_logits: Vec<f32>,
    pub input_tokens: usize,
    pub allowed_token_mass: Option<f64>,
    pub full_vocab_argmax_id: Option<u32>,
    pub prompt_sha256: String,
}

/// What all orderings that were read say together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Combined {
    /// Softmax of the mean log-probability of each option, in the row's order.
    pub probabilities: Vec<f64>,
    /// Id of the most probable option; the first one wins a tie.
    pub top: String,
    /// Share of the orderings that have this option on top themselves.
    pub agreement: f64,
    /// The furthest that an option's probability moves between two orderings.
    pub spread: f64,
    /// Orderings read.
    pub read: usize,
    /// Orderings there are; more than `read` where the rest could not matter.
    pub of: usize,
}

/// Log-probabilities of one ordering, put back into the row's own order.
///
/// # Errors
/// Logits that are not finite.
pub fn log_probabilities(order: &[usize], logits: &[f32]) -> Result<Vec<f64>, ReadoutError> {
    let read: Readout = readout(logits)?;
    let mut by_option = vec![f64::NEG_INFINITY; order.len()];
    for (option, logit) in order.iter().zip(logits) {
        by_option[*option] = f64::from(*logit) - read.lse;
    }
    Ok(by_option)
}

fn top(values: &[f64]) -> usize {
    values.iter().enumerate().fold(0, |best, (i, value)| if *value > values[best] { i } else { best })
}

/// Combines the orderings read so far, each as [`log_probabilities`] gives it; `of` is how many there are. Empty input gives an empty result.
pub fn combine(ids: &[String], readings: &[Vec<f64>], of: usize) -> Combined {
    if readings.is_empty() {
        return Combined { of, ..Combined::default() };
    }
    let count = readings.len() as f64;
    let mean: Vec<f64> = (0..ids.len()).map(|i| readings.iter().map(|r| r[i]).sum::<f64>() / count).collect();
    let best = top(&mean);
    let mut probabilities: Vec<f64> = mean.iter().map(|m| (m - mean[best]).exp()).collect();
    let sum: f64 = probabilities.iter().sum();
    probabilities.iter_mut().for_each(|p| *p /= sum);
    let spread = |i: usize| {
        let shares = readings.iter().map(|r| r[i].exp());
        let (low, high) = shares.fold((1.0f64, 0.0f64), |(low, high), p| (low.min(p), high.max(p)));
        high - low
    };
    Combined {
        probabilities,
        top: ids[best].clone(),
        agreement: readings.iter().filter(|r| top(r) == best).count() as f64 / count,
        spread: (0..ids.len()).map(spread).fold(0.0, f64::max),
        read: readings.len(),
        of,
    }
}

/// True when the orderings not read yet cannot change the combined top any more, at `confidence`.
///
/// With k of n orderings read, let d be the differences of log-probability between the leading option and a rival, one for each
/// ordering read, with mean m and sample deviation s. The sum over all n is predicted as n m with the standard error
/// s sqrt((n - k) n / k) of a sum whose remaining n - k terms are drawn like the first k. The lead over this rival stands when
/// n m > t s sqrt((n - k) n / k), t being Student's quantile for k - 1 degrees of freedom at 1 - (1 - confidence) / rivals, so that
/// all rivals together are beaten with at least the asked confidence. At least two orderings are read; at confidence 1 all are.
pub fn settled(readings: &[Vec<f64>], of: usize, confidence: f64) -> bool {
    let (k, n) = (readings.len(), of);
    if k >= n {
        return true;
    }
    let Some(options) = readings.first().map(Vec::len).filter(|options| k >= 2 && *options >= 2) else { return false };
    let sums: Vec<f64> = (0..options).map(|i| readings.iter().map(|r| r[i]).sum()).collect();
    let lead = top(&sums);
    let t = student(1.0 - (1.0 - confidence) / (options - 1) as f64, (k - 1) as u32);
    let (k, n) = (k as f64, n as f64);
    (0..options).filter(|rival| *rival != lead).all(|rival| {
        let differences = readings.iter().map(|r| r[lead] - r[rival]);
        let mean = differences.clone().sum::<f64>() / k;
        let deviation = (differences.map(|d| (d - mean).powi(2)).sum::<f64>() / (k - 1.0)).sqrt();
        // Without the second test a deviation of exactly 0 would meet an infinite quantile.
        n * mean > t * deviation * ((n - k) * n / k).sqrt() && t.is_finite()
    })
}

/// Quantile of Student's distribution: the t with P(T <= t) = p, for p in [0.5, 1]; infinite at 1.
fn student(p: f64, freedom: u32) -> f64 {
    if p >= 1.0 {
        return f64::INFINITY;
    }
    let (mut low, mut high) = (0.0, 1.0);
    while student_cdf(high, freedom) < p && high < 1e15 {
        high *= 2.0;
    }
    for _ in 0..200 {
        let middle = 0.5 * (low + high);
        if student_cdf(middle, freedom) < p { low = middle } else { high = middle }
    }
    high
}

/// Student's distribution for t >= 0 and whole degrees of freedom, as the finite sums of Abramowitz and Stegun 26.7.3 and 26.7.4.
fn student_cdf(t: f64, freedom: u32) -> f64 {
    let angle = (t / f64::from(freedom).sqrt()).atan();
    let (sin, cos) = angle.sin_cos();
    let odd = freedom % 2 == 1;
    let (mut term, mut sum) = if odd { (cos, 0.0) } else { (1.0, 0.0) };
    let mut i = if odd { 1 } else { 0 };
    while i + 2 <= freedom {
        sum += term;
        term *= cos * cos * f64::from(i + 1) / f64::from(i + 2);
        i += 2;
    }
    let both = if odd { std::f64::consts::FRAC_2_PI * (angle + sin * sum) } else { sin * sum };
    0.5 + 0.5 * both
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders() {
        for n in 2..=20 {
            let rotations = Orderings::Rotations.orders(n).unwrap();
            assert_eq!((rotations.len(), rotations[0].clone()), (n, (0..n).collect::<Vec<_>>()));
            let mut first: Vec<usize> = rotations.iter().map(|o| o[0]).collect();
            first.sort_unstable();
            assert_eq!(first, (0..n).collect::<Vec<_>>(), "every option stands first once");
            assert!(rotations.iter().all(|o| (1..n).all(|i| o[i] == (o[i - 1] + 1) % n)));
        }
        let all = Orderings::All.orders(4).unwrap();
        assert_eq!((all.len(), all[0].clone(), all[23].clone()), (24, vec![0, 1, 2, 3], vec![3, 2, 1, 0]));
        assert!((0..24).all(|i| !all[..i].contains(&all[i])));
        assert!(Orderings::All.orders(5).unwrap_err().contains("at most 4 options, this row has 5"));
        assert_eq!(Orderings::Reverse.orders(3).unwrap(), [[0, 1, 2], [2, 1, 0]]);
        assert_eq!(Orderings::Adaptive { confidence: 0.95 }.name(), "adaptive 0.95");
    }

    fn ids(n: usize) -> Vec<String> {
        (0..n).map(|i| format!("o{i}")).collect()
    }

    #[test]
    fn readings_are_put_back_by_option() {
        // Option 1 stands first with logit 0, option 2 second with 1, option 0 third with 2.
        let read = log_probabilities(&[1, 2, 0], &[0.0, 1.0, 2.0]).unwrap();
        let lse = (1f64 + 1f64.exp() + 2f64.exp()).ln();
        for (a, b) in read.iter().zip([2.0 - lse, 0.0 - lse, 1.0 - lse]) {
            assert!((a - b).abs() < 1e-15);
        }
        assert!(log_probabilities(&[0, 1], &[0.0, f32::NAN]).is_err());
    }

    #[test]
    fn combining_takes_a_lean_out() {
        // A model that adds 2 to whatever stands first, and is otherwise undecided: rotations cancel it exactly.
        let lean = |order: &[usize]| log_probabilities(order, &[2.0, 0.0, 0.0]).unwrap();
        let readings: Vec<Vec<f64>> = Orderings::Rotations.orders(3).unwrap().iter().map(|o| lean(o)).collect();
        let combined = combine(&ids(3), &readings, 3);
        assert!(combined.probabilities.iter().all(|p| (p - 1.0 / 3.0).abs() < 1e-12), "{combined:?}");
        let (high, low) = (2f64.exp() / (2f64.exp() + 2.0), 1.0 / (2f64.exp() + 2.0));
        assert!((combined.spread - (high - low)).abs() < 1e-12);
        assert!((combined.agreement - 1.0 / 3.0).abs() < 1e-12);
        // Known values: mean log-probabilities of (0.8, 0.2) and (0.4, 0.6).
        let two = [vec![0.8f64.ln(), 0.2f64.ln()], vec![0.4f64.ln(), 0.6f64.ln()]];
        let combined = combine(&ids(2), &two, 2);
        let (a, b) = ((0.8f64 * 0.4).sqrt(), (0.2f64 * 0.6).sqrt());
        assert!((combined.probabilities[0] - a / (a + b)).abs() < 1e-12);
        assert_eq!((combined.top.as_str(), combined.agreement, combined.read), ("o0", 0.5, 2));
        assert!((combined.spread - 0.4).abs() < 1e-12);
    }

    /// One-sided quantiles from the printed tables.
    #[test]
    fn students_quantiles() {
        for (p, freedom, t) in [
            (0.95, 1, 6.3138),
            (0.95, 2, 2.9200),
            (0.975, 3, 3.1824),
            (0.99, 4, 3.7469),
            (0.95, 10, 1.8125),
            (0.995, 19, 2.8609),
            (0.75, 5, 0.7267),
        ] {
            assert!((student(p, freedom) - t).abs() < 1e-3, "{p} {freedom}: {}", student(p, freedom));
        }
        assert_eq!(student(1.0, 3), f64::INFINITY);
    }

    #[test]
    fn stops_when_the_rest_cannot_matter() {
        let reading = |lead: f64| vec![0.0, -lead, -9.0];
        // Always the same large lead: settled after two; the same with wild differences: not.
        assert!(settled(&[reading(3.0), reading(3.1)], 6, 0.95));
        assert!(!settled(&[reading(3.0), reading(-1.0)], 6, 0.95));
        // One reading never settles, all always do, and certainty needs all.
        assert!(!settled(&[reading(50.0)], 6, 0.95));
        assert!(settled(&[reading(0.1), reading(-0.1)], 2, 0.95));
        assert!(!settled(&[reading(3.0), reading(3.0)], 6, 1.0));
        // By hand for two options: d = 1, 3; m = 2, s = sqrt(2); n = 4, k = 2: 8 > t sqrt(2) 2 = 2.83 t, so t < 2.83, which one
        // degree of freedom has at P(T <= t) = 1/2 + atan(2.83)/pi = 0.8918.
        let two = [vec![0.0, -1.0], vec![0.0, -3.0]];
        assert!(settled(&two, 4, 0.89) && !settled(&two, 4, 0.893));
    }

    /// What it promises: of decisions stopped early, at most 1 - confidence would have ended otherwise.
    #[test]
    fn early_stops_are_rarely_wrong() {
        let mut state = 1u64;
        let mut uniform = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) as f64 / (1u64 << 53) as f64
        };
        let (mut stopped, mut wrong) = (0, 0);
        for _ in 0..4000 {
            let mut normal = || (0..12).map(|_| uniform()).sum::<f64>() - 6.0;
            let base = [normal(), normal(), normal(), normal()];
            let all: Vec<Vec<f64>> = (0..8).map(|_| base.iter().map(|b| b + normal()).collect()).collect();
            let Some(k) = (2..8).find(|k| settled(&all[..*k], 8, 0.9)) else { continue };
            stopped += 1;
            wrong += usize::from(combine(&ids(4), &all[..k], 8).top != combine(&ids(4), &all, 8).top);
        }
        assert!(stopped > 1000 && wrong * 10 < stopped, "{wrong} of {stopped}");
        assert!(wrong > 0, "a test that cannot see a wrong stop");
    }
}
