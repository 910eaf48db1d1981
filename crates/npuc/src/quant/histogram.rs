//! How often magnitudes of each size were seen of a value, and which range a method makes of that.
//!
//! Bins are fixed: a quarter of an octave each, so that histograms of any threads, steps and prompts add up to the same.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::diag::{Code, Diagnostic, Result};

/// Bins of each sign: 64 octaves from 2^-44 on. The first bin holds what is smaller too, the last one what is larger.
const BINS: u16 = 256;
/// An f32's exponent and the first two bits of its mantissa, at 2^-44.
const FIRST: u32 = (127 - 44) << 2;
/// Bits of an f32 below these.
const BELOW: u32 = 21;

/// The number of elements in each bin that has any: bins of positive numbers and 0 are 0 to 255, of negative ones 256 to
/// 511, ascending in magnitude.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Histogram {
    counts: BTreeMap<u16, u64>,
}

/// All bins at once, for counting.
#[derive(Clone, Debug)]
pub(super) struct Counts(Vec<u64>);

impl Counts {
    pub(super) fn new() -> Counts {
        Counts(vec![0; 2 * usize::from(BINS)])
    }

    /// Counts elements. NaN counts as the largest magnitude.
    pub(super) fn add(&mut self, elements: &[f32]) {
        for x in elements {
            let bits = x.to_bits();
            let place = ((bits & (u32::MAX >> 1)) >> BELOW).saturating_sub(FIRST).min(u32::from(BINS) - 1);
            let negative = if *x < 0.0 { u32::from(BINS) } else { 0 };
            self.0[(place + negative) as usize] += 1;
        }
    }

    /// The bins that hold anything.
    pub(super) fn histogram(&self) -> Histogram {
        let counts = (0..).zip(&self.0).filter(|(_, count)| **count > 0).map(|(bin, &count)| (bin, count));
        Histogram { counts: counts.collect() }
    }
}

/// How a range is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// From the smallest to the largest number that was seen.
    MinMax,
    /// The range that holds this share of the elements, above 0 and at most 1; what is left out is half below and half
    /// above it, or of the largest magnitudes in a symmetric range.
    Percentile(f64),
    /// The range with the least mean square error, of what rounding does within it and cutting off does beyond: the best
    /// of 100 equal parts of the range that was seen.
    Mse,
}

/// What a range is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Steps {
    /// Steps from the low to the high end: 65535 for u16, 255 for u8, 65534 for symmetric int16.
    pub count: u32,
    /// Whether the range reaches as far below 0 as above.
    pub symmetric: bool,
}

/// Elements that are taken to lie evenly between two numbers.
#[derive(Clone, Copy, Debug)]
struct Run {
    from: f64,
    to: f64,
    count: f64,
}

impl Histogram {
    /// Adds the elements of another histogram.
    pub(super) fn join(&mut self, other: &Histogram) {
        for (bin, count) in &other.counts {
            *self.counts.entry(*bin).or_default() += count;
        }
    }

    /// The range of numbers of which `low` is the smallest and `high` the largest. Zero is always in it.
    ///
    /// Errors: [`Code::BadRange`] for a share that is none.
    pub(super) fn range(&self, low: f32, high: f32, method: Method, steps: Steps) -> Result<(f32, f32)> {
        let all = extended((low, high), steps);
        if self.counts.is_empty() {
            return Ok(all);
        }
        match method {
            Method::MinMax => Ok(all),
            Method::Percentile(share) if share > 0.0 && share <= 1.0 => {
                let runs = self.runs(low, high, steps.symmetric);
                let outside = if steps.symmetric { 1.0 - share } else { (1.0 - share) / 2.0 };
                let low = if steps.symmetric { 0.0 } else { quantile(&runs, outside) };
                Ok(extended((low as f32, quantile(&runs, 1.0 - outside) as f32), steps))
            }
            Method::Percentile(share) => {
                let fault = Diagnostic::error(Code::BadRange, "a range holds a share of what was seen");
                Err(fault.need("a number above 0 and at most 1").have(share).into())
            }
            Method::Mse => {
                let runs = self.runs(low, high, false);
                let part = |part: u32| {
                    let factor = f64::from(part) / 100.0;
                    (f64::from(all.0) * factor, f64::from(all.1) * factor)
                };
                let error = |number: &u32| square_error(&runs, part(*number), f64::from(steps.count));
                let best = (1..=100).min_by(|a, b| error(a).total_cmp(&error(b)).then(b.cmp(a))).unwrap_or(100);
                Ok(if best == 100 { all } else { (part(best).0 as f32, part(best).1 as f32) })
            }
        }
    }

    /// The elements of every bin, ascending; as magnitudes if only those matter.
    fn runs(&self, low: f32, high: f32, magnitudes: bool) -> Vec<Run> {
        let run = |(&bin, &count): (&u16, &u64)| {
            let (negative, place) = (bin >= BINS, bin % BINS);
            let edge = |place: u16| f64::from(f32::from_bits((FIRST + u32::from(place)) << BELOW));
            let largest = f64::from(if negative { -low } else { high }).max(0.0);
            let near = if place == 0 { 0.0 } else { edge(place) }.min(largest);
            let far = if place == BINS - 1 { largest } else { edge(place + 1).min(largest) };
            let (from, to) = if negative && !magnitudes { (-far, -near) } else { (near, far) };
            Run { from, to, count: count as f64 }
        };
        let mut runs: Vec<Run> = self.counts.iter().map(run).collect();
        runs.sort_by(|a, b| a.from.total_cmp(&b.from).then(a.to.total_cmp(&b.to)));
        runs
    }
}

/// A range with zero in it, and symmetric if it has to be.
fn extended((low, high): (f32, f32), steps: Steps) -> (f32, f32) {
    let (low, high) = (low.min(0.0), high.max(0.0));
    let largest = high.max(-low);
    if steps.symmetric { (-largest, largest) } else { (low, high) }
}

/// The number below which that share of the elements lies.
fn quantile(runs: &[Run], share: f64) -> f64 {
    let mut rest = share * runs.iter().map(|run| run.count).sum::<f64>();
    for run in runs {
        if rest <= run.count {
            return run.from + (run.to - run.from) * (rest / run.count);
        }
        rest -= run.count;
    }
    runs.last().map_or(0.0, |run| run.to)
}

/// The sum of the squares of what rounding to `count` steps between `low` and `high` changes: a twelfth of a step's
/// square for each element within, the square of the distance for each beyond.
fn square_error(runs: &[Run], (low, high): (f64, f64), count: f64) -> f64 {
    let rounding = ((high - low) / count).powi(2) / 12.0;
    let beyond = |from: f64, to: f64, density: f64| density * (to.powi(3) - from.powi(3)) / 3.0;
    let error = |run: &Run| {
        if run.to == run.from {
            let cut = (run.from - high).max(low - run.from).max(0.0);
            return run.count * if run.from == 0.0 { 0.0 } else { cut.powi(2).max(rounding) };
        }
        let density = run.count / (run.to - run.from);
        let above = beyond((run.from - high).max(0.0), (run.to - high).max(0.0), density);
        let below = beyond((low - run.to).max(0.0), (low - run.from).max(0.0), density);
        let within = (run.to.min(high) - run.from.max(low)).max(0.0);
        above + below + density * within * rounding
    };
    runs.iter().map(error).sum()
}
