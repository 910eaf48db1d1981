//! Tests of sums of inputs and their factors, against plain f64.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use super::*;

/// Inputs `[tokens, width]` that depend on each other: mixtures of `rank` random directions of falling weight.
pub(in crate::quant) fn inputs(tokens: usize, width: usize, rank: usize) -> Vec<f32> {
    let mut random = ChaCha8Rng::seed_from_u64((tokens * width + rank) as u64);
    let mut unit = || (random.next_u32() >> 8) as f32 / (1 << 23) as f32 - 1.0;
    let directions: Vec<f32> = (0..rank * width).map(|i| unit() / (1 + i / width) as f32).collect();
    let mut rows = vec![0.0; tokens * width];
    for row in rows.chunks_mut(width.max(1)) {
        for direction in directions.chunks(width.max(1)) {
            let weight = unit();
            row.iter_mut().zip(direction).for_each(|(x, d)| *x += weight * d);
        }
    }
    rows
}

/// The sum in f64, whole.
fn exact(rows: &[f32], width: usize) -> Vec<f64> {
    let mut sum = vec![0.0; width * width];
    for row in rows.chunks(width) {
        for (i, a) in row.iter().enumerate() {
            row.iter().enumerate().for_each(|(j, b)| sum[i * width + j] += f64::from(*a) * f64::from(*b));
        }
    }
    sum
}

#[test]
fn sums_of_inputs_agree_with_f64() {
    for (tokens, width) in [(0, 3), (1, 1), (1, 5), (3, 16), (7, 97), (300, 33), (515, 40), (20, 200)] {
        let rows = inputs(tokens, width, 4);
        let mut hessian = Hessian::new(width);
        let (first, second) = rows.split_at(tokens / 3 * width);
        hessian.add(first);
        hessian.add(second);
        let exact = exact(&rows, width);
        let largest = exact.iter().fold(1e-30f64, |a, b| a.max(b.abs()));
        for i in 0..width {
            for j in 0..width {
                let off = (f64::from(hessian.at(i, j)) - exact[i * width + j]).abs();
                assert!(off <= 1e-5 * largest, "{tokens} {width} at {i}, {j}: {off}");
            }
        }
        assert_eq!((hessian.tokens(), hessian.width()), (tokens, width));
        let mean = (0..width).map(|i| exact[i * width + i]).sum::<f64>() / width as f64;
        assert!((f64::from(hessian.mean_of_diagonal()) - mean).abs() <= 1e-5 * mean);
    }
}

/// A loss is the squared error of the outputs, computed from the inputs themselves.
#[test]
fn losses_are_errors_of_outputs() {
    for (tokens, width, count) in [(1, 1, 1), (5, 40, 3), (64, 130, 2), (300, 260, 9), (0, 4, 2)] {
        let rows = inputs(tokens, width, 6);
        let mut hessian = Hessian::new(width);
        hessian.add(&rows);
        let differences = inputs(count, width, 3);
        let losses = hessian.losses(&differences);
        assert_eq!(losses.len(), count);
        for (loss, difference) in losses.iter().zip(differences.chunks(width)) {
            let output =
                |row: &[f32]| row.iter().zip(difference).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
            let expected: f64 = rows.chunks(width).map(|row| output(row).powi(2)).sum::<f64>() / tokens.max(1) as f64;
            assert!((loss - expected).abs() <= 1e-4 * expected + 1e-9, "{tokens} {width}: {loss} {expected}");
        }
    }
}

/// Inputs divided by scales have the scaled sum.
#[test]
fn scaled_inputs_have_the_scaled_sum() {
    let rows = inputs(30, 20, 5);
    let scales: Vec<f32> = (0..20).map(|i| 0.25 * (1 + i % 7) as f32).collect();
    let divided: Vec<f32> = rows.iter().zip(scales.iter().cycle()).map(|(x, scale)| x / scale).collect();
    let (mut hessian, mut expected) = (Hessian::new(20), Hessian::new(20));
    hessian.add(&rows);
    expected.add(&divided);
    let scaled = hessian.scaled(&scales);
    assert_eq!(scaled.tokens(), 30);
    let largest = expected.diagonal().into_iter().fold(0.0, f32::max);
    for (i, j) in (0..20).flat_map(|i| (0..20).map(move |j| (i, j))) {
        assert!((scaled.at(i, j) - expected.at(i, j)).abs() <= 1e-5 * largest, "{i} {j}");
    }
}

/// `M Mᵀ` is the damped sum in the chosen order: rank-deficient inputs, one token, none, dead inputs, widths around a block.
#[test]
fn factors_multiply_to_the_sum() {
    for (tokens, width, rank) in
        [(0, 5, 1), (1, 1, 1), (1, 60, 1), (40, 129, 3), (300, 127, 200), (200, 128, 128), (400, 300, 40), (9, 257, 9)]
    {
        for order in [Order::Stored, Order::Descending] {
            let mut rows = inputs(tokens, width, rank);
            rows.chunks_mut(width).for_each(|row| row[width / 2] = if width > 5 { 0.0 } else { row[width / 2] });
            let mut hessian = Hessian::new(width);
            hessian.add(&rows);
            let factor = Factor::of(&hessian, 0.01, order).unwrap();
            let what = format!("{tokens} tokens, width {width}, rank {rank}, {order:?}");
            assert_eq!(factor.damping(), 0.01, "{what}");
            let exact = exact(&rows, width);
            let mean = (0..width).map(|i| exact[i * width + i]).sum::<f64>() / width as f64;
            let n = width;
            let m =
                |i: usize, j: usize| if i <= j { f64::from(factor.reversed[(n - 1 - i) * n + n - 1 - j]) } else { 0.0 };
            for (i, &a) in factor.order().iter().enumerate() {
                for (j, &b) in factor.order().iter().enumerate() {
                    let product: f64 = (i.max(j)..n).map(|k| m(i, k) * m(j, k)).sum();
                    let identity = if i == j { 1.0 } else { 0.0 };
                    let sum = if mean > 0.0 { exact[a * n + b] / mean } else { identity };
                    let expected = sum + 0.01 * identity;
                    assert!(
                        (product - expected).abs() < 1e-4 * n as f64 / 10.0,
                        "{what} at {i}, {j}: {product} {expected}"
                    );
                }
            }
        }
    }
}

/// The columns that were rounded earlier reach a later one as the factor says, through blocks too.
#[test]
fn feedback_is_the_factor_over_its_diagonal() {
    let mut hessian = Hessian::new(200);
    hessian.add(&inputs(90, 200, 30));
    let factor = Factor::of(&hessian, 0.01, Order::Descending).unwrap();
    let m = |i: usize, j: usize| factor.reversed[(199 - i) * 200 + 199 - j];
    let part = factor.feedback(100..150, 120..200);
    for j in 120..200 {
        for i in 100..150 {
            let expected = if i <= j { m(i, j) / m(j, j) } else { 0.0 };
            let have = part[(j - 120) * 50 + i - 100];
            assert!((have - expected).abs() <= 1e-6 * expected.abs().max(1.0), "{i} {j}: {have} {expected}");
        }
    }
    let diagonal = hessian.diagonal();
    assert!(factor.order().windows(2).all(|pair| diagonal[pair[0]] >= diagonal[pair[1]]));
}

/// A damping that f32 does not feel grows until there is a factor; one that it feels is kept although the matrix is bad.
#[test]
fn an_ill_conditioned_sum_has_a_factor() {
    let mut hessian = Hessian::new(300);
    hessian.add(&inputs(400, 300, 2));
    let factor = Factor::of(&hessian, 1e-12, Order::Stored).unwrap();
    assert!((1e-9..1e-3).contains(&factor.damping()), "{}", factor.damping());
    assert!(factor.reversed.iter().all(|x| x.is_finite()));
    assert_eq!(Factor::of(&hessian, 1e-2, Order::Stored).unwrap().damping(), 1e-2);
}

#[test]
fn what_has_no_factor_is_refused() {
    for (input, damping, need) in [
        (f32::NAN, 0.01, "finite sums of squares"),
        (1e30, 0.01, "finite sums of squares"),
        (1.0, 0.0, "a finite number above zero"),
        (1.0, f32::NAN, "a finite number above zero"),
    ] {
        let mut hessian = Hessian::new(2);
        hessian.add(&[input, 1.0]);
        let error = Factor::of(&hessian, damping, Order::Stored).unwrap_err();
        assert_eq!(error.diagnostics()[0].code, Code::BadRange);
        assert_eq!(error.diagnostics()[0].need.as_deref(), Some(need), "{input} {damping}");
    }
}
