//! Which instruction set a kernel runs with, chosen at run time.
//!
//! Every kernel has a form that takes a [`Level`]; the public functions pass [`Level::detect`]. A value of
//! [`Level::Avx2`] is a proof that the processor has the instructions, because only this module makes one.

/// The instruction set of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Plain Rust, compiled for the baseline of the target.
    Portable,
    /// AVX2 with FMA and F16C (x86-64).
    Avx2(Avx2),
}

/// Proof that the processor has AVX2, FMA and F16C.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avx2(());

impl Level {
    /// The best level of this processor.
    #[inline]
    pub fn detect() -> Level {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c") {
            return Level::Avx2(Avx2(()));
        }
        Level::Portable
    }

    /// Every level this processor can run, the portable one first.
    #[cfg(test)]
    pub(crate) fn all() -> Vec<Level> {
        let mut levels = vec![Level::Portable];
        if Level::detect() != Level::Portable {
            levels.push(Level::detect());
        }
        levels
    }
}

/// Defines a kernel whose one body is compiled for each [`Level`].
///
/// The function takes the level as its first argument; the body must not need to know it.
macro_rules! leveled {
    ($(#[$doc:meta])* $vis:vis fn $name:ident $(<const $n:ident: usize>)? ($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block) => {
        $(#[$doc])*
        $vis fn $name $(<const $n: usize>)? (level: $crate::level::Level, $($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            fn body $(<const $n: usize>)? ($($arg: $ty),*) $(-> $ret)? $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            fn avx2 $(<const $n: usize>)? ($($arg: $ty),*) $(-> $ret)? {
                body $(::<$n>)? ($($arg),*)
            }

            match level {
                // SAFETY: a `Level::Avx2` exists only where the processor has these features.
                #[cfg(target_arch = "x86_64")]
                $crate::level::Level::Avx2(_) => unsafe { avx2 $(::<$n>)? ($($arg),*) },
                #[cfg(not(target_arch = "x86_64"))]
                $crate::level::Level::Avx2(_) => body $(::<$n>)? ($($arg),*),
                $crate::level::Level::Portable => body $(::<$n>)? ($($arg),*),
            }
        }
    };
}
pub(crate) use leveled;
