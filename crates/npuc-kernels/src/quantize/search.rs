//! Scales with the smallest squared error: several are tried, the best is refined by least squares.
//!
//! Given the numbers `q` of the elements, the best scale is `Σ w·q·x / Σ w·q²`, and the squared error is what
//! `(Σ w·q·x)² / Σ w·q²` leaves of `Σ w·x²`. So one pass judges a candidate. What is stored in the end is
//! judged by its own error, after rounding. Sums are of `x / magnitude`, so that no magnitude overflows.

use super::*;

/// Magnitudes between which sums and reciprocals are normal numbers; others keep the plain step.
pub(super) const SEARCHED: std::ops::RangeInclusive<f32> = 1e-30..=1e30;

/// A row in blocks of `run` elements.
#[derive(Clone, Copy)]
pub(super) struct Blocks<'a> {
    pub(super) row: &'a [f32],
    pub(super) importance: Option<&'a [f32]>,
    pub(super) run: usize,
}

impl<'a> Blocks<'a> {
    #[inline(always)]
    pub(super) fn at(&self, at: usize) -> Block<'a> {
        let (start, run) = (at * self.run, self.run);
        Block { x: &self.row[start..][..run], weights: self.importance.map(|w| &w[start..][..run]) }
    }
}

/// The elements that share a step and their weights, 1 each when `None`.
#[derive(Clone, Copy)]
pub(super) struct Block<'a> {
    pub(super) x: &'a [f32],
    weights: Option<&'a [f32]>,
}

/// What is summed over a block: `N` terms of an element and its weight, all 0 for an element of 0 and weight of 0.
trait Terms<L, const N: usize> {
    fn of(&self, x: L, weight: L) -> [L; N];
}

impl Block<'_> {
    /// The sums of the terms.
    #[inline(always)]
    fn sums<L: Lanes, const N: usize>(&self, terms: &impl Terms<L, N>) -> [f32; N] {
        match self.weights {
            None => sums::<L, N, false>(self.x, self.x, terms),
            Some(weights) => sums::<L, N, true>(self.x, weights, terms),
        }
    }
}

#[inline(always)]
fn sums<L: Lanes, const N: usize, const WEIGHTED: bool>(
    x: &[f32],
    weights: &[f32],
    terms: &impl Terms<L, N>,
) -> [f32; N] {
    let mut sums = [L::splat(0.0); N];
    let ((x, x_rest), (w, w_rest)) = (x.as_chunks::<LANES>(), weights.as_chunks::<LANES>());
    for (x, w) in x.iter().zip(w) {
        let weight = if WEIGHTED { L::load(w) } else { L::splat(1.0) };
        let terms = terms.of(L::load(x), weight);
        for n in 0..N {
            sums[n] = sums[n] + terms[n];
        }
    }
    if !x_rest.is_empty() {
        let (mut x, mut weight) = ([0.0; LANES], [0.0; LANES]);
        x[..x_rest.len()].copy_from_slice(x_rest);
        weight[..x_rest.len()].copy_from_slice(if WEIGHTED { w_rest } else { &[1.0; LANES][..x_rest.len()] });
        let terms = terms.of(L::load(&x), L::load(&weight));
        for n in 0..N {
            sums[n] = sums[n] + terms[n];
        }
    }
    let mut totals = [0.0; N];
    for n in 0..N {
        totals[n] = sums[n].sum();
    }
    totals
}

/// A stored step without a minimum.
struct Stored<L> {
    dtype: DType,
    step: Step,
    rounding: Rounding<L>,
    unit: L,
}

/// `Σ w·(x - x')²`.
impl<L: Lanes> Terms<L, 1> for Stored<L> {
    #[inline(always)]
    fn of(&self, x: L, weight: L) -> [L; 1] {
        let off = (x - value(self.dtype, self.step, self.rounding.nearest(x))) * self.unit;
        [weight * off * off]
    }
}

/// `Σ w·q·x` and `Σ w·q²`.
impl<L: Lanes> Terms<L, 2> for Stored<L> {
    #[inline(always)]
    fn of(&self, x: L, weight: L) -> [L; 2] {
        let q = self.rounding.nearest(x);
        let weighted = weight * q;
        [weighted * (x * self.unit), weighted * q]
    }
}

/// The error of a step, of elements in units of the magnitude, of which `unit` is the reciprocal.
#[inline(always)]
pub(super) fn error<L: Lanes>(dtype: DType, block: Block<'_>, step: Step, unit: f32) -> f32 {
    let terms = Stored::<L> { dtype, step, rounding: Rounding::new(dtype, step), unit: L::splat(unit) };
    let [error] = block.sums(&terms);
    error
}

/// `Σ w·q·x`, of elements in units of the magnitude, and `Σ w·q²`: their quotient is the best scale for these `q`.
#[inline(always)]
pub(super) fn regression<L: Lanes>(dtype: DType, block: Block<'_>, step: Step, unit: f32) -> [f32; 2] {
    let terms = Stored::<L> { dtype, step, rounding: Rounding::new(dtype, step), unit: L::splat(unit) };
    block.sums(&terms)
}

/// The factors of the largest magnitude's reciprocal that are tried: a first one, their ratio, their number.
///
/// A long row gains from much clipping, a short block of int8 from nothing but another phase of the grid.
#[inline(always)]
fn ladder(levels: f32, elements: usize) -> (f32, f32, usize) {
    match (elements <= 64, levels > 8.0) {
        (true, false) => (levels * 0.86, 1.03, 16),
        (true, true) => (levels * 0.994, 1.002, 8),
        (false, false) => (levels * 0.86, 1.06, 27),
        (false, true) => (levels * 0.99, 1.015, 24),
    }
}

/// A scale that is not yet rounded: `Σ w·q·t` and `Σ w·q²` with `t` = `x * inverse`.
struct Tried<L> {
    inverse: L,
    low: L,
    high: L,
}

impl<L: Lanes> Terms<L, 2> for Tried<L> {
    #[inline(always)]
    fn of(&self, x: L, weight: L) -> [L; 2] {
        let t = x * self.inverse;
        let q = rounded(t.at_least(self.low).at_most(self.high));
        let weighted = weight * q;
        [weighted * t, weighted * q]
    }
}

/// The best step without a minimum, `plain` being the one to beat.
#[inline(always)]
pub(super) fn symmetric<L: Lanes>(dtype: DType, block: Block<'_>, plain: Step) -> Step {
    let (min, max) = fit::extremes::<L>(block.x);
    let magnitude = max.max(-min);
    if !SEARCHED.contains(&magnitude) {
        return plain;
    }
    let unit = 1.0 / magnitude;
    let (low, high) = (f32::from(range(dtype).0), f32::from(range(dtype).1));
    let (mut factor, ratio, count) = ladder(-low, block.x.len());
    let signs: &[f32] = if dtype == DType::Q4_0 { &[1.0, -1.0] } else { &[1.0] };
    let (mut best, mut scale) = (0.0f32, f32::NAN);
    for _ in 0..count {
        for sign in signs {
            let inverse = sign * factor * unit;
            let tried = Tried::<L> { inverse: L::splat(inverse), low: L::splat(low), high: L::splat(high) };
            let [qt, qq] = block.sums(&tried);
            let explained = qt * qt / (qq * factor * factor);
            if explained > best {
                (best, scale) = (explained, qt / (qq * inverse));
            }
        }
        factor *= ratio;
    }
    let mut chosen = (error::<L>(dtype, block, plain, unit), plain);
    for _ in 0..3 {
        let stored = fit::symmetric::<L>(dtype, scale);
        let error = error::<L>(dtype, block, stored, unit);
        if error < chosen.0 {
            chosen = (error, stored);
        }
        let [qx, qq] = regression::<L>(dtype, block, stored, unit);
        scale = qx / qq * magnitude;
    }
    chosen.1
}

/// How far the ends of the range are moved inwards, in parts of it.
const SHRINKS: [f32; 5] = [-0.015, 0.0, 0.02, 0.045, 0.08];

/// The whole range of a block with a minimum.
const LEVELS: f32 = 15.0;

/// Elements in units of half of the range, 0 being its middle.
#[derive(Clone, Copy)]
struct Centred<L> {
    middle: L,
    unit: L,
}

impl<L: Lanes> Centred<L> {
    #[inline(always)]
    fn of(self, x: L) -> L {
        (x - self.middle) * self.unit
    }
}

/// `Σ w` and `Σ w·u`.
impl<L: Lanes> Terms<L, 2> for Centred<L> {
    #[inline(always)]
    fn of(&self, x: L, weight: L) -> [L; 2] {
        [weight, weight * Centred::of(*self, x)]
    }
}

/// A range that is not yet rounded: `Σ w·q`, `Σ w·q²` and `Σ w·q·u`, counting `q` from 0.
struct TriedRange<L> {
    centred: Centred<L>,
    start: L,
    factor: L,
}

impl<L: Lanes> Terms<L, 3> for TriedRange<L> {
    #[inline(always)]
    fn of(&self, x: L, weight: L) -> [L; 3] {
        let u = Centred::of(self.centred, x);
        let q = rounded(((u - self.start) * self.factor).at_least(L::splat(0.0)).at_most(L::splat(LEVELS)));
        let weighted = weight * q;
        [weighted, weighted * q, weighted * u]
    }
}

/// `Σ w·(x - x')²` of a stored step, then the sums of [`TriedRange`].
struct StoredRange<L> {
    dtype: DType,
    step: Step,
    rounding: Rounding<L>,
    centred: Centred<L>,
}

impl<L: Lanes> Terms<L, 4> for StoredRange<L> {
    #[inline(always)]
    fn of(&self, x: L, weight: L) -> [L; 4] {
        let q = self.rounding.nearest(x);
        let off = (x - value(self.dtype, self.step, q)) * self.centred.unit;
        let q = q - self.rounding.low;
        let weighted = weight * q;
        [weight * off * off, weighted, weighted * q, weighted * Centred::of(self.centred, x)]
    }
}

/// The best step with a minimum, `plain` being the one to beat.
#[inline(always)]
pub(super) fn affine<L: Lanes>(dtype: DType, block: Block<'_>, plain: Step) -> Step {
    let (min, max) = fit::extremes::<L>(block.x);
    let (middle, reach) = (min / 2.0 + max / 2.0, max / 2.0 - min / 2.0);
    if !SEARCHED.contains(&reach) {
        return plain;
    }
    let centred = Centred::<L> { middle: L::splat(middle), unit: L::splat(1.0 / reach) };
    let [sw, su] = block.sums(&centred);
    let line = Line { sw, su };
    let (mut best, mut candidate) = (0.0f32, (f32::NAN, f32::NAN));
    for below in SHRINKS {
        for above in SHRINKS {
            let (start, factor) = (-1.0 + 2.0 * below, LEVELS / (2.0 - 2.0 * below - 2.0 * above));
            let tried = TriedRange { centred, start: L::splat(start), factor: L::splat(factor) };
            let (explained, fitted) = line.fit(block.sums(&tried));
            if explained > best {
                (best, candidate) = (explained, fitted);
            }
        }
    }
    // The plain step and the best candidate are refined in turns: each round judges the one and leaves what least
    // squares make of it for the round after the next.
    let mut chosen = (f32::INFINITY, plain);
    let mut step = plain;
    for _ in 0..4 {
        let [error, sq, sqq, squ] =
            block.sums(&StoredRange { dtype, step, rounding: Rounding::new(dtype, step), centred });
        if error < chosen.0 {
            chosen = (error, step);
        }
        let (scale, start) = candidate;
        candidate = line.fit([sq, sqq, squ]).1;
        step = fit::affine::<L>(dtype, scale * reach, middle + start * reach, max.max(-min));
    }
    chosen.1
}

/// The constant sums of a regression of `u` on `q`: of the weights, and of weighted `u`.
struct Line {
    sw: f32,
    su: f32,
}

impl Line {
    /// From `Σ w·q`, `Σ w·q²`, `Σ w·q·u`: the squared error that the line explains, and its slope and start.
    #[inline(always)]
    fn fit(&self, [sq, sqq, squ]: [f32; 3]) -> (f32, (f32, f32)) {
        let across = squ - sq * self.su / self.sw;
        let spread = sqq - sq * sq / self.sw;
        let slope = across / spread;
        (across * slope, (slope, (self.su - slope * sq) / self.sw))
    }
}
