//! Row kernels in AVX2: stored elements go straight into multiply-adds, and four rows are reduced together.
//!
//! The pieces are always inlined into [`chunk`], the one function compiled with the features.

use std::arch::x86_64::*;
use std::marker::PhantomData;

use super::few::Sink;
use super::nibbles::{Nibbles, Spread};
use super::signed::{Lanes, Signed};
use crate::dequant::dequantize;
use crate::format::DType;
use crate::level::{Avx2, Level};
use crate::linear::Matrix;
use crate::scratch::Scratch;

/// Rows whose sums are reduced together.
const GROUP: usize = 4;

/// Floats of a vector.
pub(super) const VECTOR: usize = 8;

/// One row times `T` tokens.
pub(super) trait RowKernel<const T: usize>: Sync {
    /// Floats of working memory that [`RowKernel::sums`] needs.
    fn scratch_len(&self) -> usize {
        0
    }

    /// Per token a vector whose elements add up to the product.
    ///
    /// # Safety
    /// Must be inlined into a function with AVX2, FMA and F16C, on a processor that has them; `row` must be one
    /// stored row of the matrix that the kernel was made for.
    unsafe fn sums(&self, row: &[u8], scratch: &mut [f32]) -> [__m256; T];
}

pub(super) fn linear(avx2: Avx2, x: &[f32], tokens: usize, weight: Matrix<'_>, sink: &Sink<'_>) {
    assert_eq!(x.len(), tokens * weight.cols);
    match tokens {
        1 => rows::<1, 4>(avx2, x, weight, sink),
        2 => rows::<2, 4>(avx2, x, weight, sink),
        3 => rows::<3, 2>(avx2, x, weight, sink),
        4 => rows::<4, 2>(avx2, x, weight, sink),
        _ => unreachable!("more tokens than the row kernels take"),
    }
}

/// `T` tokens, with `U` independent sums each where a format needs them to hide latency.
fn rows<const T: usize, const U: usize>(avx2: Avx2, x: &[f32], weight: Matrix<'_>, sink: &Sink<'_>) {
    let cols = weight.cols;
    match weight.dtype {
        DType::F32 => each_row::<T, _>(avx2, weight, sink, &Plain::<F32, U> { x, cols, stored: PhantomData }),
        DType::F16 => each_row::<T, _>(avx2, weight, sink, &Plain::<F16, U> { x, cols, stored: PhantomData }),
        DType::BF16 => each_row::<T, _>(avx2, weight, sink, &Plain::<Bf16, U> { x, cols, stored: PhantomData }),
        DType::Q8_0 => each_row::<T, _>(avx2, weight, sink, &Q8 { x, cols }),
        DType::Q4_0 | DType::Q4_1 => {
            let with_minimum = weight.dtype == DType::Q4_1;
            let spread = Spread::<T>::new(x, with_minimum);
            if with_minimum {
                each_row::<T, _>(avx2, weight, sink, &Nibbles::<20, T> { spread: &spread });
            } else {
                each_row::<T, _>(avx2, weight, sink, &Nibbles::<18, T> { spread: &spread });
            }
        }
        DType::Int8 => {
            let plain = Plain::<I8, U> { x, cols, stored: PhantomData };
            each_row::<T, _>(avx2, weight, sink, &Scaled { plain });
        }
        DType::Int4 | DType::Lpbq4(_) | DType::Bw4(_) => signed::<T>(avx2, x, weight, sink),
        dtype @ (DType::Q5_0 | DType::Q5_1 | DType::Q2K | DType::Q3K | DType::Q4K | DType::Q5K | DType::Q6K) => {
            let plain = Plain::<F32, U> { x, cols, stored: PhantomData };
            each_row::<T, _>(avx2, weight, sink, &Dequantised { avx2, dtype, plain });
        }
    }
}

/// Rows of signed nibbles, by how many lanes of eight elements share a block's scale.
fn signed<const T: usize>(avx2: Avx2, x: &[f32], weight: Matrix<'_>, sink: &Sink<'_>) {
    let (dtype, cols) = (weight.dtype, weight.cols);
    let lanes = &Lanes::<T>::new(x);
    match (dtype.block_bytes() - dtype.block_len() / 2, dtype.block_len()) {
        (0, _) => each_row::<T, _>(avx2, weight, sink, &Signed::<0, 8, T>::new(lanes, dtype, cols)),
        (1, 16) => each_row::<T, _>(avx2, weight, sink, &Signed::<1, 2, T>::new(lanes, dtype, cols)),
        (1, 32) => each_row::<T, _>(avx2, weight, sink, &Signed::<1, 4, T>::new(lanes, dtype, cols)),
        (1, _) => each_row::<T, _>(avx2, weight, sink, &Signed::<1, 8, T>::new(lanes, dtype, cols)),
        (4, 16) => each_row::<T, _>(avx2, weight, sink, &Signed::<4, 2, T>::new(lanes, dtype, cols)),
        (4, 32) => each_row::<T, _>(avx2, weight, sink, &Signed::<4, 4, T>::new(lanes, dtype, cols)),
        (4, _) => each_row::<T, _>(avx2, weight, sink, &Signed::<4, 8, T>::new(lanes, dtype, cols)),
        (fields, length) => unreachable!("{fields} bytes before {length} signed nibbles of {dtype}"),
    }
}

fn each_row<const T: usize, K: RowKernel<T>>(_: Avx2, weight: Matrix<'_>, sink: &Sink<'_>, kernel: &K) {
    sink.over_rows(weight.cols * T, GROUP, |first, count| {
        // SAFETY: the `Avx2` proves the features.
        unsafe { chunk(weight, sink, kernel, first, count) };
    });
}

/// # Safety
/// The processor must have the features.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn chunk<const T: usize, K: RowKernel<T>>(
    weight: Matrix<'_>,
    sink: &Sink<'_>,
    kernel: &K,
    first: usize,
    count: usize,
) {
    let mut scratch = Scratch::take(kernel.scratch_len());
    let end = first + count;
    for group in (first..end).step_by(GROUP) {
        let mut sums = [[_mm256_setzero_ps(); GROUP]; T];
        let rows = GROUP.min(end - group);
        for r in 0..rows {
            // SAFETY: inlined here, and `slice` gives one row.
            let row = unsafe { kernel.sums(weight.row(group + r), &mut scratch) };
            for (sums, sum) in sums.iter_mut().zip(row) {
                sums[r] = sum;
            }
        }
        let mut dots = [[0.0f32; GROUP]; T];
        for (dots, sums) in dots.iter_mut().zip(&sums) {
            let pairs = _mm256_hadd_ps(_mm256_hadd_ps(sums[0], sums[1]), _mm256_hadd_ps(sums[2], sums[3]));
            let total = _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps::<1>(pairs));
            // SAFETY: `dots` is four floats.
            unsafe { _mm_storeu_ps(dots.as_mut_ptr(), total) };
        }
        for r in 0..rows {
            sink.store(group + r, dots.iter().map(|d| d[r]));
        }
    }
}

/// A format without blocks.
pub(super) trait Stored: Sync {
    /// Bytes of an element.
    const BYTES: usize;

    /// Eight elements from `at`.
    ///
    /// # Safety
    /// As [`RowKernel::sums`]; eight elements must be readable at `at`.
    unsafe fn load(at: *const u8) -> __m256;
}

struct F32;
struct F16;
struct Bf16;
struct I8;

impl Stored for I8 {
    const BYTES: usize = 1;

    #[inline(always)]
    unsafe fn load(at: *const u8) -> __m256 {
        // SAFETY: the caller's promise; the load needs no alignment.
        unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(at.cast()))) }
    }
}

impl Stored for F32 {
    const BYTES: usize = 4;

    #[inline(always)]
    unsafe fn load(at: *const u8) -> __m256 {
        // SAFETY: the caller's promise; the load needs no alignment.
        unsafe { _mm256_loadu_ps(at.cast()) }
    }
}

impl Stored for F16 {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn load(at: *const u8) -> __m256 {
        // SAFETY: the caller's promise; the load needs no alignment.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(at.cast())) }
    }
}

impl Stored for Bf16 {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn load(at: *const u8) -> __m256 {
        // SAFETY: the caller's promise; the load needs no alignment.
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(at.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        }
    }
}

/// Rows of a format without blocks, in `U` independent sums a token.
struct Plain<'a, S, const U: usize> {
    x: &'a [f32],
    cols: usize,
    stored: PhantomData<S>,
}

impl<S: Stored, const T: usize, const U: usize> RowKernel<T> for Plain<'_, S, U> {
    #[inline(always)]
    unsafe fn sums(&self, row: &[u8], _: &mut [f32]) -> [__m256; T] {
        let (cols, x, stored) = (self.cols, self.x.as_ptr(), row.as_ptr());
        // SAFETY: `row` is `cols` elements and `x` `T * cols`; whole vectors are read below the tail, and the tail
        // is read from copies that are padded with zeros.
        unsafe {
            let mut sums = [[_mm256_setzero_ps(); U]; T];
            let mut at = 0;
            while at + VECTOR * U <= cols {
                for u in 0..U {
                    let start = at + VECTOR * u;
                    let w = S::load(stored.add(start * S::BYTES));
                    for (t, sums) in sums.iter_mut().enumerate() {
                        sums[u] = _mm256_fmadd_ps(w, _mm256_loadu_ps(x.add(t * cols + start)), sums[u]);
                    }
                }
                at += VECTOR * U;
            }
            while at + VECTOR <= cols {
                let w = S::load(stored.add(at * S::BYTES));
                for (t, sums) in sums.iter_mut().enumerate() {
                    sums[0] = _mm256_fmadd_ps(w, _mm256_loadu_ps(x.add(t * cols + at)), sums[0]);
                }
                at += VECTOR;
            }
            if at < cols {
                let mut tail = [0u8; VECTOR * 4];
                tail[..(cols - at) * S::BYTES].copy_from_slice(&row[at * S::BYTES..cols * S::BYTES]);
                let w = S::load(tail.as_ptr());
                for (t, sums) in sums.iter_mut().enumerate() {
                    let mut tail = [0.0f32; VECTOR];
                    tail[..cols - at].copy_from_slice(&self.x[t * cols + at..(t + 1) * cols]);
                    sums[0] = _mm256_fmadd_ps(w, _mm256_loadu_ps(tail.as_ptr()), sums[0]);
                }
            }
            let mut totals = [_mm256_setzero_ps(); T];
            for (total, sums) in totals.iter_mut().zip(sums) {
                for sum in sums {
                    *total = _mm256_add_ps(*total, sum);
                }
            }
            totals
        }
    }
}

/// Rows of signed bytes after the scale of the row.
struct Scaled<'a, const U: usize> {
    plain: Plain<'a, I8, U>,
}

impl<const T: usize, const U: usize> RowKernel<T> for Scaled<'_, U> {
    #[inline(always)]
    unsafe fn sums(&self, row: &[u8], scratch: &mut [f32]) -> [__m256; T] {
        let (scale, bytes) = row.split_first_chunk().expect("a row begins with its scale");
        // SAFETY: the caller's promise; a signed byte an element follows the scale.
        unsafe {
            let mut sums: [__m256; T] = self.plain.sums(bytes, scratch);
            for sum in &mut sums {
                *sum = _mm256_mul_ps(*sum, _mm256_set1_ps(f32::from_le_bytes(*scale)));
            }
            sums
        }
    }
}

/// Rows of a block format that are dequantised to working memory first.
struct Dequantised<'a, const U: usize> {
    avx2: Avx2,
    dtype: DType,
    plain: Plain<'a, F32, U>,
}

impl<const T: usize, const U: usize> RowKernel<T> for Dequantised<'_, U> {
    fn scratch_len(&self) -> usize {
        self.plain.cols
    }

    #[inline(always)]
    unsafe fn sums(&self, row: &[u8], scratch: &mut [f32]) -> [__m256; T] {
        dequantize(Level::Avx2(self.avx2), self.dtype, row, scratch);
        // SAFETY: the caller's promise; the scratch is one row of f32.
        unsafe { self.plain.sums(bytemuck::cast_slice(scratch), &mut []) }
    }
}

/// Rows of Q8_0: eight bytes become eight floats; a block's sum is scaled once.
struct Q8<'a> {
    x: &'a [f32],
    cols: usize,
}

impl<const T: usize> RowKernel<T> for Q8<'_> {
    #[inline(always)]
    unsafe fn sums(&self, row: &[u8], _: &mut [f32]) -> [__m256; T] {
        const BLOCK: usize = 32;
        // SAFETY: a block's 32 signed bytes follow its scale, and `x` has 32 elements a block and token.
        unsafe {
            let mut sums = [_mm256_setzero_ps(); T];
            for (block, stored) in row.as_chunks::<34>().0.iter().enumerate() {
                let scale = i32::from(u16::from_le_bytes([stored[0], stored[1]]));
                let d = _mm256_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(scale)));
                let mut block_sums = [_mm256_setzero_ps(); T];
                for v in 0..BLOCK / VECTOR {
                    let bytes = _mm_loadl_epi64(stored.as_ptr().add(2 + v * VECTOR).cast());
                    let q = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
                    for (t, sum) in block_sums.iter_mut().enumerate() {
                        let x = _mm256_loadu_ps(self.x.as_ptr().add(t * self.cols + block * BLOCK + v * VECTOR));
                        *sum = if v == 0 { _mm256_mul_ps(q, x) } else { _mm256_fmadd_ps(q, x, *sum) };
                    }
                }
                for (sum, block_sum) in sums.iter_mut().zip(block_sums) {
                    *sum = _mm256_fmadd_ps(d, block_sum, *sum);
                }
            }
            sums
        }
    }
}
