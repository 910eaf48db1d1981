//! The sampler against the formulas of its steps: `data/sampling.json`, from `tools/text`.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::collections::BTreeMap;

use npuc::diag::Code;
use npuc_run::text::{Sampler, Sampling, SamplingConfig};
use serde::Deserialize;

#[derive(Deserialize)]
struct Data {
    logits: BTreeMap<String, Vec<Option<f32>>>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    logits: String,
    seen: Vec<u32>,
    settings: SamplingConfig,
    kept: usize,
    best: Vec<(u32, f64)>,
}

fn sampler(config: SamplingConfig) -> Sampler {
    Sampler::new(Sampling::new(config).unwrap())
}

#[test]
fn probabilities_are_those_of_the_formulas() {
    let data: Data = serde_json::from_str(include_str!("data/sampling.json")).unwrap();
    for case in &data.cases {
        let what = format!("{} {:?}", case.logits, case.settings);
        let logits: Vec<f32> = data.logits[&case.logits].iter().map(|x| x.unwrap_or(f32::NEG_INFINITY)).collect();
        let mut sampler = sampler(case.settings);
        sampler.accept(&case.seen);
        let mut kept = sampler.distribution(&logits).unwrap();
        kept.retain(|&(_, p)| p > 0.0);
        assert_eq!(kept.len(), case.kept, "{what}");
        let kept: BTreeMap<u32, f64> = kept.into_iter().collect();
        let sum: f64 = kept.values().sum();
        assert!((sum - 1.0).abs() < 1e-9, "{what}: {sum}");
        for (id, p) in &case.best {
            let ours = kept.get(id).unwrap_or_else(|| panic!("{what}: token {id} is gone"));
            assert!((ours - p).abs() < 1e-6, "{what}: token {id}: {ours} is not {p}");
        }
    }
}

#[test]
fn draws_follow_the_probabilities() {
    const DRAWS: usize = 20_000;
    let logits = [1.0, 0.0, -1.0, 2.0, 0.5, f32::NEG_INFINITY, 1.5, -4.0];
    let configs = [
        SamplingConfig { temperature: 1.0, ..SamplingConfig::default() },
        SamplingConfig { temperature: 0.6, top_k: 5, seed: 3, ..SamplingConfig::default() },
        SamplingConfig { temperature: 2.0, top_p: 0.9, min_p: 0.1, seed: 9, ..SamplingConfig::default() },
    ];
    for config in configs {
        let mut sampler = sampler(config);
        let expected = sampler.distribution(&logits).unwrap();
        let mut counts = [0usize; 8];
        for _ in 0..DRAWS {
            counts[sampler.sample(&logits).unwrap() as usize] += 1;
        }
        let mut rest = DRAWS;
        let mut chi_square = 0.0;
        for &(id, p) in expected.iter().filter(|(_, p)| *p > 0.0) {
            let (seen, wanted) = (counts[id as usize], p * DRAWS as f64);
            rest -= seen;
            chi_square += (seen as f64 - wanted).powi(2) / wanted;
        }
        assert_eq!(rest, 0, "{config:?}: a token was drawn that has no probability");
        // The 99.9 % point for 7 degrees of freedom.
        assert!(chi_square < 24.3, "{config:?}: {chi_square}");
    }
}

#[test]
fn seeds_decide_the_draws() {
    let logits: Vec<f32> = (0..1000u16).map(|i| f32::from(i % 37) / 10.0).collect();
    let draw = |seed| {
        let mut sampler = sampler(SamplingConfig { temperature: 1.0, top_p: 0.9, seed, ..SamplingConfig::default() });
        (0..20).map(|_| sampler.sample(&logits).unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(draw(1), draw(1));
    assert_ne!(draw(1), draw(2));
}

#[test]
fn greedy_takes_the_best_and_of_equals_the_first() {
    let inf = f32::NEG_INFINITY;
    let cases: [(&[f32], u32); 5] =
        [(&[1.0, 3.0, 3.0, 2.0], 1), (&[0.0, -0.0], 0), (&[-5.0], 0), (&[inf, -9.0, inf], 1), (&[0.0; 4], 0)];
    for (logits, best) in cases {
        let mut sampler = sampler(SamplingConfig { top_k: 3, ..SamplingConfig::default() });
        assert_eq!(sampler.sample(logits).unwrap(), best, "{logits:?}");
        assert_eq!(sampler.distribution(logits).unwrap(), [(best, 1.0)], "{logits:?}");
    }
    // The drawn tokens count as seen.
    let mut sampler = sampler(SamplingConfig { repetition_penalty: 2.0, ..SamplingConfig::default() });
    let draws: Vec<u32> = (0..4).map(|_| sampler.sample(&[3.0, 2.0, 1.6, -1.0]).unwrap()).collect();
    assert_eq!(draws, [0, 1, 2, 0]);
}

/// Wherever in a large vocabulary the best is, equal to others behind it, and wherever one is no number.
#[test]
fn every_place_of_a_vocabulary_is_looked_at() {
    let mut greedy = sampler(SamplingConfig::default());
    for len in [1, 15, 16, 17, 1023, 1024, 1025, 3000, 4096] {
        let mut logits: Vec<f32> = (0..len).map(|id| -1.0 - (id * 7919 % 1000) as f32).collect();
        for at in (0..len).step_by(7).chain([len - 1]) {
            let before = logits[at];
            for best in [0.0, -0.5] {
                // The last is as good, and behind it.
                (logits[len - 1], logits[at]) = (best, best);
                assert_eq!(greedy.sample(&logits).unwrap(), at as u32, "{len} logits");
            }
            for bad in [f32::NAN, f32::INFINITY] {
                logits[at] = bad;
                let error = greedy.sample(&logits).unwrap_err().to_string();
                assert!(error.contains(&format!("token {at}")), "{len} logits: {error}");
            }
            (logits[at], logits[len - 1]) = (before, -2000.0);
        }
    }
}

#[test]
fn nonsense_logits_are_an_error() {
    let inf = f32::INFINITY;
    let cases: [&[f32]; 6] = [&[], &[f32::NAN], &[1.0, f32::NAN, 2.0], &[1.0, inf], &[-inf, -inf], &[f32::NAN, -inf]];
    for logits in cases {
        for temperature in [0.0, 1.0] {
            let mut sampler =
                sampler(SamplingConfig { temperature, top_k: 2, top_p: 0.5, ..SamplingConfig::default() });
            let error = sampler.sample(logits).expect_err("nonsense");
            assert_eq!(error.diagnostics()[0].code, Code::Unfaithful, "{logits:?}");
        }
    }
}

#[test]
fn extreme_temperatures_do_not_overflow() {
    for (temperature, kept) in [(f32::MIN_POSITIVE, 1), (1e-30, 1), (f32::MAX, 3)] {
        let mut sampler = sampler(SamplingConfig { temperature, ..SamplingConfig::default() });
        let left = sampler.distribution(&[f32::MAX, f32::MIN, 0.0]).unwrap();
        assert_eq!(left.iter().filter(|(_, p)| *p > 0.0).count(), kept, "{temperature}");
        assert!(sampler.sample(&[f32::MAX, f32::MIN, 0.0]).is_ok());
    }
}

#[test]
fn settings_out_of_range_are_all_named() {
    let base = SamplingConfig::default();
    let cases = [
        (SamplingConfig { temperature: -1.0, ..base }, "temperature"),
        (SamplingConfig { temperature: f32::NAN, ..base }, "temperature"),
        (SamplingConfig { temperature: f32::INFINITY, ..base }, "temperature"),
        (SamplingConfig { top_p: 0.0, ..base }, "top-p"),
        (SamplingConfig { top_p: 1.1, ..base }, "top-p"),
        (SamplingConfig { min_p: -0.1, ..base }, "min-p"),
        (SamplingConfig { min_p: f32::NAN, ..base }, "min-p"),
        (SamplingConfig { repetition_penalty: 0.0, ..base }, "repetition penalty"),
    ];
    for (config, name) in cases {
        let error = Sampling::new(config).expect_err(name);
        assert_eq!(error.diagnostics().len(), 1, "{name}");
        assert_eq!(error.diagnostics()[0].code, Code::BadArgument, "{name}");
        assert!(error.diagnostics()[0].message.contains(name), "{error}");
    }
    let all = SamplingConfig { temperature: -1.0, top_p: 2.0, min_p: 2.0, repetition_penalty: -1.0, ..base };
    assert_eq!(Sampling::new(all).unwrap_err().diagnostics().len(), 4);
}
