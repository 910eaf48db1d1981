//! LPBQ: blocks whose scales are whole multiples, 1 to 16, of their row's, chosen together.

use super::search::{Block, Blocks, SEARCHED};
use super::*;

/// The largest scale of a block.
const BLOCK_SCALES: f32 = 16.0;

/// Scales of a row that are tried, in units of a sixteenth of what the largest block would like.
const ROW_SCALES: [f32; 8] = [0.9, 0.95, 1.0, 1.035, 16.0 / 15.0, 1.1, 16.0 / 14.0, 1.19];

/// Any of the formats: the numbers of all are the same.
const DTYPE: DType = DType::Lpbq4(crate::format::Group::G32);

/// Fits the steps of a row's blocks and gives the row's scale.
///
/// With [`Search::Plain`] no block clips: the largest takes 16 and every other the next multiple.
#[inline(always)]
pub(super) fn fit<L: Lanes>(blocks: &Blocks<'_>, search: Search, steps: &mut [Step]) -> f32 {
    // While searching, a step holds two scales that its block would like: the plain one and the best one.
    let (mut largest, mut best_largest) = (0.0f32, 0.0f32);
    for (at, step) in steps.iter_mut().enumerate() {
        let plain = fit::plain::<L>(DTYPE, blocks.at(at).x);
        let best = if search == Search::Error { search::symmetric::<L>(DTYPE, blocks.at(at), plain) } else { plain };
        *step = Step { scale: plain.scale, min: best.scale };
        (largest, best_largest) = (largest.max(plain.scale), best_largest.max(best.scale));
    }
    if search == Search::Plain || !SEARCHED.contains(&largest) {
        let scale = row_scale(largest);
        for step in steps {
            let whole = (step.scale / scale).ceil().clamp(1.0, BLOCK_SCALES);
            *step = Step { scale: scale * whole, min: 0.0 };
        }
        return scale;
    }
    let unit = 1.0 / (8.0 * largest);
    // The plain scale is the one to beat; the last trial is of the best one's refinement.
    let mut best = (f32::INFINITY, 0.0);
    for at in 0..ROW_SCALES.len() + 2 {
        let (scale, unclipped) = match at {
            0 => (row_scale(largest), true),
            at if at <= ROW_SCALES.len() => (row_scale(best_largest * ROW_SCALES[at - 1]), false),
            _ => (refined::<L>(best.1, steps, unit, blocks), true),
        };
        let error = trial::<L>(scale, unclipped, best.0, steps, unit, blocks);
        if error < best.0 {
            best = (error, scale);
        }
    }
    for (at, step) in steps.iter_mut().enumerate() {
        let whole = block_scale::<L>(best.1, true, *step, unit, blocks.at(at)).0;
        *step = Step { scale: best.1 * whole, min: 0.0 };
    }
    best.1
}

/// The scale of a row whose largest block has the scale `largest`.
#[inline(always)]
fn row_scale(largest: f32) -> f32 {
    fit::row_scale(largest / BLOCK_SCALES, 8.0 * BLOCK_SCALES)
}

/// The error of a row's scale with the best whole scales of its blocks; infinite once it reaches `limit`.
#[inline(always)]
fn trial<L: Lanes>(scale: f32, unclipped: bool, limit: f32, liked: &[Step], unit: f32, blocks: &Blocks<'_>) -> f32 {
    let mut error = 0.0;
    for (at, liked) in liked.iter().enumerate() {
        error += block_scale::<L>(scale, unclipped, *liked, unit, blocks.at(at)).1;
        if error >= limit {
            return f32::INFINITY;
        }
    }
    error
}

/// The scale of a row that is best for the numbers which `scale` gives.
#[inline(always)]
fn refined<L: Lanes>(scale: f32, liked: &[Step], unit: f32, blocks: &Blocks<'_>) -> f32 {
    let (mut above, mut below) = (0.0f32, 0.0f32);
    for (at, liked) in liked.iter().enumerate() {
        let (whole, _) = block_scale::<L>(scale, true, *liked, unit, blocks.at(at));
        let step = Step { scale: scale * whole, min: 0.0 };
        let [qx, qq] = search::regression::<L>(DTYPE, blocks.at(at), step, unit);
        above += whole * qx;
        below += whole * whole * qq;
    }
    row_scale(above / below / unit * BLOCK_SCALES)
}

/// The best whole scale of a block and its error: of those next to the best real one, and if wished the one at which nothing clips.
#[inline(always)]
fn block_scale<L: Lanes>(scale: f32, unclipped: bool, liked: Step, unit: f32, block: Block<'_>) -> (f32, f32) {
    let below = (liked.min / scale).floor();
    let third = if unclipped { (liked.scale / scale).ceil() } else { below };
    let mut best = (1.0, f32::INFINITY);
    let mut tried = [0.0f32; 3];
    for (at, whole) in [below, below + 1.0, third].into_iter().enumerate() {
        let whole = whole.clamp(1.0, BLOCK_SCALES);
        if tried.contains(&whole) {
            continue;
        }
        tried[at] = whole;
        let error = search::error::<L>(DTYPE, block, Step { scale: scale * whole, min: 0.0 }, unit);
        if error < best.1 {
            best = (whole, error);
        }
    }
    best
}
