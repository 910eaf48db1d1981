//! Data and comparisons shared by the kernels' tests.

/// `len` values in -1..1, the same for the same seed.
pub(crate) fn random(len: usize, seed: usize) -> Vec<f32> {
    let mut state = (seed as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        })
        .collect()
}

/// Fails when an element is off by more than `tolerance` times the largest magnitude wanted (at least 1e-3).
#[track_caller]
pub(crate) fn assert_close(have: &[f32], want: &[f64], tolerance: f64) {
    assert_eq!(have.len(), want.len());
    let largest = want.iter().fold(1e-3, |a: f64, b| a.max(b.abs()));
    for (i, (h, w)) in have.iter().zip(want).enumerate() {
        assert!((f64::from(*h) - w).abs() <= tolerance * largest, "element {i}: have {h}, want {w} (of {largest})");
    }
}
