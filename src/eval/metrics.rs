//! The metrics themselves. Each says exactly what it is, because several definitions go by the same names.

use std::collections::BTreeMap;

use super::top;

/// Bins of the reliability diagram and of the calibration error.
pub const BINS: usize = 10;

/// Smallest probability that NLL counts with: one hopeless row must not decide the mean of a file.
const FLOOR: f64 = 1e-12;

/// One row with its right answer and what was answered.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Case {
    /// Rows of one family share their kind of question; see [`Scores::balanced_accuracy`].
    pub family: String,
    /// Option ids in the row's order.
    pub options: Vec<String>,
    /// Index of the right option.
    pub label: usize,
    /// In the row's order; none where the row was refused.
    pub probabilities: Option<Vec<f64>>,
}

impl Case {
    /// Index of the chosen option, the first of equals; none where the row was refused.
    pub fn choice(&self) -> Option<usize> {
        self.probabilities.as_deref().map(top)
    }

    /// The choice is the right one.
    pub fn right(&self) -> bool {
        self.choice() == Some(self.label)
    }

    /// Probability of the choice.
    pub fn confidence(&self) -> Option<f64> {
        self.probabilities.as_deref().map(|p| p[top(p)])
    }
}

/// What a file of cases says about a model.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Scores {
    /// Rows, answered or not.
    pub rows: usize,
    /// Rows that were answered.
    pub answered: usize,
    /// Right choices over all rows: a refused row is a wrong one.
    pub accuracy: f64,
    /// For each family the mean over its labels of the share of that label's rows that were chosen rightly, averaged over families.
    pub balanced_accuracy: f64,
    /// For each family the mean F1 over the options that are a label or a choice of its rows, averaged over families.
    pub macro_f1: f64,
    /// Mean of -ln p(right option) in nats over the answered rows, p at least 1e-12.
    pub nll: f64,
    /// Mean over the answered rows of the summed squared differences from the right answer: 0 to 2.
    pub brier: f64,
    /// Expected calibration error of the chosen option over the answered rows: see [`reliability`].
    pub ece: f64,
    /// Mean probability of the chosen option over the answered rows.
    pub confidence: f64,
    /// Area under the curve of [`coverage`]: mean error rate over all coverages, 0 when every wrong row is less sure than every right one
    /// and there are few of them.
    pub aurc: f64,
}

/// All metrics. An empty file scores zeros.
pub fn scores(cases: &[Case]) -> Scores {
    let rows = cases.len();
    if rows == 0 {
        return Scores::default();
    }
    let answers: Vec<(&Case, &[f64])> = cases.iter().filter_map(|case| Some((case, case.probabilities.as_deref()?))).collect();
    let mean = |value: &dyn Fn(&Case, &[f64]) -> f64| {
        let sum: f64 = answers.iter().map(|(case, p)| value(case, p)).sum();
        if answers.is_empty() { 0.0 } else { sum / answers.len() as f64 }
    };
    let curve = coverage(cases);
    let families = families(cases);
    let over_families =
        |value: &dyn Fn(&[&Case]) -> f64| families.values().map(|family| value(family)).sum::<f64>() / families.len() as f64;
    Scores {
        rows,
        answered: answers.len(),
        accuracy: cases.iter().filter(|case| case.right()).count() as f64 / rows as f64,
        balanced_accuracy: over_families(&balanced),
        macro_f1: over_families(&f1),
        nll: mean(&|case, p| -p[case.label].max(FLOOR).ln()),
        brier: mean(&|case, p| p.iter().enumerate().map(|(i, p)| (p - f64::from(u8::from(i == case.label))).powi(2)).sum()),
        ece: calibration_error(&reliability(cases)),
        confidence: mean(&|_, p| p[top(p)]),
        aurc: if curve.is_empty() { 0.0 } else { curve.iter().map(|point| point.risk).sum::<f64>() / curve.len() as f64 },
    }
}

fn families(cases: &[Case]) -> BTreeMap<&str, Vec<&Case>> {
    let mut families: BTreeMap<&str, Vec<&Case>> = BTreeMap::new();
    for case in cases {
        families.entry(&case.family).or_default().push(case);
    }
    families
}

/// Rows of a label and how many of them were right, and how often an option was chosen; by option id.
#[derive(Default)]
struct Count {
    rows: usize,
    right: usize,
    chosen: usize,
}

fn counts<'a>(cases: &[&'a Case]) -> BTreeMap<&'a str, Count> {
    let mut counts: BTreeMap<&str, Count> = BTreeMap::new();
    for case in cases {
        let label = counts.entry(&case.options[case.label]).or_default();
        label.rows += 1;
        label.right += usize::from(case.right());
        if let Some(choice) = case.choice() {
            counts.entry(&case.options[choice]).or_default().chosen += 1;
        }
    }
    counts
}

fn balanced(cases: &[&Case]) -> f64 {
    let counts = counts(cases);
    let recalls: Vec<f64> = counts.values().filter(|c| c.rows > 0).map(|c| c.right as f64 / c.rows as f64).collect();
    recalls.iter().sum::<f64>() / recalls.len().max(1) as f64
}

fn f1(cases: &[&Case]) -> f64 {
    let counts = counts(cases);
    // 2 TP / (2 TP + FP + FN): rows of the label and choices of it together are the denominator.
    counts.values().map(|c| 2.0 * c.right as f64 / (c.rows + c.chosen) as f64).sum::<f64>() / counts.len().max(1) as f64
}

/// Answers of about equal confidence.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bin {
    pub rows: usize,
    /// Mean probability of the choices; 0 in an empty bin.
    pub confidence: f64,
    /// Share of them that are right; 0 in an empty bin.
    pub accuracy: f64,
}

/// [`BINS`] bins of equal width over the probability of the choice: bin i holds the answers in (i/10, (i+1)/10].
pub fn reliability(cases: &[Case]) -> [Bin; BINS] {
    let mut bins = [Bin::default(); BINS];
    for case in cases {
        let Some(confidence) = case.confidence() else { continue };
        let bin = &mut bins[((confidence * BINS as f64).ceil() as usize).clamp(1, BINS) - 1];
        bin.rows += 1;
        bin.confidence += confidence;
        bin.accuracy += f64::from(u8::from(case.right()));
    }
    for bin in bins.iter_mut().filter(|bin| bin.rows > 0) {
        bin.confidence /= bin.rows as f64;
        bin.accuracy /= bin.rows as f64;
    }
    bins
}

/// Mean over the answers of |share right - mean confidence| of their bin.
fn calibration_error(bins: &[Bin]) -> f64 {
    let rows: usize = bins.iter().map(|bin| bin.rows).sum();
    let sum: f64 = bins.iter().map(|bin| bin.rows as f64 * (bin.accuracy - bin.confidence).abs()).sum();
    if rows == 0 { 0.0 } else { sum / rows as f64 }
}

/// Answering only the surest share of the rows: how often that goes wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Point {
    /// Share of all rows that are answered.
    pub coverage: f64,
    /// Share of these that are wrong.
    pub risk: f64,
    /// Confidence of the least sure of them.
    pub confidence: f64,
}

/// The risk-coverage curve, one point for each answered row, the surest first. Rows of equal confidence share their errors evenly, so
/// that their order does not matter.
pub fn coverage(cases: &[Case]) -> Vec<Point> {
    let mut answers: Vec<(f64, bool)> = cases.iter().filter_map(|case| Some((case.confidence()?, case.right()))).collect();
    answers.sort_by(|a, b| b.0.total_cmp(&a.0));
    let (mut points, mut done, mut errors) = (Vec::with_capacity(answers.len()), 0, 0);
    for equal in answers.chunk_by(|a, b| a.0 == b.0) {
        let wrong = equal.iter().filter(|(_, right)| !right).count();
        for i in 1..=equal.len() {
            let so_far = errors as f64 + (wrong * i) as f64 / equal.len() as f64;
            let answered = (done + i) as f64;
            points.push(Point { coverage: answered / cases.len() as f64, risk: so_far / answered, confidence: equal[0].0 });
        }
        done += equal.len();
        errors += wrong;
    }
    points
}

/// How choices move with the order of the options.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Flips {
    /// Rows that were read in more than one order.
    pub rows: usize,
    /// Of these, rows in which some order chooses another option than the given one.
    pub flipped: usize,
    /// Orders besides the given one, of all rows.
    pub orders: usize,
    /// Of these, orders that choose another option than the given one.
    pub flipped_orders: usize,
}

/// Counts flips. Each item is one row: the probabilities of each order, the given order first, all in the row's order of options.
pub fn flips<'a>(rows: impl IntoIterator<Item = &'a [Vec<f64>]>) -> Flips {
    let mut flips = Flips::default();
    for orders in rows {
        let Some((given, others)) = orders.split_first().filter(|(_, others)| !others.is_empty()) else { continue };
        let moved = others.iter().filter(|order| top(order) != top(given)).count();
        flips.rows += 1;
        flips.flipped += usize::from(moved > 0);
        flips.orders += others.len();
        flips.flipped_orders += moved;
    }
    flips
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(family: &str, options: &[&str], label: usize, probabilities: Option<&[f64]>) -> Case {
        Case {
            family: family.into(),
            options: options.iter().map(|id| (*id).into()).collect(),
            label,
            probabilities: probabilities.map(<[f64]>::to_vec),
        }
    }

    fn near(found: f64, wanted: f64) {
        assert!((found - wanted).abs() < 1e-12, "{found} {wanted}");
    }

    /// Eight rows of two families, one of them refused.
    fn cases() -> Vec<Case> {
        let ab = ["a", "b"];
        let xyz = ["x", "y", "z"];
        vec![
            case("one", &ab, 0, Some(&[0.9, 0.1])),
            case("one", &ab, 0, Some(&[0.8, 0.2])),
            case("one", &ab, 0, Some(&[0.4, 0.6])),
            case("one", &ab, 1, Some(&[0.7, 0.3])),
            case("two", &xyz, 0, Some(&[0.5, 0.3, 0.2])),
            case("two", &xyz, 1, Some(&[0.1, 0.85, 0.05])),
            case("two", &xyz, 2, Some(&[0.05, 0.95, 0.0])),
            case("two", &xyz, 1, None),
        ]
    }

    #[test]
    fn by_hand() {
        let s = scores(&cases());
        assert_eq!((s.rows, s.answered), (8, 7));
        // Right: rows 1, 2, 5, 6.
        near(s.accuracy, 4.0 / 8.0);
        // one: a 2/3, b 0/1. two: x 1/1, y 1/2, z 0/1.
        near(s.balanced_accuracy, (((2.0 / 3.0) + 0.0) / 2.0 + (1.0 + 0.5 + 0.0) / 3.0) / 2.0);
        // one: a 4/(3+3), b 0. two: x 2/(1+1), y 2/(2+2), z 0.
        near(s.macro_f1, ((2.0 / 3.0 + 0.0) / 2.0 + (1.0 + 0.5 + 0.0) / 3.0) / 2.0);
        // numpy: -np.mean(np.log(np.maximum([.9, .8, .4, .3, .5, .85, 0], 1e-12)))
        near(s.nll, 4.419_350_689_879_771);
        // numpy: mean of ((p - onehot) ** 2).sum(1)
        near(s.brier, (0.02 + 0.08 + 0.72 + 0.98 + 0.38 + 0.035 + 1.905) / 7.0);
        near(s.confidence, (0.9 + 0.8 + 0.6 + 0.7 + 0.5 + 0.85 + 0.95) / 7.0);
    }

    #[test]
    fn calibration_by_hand() {
        let bins = reliability(&cases());
        // (0.4, 0.5]: 0.5 right; (0.5, 0.6]: 0.6 wrong; (0.6, 0.7]: 0.7 wrong; (0.7, 0.8]: 0.8 right; (0.8, 0.9]: 0.9 and 0.85 right;
        // (0.9, 1]: 0.95 wrong.
        let rows: Vec<usize> = bins.iter().map(|bin| bin.rows).collect();
        assert_eq!(rows, [0, 0, 0, 0, 1, 1, 1, 1, 2, 1]);
        near(bins[8].confidence, 0.875);
        near(bins[8].accuracy, 1.0);
        near(scores(&cases()).ece, (0.5 + 0.6 + 0.7 + 0.2 + 2.0 * 0.125 + 0.95) / 7.0);
        // The ends: certainty stands in the last bin.
        assert_eq!(reliability(&[case("", &["a", "b"], 0, Some(&[1.0, 0.0]))])[9].rows, 1);
    }

    #[test]
    fn coverage_by_hand() {
        // Surest first: .95 wrong, .9, .85, .8 right, .7, .6 wrong, .5 right; eight rows in all.
        let curve = coverage(&cases());
        let risks: Vec<f64> = curve.iter().map(|point| point.risk).collect();
        for (found, wanted) in risks.iter().zip([1.0, 0.5, 1.0 / 3.0, 0.25, 0.4, 0.5, 3.0 / 7.0]) {
            near(*found, wanted);
        }
        near(curve[6].coverage, 7.0 / 8.0);
        near(curve[0].confidence, 0.95);
        near(scores(&cases()).aurc, (1.0 + 0.5 + 1.0 / 3.0 + 0.25 + 0.4 + 0.5 + 3.0 / 7.0) / 7.0);
        // Equal confidence: two rows, one wrong; half an error each, whatever their order.
        let tie = |labels: [usize; 2]| labels.map(|label| case("", &["a", "b"], label, Some(&[0.6, 0.4]))).to_vec();
        assert_eq!(coverage(&tie([0, 1])), coverage(&tie([1, 0])));
        near(coverage(&tie([0, 1]))[0].risk, 0.5);
    }

    #[test]
    fn nothing_and_nothing_answered() {
        assert_eq!(scores(&[]), Scores::default());
        let s = scores(&[case("", &["a", "b"], 0, None)]);
        assert_eq!((s.rows, s.answered, s.accuracy, s.nll, s.ece, s.aurc), (1, 0, 0.0, 0.0, 0.0, 0.0));
    }

    #[test]
    fn flips_by_hand() {
        let steady = vec![vec![0.6, 0.4], vec![0.9, 0.1]];
        let one = vec![vec![0.5, 0.3, 0.2], vec![0.2, 0.5, 0.3], vec![0.5, 0.25, 0.25]];
        // A tie goes to the first option, here as in every choice.
        let tie = vec![vec![0.5, 0.5], vec![0.5, 0.5]];
        let alone = vec![vec![1.0, 0.0]];
        let found = flips([steady.as_slice(), &one, &tie, &alone]);
        assert_eq!(found, Flips { rows: 3, flipped: 1, orders: 4, flipped_orders: 1 });
    }
}
