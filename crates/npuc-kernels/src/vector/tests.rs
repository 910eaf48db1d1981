//! Each kernel against its formula in f64, at every level, over lengths with and without tails.

use proptest::prelude::*;

use super::*;
use crate::testing::{assert_close, random};

const LENGTHS: [usize; 11] = [1, 2, 3, 7, 8, 15, 16, 17, 33, 64, 577];

/// The distance in units in the last place of the wanted value.
fn ulps(have: f32, want: f64) -> f64 {
    let rounded = want as f32;
    if have == rounded || have.is_nan() && want.is_nan() {
        return 0.0;
    }
    let unit = f64::from(f32::from_bits(rounded.abs().to_bits() + 1)) - f64::from(rounded.abs());
    (f64::from(have) - want).abs() / unit
}

#[test]
fn the_largest_and_what_is_no_number_are_found_at_every_place() {
    for (level, len) in Level::all().into_iter().flat_map(|level| LENGTHS.map(|len| (level, len))) {
        let plain = random(len, len);
        for at in 0..len {
            for (value, expected) in [(2.5, (2.5, false)), (f32::INFINITY, (f32::INFINITY, false))] {
                let mut x = plain.clone();
                x[at] = value;
                assert_eq!(largest_at(level, &x), expected, "{level:?}: {len}, {at}");
            }
            let mut x = vec![f32::NEG_INFINITY; len];
            assert_eq!(largest_at(level, &x), (f32::NEG_INFINITY, false), "{level:?}");
            x[at] = -f32::NAN;
            assert!(largest_at(level, &x).1, "{level:?}: {len}, {at}");
        }
    }
}

#[test]
fn exp_is_within_two_units_in_the_last_place() {
    let mut x: Vec<f32> = (-110_000..=95_000).map(|i| i as f32 * 0.001 + 0.000_37).collect();
    x.extend([0.0, -0.0, 1e-30, -1e-30, 88.722_83, 88.722_85, -87.336_55, -103.9, -104.1, 1e30, -1e30]);
    x.extend([f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN, f32::NAN]);
    for level in Level::all() {
        let mut out = vec![0.0; x.len()];
        exp_at(level, &x, &mut out);
        for (&x, &y) in x.iter().zip(&out) {
            let error = ulps(y, f64::from(x).exp());
            assert!(error <= 2.0, "{level:?}: exp({x}) = {y}, {error} ulp");
        }
    }
}

/// Checks `kernel` against `formula` on values in ±`range`, at every length and level.
fn check_unary(kernel: fn(Level, &[f32], &mut [f32]), range: std::ops::Range<f32>, formula: fn(f64) -> f64) {
    for (seed, len) in LENGTHS.into_iter().enumerate() {
        let x: Vec<f32> =
            random(len, seed).iter().map(|v| range.start + (v * 0.5 + 0.5) * (range.end - range.start)).collect();
        let want: Vec<f64> = x.iter().map(|&v| formula(f64::from(v))).collect();
        for level in Level::all() {
            let mut out = vec![f32::NAN; len];
            kernel(level, &x, &mut out);
            for ((x, have), want) in x.iter().zip(&out).zip(&want) {
                assert!((f64::from(*have) - want).abs() <= 4e-7 * want.abs(), "{level:?} {x}: {have} {want}");
            }
        }
    }
}

#[test]
fn functions_of_one_operand_follow_their_formulas() {
    check_unary(exp_at, -20.0..20.0, f64::exp);
    check_unary(sigmoid_at, -30.0..30.0, |x| 1.0 / (1.0 + (-x).exp()));
    check_unary(silu_at, -30.0..30.0, |x| x / (1.0 + (-x).exp()));
    check_unary(rsqrt_at, 1e-6..1e4, |x| 1.0 / x.sqrt());
}

/// From the positive series of the error function (Abramowitz and Stegun, 7.1.6) in f64.
#[test]
fn gelu_follows_the_normal_distribution() {
    let erf = |x: f64| {
        let (mut term, mut total) = (x, x);
        for n in 1..400 {
            term *= 2.0 * x * x / f64::from(2 * n + 1);
            total += term;
        }
        2.0 / std::f64::consts::PI.sqrt() * (-x * x).exp() * total
    };
    let x: Vec<f32> = (-800..=800).map(|i| i as f32 * 0.01).collect();
    for level in Level::all() {
        let mut out = vec![f32::NAN; x.len()];
        gelu_at(level, &x, &mut out);
        for (&x, &have) in x.iter().zip(&out) {
            let want = f64::from(x) * (1.0 + erf(f64::from(x) / std::f64::consts::SQRT_2)) / 2.0;
            assert!(
                (f64::from(have) - want).abs() <= 4e-7 * f64::from(x.abs().max(1.0)),
                "{level:?} {x}: {have} {want}"
            );
        }
        let mut ends = [f32::NAN; 5];
        gelu_at(level, &[-1e30, -200.0, 0.0, 200.0, f32::NAN], &mut ends);
        assert_eq!(ends[..4], [0.0, 0.0, 0.0, 200.0]);
        assert!(ends[4].is_nan());
    }
}

#[test]
fn layer_norm_follows_its_formula() {
    for (rows, cols) in [1, 3].into_iter().flat_map(|r| LENGTHS.map(|c| (r, c))) {
        let (x, gain, bias) = (random(rows * cols, 4), random(cols, 5), random(cols, 6));
        let normed = |row: &[f32]| {
            let mean = row.iter().map(|&v| f64::from(v)).sum::<f64>() / cols as f64;
            let variance = row.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / cols as f64;
            let one = |(i, &v): (usize, &f32)| {
                (f64::from(v) - mean) / (variance + 1e-5).sqrt() * f64::from(gain[i]) + f64::from(bias[i])
            };
            row.iter().enumerate().map(one).collect::<Vec<f64>>()
        };
        let want: Vec<f64> = x.chunks(cols).flat_map(normed).collect();
        for level in Level::all() {
            let mut out = vec![f32::NAN; x.len()];
            layer_norm_at(level, &x, &gain, &bias, 1e-5, &mut out);
            assert_close(&out, &want, 2e-6);
        }
    }
}

#[test]
fn gates_saturate_without_nan() {
    let x = [-200.0, -100.0, 100.0, 200.0];
    for level in Level::all() {
        let mut out = [f32::NAN; 4];
        silu_at(level, &x, &mut out);
        assert_eq!(out, [0.0, 0.0, 100.0, 200.0]);
        sigmoid_at(level, &x, &mut out);
        assert_eq!(out, [0.0, 0.0, 1.0, 1.0]);
    }
}

#[test]
fn arithmetic_is_exactly_rounded() {
    type Kernel = fn(Level, &[f32], &[f32], &mut [f32]);
    type Formula = fn(f32, f32) -> f32;
    let cases: [(Kernel, Formula); 4] =
        [(add_at, |a, b| a + b), (sub_at, |a, b| a - b), (mul_at, |a, b| a * b), (div_at, |a, b| a / b)];
    for (kernel, formula) in cases {
        for (len, level) in LENGTHS.into_iter().flat_map(|l| Level::all().into_iter().map(move |v| (l, v))) {
            let (a, b) = (random(len, 1), random(len, 2));
            let mut out = vec![f32::NAN; len];
            kernel(level, &a, &b, &mut out);
            assert!((0..len).all(|i| out[i] == formula(a[i], b[i])), "{level:?} {len}");
        }
    }
}

#[test]
fn affine_scales_and_shifts() {
    for (len, level) in LENGTHS.into_iter().flat_map(|l| Level::all().into_iter().map(move |v| (l, v))) {
        let x = random(len, 3);
        let mut out = vec![f32::NAN; len];
        affine_at(level, &x, -1.5, 0.25, &mut out);
        assert_close(&out, &x.iter().map(|&v| f64::from(v) * -1.5 + 0.25).collect::<Vec<_>>(), 1e-6);
    }
}

#[test]
fn rms_norm_follows_its_formula() {
    for (rows, cols) in [1, 3].into_iter().flat_map(|r| LENGTHS.map(|c| (r, c))) {
        let (x, gain) = (random(rows * cols, 4), random(cols, 5));
        let want: Vec<f64> = x
            .chunks(cols)
            .flat_map(|row| {
                let mean = row.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / cols as f64;
                let gain = gain.clone();
                row.iter()
                    .zip(gain)
                    .map(move |(&v, g)| f64::from(v) / (mean + 1e-5).sqrt() * f64::from(g))
                    .collect::<Vec<_>>()
            })
            .collect();
        for level in Level::all() {
            let mut out = vec![f32::NAN; x.len()];
            rms_norm_at(level, &x, &gain, 1e-5, &mut out);
            assert_close(&out, &want, 1e-6);
        }
    }
}

#[test]
fn softmax_follows_its_formula() {
    for (rows, cols) in [1, 3].into_iter().flat_map(|r| LENGTHS.map(|c| (r, c))) {
        let x: Vec<f32> = random(rows * cols, 6).iter().map(|v| v * 40.0).collect();
        let want: Vec<f64> = x
            .chunks(cols)
            .flat_map(|row| {
                let sum: f64 = row.iter().map(|&v| f64::from(v).exp()).sum();
                row.iter().map(move |&v| f64::from(v).exp() / sum)
            })
            .collect();
        let mut out = vec![f32::NAN; x.len()];
        softmax(&x, cols, &mut out);
        assert_close(&out, &want, 1e-6);
        for level in Level::all() {
            let mut row = x[..cols].to_vec();
            let sum = exp_of_differences_at(level, &mut row);
            scale_at(level, &mut row, 1.0 / sum);
            assert_close(&row, &want[..cols], 1e-6);
        }
    }
}

#[test]
fn rope_turns_pairs() {
    for (lead, tokens, dim) in [(1, 1, 2), (3, 2, 6), (2, 5, 64), (1, 33, 128)] {
        let x = random(lead * tokens * dim, 7);
        let angles = random(tokens * dim / 2, 8);
        let (cos, sin): (Vec<f32>, Vec<f32>) = angles.iter().map(|a| (a.cos(), a.sin())).unzip();
        let want: Vec<f64> = (0..x.len())
            .map(|at| {
                let (i, token) = (at % dim, at / dim % tokens);
                let (pair, first) = (i % (dim / 2), at - i);
                let (a, b) = (f64::from(x[first + pair]), f64::from(x[first + pair + dim / 2]));
                let (c, s) = (f64::from(cos[token * dim / 2 + pair]), f64::from(sin[token * dim / 2 + pair]));
                if i < dim / 2 { a * c - b * s } else { b * c + a * s }
            })
            .collect();
        for level in Level::all() {
            let mut out = vec![f32::NAN; x.len()];
            rope_at(level, &x, &cos, &sin, dim, &mut out);
            assert_close(&out, &want, 1e-6);
        }
    }
}

proptest! {
    #[test]
    fn levels_agree_on_exp_bit_for_bit(x in proptest::collection::vec(any::<f32>(), 1..70)) {
        let results: Vec<Vec<u32>> = Level::all().into_iter().map(|level| {
            let mut out = vec![0.0; x.len()];
            exp_at(level, &x, &mut out);
            out.iter().map(|v| if v.is_nan() { u32::MAX } else { v.to_bits() }).collect()
        }).collect();
        prop_assert!(results.windows(2).all(|pair| pair[0] == pair[1]));
    }
}
