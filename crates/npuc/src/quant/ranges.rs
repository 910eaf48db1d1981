//! What was seen of the values of a model's part, and which ranges follow.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::histogram::{Counts, Histogram, Method, Steps};
use super::keys;
use crate::diag::{Code, Diagnostic, Result};
use crate::ir::{Graph, ValueId};

/// What was seen of every value of one part of a model.
///
/// The keys are the same in the graphs of all step shapes: the port's name for what enters, `<path>/<operation>.<k>`
/// for the `k`-th result of that operation on that path. What only moves numbers (reshape, transpose, slice,
/// concat, max) has no key: its numbers are those of its operands. Neither has what a mask was added to, whose numbers
/// follow from the unmasked ones, nor the mask, softmax and sigmoid, nor the rotary table, which reaches 1.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Ranges {
    seen: BTreeMap<String, Seen>,
}

/// What was seen of a value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Seen {
    /// The smallest and the largest number, or 0.
    low: f32,
    high: f32,
    /// The sum of the magnitudes of all elements, and how many there were.
    sum: f64,
    count: u64,
    histogram: Histogram,
    /// How much wider ranges are than what was seen.
    headroom: f32,
    /// A magnitude that every range holds, whatever was seen.
    held: f32,
}

impl Default for Seen {
    fn default() -> Seen {
        let histogram = Histogram::default();
        Seen { low: 0.0, high: 0.0, sum: 0.0, count: 0, histogram, headroom: 1.0, held: 0.0 }
    }
}

impl Seen {
    fn largest(&self) -> f32 {
        (self.high.max(-self.low) * self.headroom).max(self.held)
    }
}

/// A value whose largest magnitude is this many times its mean magnitude has no step in int16 that serves both: the
/// rounding of a step is then 0.5 % of the mean and more. Other values of real models have some 10 to 100.
const OUTLIER: f64 = 600.0;

impl Ranges {
    /// The largest magnitude under a key.
    pub fn get(&self, key: &str) -> Option<f32> {
        self.seen.get(key).map(Seen::largest)
    }

    /// The range under a key, which has zero in it. A headroom widens what the method chooses, and what
    /// [`Ranges::widen`] asked for is held by every method.
    ///
    /// Errors: [`Code::BadRange`] for a method with a share that is none.
    pub fn range(&self, key: &str, method: Method, steps: Steps) -> Result<Option<(f32, f32)>> {
        let Some(seen) = self.seen.get(key) else { return Ok(None) };
        let (low, high) = seen.histogram.range(seen.low, seen.high, method, steps)?;
        Ok(Some(((low * seen.headroom).min(-seen.held), (high * seen.headroom).max(seen.held))))
    }

    /// Whether a few elements of a value are so much larger than the others that int16 cannot hold both.
    pub fn is_outlier(&self, key: &str) -> bool {
        self.seen
            .get(key)
            .is_some_and(|seen| f64::from(seen.largest()) * seen.count as f64 > OUTLIER * seen.sum && seen.count > 0)
    }

    /// The keys, in order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.seen.keys().map(String::as_str)
    }

    /// Widens the range under a key, which may be new, so that it holds `magnitude`. The port `embeds` has to hold the
    /// [`largest`](super::largest) of the whole embedding table, not only of the tokens that were seen.
    pub fn widen(&mut self, key: &str, magnitude: f32) {
        let seen = self.seen.entry(key.to_owned()).or_default();
        seen.held = seen.held.max(magnitude);
    }

    /// The keys of `seen` whose values reach beyond these ranges, or have none here, with the factor by which they do: what
    /// these ranges would cut off.
    pub fn exceeded<'a>(&self, seen: &'a Ranges) -> Vec<(&'a str, f32)> {
        let factor = |(key, seen): (&'a String, &Seen)| {
            let known = self.get(key).unwrap_or(0.0);
            (seen.largest() > known).then(|| (key.as_str(), seen.largest() / known))
        };
        seen.seen.iter().filter_map(factor).collect()
    }

    /// All ranges wider by a factor, for text that takes larger values than what was seen: what lies beyond a range is cut
    /// off there, which costs far more than the bit that a factor of 2 takes from the steps.
    ///
    /// Errors: [`Code::BadRange`] for a factor below 1 or one that is not finite.
    pub fn with_headroom(&self, factor: f32) -> Result<Ranges> {
        if !(1.0..f32::INFINITY).contains(&factor) {
            let fault = Diagnostic::error(Code::BadRange, "a headroom makes ranges wider, not narrower");
            return Err(fault.need("a factor of at least 1").have(factor).into());
        }
        let wider = |seen: &Seen| Seen { headroom: seen.headroom * factor, held: seen.held * factor, ..seen.clone() };
        Ok(Ranges { seen: self.seen.iter().map(|(key, seen)| (key.clone(), wider(seen))).collect() })
    }

    /// Takes in what was seen of another step, prompt or step shape; every range then holds both.
    pub fn join(&mut self, other: &Ranges) {
        for (key, other) in &other.seen {
            let seen = self.seen.entry(key.clone()).or_default();
            seen.low = seen.low.min(other.low);
            seen.high = seen.high.max(other.high);
            seen.sum += other.sum;
            seen.count += other.count;
            seen.histogram.join(&other.histogram);
            seen.headroom = seen.headroom.max(other.headroom);
            seen.held = seen.held.max(other.held);
        }
    }
}

/// Sees the values of one graph as they are computed, see [`crate::exec::Executor::run_observed`].
#[derive(Clone, Debug)]
pub struct Recorder {
    keys: Vec<Option<String>>,
    seen: Vec<Seen>,
    counts: Vec<Option<Counts>>,
}

impl Recorder {
    /// A recorder that has seen nothing of the graph yet.
    pub fn new(graph: &Graph) -> Recorder {
        let count = graph.values.len();
        Recorder { keys: keys(graph), seen: vec![Seen::default(); count], counts: vec![None; count] }
    }

    /// Takes in the elements of a value.
    pub fn see(&mut self, value: ValueId, elements: &[f32]) {
        if self.keys[value.index()].is_none() {
            return;
        }
        let seen = &mut self.seen[value.index()];
        // NaN must not vanish in a maximum.
        let not_below = |high: f32, x: &f32| if x.is_nan() { f32::INFINITY } else { high.max(*x) };
        seen.high = elements.iter().fold(seen.high, not_below);
        seen.low = elements.iter().fold(seen.low, |low, x| low.min(*x));
        seen.sum += elements.iter().map(|x| f64::from(x.abs())).sum::<f64>();
        seen.count += elements.len() as u64;
        self.counts[value.index()].get_or_insert_with(Counts::new).add(elements);
    }

    /// The ranges of what was seen.
    ///
    /// Errors: [`Code::BadRange`] for values that held NaN or infinity.
    pub fn ranges(self) -> Result<Ranges> {
        let mut ranges = Ranges::default();
        let mut faults = Vec::new();
        for ((key, seen), counts) in self.keys.into_iter().zip(self.seen).zip(self.counts) {
            let (Some(key), Some(counts)) = (key, counts) else { continue };
            if seen.largest().is_finite() {
                ranges.seen.insert(key, Seen { histogram: counts.histogram(), ..seen });
            } else {
                let fault = Diagnostic::error(Code::BadRange, "a value is not finite");
                faults.push(fault.subject(key).need("finite numbers").have("NaN or infinity"));
            }
        }
        crate::Error::check(faults)?;
        Ok(ranges)
    }
}
