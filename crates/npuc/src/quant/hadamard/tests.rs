//! Tests of rotations: orthogonal, of equal entries where there is a Hadamard matrix, and the same for a seed.

use super::*;

/// The matrix row by row: what unit rows become.
fn whole(rotation: &Rotation, apply: impl Fn(&Rotation, &mut [f32])) -> Vec<Vec<f32>> {
    let n = rotation.len();
    let row = |i: usize| {
        let mut row = vec![0.0; n];
        row[i] = 1.0;
        apply(rotation, &mut row);
        row
    };
    (0..n).map(row).collect()
}

#[test]
fn rotations_are_orthogonal() {
    // Size, the numbers of a block, Paley's order.
    for (n, block, order) in [
        (0, 1, 1),
        (1, 1, 1),
        (2, 2, 1),
        (3, 1, 1),
        (6, 2, 1),
        (8, 8, 1),
        (12, 12, 12),
        (20, 20, 20),
        (22, 2, 1),
        (24, 24, 12),
        (28, 28, 28),
        (36, 36, 36),
        (44, 44, 44),
        (52, 4, 1),
        (104, 104, 104),
        (60, 60, 60),
        (64, 64, 1),
        (76, 76, 76),
        (80, 80, 20),
        (92, 4, 1),
        (96, 96, 12),
        (128, 128, 1),
        (172, 4, 1),
        (192, 192, 12),
        (576, 576, 36),
    ] {
        let rotation = Rotation::of(n, 7);
        assert_eq!((rotation.block, rotation.paley.order), (block, order), "{n}");
        let rows = whole(&rotation, Rotation::apply);
        for (i, a) in rows.iter().enumerate() {
            for (j, b) in rows.iter().enumerate() {
                let product: f64 = a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                let expected = if i == j { 1.0 } else { 0.0 };
                assert!((product - expected).abs() < 1e-5, "{n}: rows {i} and {j} give {product}");
            }
        }
        let entry = 1.0 / (block as f32).sqrt();
        let is_entry = |x: &f32| (x.abs() - entry).abs() < 1e-6;
        let count = rows.iter().flatten().filter(|x| is_entry(x)).count();
        assert_eq!(count, n * block, "{n}: entries ±{entry}");
        assert!(rows.iter().flatten().all(|x| is_entry(x) || *x == 0.0), "{n}");
        let transposed = whole(&rotation, Rotation::apply_transposed);
        assert!((0..n).all(|i| (0..n).all(|j| (transposed[i][j] - rows[j][i]).abs() < 1e-6)), "{n}");
    }
}

#[test]
fn models_have_whole_hadamard_rotations() {
    for (n, order) in [
        (576, 36),
        (896, 28),
        (960, 60),
        (1024, 1),
        (1536, 12),
        (2048, 1),
        (2560, 20),
        (3072, 12),
        (3584, 28),
        (4864, 76),
        (5120, 20),
        (14336, 28),
    ] {
        let rotation = Rotation::of(n, 1);
        assert!(rotation.is_hadamard(), "{n}");
        assert_eq!(rotation.paley.order, order, "{n}");
        let row: Vec<f32> = (0..n).map(|i| (i * 7919 % 1009) as f32 / 500.0 - 1.0).collect();
        let norm = |row: &[f32]| row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
        let mut turned = row.clone();
        rotation.apply(&mut turned);
        assert!((norm(&turned) / norm(&row) - 1.0).abs() < 1e-6, "{n}");
        assert!(turned != row);
        rotation.apply_transposed(&mut turned);
        assert!(row.iter().zip(&turned).all(|(a, b)| (a - b).abs() < 1e-5), "{n}");
    }
    assert!(!Rotation::of(11008, 1).is_hadamard());
}

#[test]
fn seeds_tell_rotations_apart() {
    assert_eq!(Rotation::of(64, 3).signs, Rotation::of(64, 3).signs);
    assert!(Rotation::of(64, 3).signs != Rotation::of(64, 4).signs);
}
