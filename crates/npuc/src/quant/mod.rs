//! Whole numbers instead of real ones: what ranges the values of a model have, which scales follow, how weights are rounded.
//!
//! Everything is symmetric: the number `q` of a value with the scale `s` means `q · s`, and there is no zero point.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

use crate::diag::{Code, Diagnostic, Result};
use crate::ir::{Def, Graph, Op, Value, ValueId};
use crate::model::Port;

mod groups;
mod scales;
mod weights;

#[cfg(test)]
mod tests;

pub use scales::{MASK_MARGIN, Scales, scales, share_boundary};
pub use weights::{SMALLEST_ROW, WeightFormat, largest, quantised_bytes, row_scales, saturated, write_rows};

/// The largest whole number of an activation; -32768 is left to the mask.
pub const INT16_MAX: f32 = 32767.0;

/// The port of the rotary table of MediaTek's runtime.
const ROTARY: &str = "rotary";

/// The scale of everything that SOFTMAX and LOGISTIC compute in int16. Source: the quantisation specification of TFLite.
pub const UNIT_SCALE: f32 = 1.0 / 32768.0;

/// The largest magnitude that was seen of every value of one part of a model.
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Seen {
    /// The largest magnitude.
    largest: f32,
    /// The sum of the magnitudes of all elements, and how many there were.
    sum: f64,
    count: u64,
}

/// A value whose largest magnitude is this many times its mean magnitude has no step in int16 that serves both: the
/// rounding of a step is then 0.5 % of the mean and more. Other values of real models have some 10 to 100.
const OUTLIER: f64 = 600.0;

impl Ranges {
    /// The largest magnitude under a key.
    pub fn get(&self, key: &str) -> Option<f32> {
        self.seen.get(key).map(|seen| seen.largest)
    }

    /// Whether a few elements of a value are so much larger than the others that int16 cannot hold both.
    pub fn is_outlier(&self, key: &str) -> bool {
        self.seen
            .get(key)
            .is_some_and(|seen| f64::from(seen.largest) * seen.count as f64 > OUTLIER * seen.sum && seen.count > 0)
    }

    /// The keys, in order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.seen.keys().map(String::as_str)
    }

    /// Widens the range under a key, which may be new, so that it holds `magnitude`. The port `embeds` has to hold the
    /// [`largest`] of the whole embedding table, not only of the tokens that were seen.
    pub fn widen(&mut self, key: &str, magnitude: f32) {
        let seen = self.seen.entry(key.to_owned()).or_default();
        seen.largest = seen.largest.max(magnitude);
    }

    /// The keys of `seen` whose values reach beyond these ranges, or have none here, with the factor by which they do: what
    /// these ranges would cut off.
    pub fn exceeded<'a>(&self, seen: &'a Ranges) -> Vec<(&'a str, f32)> {
        let factor = |(key, &Seen { largest, .. }): (&'a String, &Seen)| {
            let known = self.get(key).unwrap_or(0.0);
            (largest > known).then(|| (key.as_str(), largest / known))
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
        let wider = |seen: &Seen| Seen { largest: seen.largest * factor, ..*seen };
        Ok(Ranges { seen: self.seen.iter().map(|(key, seen)| (key.clone(), wider(seen))).collect() })
    }

    /// Widens every range so that it holds those of `other`: another step, prompt or step shape.
    pub fn join(&mut self, other: &Ranges) {
        for (key, Seen { largest, sum, count }) in &other.seen {
            let seen = self.seen.entry(key.clone()).or_default();
            seen.largest = seen.largest.max(*largest);
            seen.sum += sum;
            seen.count += count;
        }
    }
}

/// Sees the values of one graph as they are computed, see [`crate::exec::Executor::run_observed`].
#[derive(Clone, Debug)]
pub struct Recorder {
    keys: Vec<Option<String>>,
    seen: Vec<Seen>,
}

impl Recorder {
    /// A recorder that has seen nothing of the graph yet.
    pub fn new(graph: &Graph) -> Recorder {
        Recorder { keys: keys(graph), seen: vec![Seen::default(); graph.values.len()] }
    }

    /// Takes in the elements of a value.
    pub fn see(&mut self, value: ValueId, elements: &[f32]) {
        if self.keys[value.index()].is_some() {
            let seen = &mut self.seen[value.index()];
            seen.largest = seen.largest.max(largest_magnitude(elements));
            seen.sum += elements.iter().map(|x| f64::from(x.abs())).sum::<f64>();
            seen.count += elements.len() as u64;
        }
    }

    /// The ranges of what was seen.
    ///
    /// Errors: [`Code::BadRange`] for values that held NaN or infinity.
    pub fn ranges(self) -> Result<Ranges> {
        let mut ranges = Ranges::default();
        let mut faults = Vec::new();
        for (key, seen) in self.keys.into_iter().zip(self.seen) {
            let Some(key) = key.filter(|_| seen.count > 0) else { continue };
            if seen.largest.is_finite() {
                ranges.seen.insert(key, seen);
            } else {
                let fault = Diagnostic::error(Code::BadRange, "a value is not finite");
                faults.push(fault.subject(key).need("finite numbers").have("NaN or infinity"));
            }
        }
        crate::Error::check(faults)?;
        Ok(ranges)
    }
}

/// The largest magnitude; infinity in place of NaN, which must not vanish in a maximum.
fn largest_magnitude(elements: &[f32]) -> f32 {
    let magnitude = |x: &f32| if x.is_nan() { f32::INFINITY } else { x.abs() };
    elements.iter().map(magnitude).fold(0.0, f32::max)
}

/// The key of every value that has one.
fn keys(graph: &Graph) -> Vec<Option<String>> {
    let masked = groups::masked(graph);
    let mut counts: HashMap<(&str, &str), usize> = HashMap::new();
    let key = |(index, value): (usize, &Value)| match &value.def {
        Def::Input => (!masked[index] && !rotary(value)).then(|| value.name.clone()),
        Def::Weight => None,
        Def::Op { op, .. } if moves(op) || unit(op) || masked[index] => None,
        Def::Op { op, .. } => Some(format!("{}/{}", value.name, op.name())),
    };
    let keys: Vec<Option<String>> = graph.values.iter().enumerate().map(key).collect();
    let numbered = graph.values.iter().zip(keys).map(|(value, key)| match &value.def {
        Def::Input | Def::Weight => key,
        Def::Op { op, .. } => key.map(|key| {
            let count = counts.entry((&value.name, op.name())).or_default();
            *count += 1;
            format!("{key}.{}", *count - 1)
        }),
    });
    numbered.collect()
}

/// Whether an operation gives numbers of its operands, unchanged.
const fn moves(op: &Op) -> bool {
    op.only_moves() || matches!(op, Op::Max { .. })
}

/// Whether a value is a port of cosines and sines. A runtime that fills it has to know its scale beforehand.
fn rotary(value: &Value) -> bool {
    let table = || matches!(value.name.parse(), Ok(Port::RopeCos | Port::RopeSin));
    value.def == Def::Input && (value.name == ROTARY || table())
}

/// Whether an operation's results have [`UNIT_SCALE`].
const fn unit(op: &Op) -> bool {
    matches!(op, Op::Softmax {} | Op::Sigmoid {})
}
