//! The figures of a comparison, and how they add up over positions.

use std::collections::BTreeMap;

use serde::Serialize;

use super::sqnr::Layers;
use super::text::TextFigures;

/// The figures of a comparison. Agreements are fractions.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Fidelity {
    /// Positions compared.
    pub positions: usize,
    /// Mean over the positions of the cosine of the two score vectors.
    pub cosine_mean: Option<f64>,
    /// The smallest of these cosines.
    pub cosine_min: Option<f64>,
    /// The squares of the reference's scores over those of the differences, in dB; absent where no score differs or one is no
    /// number.
    pub sqnr_db: Option<f64>,
    /// The largest difference of two scores.
    pub max_abs: Option<f64>,
    /// Positions whose best id agrees.
    pub top1: Option<f64>,
    /// Mean share of the ten best ids that both have.
    pub top10: Option<f64>,
    /// Greedy ids that agree before the first that does not, over all of them.
    pub greedy: Option<f64>,
    /// The greedy ids compared.
    pub greedy_ids: usize,
    /// The same ids that agree, a prompt on average.
    pub greedy_length: Option<f64>,
    /// What was measured over a text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<TextFigures>,
    /// Values in whole numbers of which some were cut off, with how many, the most first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub saturated: Option<Vec<(String, u64)>>,
    /// What was measured inside the graphs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layers: Option<Layers>,
}

impl Fidelity {
    /// The same with how many numbers of each value a session in whole numbers cut off so far.
    pub fn with_saturation(self, counts: BTreeMap<String, u64>) -> Fidelity {
        let mut saturated: Vec<(String, u64)> = counts.into_iter().collect();
        saturated.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        Fidelity { saturated: Some(saturated), ..self }
    }

    /// The same with greedy ids over `prompts` prompts, `agreed` of which agree.
    pub(super) fn with_greedy(self, agreed: usize, prompts: usize) -> Fidelity {
        let ids = self.greedy_ids;
        let share = |of: usize| (ids > 0).then(|| agreed as f64 / of as f64);
        Fidelity { greedy: share(ids), greedy_length: share(prompts), ..self }
    }
}

/// The id of the best score, the lowest of equal ones; `None` if a score is not a number.
pub fn best_id(logits: &[f32]) -> Option<u32> {
    let mut best = 0;
    for (id, &score) in logits.iter().enumerate() {
        if score.is_nan() {
            return None;
        }
        if score > logits[best] {
            best = id;
        }
    }
    u32::try_from(best).ok()
}

/// The cosine between two vectors; not a number where an element is none.
pub(crate) fn cosine(have: &[f32], expected: &[f32]) -> f64 {
    let pairs = || have.iter().zip(expected).map(|(&a, &b)| (f64::from(a), f64::from(b)));
    let dot = |f: fn((f64, f64)) -> f64| pairs().map(f).sum::<f64>();
    let norms = (dot(|(a, _)| a * a) * dot(|(_, b)| b * b)).sqrt();
    match norms == 0.0 {
        // Nothing but zeros points nowhere; two of them are the same all the same.
        true if have == expected => 1.0,
        true => 0.0,
        false => dot(|(a, b)| a * b) / norms,
    }
}

/// Sums over positions.
pub(super) struct Sums {
    positions: usize,
    cosine: f64,
    cosine_min: f64,
    max_abs: f64,
    signal: f64,
    noise: f64,
    top1: usize,
    top10: f64,
}

impl Default for Sums {
    fn default() -> Sums {
        let cosine_min = f64::INFINITY;
        Sums { positions: 0, cosine: 0.0, cosine_min, max_abs: 0.0, signal: 0.0, noise: 0.0, top1: 0, top10: 0.0 }
    }
}

impl Sums {
    /// The figures of all positions added.
    pub(super) fn figures(&self) -> Fidelity {
        let measured = |figure: f64| (self.positions > 0).then_some(figure);
        let mean = |sum: f64| measured(sum / self.positions as f64);
        Fidelity {
            positions: self.positions,
            cosine_mean: mean(self.cosine),
            cosine_min: measured(self.cosine_min),
            sqnr_db: Some(10.0 * (self.signal / self.noise).log10()).filter(|db| db.is_finite()),
            max_abs: measured(self.max_abs),
            top1: mean(self.top1 as f64),
            top10: mean(self.top10),
            ..Fidelity::default()
        }
    }

    /// Adds the scores `[vocab]` of a position; gives their cosine.
    pub(super) fn add(&mut self, have: &[f32], expected: &[f32]) -> f64 {
        let pairs = || have.iter().zip(expected).map(|(&a, &b)| (f64::from(a), f64::from(b)));
        let dot = |f: fn((f64, f64)) -> f64| pairs().map(f).sum::<f64>();
        let cosine = cosine(have, expected);
        let (ours, theirs) = (top(have, 10), top(expected, 10));
        self.positions += 1;
        self.cosine += cosine;
        self.cosine_min = worst(self.cosine_min, cosine, f64::min);
        self.max_abs = pairs().map(|(a, b)| (a - b).abs()).fold(self.max_abs, |m, d| worst(m, d, f64::max));
        self.signal += dot(|(_, b)| b * b);
        self.noise += dot(|(a, b)| (a - b) * (a - b));
        self.top1 += usize::from(ours.first() == theirs.first());
        self.top10 += ours.iter().filter(|id| theirs.contains(id)).count() as f64 / theirs.len() as f64;
        cosine
    }
}

/// The worse of two figures; NaN is the worst and stays, since it must not look like agreement.
fn worst(a: f64, b: f64, worse: fn(f64, f64) -> f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { worse(a, b) }
}

/// The ids of the `count` best scores, best first, lower ids before higher ones of equal score.
fn top(scores: &[f32], count: usize) -> Vec<usize> {
    let mut ids: Vec<usize> = (0..scores.len()).collect();
    let order = |&a: &usize, &b: &usize| scores[b].total_cmp(&scores[a]).then(a.cmp(&b));
    let count = count.min(ids.len());
    if count < ids.len() {
        ids.select_nth_unstable_by(count, order);
        ids.truncate(count);
    }
    ids.sort_unstable_by(order);
    ids
}
