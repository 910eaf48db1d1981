//! The formulas against numbers that numpy computed from the same definitions in f64.
#![allow(clippy::unwrap_used)]

use super::*;

fn near(have: f64, expected: f64) {
    assert!((have - expected).abs() <= 1e-12 * expected.abs().max(1.0), "{have} is not {expected}");
}

#[test]
fn negative_log_likelihoods() {
    let sawtooth: Vec<f32> = (0..1000).map(|i| (i * 7919 % 1000) as f32 / 50.0).collect();
    let large = [1000.0, 999.0];
    for (scores, id, expected) in [
        (&[1.0, 2.0, -1.0, 0.5][..], 0, 1.495181898085856),
        (&[1.0, 2.0, -1.0, 0.5], 2, 3.495181898085856),
        (&sawtooth, 17, 11.442006274123367),
        (&large, 1, 1.313261687518223),
        (&[0.0, f32::NEG_INFINITY], 1, f64::INFINITY),
    ] {
        let have = nll(scores, id);
        if expected.is_finite() { near(have, expected) } else { assert_eq!(have, expected) }
    }
    assert!(nll(&[1.0, f32::NAN], 0).is_nan());
}

#[test]
fn divergences() {
    let sawtooth = |factor: u32| (0..1000).map(|i| (i * factor % 1000) as f32 / 50.0).collect::<Vec<f32>>();
    for (reference, model, expected) in [
        (vec![1.0, 2.0, -1.0, 0.5], vec![0.5, 2.5, -2.0, 0.5], 0.09078461668303071),
        (vec![0.5, 2.5, -2.0, 0.5], vec![1.0, 2.0, -1.0, 0.5], 0.07555637316184927),
        (sawtooth(7919), sawtooth(104_729), 12.336512342269149),
        (vec![3.0, -1.0], vec![13.0, 9.0], 0.0),
        (vec![0.0, f32::NEG_INFINITY], vec![0.0, 0.0], std::f64::consts::LN_2),
    ] {
        near(kl(&reference, &model), expected);
    }
    assert_eq!(kl(&[0.0, 0.0], &[0.0, f32::NEG_INFINITY]), f64::INFINITY);
    assert!(kl(&[0.0, 0.0], &[0.0, f32::NAN]).is_nan());
}

#[test]
fn sums_of_divergences() {
    let Kl { mean, median, p99, max } = Kl::of(vec![0.3, 0.1, 0.02, 0.5, 0.25, 0.0, 0.11]);
    for (have, expected) in [(mean, 0.18285714285714286), (median, 0.11), (p99, 0.488), (max, 0.5)] {
        near(have, expected);
    }
    let broken = Kl::of(vec![0.3, f64::NAN, f64::INFINITY]);
    assert!(broken.mean.is_nan() && broken.max.is_nan());
    let Kl { median, p99, max, .. } = Kl::of(vec![0.25]);
    assert_eq!((median, p99, max), (0.25, 0.25, 0.25));
}

#[test]
fn perplexities() {
    let Perplexity { value, standard_error, ids } = Perplexity::of(&[1.5, 2.0, 0.25, 3.0]);
    near(value, 5.405948925141167);
    near(standard_error, 3.09049602214233);
    assert_eq!(ids, 4);
    assert_eq!(Perplexity::of(&[0.0]), Perplexity { value: 1.0, standard_error: 0.0, ids: 1 });
}

#[test]
fn windows_of_a_text() {
    let ids: Vec<u32> = (100..127).collect();
    for (context, bos, most, expected, left_out, scored) in [
        (8, None, None, vec![100, 108, 116], 3, 4..7),
        (8, Some(1), None, vec![1, 1, 1], 3, 4..7),
        (8, None, Some(2), vec![100, 108], 11, 4..7),
        (8, None, Some(9), vec![100, 108, 116], 3, 4..7),
        (4, None, Some(1), vec![100], 23, 2..3),
        (26, None, None, vec![100], 1, 13..25),
    ] {
        let windows = Windows::new(ids.clone(), context, bos, most).unwrap();
        let firsts: Vec<u32> = windows.iter().map(|ids| ids[0]).collect();
        assert_eq!((firsts, windows.left_out(), windows.scored()), (expected, left_out, scored), "{context}");
        assert!(windows.iter().all(|ids| ids.len() == context && ids[1..].windows(2).all(|two| two[1] == two[0] + 1)));
    }
    for (context, most, expected) in [
        (7, None, "a window cannot have this many ids"),
        (2, None, "a window cannot have this many ids"),
        (0, None, "a window cannot have this many ids"),
        (28, None, "the text is shorter than one window"),
        (8, Some(0), "there is no window to measure"),
    ] {
        let error = Windows::new(ids.clone(), context, None, most).unwrap_err();
        assert_eq!(error.diagnostics()[0].message, expected, "{context}");
    }
}

#[test]
fn bins_cover_every_scored_position() {
    for context in [4, 6, 16, 18, 22, 512] {
        let windows = Windows::new(vec![0; context], context, None, None).unwrap();
        let cosines: Vec<f64> = windows.scored().map(|position| position as f64).collect();
        let bins = bins(&windows, &cosines);
        assert_eq!(bins.len(), 8.min(context / 2 - 1), "{context}");
        let covered: Vec<usize> = bins.iter().flat_map(|bin| bin.first..=bin.last).collect();
        assert_eq!(covered, windows.scored().collect::<Vec<_>>(), "{context}");
        assert!(bins.iter().all(|bin| bin.cosine == (bin.first + bin.last) as f64 / 2.0), "{context}");
    }
}
