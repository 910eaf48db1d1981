//! Rows of Q4_0 and Q4_1: the nibbles of two blocks are multiplied where they lie, without unpacking.
//!
//! The 16 bytes of nibbles of a block are four 32-bit lanes of eight nibbles. Masking nibble n of every lane
//! and converting gives `q · 16^(n mod 4)`; the inputs are arranged in that order and divided by that power
//! beforehand, which is exact. A block is then `d · Σ q·x + m · Σ x`; the second sum is the same for every row.

use std::arch::x86_64::*;

use super::avx2::{RowKernel, VECTOR};
use crate::scratch::Scratch;

/// Elements of a block.
const BLOCK: usize = 32;
/// Elements of a pair of blocks; a vector holds one lane of each of their 4 + 4 groups of nibbles.
pub(super) const PAIR: usize = 2 * BLOCK;
/// Floats a pair has in [`Spread::sums`]: what the two f16 fields of each block are multiplied with.
const FIELDS: usize = 4;

/// `T` tokens arranged for [`Nibbles`].
pub(super) struct Spread<const T: usize> {
    /// `[pairs, T, 8 nibbles, 8 lanes]`, a missing last block being zero.
    values: Scratch,
    /// `[pairs, T, FIELDS]`.
    sums: Scratch,
    blocks: usize,
}

impl<const T: usize> Spread<T> {
    /// Arranges `x` `[T, cols]`; the second field of a block is a minimum in Q4_1 and absent in Q4_0, whose
    /// minimum is -8 times its scale.
    pub(super) fn new(x: &[f32], with_minimum: bool) -> Spread<T> {
        let cols = x.len() / T;
        let pairs = cols.div_ceil(PAIR);
        let mut values = Scratch::take(pairs * T * PAIR);
        let mut sums = Scratch::take(pairs * T * FIELDS);
        let parts = values.as_chunks_mut::<PAIR>().0.iter_mut().zip(sums.as_chunks_mut::<FIELDS>().0);
        for (at, (values, sums)) in parts.enumerate() {
            let (pair, token) = (at / T, at % T);
            *sums = [0.0; FIELDS];
            *values = [0.0; PAIR];
            let row = &x[token * cols..][..cols];
            for (half, block) in row[pair * PAIR..].chunks(BLOCK).take(2).enumerate() {
                arrange(block.try_into().expect("blocks divide the row"), half, values);
                let sum: f32 = block.iter().sum();
                let field = if with_minimum { (1, sum) } else { (0, -8.0 * sum) };
                sums[half * 2 + field.0] = field.1;
            }
        }
        Spread { values, sums, blocks: cols / BLOCK }
    }
}

/// What inputs are multiplied with: nibble n of a lane counts as `16^(n mod 4)` times what it is.
pub(super) const SCALE: [f32; 4] = [1.0, 1.0 / 16.0, 1.0 / 256.0, 1.0 / 4096.0];

/// Puts a block into the lower or upper lanes of its pair.
fn arrange(block: &[f32; BLOCK], half: usize, pair: &mut [f32; PAIR]) {
    for nibble in 0..8 {
        for lane in 0..4 {
            let element = lane * 4 + nibble / 2 + nibble % 2 * 16;
            pair[nibble * VECTOR + half * 4 + lane] = block[element] * SCALE[nibble % 4];
        }
    }
}

/// Rows in blocks of `BYTES`: f16 fields, then 16 bytes of nibbles.
pub(super) struct Nibbles<'a, const BYTES: usize, const T: usize> {
    pub(super) spread: &'a Spread<T>,
}

impl<const BYTES: usize, const T: usize> RowKernel<T> for Nibbles<'_, BYTES, T> {
    #[inline(always)]
    unsafe fn sums(&self, row: &[u8], _: &mut [f32]) -> [__m256; T] {
        let blocks = self.spread.blocks;
        debug_assert_eq!(row.len(), blocks * BYTES);
        // SAFETY: the row has `blocks` blocks, and the spread values a pair for every two or last one of them.
        unsafe {
            let mut sums = [_mm256_setzero_ps(); T];
            let mut minima = [_mm_setzero_ps(); T];
            let (mut values, mut fields) = (self.spread.values.as_ptr(), self.spread.sums.as_ptr());
            let mut stored = row.as_ptr();
            for _ in 0..blocks / 2 {
                let (low, high) = (stored, stored.add(BYTES));
                pair(
                    fields_of::<BYTES>(low, Some(high)),
                    quants::<BYTES>(low, Some(high)),
                    values,
                    fields,
                    &mut sums,
                    &mut minima,
                );
                stored = stored.add(2 * BYTES);
                values = values.add(T * PAIR);
                fields = fields.add(T * FIELDS);
            }
            if !blocks.is_multiple_of(2) {
                pair(
                    fields_of::<BYTES>(stored, None),
                    quants::<BYTES>(stored, None),
                    values,
                    fields,
                    &mut sums,
                    &mut minima,
                );
            }
            let mut total = sums;
            for (total, minima) in total.iter_mut().zip(minima) {
                *total = _mm256_add_ps(*total, _mm256_zextps128_ps256(minima));
            }
            total
        }
    }
}

/// The two fields of each block as floats, 0 for what is absent.
///
/// # Safety
/// As [`RowKernel::sums`]; `BYTES` must be readable at each pointer.
#[inline(always)]
unsafe fn fields_of<const BYTES: usize>(low: *const u8, high: Option<*const u8>) -> __m128 {
    // SAFETY: the caller's promise; the reads need no alignment.
    unsafe {
        let read = |at: *const u8| match BYTES - BLOCK / 2 {
            2 => i32::from(at.cast::<u16>().read_unaligned()),
            _ => at.cast::<i32>().read_unaligned(),
        };
        let halves = _mm_cvtsi32_si128(read(low));
        let halves = if let Some(high) = high { _mm_insert_epi32::<1>(halves, read(high)) } else { halves };
        _mm_cvtph_ps(halves)
    }
}

/// The nibbles of a pair of blocks, 0 for an absent one.
///
/// # Safety
/// As [`fields_of`].
#[inline(always)]
unsafe fn quants<const BYTES: usize>(low: *const u8, high: Option<*const u8>) -> __m256i {
    let skip = BYTES - BLOCK / 2;
    // SAFETY: the caller's promise; the loads need no alignment.
    unsafe {
        let quants = _mm256_zextsi128_si256(_mm_loadu_si128(low.add(skip).cast()));
        match high {
            Some(high) => _mm256_inserti128_si256::<1>(quants, _mm_loadu_si128(high.add(skip).cast())),
            None => quants,
        }
    }
}

/// Adds a pair of blocks to the sums of every token.
///
/// # Safety
/// As [`RowKernel::sums`]; `T * PAIR` floats must be readable at `values` and `T * FIELDS` at `sums_of_x`.
#[inline(always)]
unsafe fn pair<const T: usize>(
    fields: __m128,
    quants: __m256i,
    values: *const f32,
    sums_of_x: *const f32,
    sums: &mut [__m256; T],
    minima: &mut [__m128; T],
) {
    // SAFETY: the caller's promise.
    unsafe {
        let products: [__m256; T] = products(quants, values);
        let scales =
            _mm256_permutevar8x32_ps(_mm256_castps128_ps256(fields), _mm256_setr_epi32(0, 0, 0, 0, 2, 2, 2, 2));
        for t in 0..T {
            sums[t] = _mm256_fmadd_ps(scales, products[t], sums[t]);
            minima[t] = _mm_fmadd_ps(fields, _mm_load_ps(sums_of_x.add(t * FIELDS)), minima[t]);
        }
    }
}

/// Per token `Σ q·x` in each 32-bit lane of nibbles.
///
/// # Safety
/// As [`RowKernel::sums`]; `[T, 8 nibbles, 8 lanes]` aligned floats must be readable at `values`, each divided by
/// `16^(nibble mod 4)`.
#[inline(always)]
pub(super) unsafe fn products<const T: usize>(quants: __m256i, values: *const f32) -> [__m256; T] {
    // SAFETY: the caller's promise.
    unsafe {
        let upper = _mm256_srli_epi32::<16>(quants);
        let mut products = [[_mm256_setzero_ps(); 2]; T];
        for nibble in 0..8 {
            let mask = _mm256_set1_epi32(15 << (nibble % 4 * 4));
            let q = _mm256_cvtepi32_ps(_mm256_and_si256(if nibble < 4 { quants } else { upper }, mask));
            for (t, products) in products.iter_mut().enumerate() {
                let x = _mm256_load_ps(values.add(t * PAIR + nibble * VECTOR));
                let product = &mut products[nibble % 2];
                *product = if nibble < 2 { _mm256_mul_ps(q, x) } else { _mm256_fmadd_ps(q, x, *product) };
            }
        }
        let mut totals = [_mm256_setzero_ps(); T];
        for (total, [even, odd]) in totals.iter_mut().zip(products) {
            *total = _mm256_add_ps(even, odd);
        }
        totals
    }
}
