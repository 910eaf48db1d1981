//! Rows of signed nibbles (int4, LPBQ, float blocks), multiplied where they lie as in [`super::nibbles`].
//!
//! Here neighbours share a byte, so that a 32-bit lane is eight consecutive elements and a block of any length is
//! whole lanes. `nibble ^ 8` is `q + 8`: a lane is `scale · (Σ (q + 8)·x + (offset - 8) · Σ x)`.

use std::arch::x86_64::*;

use super::avx2::{RowKernel, VECTOR};
use super::nibbles::{PAIR, SCALE, products};
use crate::format::DType;
use crate::scratch::Scratch;

/// Elements of a lane.
const LANE: usize = 8;
/// Bytes of nibbles that are multiplied at once, one vector.
const UNIT_BYTES: usize = PAIR / 2;

/// `T` tokens arranged for [`Signed`]; elements past the last one are zero.
pub(super) struct Lanes<const T: usize> {
    /// `[units, T, 8 nibbles, 8 lanes]`.
    values: Scratch,
    /// `[units, T, 8 lanes]`: the sum of a lane.
    sums: Scratch,
}

impl<const T: usize> Lanes<T> {
    /// Arranges `x` `[T, cols]`.
    pub(super) fn new(x: &[f32]) -> Lanes<T> {
        let cols = x.len() / T;
        let units = cols.div_ceil(PAIR);
        let (mut values, mut sums) = (Scratch::take(units * T * PAIR), Scratch::take(units * T * VECTOR));
        let parts = values.as_chunks_mut::<PAIR>().0.iter_mut().zip(sums.as_chunks_mut::<VECTOR>().0);
        for (at, (values, sums)) in parts.enumerate() {
            let (unit, token) = (at / T, at % T);
            let row = &x[token * cols..][..cols];
            let row = &row[unit * PAIR..cols.min((unit + 1) * PAIR)];
            *values = [0.0; PAIR];
            *sums = [0.0; VECTOR];
            for (lane, elements) in row.chunks(LANE).enumerate() {
                sums[lane] = elements.iter().sum();
                for (nibble, x) in elements.iter().enumerate() {
                    values[nibble * VECTOR + lane] = x * SCALE[nibble % 4];
                }
            }
        }
        Lanes { values, sums }
    }
}

/// Rows of blocks of `FIELD` bytes (none, a whole scale, or f16 scale and offset) and the nibbles of `RUN` lanes;
/// 8 lanes stand for blocks of any number of vectors.
pub(super) struct Signed<'a, const FIELD: usize, const RUN: usize, const T: usize> {
    lanes: &'a Lanes<T>,
    dtype: DType,
    /// Bytes of nibbles in a block.
    nibble_bytes: usize,
}

impl<'a, const FIELD: usize, const RUN: usize, const T: usize> Signed<'a, FIELD, RUN, T> {
    /// Rows of `cols` elements.
    pub(super) fn new(lanes: &'a Lanes<T>, dtype: DType, cols: usize) -> Signed<'a, FIELD, RUN, T> {
        let nibble_bytes = if FIELD == 0 { cols / 2 } else { dtype.block_len() / 2 };
        assert!(FIELD == 0 || nibble_bytes == RUN * LANE / 2 || RUN == VECTOR && nibble_bytes % UNIT_BYTES == 0);
        Signed { lanes, dtype, nibble_bytes }
    }
}

impl<const FIELD: usize, const RUN: usize, const T: usize> RowKernel<T> for Signed<'_, FIELD, RUN, T> {
    #[inline(always)]
    unsafe fn sums(&self, row: &[u8], _: &mut [f32]) -> [__m256; T] {
        let (header, body) = row.split_at(self.dtype.row_header_bytes());
        let mut state = State::<T> {
            // SAFETY: the caller's promise.
            sums: [unsafe { _mm256_setzero_ps() }; T],
            values: self.lanes.values.as_ptr(),
            lane_sums: self.lanes.sums.as_ptr(),
        };
        // SAFETY: the caller's promise; the lanes have a unit for each whole or last one of the row's.
        unsafe {
            if RUN == VECTOR {
                for block in body.chunks((FIELD + self.nibble_bytes).max(1)) {
                    let (scales, offsets) = fields::<FIELD, RUN>(block);
                    let (units, rest) = block[FIELD..].as_chunks::<UNIT_BYTES>();
                    for unit in units {
                        state.add(_mm256_loadu_si256(unit.as_ptr().cast()), scales, offsets);
                    }
                    if !rest.is_empty() {
                        let mut padded = [0; UNIT_BYTES];
                        padded[..rest.len()].copy_from_slice(rest);
                        state.add(_mm256_loadu_si256(padded.as_ptr().cast()), scales, offsets);
                    }
                }
            } else {
                // The longest: four blocks of 16 elements.
                const LONGEST: usize = 4 * (4 + 8);
                let unit_bytes = VECTOR / RUN * (FIELD + RUN * LANE / 2);
                let mut units = body.chunks_exact(unit_bytes);
                for unit in &mut units {
                    let (scales, offsets) = fields::<FIELD, RUN>(unit);
                    state.add(gathered::<FIELD, RUN>(unit), scales, offsets);
                }
                let rest = units.remainder();
                if !rest.is_empty() {
                    let mut padded = [0; LONGEST];
                    padded[..rest.len()].copy_from_slice(rest);
                    let (scales, offsets) = fields::<FIELD, RUN>(&padded);
                    state.add(gathered::<FIELD, RUN>(&padded), scales, offsets);
                }
            }
            if let Some(scale) = header.first_chunk() {
                let scale = _mm256_set1_ps(f32::from_le_bytes(*scale));
                for sum in &mut state.sums {
                    *sum = _mm256_mul_ps(*sum, scale);
                }
            }
        }
        state.sums
    }
}

/// What has been summed, and what comes next of the tokens.
struct State<const T: usize> {
    sums: [__m256; T],
    values: *const f32,
    lane_sums: *const f32,
}

impl<const T: usize> State<T> {
    /// Adds a unit of nibbles.
    ///
    /// # Safety
    /// As [`RowKernel::sums`]; at most as many times as there are units.
    #[inline(always)]
    unsafe fn add(&mut self, quants: __m256i, scales: __m256, offsets: __m256) {
        // SAFETY: the caller's promise.
        unsafe {
            let products: [__m256; T] = products(_mm256_xor_si256(quants, _mm256_set1_epi8(-0x78)), self.values);
            for (t, (sum, product)) in self.sums.iter_mut().zip(products).enumerate() {
                let lane_sums = _mm256_load_ps(self.lane_sums.add(t * VECTOR));
                *sum = _mm256_fmadd_ps(scales, _mm256_fmadd_ps(offsets, lane_sums, product), *sum);
            }
            self.values = self.values.add(T * PAIR);
            self.lane_sums = self.lane_sums.add(T * VECTOR);
        }
    }
}

/// The scale and `offset - 8` of each lane of a unit, or of the one block that starts at `blocks`.
///
/// # Safety
/// As [`RowKernel::sums`].
#[inline(always)]
unsafe fn fields<const FIELD: usize, const RUN: usize>(blocks: &[u8]) -> (__m256, __m256) {
    let stride = FIELD + RUN * LANE / 2;
    let mut stored = [0i32; 4];
    for (block, stored) in stored.iter_mut().take(VECTOR / RUN).enumerate().map(|(i, s)| (&blocks[i * stride..], s)) {
        *stored = match FIELD {
            0 => 1,
            1 => i32::from(block[0]),
            _ => i32::from_le_bytes([block[0], block[1], block[2], block[3]]),
        };
    }
    // SAFETY: the caller's promise.
    unsafe {
        let stored = _mm_setr_epi32(stored[0], stored[1], stored[2], stored[3]);
        let step = (VECTOR / RUN) as i32;
        let block = |lane: i32| lane * step / VECTOR as i32;
        let lanes = _mm256_setr_epi32(block(0), block(1), block(2), block(3), block(4), block(5), block(6), block(7));
        if FIELD < 4 {
            let scales = _mm256_castps128_ps256(_mm_cvtepi32_ps(stored));
            return (_mm256_permutevar8x32_ps(scales, lanes), _mm256_set1_ps(-8.0));
        }
        // Scale and offset of block i are floats 2i and 2i + 1.
        let floats = _mm256_cvtph_ps(stored);
        let scales = _mm256_slli_epi32::<1>(lanes);
        let offsets = _mm256_or_si256(scales, _mm256_set1_epi32(1));
        let offsets = _mm256_permutevar8x32_ps(floats, offsets);
        (_mm256_permutevar8x32_ps(floats, scales), _mm256_sub_ps(offsets, _mm256_set1_ps(8.0)))
    }
}

/// The nibbles of the blocks of a unit, which are shorter than it.
///
/// # Safety
/// As [`RowKernel::sums`].
#[inline(always)]
unsafe fn gathered<const FIELD: usize, const RUN: usize>(blocks: &[u8]) -> __m256i {
    let stride = FIELD + RUN * LANE / 2;
    // SAFETY: the caller's promise; slices have the bytes that are read.
    unsafe {
        if RUN == 4 {
            let low = _mm_loadu_si128(blocks[FIELD..][..16].as_ptr().cast());
            let high = _mm_loadu_si128(blocks[stride + FIELD..][..16].as_ptr().cast());
            _mm256_set_m128i(high, low)
        } else {
            let mut eights = [0i64; 4];
            for (block, eight) in eights.iter_mut().enumerate() {
                let bytes = &blocks[block * stride + FIELD..][..8];
                *eight = bytes.as_ptr().cast::<i64>().read_unaligned();
            }
            _mm256_setr_epi64x(eights[0], eights[1], eights[2], eights[3])
        }
    }
}
