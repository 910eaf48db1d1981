//! Products and reciprocal roots against what Torq's simulator gave.

use super::{product, rsqrt};

/// `x · y` at an even and at an odd place, as torq-run-module 2.3.0 gave them for ties.
#[test]
fn halves_go_where_the_simulator_lets_them() {
    for (a, b, even, odd) in [
        (-1.125f32, 1.71875, -1.937_5, -1.929_687_5),
        (0.625, -1.96875, -1.234_375, -1.226_562_5),
        (-1.125, -0.103_515_625, 0.116_210_94, 0.116_699_22),
        (1.375, 1.6875, 2.3125, 2.328_125),
        (-0.039_062_5, 0.023_193_36, -0.000_907_897_95, -0.000_904_083_25),
        // No tie.
        (1.25, 1.25, 1.5625, 1.5625),
    ] {
        assert_eq!((product(a, b, 0), product(a, b, 7)), (even, odd), "{a} * {b}");
    }
    assert!(product(f32::INFINITY, 1.0, 1).is_infinite() && product(f32::NAN, 1.0, 1).is_nan());
}

/// The root is within a step of bf16 of the exact one over the whole range.
#[test]
fn roots_are_close() {
    for exponent in -60..60 {
        for mantissa in 0..128 {
            let x = (1.0 + mantissa as f32 / 128.0) * 2f32.powi(exponent);
            for place in 0..2 {
                let error = rsqrt(x, place) * x.sqrt() - 1.0;
                assert!(error.abs() < 0.009, "{x}: {error}");
            }
        }
    }
}
