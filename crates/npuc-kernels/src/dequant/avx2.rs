//! The formats of the hot paths in AVX2, with the same roundings as the portable forms.

use std::arch::x86_64::*;

use super::{f16_to_f32, signed_nibbles};
use crate::level::Avx2;

/// Floats of a vector.
const VECTOR: usize = 8;

/// Halves to floats.
pub(super) fn f16(_: Avx2, bytes: &[u8], out: &mut [f32]) {
    // SAFETY: the `Avx2` proves the features.
    unsafe { f16_rows(bytes, out) }
}

/// Blocks of Q4_0: `d * (q - 8)`.
pub(super) fn q4_0(_: Avx2, bytes: &[u8], out: &mut [f32]) {
    // SAFETY: the `Avx2` proves the features.
    unsafe { nibbles::<18>(bytes, out) }
}

/// Blocks of Q4_1: `d * q + m`.
pub(super) fn q4_1(_: Avx2, bytes: &[u8], out: &mut [f32]) {
    // SAFETY: the `Avx2` proves the features.
    unsafe { nibbles::<20>(bytes, out) }
}

/// Blocks of Q8_0: `d * q`.
pub(super) fn q8_0(_: Avx2, bytes: &[u8], out: &mut [f32]) {
    // SAFETY: the `Avx2` proves the features.
    unsafe { signed_bytes(bytes, out) }
}

/// Int4: `scale * q`.
pub(super) fn int4(_: Avx2, scale: f32, bytes: &[u8], out: &mut [f32]) {
    // SAFETY: the `Avx2` proves the features.
    unsafe { int4_row(scale, bytes, out) }
}

/// LPBQ in blocks of `group`: `scale * block scale * q`.
pub(super) fn lpbq4(_: Avx2, group: usize, scale: f32, bytes: &[u8], out: &mut [f32]) {
    // SAFETY: the `Avx2` proves the features.
    unsafe { lpbq4_blocks(group, scale, bytes, out) }
}

/// Float blocks of `group`: `(q + offset) * scale`.
pub(super) fn bw4(_: Avx2, group: usize, bytes: &[u8], out: &mut [f32]) {
    // SAFETY: the `Avx2` proves the features.
    unsafe { bw4_blocks(group, bytes, out) }
}

/// # Safety
/// The processor must have the features.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn int4_row(scale: f32, bytes: &[u8], out: &mut [f32]) {
    let ((fours, bytes_rest), (vectors, rest)) = (bytes.as_chunks(), out.as_chunks_mut());
    signed::<false>(fours, vectors, _mm256_set1_ps(scale), _mm256_setzero_ps());
    signed_nibbles(bytes_rest, rest, scale, 0.0);
}

/// # Safety
/// The processor must have the features.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn lpbq4_blocks(group: usize, scale: f32, bytes: &[u8], out: &mut [f32]) {
    for (out, block) in out.chunks_exact_mut(group).zip(bytes.chunks_exact(1 + group / 2)) {
        let scale = _mm256_set1_ps(scale * f32::from(block[0]));
        signed::<false>(block[1..].as_chunks().0, out.as_chunks_mut().0, scale, _mm256_setzero_ps());
    }
}

/// # Safety
/// The processor must have the features.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn bw4_blocks(group: usize, bytes: &[u8], out: &mut [f32]) {
    for (out, block) in out.chunks_exact_mut(group).zip(bytes.chunks_exact(4 + group / 2)) {
        signed::<true>(block[4..].as_chunks().0, out.as_chunks_mut().0, half(block), half(&block[2..]));
    }
}

/// [`signed_nibbles`] of four bytes at once: lane i shifts its nibble, number i, to the top and back.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn signed<const WITH_OFFSET: bool>(bytes: &[[u8; 4]], out: &mut [[f32; VECTOR]], scale: __m256, offset: __m256) {
    let to_top = _mm256_setr_epi32(28, 24, 20, 16, 12, 8, 4, 0);
    for (out, bytes) in out.iter_mut().zip(bytes) {
        let stored = _mm256_set1_epi32(i32::from_le_bytes(*bytes));
        let q = _mm256_cvtepi32_ps(_mm256_srai_epi32::<28>(_mm256_sllv_epi32(stored, to_top)));
        let value = if WITH_OFFSET { _mm256_add_ps(q, offset) } else { q };
        // SAFETY: `out` is 8 floats.
        unsafe { _mm256_storeu_ps(out.as_mut_ptr(), _mm256_mul_ps(value, scale)) };
    }
}

/// # Safety
/// The processor must have the features.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn f16_rows(bytes: &[u8], out: &mut [f32]) {
    let (stored, stored_rest) = bytes.as_chunks::<{ 2 * VECTOR }>();
    let (vectors, rest) = out.as_chunks_mut::<VECTOR>();
    for (out, stored) in vectors.iter_mut().zip(stored) {
        // SAFETY: 8 halves are read and 8 floats written, neither aligned.
        unsafe { _mm256_storeu_ps(out.as_mut_ptr(), _mm256_cvtph_ps(_mm_loadu_si128(stored.as_ptr().cast()))) };
    }
    for (out, stored) in rest.iter_mut().zip(stored_rest.as_chunks::<2>().0) {
        *out = f16_to_f32(*stored);
    }
}

/// Blocks of 32 in `BYTES`: d, a minimum when there is room for one, 16 bytes of nibbles.
///
/// # Safety
/// The processor must have the features.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn nibbles<const BYTES: usize>(bytes: &[u8], out: &mut [f32]) {
    const QUANTS: usize = 16;
    let low = _mm_set1_epi8(15);
    for (out, block) in out.as_chunks_mut::<32>().0.iter_mut().zip(bytes.as_chunks::<BYTES>().0) {
        let (d, m) = (half(block), half(&block[2..]));
        // SAFETY: a block ends with 16 bytes of nibbles.
        let quants = unsafe { _mm_loadu_si128(block.as_ptr().add(BYTES - QUANTS).cast()) };
        let upper = _mm_and_si128(_mm_srli_epi16::<4>(quants), low);
        let lower = _mm_and_si128(quants, low);
        let eights = [lower, _mm_srli_si128::<8>(lower), upper, _mm_srli_si128::<8>(upper)];
        for (out, eight) in out.as_chunks_mut::<VECTOR>().0.iter_mut().zip(eights) {
            let q = _mm256_cvtepu8_epi32(eight);
            let value = if BYTES == QUANTS + 2 {
                _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_sub_epi32(q, _mm256_set1_epi32(8))))
            } else {
                _mm256_add_ps(_mm256_mul_ps(d, _mm256_cvtepi32_ps(q)), m)
            };
            // SAFETY: `out` is 8 floats.
            unsafe { _mm256_storeu_ps(out.as_mut_ptr(), value) };
        }
    }
}

/// # Safety
/// The processor must have the features.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn signed_bytes(bytes: &[u8], out: &mut [f32]) {
    for (out, block) in out.as_chunks_mut::<32>().0.iter_mut().zip(bytes.as_chunks::<34>().0) {
        let d = half(block);
        for (v, out) in out.as_chunks_mut::<VECTOR>().0.iter_mut().enumerate() {
            // SAFETY: a block ends with 32 signed bytes, and `out` is 8 floats.
            unsafe {
                let q = _mm256_cvtepi8_epi32(_mm_loadl_epi64(block.as_ptr().add(2 + v * VECTOR).cast()));
                _mm256_storeu_ps(out.as_mut_ptr(), _mm256_mul_ps(d, _mm256_cvtepi32_ps(q)));
            }
        }
    }
}

/// The half at the start of `bytes` in every lane.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn half(bytes: &[u8]) -> __m256 {
    let bits = i32::from(u16::from_le_bytes([bytes[0], bytes[1]]));
    _mm256_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(bits)))
}
