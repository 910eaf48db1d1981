//! Elementwise and row-wise kernels in f32; each is one loop over slices that the compiler vectorises.
//!
//! Sums use 16 interleaved lanes that are added in f64 at the end, so that long rows stay accurate.

use crate::level::{Level, leveled};

const LANES: usize = 16;

/// `out = x / sqrt(mean(x²) + eps) · gain` for each row of `gain.len()` elements; `x` and `out` are `[rows, gain.len()]`.
///
/// # Panics
/// When `gain` is empty, `x` is not whole rows, or `out` differs in length.
pub fn rms_norm(x: &[f32], gain: &[f32], eps: f32, out: &mut [f32]) {
    assert!(!gain.is_empty() && x.len().is_multiple_of(gain.len()), "x is not rows of {}", gain.len());
    assert_eq!(x.len(), out.len(), "rms_norm: lengths differ");
    rms_norm_at(Level::detect(), x, gain, eps, out);
}

leveled! {
    pub(crate) fn rms_norm_at(x: &[f32], gain: &[f32], eps: f32, out: &mut [f32]) {
        for (x, out) in x.chunks_exact(gain.len()).zip(out.chunks_exact_mut(gain.len())) {
            let mean = sum_of_squares(x) / x.len() as f64;
            let factor = (1.0 / (mean + f64::from(eps)).sqrt()) as f32;
            for ((o, v), g) in out.iter_mut().zip(x).zip(gain) {
                *o = v * factor * g;
            }
        }
    }
}

/// The largest of some numbers, negative infinity of none, and whether one is NaN.
pub fn largest(x: &[f32]) -> (f32, bool) {
    largest_at(Level::detect(), x)
}

leveled! {
    pub(crate) fn largest_at(x: &[f32]) -> (f32, bool) {
        let (mut best, mut nan) = ([f32::NEG_INFINITY; LANES], [0_u32; LANES]);
        let (lanes, rest) = x.as_chunks::<LANES>();
        for lane in lanes {
            for ((best, nan), &v) in best.iter_mut().zip(&mut nan).zip(lane) {
                *best = if v > *best { v } else { *best };
                *nan |= u32::from(v.is_nan());
            }
        }
        let largest = rest.iter().chain(&best).fold(f32::NEG_INFINITY, |best, &v| best.max(v));
        (largest, nan.contains(&1) || rest.iter().any(|v| v.is_nan()))
    }
}

/// `out = (x - mean) / sqrt(variance + eps) · gain + bias` for each row of `gain.len()` elements; `x` and `out` are
/// `[rows, gain.len()]`.
///
/// # Panics
/// When `gain` is empty, `bias` differs from it in length, `x` is not whole rows, or `out` differs in length.
pub fn layer_norm(x: &[f32], gain: &[f32], bias: &[f32], eps: f32, out: &mut [f32]) {
    assert!(!gain.is_empty() && x.len().is_multiple_of(gain.len()), "x is not rows of {}", gain.len());
    assert!(x.len() == out.len() && gain.len() == bias.len(), "layer_norm: lengths differ");
    layer_norm_at(Level::detect(), x, gain, bias, eps, out);
}

leveled! {
    pub(crate) fn layer_norm_at(x: &[f32], gain: &[f32], bias: &[f32], eps: f32, out: &mut [f32]) {
        for (x, out) in x.chunks_exact(gain.len()).zip(out.chunks_exact_mut(gain.len())) {
            let mean = (sum(x) / x.len() as f64) as f32;
            for (o, v) in out.iter_mut().zip(x) {
                *o = v - mean;
            }
            let variance = sum_of_squares(out) / x.len() as f64;
            let factor = (1.0 / (variance + f64::from(eps)).sqrt()) as f32;
            for ((o, g), b) in out.iter_mut().zip(gain).zip(bias) {
                *o = *o * factor * g + b;
            }
        }
    }
}

#[inline(always)]
fn sum(x: &[f32]) -> f64 {
    let (chunks, rest) = x.as_chunks::<LANES>();
    let mut lanes = [0.0f32; LANES];
    for chunk in chunks {
        for (lane, v) in lanes.iter_mut().zip(chunk) {
            *lane += v;
        }
    }
    lanes.iter().chain(rest).map(|&v| f64::from(v)).sum()
}

#[inline(always)]
fn sum_of_squares(x: &[f32]) -> f64 {
    let (chunks, rest) = x.as_chunks::<LANES>();
    let mut lanes = [0.0f32; LANES];
    for chunk in chunks {
        for (lane, v) in lanes.iter_mut().zip(chunk) {
            *lane += v * v;
        }
    }
    let whole: f64 = lanes.iter().map(|&v| f64::from(v)).sum();
    whole + rest.iter().map(|&v| f64::from(v) * f64::from(v)).sum::<f64>()
}

/// `exp(x)` over its sum for each row of `cols` elements; the largest element of a row is subtracted first.
///
/// # Panics
/// When `cols` is 0, `x` is not whole rows, or `out` differs in length.
pub fn softmax(x: &[f32], cols: usize, out: &mut [f32]) {
    assert!(cols > 0 && x.len().is_multiple_of(cols), "x is not rows of {cols}");
    assert_eq!(x.len(), out.len(), "softmax: lengths differ");
    out.copy_from_slice(x);
    for row in out.chunks_exact_mut(cols) {
        let sum = exp_of_differences_at(Level::detect(), row);
        scale_at(Level::detect(), row, 1.0 / sum);
    }
}

leveled! {
    /// Replaces a row by the exponentials of its differences to its largest element; gives their sum.
    pub(crate) fn exp_of_differences_at(row: &mut [f32]) -> f32 {
        let largest = max(row);
        let (chunks, rest) = row.as_chunks_mut::<LANES>();
        let mut lanes = [0.0f32; LANES];
        for chunk in chunks {
            for (lane, v) in lanes.iter_mut().zip(chunk) {
                *v = exp_one(*v - largest);
                *lane += *v;
            }
        }
        let mut sum: f64 = lanes.iter().map(|&v| f64::from(v)).sum();
        for v in rest {
            *v = exp_one(*v - largest);
            sum += f64::from(*v);
        }
        sum as f32
    }
}

leveled! {
    pub(crate) fn scale_at(row: &mut [f32], factor: f32) {
        for v in row {
            *v *= factor;
        }
    }
}

#[inline(always)]
fn max(x: &[f32]) -> f32 {
    let (chunks, rest) = x.as_chunks::<LANES>();
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for chunk in chunks {
        for (lane, v) in lanes.iter_mut().zip(chunk) {
            *lane = if *v > *lane { *v } else { *lane };
        }
    }
    lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |a, &b| if b > a { b } else { a })
}

/// e to the power of `x` within 2 units in the last place, without branches.
///
/// x = n·ln 2 + r with |r| ≤ ln 2 / 2, then the Taylor series of exp(r) to r⁷ (relative remainder 5e-9).
/// The power of two is applied in two halves, so overflow gives infinity and tiny results are subnormal.
#[inline(always)]
pub(crate) fn exp_one(x: f32) -> f32 {
    // ln 2 in two parts; the upper has 9 significant bits, so that its product with n is exact.
    const LN_2_UPPER: f32 = 355.0 / 512.0;
    const LN_2_LOWER: f32 = (std::f64::consts::LN_2 - 355.0 / 512.0) as f32;
    // Adding this rounds to a whole number, which then stands in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let x = if x > 89.0 { 89.0 } else { x };
    let x = if x < -104.0 { -104.0 } else { x };
    let rounded = x * std::f32::consts::LOG2_E + ROUND;
    let n = rounded - ROUND;
    let exponent = (rounded.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    let r = (x - n * LN_2_UPPER) - n * LN_2_LOWER;
    let mut p = 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    let y = 1.0 + (r + r * r * p);
    let half = exponent >> 1;
    y * power_of_two(half) * power_of_two(exponent.wrapping_sub(half))
}

/// The error function is Abramowitz and Stegun's 7.1.26, whose error is at most 1.5e-7: `erfc(z) = p(1 / (1 + 0.3275911 z)) · e^(-z²)`
/// for z ≥ 0.
#[inline(always)]
fn gelu_one(x: f32) -> f32 {
    let magnitude = x.abs();
    let z = magnitude * std::f32::consts::FRAC_1_SQRT_2;
    let t = 1.0 / (1.0 + 0.327_591_1 * z);
    let mut p = 1.061_405_4;
    p = p * t - 1.453_152;
    p = p * t + 1.421_413_7;
    p = p * t - 0.284_496_74;
    p = p * t + 0.254_829_6;
    let tail = 0.5 * magnitude * (p * t) * exp_one(-z * z);
    if x > 0.0 { x - tail } else { -tail }
}

#[inline(always)]
fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits((exponent.wrapping_add(127) as u32) << 23)
}

/// A kernel of one operand and, per element, one formula.
macro_rules! unary {
    ($($(#[$doc:meta])* $name:ident, $at:ident: |$x:ident| $formula:expr;)+) => {$(
        $(#[$doc])*
        ///
        /// # Panics
        /// When the lengths differ.
        pub fn $name(x: &[f32], out: &mut [f32]) {
            assert_eq!(x.len(), out.len(), concat!(stringify!($name), ": lengths differ"));
            $at(Level::detect(), x, out);
        }

        leveled! {
            pub(crate) fn $at(x: &[f32], out: &mut [f32]) {
                for (o, &$x) in out.iter_mut().zip(x) {
                    *o = $formula;
                }
            }
        }
    )+};
}

unary! {
    /// `out = e^x`, within 2 units in the last place.
    exp, exp_at: |x| exp_one(x);
    /// `out = 1 / (1 + e^-x)`.
    sigmoid, sigmoid_at: |x| 1.0 / (1.0 + exp_one(-x));
    /// `out = x / (1 + e^-x)`.
    silu, silu_at: |x| x / (1.0 + exp_one(-x));
    /// `out = x · (1 + erf(x / √2)) / 2`, within 4e-7 of the larger of 1 and |x|.
    gelu, gelu_at: |x| gelu_one(x);
    /// `out = 1 / sqrt(x)`, from the exact square root and quotient.
    rsqrt, rsqrt_at: |x| 1.0 / x.sqrt();
}

/// A kernel of two operands of one length and, per element, one formula.
macro_rules! binary {
    ($($(#[$doc:meta])* $name:ident, $at:ident: |$a:ident, $b:ident| $formula:expr;)+) => {$(
        $(#[$doc])*
        ///
        /// # Panics
        /// When the lengths differ.
        pub fn $name(a: &[f32], b: &[f32], out: &mut [f32]) {
            assert!(a.len() == b.len() && a.len() == out.len(), concat!(stringify!($name), ": lengths differ"));
            $at(Level::detect(), a, b, out);
        }

        leveled! {
            pub(crate) fn $at(a: &[f32], b: &[f32], out: &mut [f32]) {
                for ((o, &$a), &$b) in out.iter_mut().zip(a).zip(b) {
                    *o = $formula;
                }
            }
        }
    )+};
}

binary! {
    /// `out = a + b`.
    add, add_at: |a, b| a + b;
    /// `out = a - b`.
    sub, sub_at: |a, b| a - b;
    /// `out = a · b`.
    mul, mul_at: |a, b| a * b;
    /// `out = a / b`.
    div, div_at: |a, b| a / b;
}

/// `out = scale · x + offset`.
///
/// # Panics
/// When the lengths differ.
pub fn affine(x: &[f32], scale: f32, offset: f32, out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "affine: lengths differ");
    affine_at(Level::detect(), x, scale, offset, out);
}

leveled! {
    pub(crate) fn affine_at(x: &[f32], scale: f32, offset: f32, out: &mut [f32]) {
        for (o, v) in out.iter_mut().zip(x) {
            *o = scale * v + offset;
        }
    }
}

/// Turns the pair (i, i + dim/2) of every row by its angle: `x`, `out` are `[.., tokens, dim]`, `cos`, `sin` `[tokens, dim/2]`.
///
/// # Panics
/// When `dim` is 0 or odd, `sin` differs from `cos` in length, `cos` is not `tokens` half rows, or `x` is not a whole
/// number of `[tokens, dim]` matrices or differs from `out` in length.
pub fn rope(x: &[f32], cos: &[f32], sin: &[f32], dim: usize, out: &mut [f32]) {
    assert!(dim > 0 && dim.is_multiple_of(2), "rope: dim is {dim}");
    assert!(
        cos.len() == sin.len() && cos.len().is_multiple_of(dim / 2),
        "rope: tables of {} and {}",
        cos.len(),
        sin.len()
    );
    assert_eq!(x.len(), out.len(), "rope: lengths differ");
    if x.is_empty() {
        return;
    }
    assert!(!cos.is_empty() && x.len().is_multiple_of(cos.len() * 2), "rope: x does not fit the tables");
    rope_at(Level::detect(), x, cos, sin, dim, out);
}

leveled! {
    pub(crate) fn rope_at(x: &[f32], cos: &[f32], sin: &[f32], dim: usize, out: &mut [f32]) {
        let half = dim / 2;
        let rows = x.chunks_exact(dim).zip(out.chunks_exact_mut(dim));
        let angles = cos.chunks_exact(half).zip(sin.chunks_exact(half)).cycle();
        for ((x, out), (cos, sin)) in rows.zip(angles) {
            let (first, second) = x.split_at(half);
            let (out_first, out_second) = out.split_at_mut(half);
            for i in 0..half {
                out_first[i] = first[i] * cos[i] - second[i] * sin[i];
                out_second[i] = second[i] * cos[i] + first[i] * sin[i];
            }
        }
    }
}

#[cfg(test)]
mod tests;
