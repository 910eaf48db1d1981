//! Drift and outliers of the time per token: over the run, which is throttling, and over positions, which is the context.

use serde::Serialize;

use crate::results::{Request, Results};
use crate::stats::{median, quantile, sorted};

use super::{Book, Check};

/// Intervals below which nothing is said.
const FEWEST: usize = 40;
/// A change of more than this is noted.
const NOTED: f64 = 0.10;
/// An interval of more than so many medians is an outlier.
const OUTLIER: f64 = 5.0;

/// How the interval between tokens changes, as parts of its median.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Drift {
    /// The median interval, in ms.
    pub median_ms: f64,
    /// From the first quarter of the run's intervals to the last: the difference of the medians of what is left when the line over
    /// positions is taken off.
    pub over_run: f64,
    /// From the quarter of intervals at the lowest positions to that at the highest: the difference of medians. A position is the number of
    /// tokens before.
    pub over_position: Option<f64>,
    /// Intervals that are more than five medians.
    pub outliers: usize,
}

pub(super) fn drift(results: &Results, book: &mut Book) -> Option<Drift> {
    let mut intervals = Vec::new();
    let mut positions = Vec::new();
    for request in results.complete() {
        let before = request.prompt_tokens;
        for (place, ns) in request.intervals_ns().into_iter().enumerate() {
            intervals.push(ns as f64 / 1e6);
            positions.extend(before.map(|before| before as f64 + place as f64 + 1.0));
        }
    }
    let has_positions = positions.len() == intervals.len();
    let enough = intervals.len() >= FEWEST;
    let Some(median_ms) = median(&intervals).filter(|&median| enough && median > 0.0) else {
        let why = format!("{} intervals between tokens, at least {FEWEST} are needed", intervals.len());
        book.unchecked(Check::Drift, why.clone());
        book.unchecked(Check::Outliers, why);
        return None;
    };
    let slope = if has_positions { slope(&positions, &intervals) } else { 0.0 };
    let rest: Vec<f64> = if has_positions {
        positions.iter().zip(&intervals).map(|(position, interval)| interval - slope * position).collect()
    } else {
        intervals.clone()
    };
    let over_run = quarters(&rest).map_or(0.0, |difference| difference / median_ms);
    let over_position = has_positions.then(|| {
        let mut places: Vec<usize> = (0..intervals.len()).collect();
        places.sort_by(|&a, &b| positions[a].total_cmp(&positions[b]));
        let by_position: Vec<f64> = places.into_iter().map(|place| intervals[place]).collect();
        quarters(&by_position).map_or(0.0, |difference| difference / median_ms)
    });
    if over_run.abs() > NOTED {
        let message = format!(
            "the time per token changes by {:+.1} % of its median from the first quarter of the run to the last",
            over_run * 100.0
        );
        book.note(Check::Drift, None, message);
    }
    if let Some(change) = over_position.filter(|change| change.abs() > NOTED) {
        let message = format!(
            "the time per token changes by {:+.1} % of its median from the lowest quarter of positions to the highest",
            change * 100.0
        );
        book.note(Check::Drift, None, message);
    }
    let outliers = results.complete().map(|request| outliers(request, median_ms, book)).sum();
    Some(Drift { median_ms, over_run, over_position, outliers })
}

/// The median of the last quarter less that of the first.
fn quarters(values: &[f64]) -> Option<f64> {
    let quarter = values.len() / 4;
    Some(median(&values[values.len() - quarter..])? - median(&values[..quarter])?)
}

/// The slope of `y` over `x`: between the medians of the lower and of the upper half of `x`.
fn slope(x: &[f64], y: &[f64]) -> f64 {
    let middle = quantile(&sorted(x.to_vec()), 0.5).unwrap_or_default();
    let half = |upper: bool| {
        let in_half = |x: f64| if upper { x > middle } else { x <= middle };
        let (xs, ys): (Vec<f64>, Vec<f64>) =
            x.iter().zip(y).filter(|&(&x, _)| in_half(x)).map(|(&x, &y)| (x, y)).unzip();
        Some((median(&xs)?, median(&ys)?))
    };
    match (half(false), half(true)) {
        (Some((x0, y0)), Some((x1, y1))) if x1 > x0 => (y1 - y0) / (x1 - x0),
        _ => 0.0,
    }
}

fn outliers(request: &Request, median_ms: f64, book: &mut Book) -> usize {
    let far: Vec<(usize, f64)> = request
        .intervals_ns()
        .into_iter()
        .map(|ns| ns as f64 / 1e6)
        .enumerate()
        .filter(|(_, ms)| *ms > OUTLIER * median_ms)
        .collect();
    if let Some((place, longest)) = far.iter().max_by(|a, b| a.1.total_cmp(&b.1)) {
        let message = format!(
            "{}: {} intervals of more than {OUTLIER} medians ({median_ms:.3} ms), the longest {longest:.3} ms before token {}",
            request.name(),
            far.len(),
            place + 1
        );
        book.note(Check::Outliers, request.line, message);
    }
    far.len()
}
