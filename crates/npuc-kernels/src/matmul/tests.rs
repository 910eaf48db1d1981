//! Both products against the f64 formula.

use super::*;
use crate::testing::{assert_close, random};

fn check(batch: usize, m: usize, k: usize, n: usize) {
    let (a, b) = (random(batch * m * k, 1), random(batch * k * n, 2));
    for transpose_b in [false, true] {
        let mut want = Vec::new();
        for (i, r, c) in (0..batch * m * n).map(|at| (at / (m * n), at / n % m, at % n)) {
            let element = |j: usize| if transpose_b { b[i * k * n + c * k + j] } else { b[i * k * n + j * n + c] };
            want.push((0..k).map(|j| f64::from(a[(i * m + r) * k + j]) * f64::from(element(j))).sum::<f64>());
        }
        for level in Level::all() {
            let mut out = vec![f32::NAN; batch * m * n];
            let product = Product { a: &a, b: &b, batch, m, k, n };
            let kernel = if transpose_b { transposed_at } else { plain_at };
            kernel(level, product, &mut out);
            assert_close(&out, &want, 2e-6);
        }
        let mut out = vec![f32::NAN; batch * m * n];
        matmul(&a, &b, batch, m, k, n, transpose_b, &mut out);
        assert_close(&out, &want, 2e-6);
    }
}

#[test]
fn products_follow_their_formula() {
    for m in [1, 2, 5, 6, 8, 9, 16, 31, 33] {
        for n in [1, 7, 12, 16, 17, 40] {
            check(2, m, [1, 3, 64, 100][(m + n) % 4], n);
        }
    }
    check(9, 64, 64, 130);
    check(3, 1, 64, 1152);
    check(1, 128, 0, 16);
    check(0, 3, 4, 5);
    check(2, 3, 4, 0);
    check(2, 0, 4, 3);
}

#[test]
#[should_panic(expected = "matmul: b is not 1 of 3 by 4")]
fn a_short_operand_is_refused() {
    matmul(&[0.0; 6], &[0.0; 11], 1, 2, 3, 4, false, &mut [0.0; 8]);
}
