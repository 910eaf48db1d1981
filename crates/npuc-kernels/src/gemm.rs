//! The register-blocked matrix product that the other kernels are made of.
//!
//! One *tile* is `R` rows by `W` lanes of the result: `tile[r][l] = Σ_k a[r·row + k·step] · b[k·b_row + l]`.
//! The sum over k runs in order, so an element never depends on how the work was divided.

use crate::level::Level;

/// The strided left operand of a tile: element (r, k) is `data[r·row + k·step]`.
#[derive(Clone, Copy)]
pub(crate) struct Left<'a> {
    pub(crate) data: &'a [f32],
    pub(crate) row: usize,
    pub(crate) step: usize,
}

/// The right operand of a tile: element (k, l) is `data[k·row + l]`.
#[derive(Clone, Copy)]
pub(crate) struct Right<'a> {
    pub(crate) data: &'a [f32],
    pub(crate) row: usize,
}

/// Lanes of a wide tile; see [`ROWS_WIDE`].
pub(crate) const WIDE: usize = 16;
/// Lanes of a narrow tile; see [`ROWS_NARROW`].
pub(crate) const NARROW: usize = 8;
/// Rows of a wide tile: 6 × 16 are 12 vector accumulators of the 16 registers.
pub(crate) const ROWS_WIDE: usize = 6;
/// Rows of a narrow tile: 12 × 8 are as many accumulators.
pub(crate) const ROWS_NARROW: usize = 12;

/// A tile of `R` × `W`, where `W` is [`WIDE`] or [`NARROW`].
pub(crate) fn tile<const R: usize, const W: usize>(
    level: Level,
    a: Left<'_>,
    b: Right<'_>,
    depth: usize,
) -> [[f32; W]; R] {
    let mut out = [[0.0; W]; R];
    if depth == 0 {
        return out;
    }
    assert!((R - 1) * a.row + (depth - 1) * a.step < a.data.len(), "left operand too short");
    assert!((depth - 1) * b.row + W <= b.data.len(), "right operand too short");
    match level {
        // SAFETY: a `Level::Avx2` exists only where the processor has these features, and the assertions
        // above cover every element that is read.
        #[cfg(target_arch = "x86_64")]
        Level::Avx2(_) => unsafe { avx2_tile(a, b, depth, &mut out) },
        #[cfg(not(target_arch = "x86_64"))]
        Level::Avx2(_) => portable_tile(a, b, depth, &mut out),
        Level::Portable => portable_tile(a, b, depth, &mut out),
    }
    out
}

fn portable_tile<const R: usize, const W: usize>(a: Left<'_>, b: Right<'_>, depth: usize, out: &mut [[f32; W]; R]) {
    for (row, out) in out.iter_mut().enumerate() {
        for k in 0..depth {
            let factor = a.data[row * a.row + k * a.step];
            let lanes: &[f32; W] = b.data[k * b.row..].first_chunk().expect("checked by the caller");
            for (o, lane) in out.iter_mut().zip(lanes) {
                *o += factor * lane;
            }
        }
    }
}

/// # Safety
/// `(R-1)·a.row + (depth-1)·a.step` must be inside `a.data` and `(depth-1)·b.row + W` at most its length in `b.data`.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn avx2_tile<const R: usize, const W: usize>(a: Left<'_>, b: Right<'_>, depth: usize, out: &mut [[f32; W]; R]) {
    use std::arch::x86_64::*;
    const VECTOR: usize = 8;
    let mut sums = [[_mm256_setzero_ps(); 2]; R];
    let vectors = W / VECTOR;
    let (mut left, mut right) = (a.data.as_ptr(), b.data.as_ptr());
    for _ in 0..depth {
        // SAFETY: at step k, `left` is k·step and `right` k·row past the start; the caller promises the bounds.
        unsafe {
            let mut lanes = [_mm256_setzero_ps(); 2];
            for (v, lane) in lanes.iter_mut().enumerate().take(vectors) {
                *lane = _mm256_loadu_ps(right.add(v * VECTOR));
            }
            for (r, sums) in sums.iter_mut().enumerate() {
                let factor = _mm256_broadcast_ss(&*left.add(r * a.row));
                for (sum, lane) in sums.iter_mut().zip(lanes).take(vectors) {
                    *sum = _mm256_fmadd_ps(factor, lane, *sum);
                }
            }
        }
        left = left.wrapping_add(a.step);
        right = right.wrapping_add(b.row);
    }
    for (sums, out) in sums.iter().zip(out) {
        for (sum, out) in sums.iter().zip(out.chunks_exact_mut(VECTOR)) {
            // SAFETY: `out` is 8 floats.
            unsafe { _mm256_storeu_ps(out.as_mut_ptr(), *sum) };
        }
    }
}

/// The packed tiles of `tokens` rows, in order: all are [`WIDE`] lanes, but the last is [`NARROW`] when that suffices.
pub(crate) fn tiles(tokens: usize) -> impl Iterator<Item = TokenTile> {
    (0..tokens.div_ceil(WIDE)).map(move |i| {
        let first = i * WIDE;
        let valid = (tokens - first).min(WIDE);
        TokenTile { first, valid, lanes: if valid <= NARROW { NARROW } else { WIDE } }
    })
}

/// A run of rows that one packed tile holds side by side.
#[derive(Clone, Copy)]
pub(crate) struct TokenTile {
    /// The first row.
    pub(crate) first: usize,
    /// How many rows there are.
    pub(crate) valid: usize,
    /// How many lanes the tile has; those past `valid` are zero.
    pub(crate) lanes: usize,
}

/// Floats that [`pack`] writes for `tokens` rows of `depth`.
pub(crate) fn packed_len(tokens: usize, depth: usize) -> usize {
    tokens.next_multiple_of(NARROW) * depth
}

/// Writes one tile of the rows of `x` (`row` apart) transposed: `out[k·lanes + l] = x[(first + l)·row + k]`.
pub(crate) fn pack(x: &[f32], row: usize, depth: usize, tile: TokenTile, out: &mut [f32]) {
    for lane in 0..tile.lanes {
        let lanes = out[..depth * tile.lanes].chunks_exact_mut(tile.lanes);
        if lane < tile.valid {
            let source = &x[(tile.first + lane) * row..][..depth];
            lanes.zip(source).for_each(|(o, v)| o[lane] = *v);
        } else {
            lanes.for_each(|o| o[lane] = 0.0);
        }
    }
}

#[cfg(test)]
mod tests;
