//! Eight floats in an AVX2 register.
//!
//! A [`Wide`] is used only inside of what `laned!` compiles with AVX2 and F16C, which the `SAFETY` comments
//! call the rule of the module.

use std::arch::x86_64::*;
use std::ops::{Add, Mul, Sub};

use half::f16;

use super::lanes::{LANES, Lanes, Number};

/// Eight floats.
#[derive(Clone, Copy)]
pub(super) struct Wide(__m256);

impl Add for Wide {
    type Output = Wide;

    #[inline(always)]
    fn add(self, other: Wide) -> Wide {
        // SAFETY: the rule of the module.
        Wide(unsafe { _mm256_add_ps(self.0, other.0) })
    }
}

impl Sub for Wide {
    type Output = Wide;

    #[inline(always)]
    fn sub(self, other: Wide) -> Wide {
        // SAFETY: the rule of the module.
        Wide(unsafe { _mm256_sub_ps(self.0, other.0) })
    }
}

impl Mul for Wide {
    type Output = Wide;

    #[inline(always)]
    fn mul(self, other: Wide) -> Wide {
        // SAFETY: the rule of the module.
        Wide(unsafe { _mm256_mul_ps(self.0, other.0) })
    }
}

impl Number for Wide {
    #[inline(always)]
    fn splat(x: f32) -> Wide {
        // SAFETY: the rule of the module.
        Wide(unsafe { _mm256_set1_ps(x) })
    }

    #[inline(always)]
    fn at_most(self, limit: Wide) -> Wide {
        // SAFETY: the rule of the module.
        Wide(unsafe { _mm256_min_ps(self.0, limit.0) })
    }

    #[inline(always)]
    fn at_least(self, limit: Wide) -> Wide {
        // SAFETY: the rule of the module.
        Wide(unsafe { _mm256_max_ps(self.0, limit.0) })
    }
}

impl Lanes for Wide {
    #[inline(always)]
    fn load(x: &[f32; LANES]) -> Wide {
        // SAFETY: the rule of the module; eight floats are read, without alignment.
        Wide(unsafe { _mm256_loadu_ps(x.as_ptr()) })
    }

    #[inline(always)]
    fn with_sign_of(self, other: Wide) -> Wide {
        // SAFETY: the rule of the module.
        unsafe {
            let sign = _mm256_set1_ps(-0.0);
            Wide(_mm256_or_ps(_mm256_andnot_ps(sign, self.0), _mm256_and_ps(sign, other.0)))
        }
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        // SAFETY: the rule of the module.
        unsafe {
            let four = _mm_add_ps(_mm256_castps256_ps128(self.0), _mm256_extractf128_ps::<1>(self.0));
            let pairs = _mm_add_ps(four, _mm_movehdup_ps(four));
            _mm_cvtss_f32(_mm_add_ss(pairs, _mm_movehl_ps(pairs, pairs)))
        }
    }

    #[inline(always)]
    fn extremes(low: Wide, high: Wide) -> (f32, f32) {
        // SAFETY: the rule of the module.
        unsafe {
            // One half of a register for each: the smallest is the largest of the negated.
            let low = _mm256_xor_ps(low.0, _mm256_set1_ps(-0.0));
            let halves = (_mm256_permute2f128_ps::<0x20>(low, high.0), _mm256_permute2f128_ps::<0x31>(low, high.0));
            let largest = _mm256_max_ps(halves.0, halves.1);
            let largest = _mm256_max_ps(largest, _mm256_permute_ps::<0b01_00_11_10>(largest));
            let largest = _mm256_max_ps(largest, _mm256_permute_ps::<0b10_11_00_01>(largest));
            (-_mm256_cvtss_f32(largest), _mm_cvtss_f32(_mm256_extractf128_ps::<1>(largest)))
        }
    }

    #[inline(always)]
    fn whole([a, b, c, d]: [Wide; 4]) -> [i8; 4 * LANES] {
        let mut out = [0; 4 * LANES];
        // SAFETY: the rule of the module; 32 bytes are written, without alignment.
        unsafe {
            let low = _mm256_packs_epi32(_mm256_cvttps_epi32(a.0), _mm256_cvttps_epi32(b.0));
            let high = _mm256_packs_epi32(_mm256_cvttps_epi32(c.0), _mm256_cvttps_epi32(d.0));
            // Packing works in each half of a register: fours of numbers lie as 0, 2, 4, 6, 1, 3, 5, 7.
            let bytes = _mm256_packs_epi16(low, high);
            let bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
            _mm256_storeu_si256(out.as_mut_ptr().cast(), bytes);
        }
        out
    }

    #[inline(always)]
    fn half(x: f32) -> f16 {
        // SAFETY: the rule of the module.
        let bits = unsafe { _mm_cvtsi128_si32(_mm_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm_set_ss(x))) };
        f16::from_bits(bits as u16)
    }
}
