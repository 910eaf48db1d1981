//! Distances of elements.
#![allow(clippy::unwrap_used)]

use super::*;

#[test]
fn ratios() {
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    for (reference, model, db, max_at, non_finite) in [
        (vec![3.0, 4.0], vec![3.0, 4.0], f64::INFINITY, 0, 0),
        (vec![3.0, 4.0], vec![3.0, 4.5], 20.0, 1, 0),
        (vec![10.0, 0.0], vec![0.0, 0.0], 0.0, 0, 0),
        (vec![1.0, 0.0, 0.0], vec![1.0, 8.0, 6.0], -20.0, 1, 0),
        (vec![0.0, 0.0], vec![0.0, 1.0], f64::NEG_INFINITY, 1, 0),
        (vec![1.0, nan, inf, -inf], vec![1.0, nan, inf, -inf], f64::INFINITY, 0, 0),
        (vec![1.0, 2.0], vec![1.0, nan], f64::NEG_INFINITY, 0, 1),
        (vec![1.0, inf, 5.0], vec![1.0, -inf, inf], f64::NEG_INFINITY, 0, 2),
    ] {
        let distance = Distance::of(&reference, &model);
        let have = (distance.max_at, distance.non_finite);
        assert_eq!(have, (max_at, non_finite), "{reference:?} {model:?}");
        let off = distance.sqnr_db() - db;
        assert!(off.abs() < 1e-9 || distance.sqnr_db() == db, "{reference:?} {model:?}: {}", distance.sqnr_db());
    }
}

#[test]
fn joined_distances_are_those_of_all_elements() {
    let (reference, model) = ([1.0, -2.0, 3.0, 0.5, 4.0], [1.25, -2.0, 2.0, 0.5, 4.5]);
    let all = Distance::of(&reference, &model);
    let mut joined = Distance::of(&reference[..2], &model[..2]);
    joined.join(&Distance::of(&reference[2..], &model[2..]));
    assert_eq!((joined.signal, joined.noise, joined.max_abs), (all.signal, all.noise, all.max_abs));
    assert_eq!((all.max_at, joined.max_at), (2, 0));
}
