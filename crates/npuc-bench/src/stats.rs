//! Statistics: quantiles, means, and the bootstrap by request.
//!
//! A quantile `q` of `n` sorted numbers lies at place `q·(n − 1)`, counted from 0, linear between neighbours: type 7 of Hyndman and
//! Fan (The American Statistician 50, 1996), numpy's default.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use serde::Serialize;

/// How quantiles are made, for reports.
pub const QUANTILE_METHOD: &str =
    "linear between order statistics at q·(n − 1) (type 7 of Hyndman and Fan, numpy's default)";

/// The quantile `q`, 0 to 1, of numbers that rise; `None` of none.
pub fn quantile(sorted: &[f64], q: f64) -> Option<f64> {
    let place = q * sorted.len().checked_sub(1)? as f64;
    let (low, part) = (place.floor() as usize, place.fract());
    let below = *sorted.get(low)?;
    let above = sorted.get(low + 1).copied().unwrap_or(below);
    Some(below + (above - below) * part)
}

/// The mean; `None` of none.
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// The numbers in rising order; there is no NaN among them.
pub fn sorted(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_unstable_by(f64::total_cmp);
    values
}

/// The median of numbers in any order.
pub fn median(values: &[f64]) -> Option<f64> {
    quantile(&sorted(values.to_vec()), 0.5)
}

/// Figures of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// How many numbers.
    pub count: usize,
    /// Their mean.
    pub mean: f64,
    /// The quantile .5.
    pub p50: f64,
    /// The quantile .9.
    pub p90: f64,
    /// The quantile .95.
    pub p95: f64,
    /// The quantile .99.
    pub p99: f64,
    /// The largest.
    pub max: f64,
}

/// The figures of numbers in any order; `None` of none.
pub fn summary(values: Vec<f64>) -> Option<Summary> {
    let values = sorted(values);
    let at = |q| quantile(&values, q);
    Some(Summary {
        count: values.len(),
        mean: mean(&values)?,
        p50: at(0.5)?,
        p90: at(0.9)?,
        p95: at(0.95)?,
        p99: at(0.99)?,
        max: at(1.0)?,
    })
}

/// Samples that the bootstrap draws.
pub const DRAWS: usize = 2000;
/// Where its random numbers start.
pub const SEED: u64 = 7;

/// An interval that holds the true value in 95 of 100 studies: the quantiles .025 and .975 of what `statistic` gives for
/// [`DRAWS`] draws (percentile bootstrap). A draw has, of each sample of so many members, as many places with replacement. `None`
/// where a sample has fewer than two.
pub fn interval95<const N: usize>(
    counts: [usize; N],
    mut statistic: impl FnMut(&[Vec<usize>; N]) -> Option<f64>,
) -> Option<[f64; 2]> {
    if counts.iter().any(|&count| count < 2) {
        return None;
    }
    let mut random = ChaCha8Rng::seed_from_u64(SEED);
    let mut places = counts.map(|count| vec![0; count]);
    let mut values = Vec::with_capacity(DRAWS);
    for _ in 0..DRAWS {
        for sample in &mut places {
            let count = sample.len() as u128;
            // The high bits of a product are uniform up to 2^-64 times the count.
            sample.iter_mut().for_each(|place| *place = ((u128::from(random.next_u64()) * count) >> 64) as usize);
        }
        values.extend(statistic(&places));
    }
    let values = sorted(values);
    Some([quantile(&values, 0.025)?, quantile(&values, 0.975)?])
}
