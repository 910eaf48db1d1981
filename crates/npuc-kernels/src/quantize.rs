//! From f32 rows to the stored formats that npuc writes; the opposite of [`crate::dequant`].
//!
//! A [`Grid`] is the set of numbers that a stored row can hold, so that a caller may choose among them by
//! itself; [`quantize_row`] takes the nearest ones. Rows must be finite: the caller refuses others.

use half::f16;

use crate::dequant::f16_to_f32;
use crate::format::DType;
use crate::level::{Level, leveled};
use lanes::{LANES, Lanes, Number, laned};

#[cfg(target_arch = "x86_64")]
mod avx2;
mod brain;
mod fit;
mod lanes;
mod lpbq;
mod pack;
mod search;

pub use brain::positive_bf16_scales;

/// How the scale of a block is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Search {
    /// The scale of the largest magnitude, as ggml's reference quantiser has it.
    Plain,
    /// The one of several scales with the smallest (weighted) squared error; never worse than [`Search::Plain`].
    Error,
}

/// The numbers that a block can hold: `scale * q + min`, up to the decoder's rounding ([`Grid::value`] has it).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// The distance of two neighbours; in Q4_0 it may be negative, and it is 0 where f16 has none so small.
    pub scale: f32,
    /// The number of `q` = 0.
    pub min: f32,
}

/// What the elements of a row are rounded to: one [`Step`] for each run of [`Grid::run`] elements, `q` from
/// [`Grid::low`] to [`Grid::high`].
///
/// Fields that a format stores are already rounded to how it stores them, and limited to its largest finite
/// number ([`saturates`] tells when that happens).
#[derive(Clone, Debug, PartialEq)]
pub struct Grid {
    dtype: DType,
    cols: usize,
    /// The scale a row begins with; 1 in formats without one.
    row_scale: f32,
    /// A step's `min` is the stored field: in Bw4 an offset of `q`.
    steps: Vec<Step>,
}

impl Grid {
    /// The grid for a row of finite elements; `importance` is one weight >= 0 an element for the squared error.
    ///
    /// `None` for formats that npuc does not write (Q5_0, Q5_1 and the K-quants) and for plain floats, which
    /// have no grid.
    ///
    /// # Panics
    /// When blocks do not divide the row, or `importance` is not as long as it.
    pub fn fit(dtype: DType, row: &[f32], importance: Option<&[f32]>, search: Search) -> Option<Grid> {
        if !writable(dtype) || matches!(dtype, DType::F32 | DType::F16 | DType::BF16) {
            return None;
        }
        assert!(dtype.row_bytes(row.len()).is_some(), "blocks of {dtype} do not divide {} elements", row.len());
        let mut grid = Grid::unfitted(dtype, row.len());
        grid.refit(row, importance, search);
        Some(grid)
    }

    fn unfitted(dtype: DType, cols: usize) -> Grid {
        let runs = run(dtype).map_or(1, |run| cols / run);
        Grid { dtype, cols, row_scale: 1.0, steps: vec![Step { scale: 1.0, min: 0.0 }; runs] }
    }

    /// [`Grid::fit`] for another row of the same format and length, without an allocation.
    ///
    /// # Panics
    /// When `row` or `importance` is of another length.
    pub fn refit(&mut self, row: &[f32], importance: Option<&[f32]>, search: Search) {
        assert_eq!(row.len(), self.cols, "a row of {} elements for a grid of {}", row.len(), self.cols);
        self.refit_at(Level::detect(), row, importance, search);
    }

    fn refit_at(&mut self, level: Level, row: &[f32], importance: Option<&[f32]>, search: Search) {
        assert!(importance.is_none_or(|w| w.len() == row.len()), "importance is not of {} elements", row.len());
        debug_assert!(row.iter().all(|x| x.is_finite()), "a row to quantise is not finite");
        debug_assert!(importance.is_none_or(|w| w.iter().all(|w| *w >= 0.0)), "an importance is negative");
        self.row_scale = fit::row(level, self.dtype, row, importance, search, &mut self.steps);
    }

    /// Elements that share a step: a block's, or all columns where a row has one scale.
    pub fn run(&self) -> usize {
        run(self.dtype).unwrap_or(self.cols)
    }

    /// The step of column `col`.
    pub fn step(&self, col: usize) -> Step {
        let stored = self.stored(col);
        let min = if let DType::Bw4(_) = self.dtype { stored.min * stored.scale } else { stored.min };
        Step { min, ..stored }
    }

    /// The smallest `q`.
    pub fn low(&self) -> i8 {
        range(self.dtype).0
    }

    /// The largest `q`.
    pub fn high(&self) -> i8 {
        range(self.dtype).1
    }

    /// The `q` whose number is nearest to `x`, up to the rounding of `1 / scale`; 0 where the scale is 0.
    pub fn nearest(&self, col: usize, x: f32) -> i8 {
        Rounding::<f32>::new(self.dtype, self.stored(col)).nearest(x) as i8
    }

    /// The number of `q`, bit for bit as [`crate::dequant::dequantize_row`] gives it.
    pub fn value(&self, col: usize, q: i8) -> f32 {
        value(self.dtype, self.stored(col), f32::from(q))
    }

    /// Writes the stored row of the numbers `q`.
    ///
    /// # Panics
    /// When `q` is not as long as the row, or `out` not as long as the stored row.
    pub fn pack(&self, q: &[i8], out: &mut [u8]) {
        assert_eq!(q.len(), self.cols, "{} numbers for a grid of {}", q.len(), self.cols);
        assert_eq!(self.dtype.row_bytes(self.cols), Some(out.len()), "{} bytes for {} elements", out.len(), self.cols);
        debug_assert!(q.iter().all(|q| (self.low()..=self.high()).contains(q)), "a number is not of the grid");
        pack::row(Level::detect(), self, pack::Source::Numbers(q), out);
    }

    fn stored(&self, col: usize) -> Step {
        assert!(col < self.cols, "column {col} of {}", self.cols);
        self.steps[col / self.run()]
    }
}

/// Stores a row of finite elements in a format that [`writable`] accepts.
///
/// `importance` is one weight >= 0 an element for the squared error of [`Search::Error`]. Q4_0, Q4_1 and Q8_0
/// with [`Search::Plain`] are ggml's reference quantisers byte for byte (`quantize_row_q4_0_ref` and its
/// siblings), which round with the scale before it becomes f16. All others are the [`Grid`] and its nearest
/// numbers. Numbers beyond the largest that the format has become that one ([`saturates`]).
///
/// A plainly stored element is off by half a step at most (in Q4_0 by a whole one at the end opposite to the
/// largest magnitude), and by what rounding to f16 fields adds: 1/2048 of the block's magnitude for each field.
/// A search may clip more. The stored bytes do not depend on the processor. Storing plainly what was decoded gives
/// the same values up to a rounding of f32, but in LPBQ and float blocks, whose scales may change.
///
/// # Panics
/// When the format is not writable, blocks do not divide the row, or a slice is not of its length.
pub fn quantize_row(dtype: DType, row: &[f32], importance: Option<&[f32]>, search: Search, out: &mut [u8]) {
    quantize_row_at(Level::detect(), dtype, row, importance, search, out);
}

fn quantize_row_at(
    level: Level,
    dtype: DType,
    row: &[f32],
    importance: Option<&[f32]>,
    search: Search,
    out: &mut [u8],
) {
    assert_eq!(
        dtype.row_bytes(row.len()),
        Some(out.len()),
        "{} elements for {} bytes of {dtype}",
        row.len(),
        out.len()
    );
    debug_assert!(row.iter().all(|x| x.is_finite()), "a row to quantise is not finite");
    if pack::floats(level, dtype, row, out) || search == Search::Plain && pack::reference(level, dtype, row, out) {
        return;
    }
    assert!(writable(dtype), "npuc does not write {dtype}");
    let mut grid = Grid::unfitted(dtype, row.len());
    grid.refit_at(level, row, importance, search);
    pack::row(level, &grid, pack::Source::Elements(row), out);
}

/// Whether [`quantize_row`] writes a format: all but Q5_0, Q5_1 and the K-quants.
pub const fn writable(dtype: DType) -> bool {
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 | DType::Q4_0 | DType::Q4_1 | DType::Q8_0 => true,
        DType::Int8 | DType::Int4 | DType::Lpbq4(_) | DType::Bw4(_) => true,
        DType::Q5_0 | DType::Q5_1 | DType::Q2K | DType::Q3K | DType::Q4K | DType::Q5K | DType::Q6K => false,
    }
}

/// The largest magnitude of a row; `None` if an element is not finite.
pub fn largest_magnitude(row: &[f32]) -> Option<f32> {
    let largest = f32::from_bits(largest_bits(Level::detect(), row));
    largest.is_finite().then_some(largest)
}

leveled! {
    /// Without their signs, the bits of floats are ordered as their magnitudes, and those of infinity and NaN are the largest.
    fn largest_bits(row: &[f32]) -> u32 {
        const LANES: usize = 32;
        let bits = |x: f32| x.to_bits() & (u32::MAX >> 1);
        let (chunks, rest) = row.as_chunks::<LANES>();
        let mut lanes = [0u32; LANES];
        for chunk in chunks {
            for (lane, &x) in lanes.iter_mut().zip(chunk) {
                *lane = (*lane).max(bits(x));
            }
        }
        lanes.into_iter().chain(rest.iter().map(|&x| bits(x))).max().unwrap_or(0)
    }
}

/// Whether a row has elements that are too large for the format, so that they would be stored as the largest
/// number that the format has: beyond 65504 in F16, beyond what an f16 scale of 65504 reaches in blocks
/// (524032 in Q4_0), and within a factor 2 of the largest f32 in formats whose row has an f32 scale.
pub fn saturates(dtype: DType, row: &[f32]) -> bool {
    let (low, high) = row.iter().fold((0.0f32, 0.0f32), |(low, high), x| (low.min(*x), high.max(*x)));
    let magnitude = high.max(-low);
    let half = f16::MAX.to_f32_const();
    match dtype {
        DType::F32 => false,
        DType::BF16 => magnitude > half::bf16::MAX.to_f32_const(),
        DType::F16 => magnitude > half,
        DType::Q4_0 => magnitude > 8.0 * half,
        DType::Q4_1 => magnitude > half,
        DType::Q8_0 => magnitude > 127.0 * half,
        DType::Int8 | DType::Int4 | DType::Lpbq4(_) => magnitude > f32::MAX / 2.0,
        DType::Bw4(_) => magnitude > 7.0 * half,
        DType::Q5_0 | DType::Q5_1 | DType::Q2K | DType::Q3K | DType::Q4K | DType::Q5K | DType::Q6K => false,
    }
}

/// Elements that share a step, `None` where the whole row does.
const fn run(dtype: DType) -> Option<usize> {
    match dtype {
        DType::Int8 | DType::Int4 => None,
        DType::Lpbq4(group) | DType::Bw4(group) => Some(group.elements()),
        DType::F32 | DType::F16 | DType::BF16 => Some(1),
        DType::Q4_0 | DType::Q4_1 | DType::Q5_0 | DType::Q5_1 | DType::Q8_0 => Some(32),
        DType::Q2K | DType::Q3K | DType::Q4K | DType::Q5K | DType::Q6K => Some(256),
    }
}

/// The smallest and largest `q`.
const fn range(dtype: DType) -> (i8, i8) {
    match dtype {
        DType::Q8_0 | DType::Int8 => (-127, 127),
        DType::Q4_1 => (0, 15),
        DType::Q4_0 | DType::Int4 | DType::Lpbq4(_) | DType::Bw4(_) => (-8, 7),
        DType::F32 | DType::F16 | DType::BF16 | DType::Q5_0 | DType::Q5_1 => (0, 0),
        DType::Q2K | DType::Q3K | DType::Q4K | DType::Q5K | DType::Q6K => (0, 0),
    }
}

/// The number of `q` under stored fields, with the decoder's roundings.
#[inline(always)]
fn value<N: Number>(dtype: DType, stored: Step, q: N) -> N {
    let (scale, min) = (N::splat(stored.scale), N::splat(stored.min));
    if let DType::Bw4(_) = dtype {
        (q + min) * scale
    } else if dtype == DType::Q4_1 {
        q * scale + min
    } else {
        q * scale
    }
}

/// From elements to `q`: `(x - min) * inverse - offset`, to the nearest of a range.
#[derive(Clone, Copy)]
struct Rounding<N> {
    inverse: N,
    min: N,
    offset: N,
    low: N,
    high: N,
}

impl<N: Number> Rounding<N> {
    #[inline(always)]
    fn new(dtype: DType, stored: Step) -> Rounding<N> {
        let (min, offset) = if let DType::Bw4(_) = dtype { (0.0, stored.min) } else { (stored.min, 0.0) };
        let (low, high) = range(dtype);
        Rounding {
            inverse: N::splat(inverse(stored.scale)),
            min: N::splat(min),
            offset: N::splat(offset),
            low: N::splat(f32::from(low)),
            high: N::splat(f32::from(high)),
        }
    }

    #[inline(always)]
    fn nearest(self, x: N) -> N {
        rounded(((x - self.min) * self.inverse - self.offset).at_least(self.low).at_most(self.high))
    }
}

/// `1 / scale`; 0 for a scale that is 0 or so small that there is none.
#[inline(always)]
fn inverse(scale: f32) -> f32 {
    let inverse = 1.0 / scale;
    if inverse.is_finite() { inverse } else { 0.0 }
}

/// The nearest whole number of one below 2^22 in magnitude, ties to even: f32 has no fractions at 1.5 · 2^23.
#[inline(always)]
fn rounded<N: Number>(x: N) -> N {
    let whole = N::splat(12_582_912.0);
    (x + whole) - whole
}

/// The nearest half, the largest finite one for what lies beyond it.
#[inline(always)]
fn to_half<L: Lanes>(x: f32) -> f16 {
    L::half(x.clamp(-f16::MAX.to_f32_const(), f16::MAX.to_f32_const()))
}

/// [`to_half`] as a float.
#[inline(always)]
fn as_half<L: Lanes>(x: f32) -> f32 {
    f16_to_f32(to_half::<L>(x).to_le_bytes())
}

#[cfg(test)]
mod tests;
