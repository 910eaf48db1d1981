//! Eight floats at once, in plain Rust and in AVX2, with the same roundings and orders of sums: what is stored
//! does not depend on the processor. No fused multiply-add may be used here.
//!
//! Code that is generic over [`Lanes`] must be inlined into what [`laned`] defines, and has no closures over
//! vectors: only there are the instructions inlined.

use std::ops::{Add, Mul, Sub};

use half::f16;

/// How many.
pub(super) const LANES: usize = 8;

/// One float, or eight.
pub(super) trait Number: Copy + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> {
    /// The same in every lane.
    fn splat(x: f32) -> Self;
    /// The smaller; `limit` when either is NaN.
    fn at_most(self, limit: Self) -> Self;
    /// The larger; `limit` when either is NaN.
    fn at_least(self, limit: Self) -> Self;
}

/// Eight floats.
pub(super) trait Lanes: Number {
    /// From memory.
    fn load(x: &[f32; LANES]) -> Self;
    /// Each lane with the sign of `other`'s.
    fn with_sign_of(self, other: Self) -> Self;
    /// `((0 + 4) + (1 + 5)) + ((2 + 6) + (3 + 7))`.
    fn sum(self) -> f32;
    /// The smallest lane of one and the largest of another.
    fn extremes(low: Self, high: Self) -> (f32, f32);
    /// The whole parts, which must be within an i8.
    fn whole(numbers: [Self; 4]) -> [i8; 4 * LANES];
    /// The nearest half, ties to even.
    fn half(x: f32) -> f16;
}

impl Number for f32 {
    #[inline(always)]
    fn splat(x: f32) -> f32 {
        x
    }

    #[inline(always)]
    fn at_most(self, limit: f32) -> f32 {
        if self < limit { self } else { limit }
    }

    #[inline(always)]
    fn at_least(self, limit: f32) -> f32 {
        if self > limit { self } else { limit }
    }
}

/// Eight floats in plain Rust.
#[derive(Clone, Copy)]
pub(super) struct Portable([f32; LANES]);

impl Portable {
    #[inline(always)]
    fn zip(self, other: Portable, operation: impl Fn(f32, f32) -> f32) -> Portable {
        Portable(std::array::from_fn(|l| operation(self.0[l], other.0[l])))
    }
}

impl Add for Portable {
    type Output = Portable;

    #[inline(always)]
    fn add(self, other: Portable) -> Portable {
        self.zip(other, |a, b| a + b)
    }
}

impl Sub for Portable {
    type Output = Portable;

    #[inline(always)]
    fn sub(self, other: Portable) -> Portable {
        self.zip(other, |a, b| a - b)
    }
}

impl Mul for Portable {
    type Output = Portable;

    #[inline(always)]
    fn mul(self, other: Portable) -> Portable {
        self.zip(other, |a, b| a * b)
    }
}

impl Number for Portable {
    #[inline(always)]
    fn splat(x: f32) -> Portable {
        Portable([x; LANES])
    }

    #[inline(always)]
    fn at_most(self, limit: Portable) -> Portable {
        self.zip(limit, Number::at_most)
    }

    #[inline(always)]
    fn at_least(self, limit: Portable) -> Portable {
        self.zip(limit, Number::at_least)
    }
}

impl Lanes for Portable {
    #[inline(always)]
    fn load(x: &[f32; LANES]) -> Portable {
        Portable(*x)
    }

    #[inline(always)]
    fn with_sign_of(self, other: Portable) -> Portable {
        self.zip(other, f32::copysign)
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        let s = self.0;
        ((s[0] + s[4]) + (s[1] + s[5])) + ((s[2] + s[6]) + (s[3] + s[7]))
    }

    #[inline(always)]
    fn extremes(low: Portable, high: Portable) -> (f32, f32) {
        let (mut smallest, mut largest) = (low.0[0], high.0[0]);
        for l in 1..LANES {
            (smallest, largest) = (low.0[l].at_most(smallest), high.0[l].at_least(largest));
        }
        (smallest, largest)
    }

    #[inline(always)]
    fn whole(numbers: [Portable; 4]) -> [i8; 4 * LANES] {
        std::array::from_fn(|i| numbers[i / LANES].0[i % LANES] as i32 as i8)
    }

    #[inline(always)]
    fn half(x: f32) -> f16 {
        f16::from_f32(x)
    }
}

/// Defines a function that calls a generic one with the [`Lanes`] of a [`crate::level::Level`].
macro_rules! laned {
    ($(#[$doc:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? = $body:ident) => {
        $(#[$doc])*
        $vis fn $name(level: $crate::level::Level, $($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            fn avx2($($arg: $ty),*) $(-> $ret)? {
                $body::<$crate::quantize::avx2::Wide>($($arg),*)
            }

            match level {
                // SAFETY: a `Level::Avx2` exists only where the processor has these features.
                #[cfg(target_arch = "x86_64")]
                $crate::level::Level::Avx2(_) => unsafe { avx2($($arg),*) },
                #[cfg(not(target_arch = "x86_64"))]
                $crate::level::Level::Avx2(_) => $body::<$crate::quantize::lanes::Portable>($($arg),*),
                $crate::level::Level::Portable => $body::<$crate::quantize::lanes::Portable>($($arg),*),
            }
        }
    };
}
pub(super) use laned;
