//! Quantiles and reports against numpy's numbers and plain recomputations from the rows of the file.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use npuc_bench::record::{Class, Quantity, Reading, Sample, Sensor};
use npuc_bench::report::{Options, report};
use npuc_bench::results;
use npuc_bench::slo::Slo;
use npuc_bench::stats::{Summary, interval95, mean, median, quantile, sorted};
use proptest::prelude::*;
use serde_json::Value;

mod runs;

use runs::Times;

#[test]
fn quantiles_are_numpys() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/bench/percentiles.json");
    let fixture: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let cases = fixture["cases"].as_array().unwrap();
    assert!(cases.len() > 9);
    for case in cases {
        let numbers = |value: &Value| value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect::<Vec<_>>();
        let values = numbers(&case["values"]);
        let near = |have: f64, need: f64| (have - need).abs() <= 1e-12 * need.abs().max(1.0);
        for pair in case["quantiles"].as_array().unwrap() {
            let (q, need) = (pair[0].as_f64().unwrap(), pair[1].as_f64().unwrap());
            let have = quantile(&sorted(values.clone()), q).unwrap();
            assert!(near(have, need), "{}: quantile {q} is {have}, numpy says {need}", case["name"]);
        }
        let need = case["mean"].as_f64().unwrap();
        assert!(near(mean(&values).unwrap(), need), "{}: mean", case["name"]);
    }
    assert_eq!(quantile(&[], 0.5), None);
}

#[test]
fn intervals_hold_the_truth_about_as_often_as_they_say() {
    // Samples of a uniform distribution on 0..1, whose median is .5; a linear congruential generator makes them.
    let mut state = 1u64;
    let mut uniform = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 11) as f64 / (1u64 << 53) as f64
    };
    let mut held = 0;
    for _ in 0..100 {
        let values: Vec<f64> = (0..30).map(|_| uniform()).collect();
        let draw = |places: &[usize]| median(&places.iter().map(|&place| values[place]).collect::<Vec<_>>());
        let [low, high] = interval95([30], |[places]| draw(places)).unwrap();
        held += usize::from((low..=high).contains(&0.5));
    }
    assert!((85..=99).contains(&held), "{held} of 100 intervals hold the median");
    assert_eq!(interval95([1], |_| Some(1.0)), None);
}

#[test]
fn energy_is_told_only_where_it_is_known() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.jsonl");
    // Two requests of 2 s and 1 s, of two tokens each.
    let second = 1_000_000_000;
    let times = [(1, second, 3 * second), (1, 4 * second, 5 * second)];
    let times = times.map(|(prompt, start, end)| Times { prompt, start, tokens: vec![start + 10, end - 1] });
    runs::written(&path, Class::Device, &times);
    let sensor = |quantity| Sensor { path: String::new(), name: String::new(), quantity };
    let all = [Quantity::BatteryStatus, Quantity::BatteryMicrovolts, Quantity::BatteryMicroamps].map(sensor);
    let sample = |status: &str, volts: f64, amps: f64| Sample {
        at_ns: 0,
        values: vec![
            Reading::Word(status.into()),
            Reading::Number((volts * 1e6) as i64),
            Reading::Number((amps * 1e6) as i64),
        ],
    };
    let idle = || vec![sample("Discharging", 4.0, -0.5), sample("Discharging", 4.0, -0.5)];
    let busy = || vec![sample("Discharging", 4.0, 1.0), sample("Discharging", 4.0, 2.0)];
    let charged = || vec![sample("Charging", 4.0, 1.0), sample("Discharging", 4.0, 2.0)];
    let cases = [
        // 2 s of 2 W and 1 s of 6 W; the mean of 4 W and 8 W.
        ("both", &all[..], [idle(), busy()], Some((2, 10.0, 2.5))),
        ("one is charged", &all[..], [idle(), charged()], Some((1, 4.0, 2.0))),
        ("one reading", &all[..], [idle(), busy()[..1].to_vec()], Some((1, 4.0, 2.0))),
        ("all are charged", &all[..], [charged(), charged()], None),
        ("no status", &all[1..], [idle(), busy()], None),
        ("no sensor", &[], [Vec::new(), Vec::new()], None),
    ];
    for (name, sensors, samples, need) in cases {
        let mut run = results::read(&path).unwrap();
        run.headers[0].1.sensors = sensors.to_vec();
        for (request, samples) in run.requests.iter_mut().zip(samples) {
            request.samples = samples;
        }
        let made = report(&[run], Options { slo: None, allow_incomplete: false }).unwrap().runs.remove(0);
        let have = made.energy.map(|energy| (energy.requests, energy.joules, energy.joules_per_token));
        let near = match (have, need) {
            (Some(have), Some(need)) => {
                have.0 == need.0 && (have.1 - need.1).abs() < 1e-6 && (have.2 - need.2).abs() < 1e-6
            }
            (None, None) => made.no_energy.is_some(),
            (Some(_), None) | (None, Some(_)) => false,
        };
        assert!(near, "{name}: {have:?}, need {need:?}");
    }
}

/// Requests one after the other, of up to 6 tokens.
fn requests() -> impl Strategy<Value = Vec<Times>> {
    let request = (1usize..60, 1u64..1_000_000_000, prop::collection::vec(1u64..200_000_000, 1..6));
    prop::collection::vec(request, 1..12).prop_map(|requests| {
        let mut now = 0;
        let times = |(prompt, gap, steps): (usize, u64, Vec<u64>)| {
            let start = now + gap;
            let mut at = start;
            let tokens: Vec<u64> = steps
                .iter()
                .map(|step| {
                    at += step;
                    at
                })
                .collect();
            now = at + 2;
            Times { prompt, start, tokens }
        };
        requests.into_iter().map(times).collect()
    })
}

/// The quantile after its definition, in another way than npuc's: by counting.
fn plain(values: &[f64], q: f64) -> f64 {
    let rank = |place: usize| {
        *values
            .iter()
            .find(|value| {
                let below = values.iter().filter(|other| other < value).count();
                let equal = values.iter().filter(|other| other == value).count();
                (below..below + equal).contains(&place)
            })
            .unwrap()
    };
    let place = q * (values.len() - 1) as f64;
    let (low, high) = (rank(place.floor() as usize), rank(place.ceil() as usize));
    low + (high - low) * (place - place.floor())
}

fn check(name: &str, have: Option<Summary>, need: &[f64]) {
    let Some(have) = have else { return assert!(need.is_empty(), "{name} is absent") };
    let near = |have: f64, need: f64| (have - need).abs() <= 1e-9 * need.abs().max(1.0);
    assert_eq!(have.count, need.len(), "{name}");
    for (q, have) in [(0.5, have.p50), (0.9, have.p90), (0.95, have.p95), (0.99, have.p99), (1.0, have.max)] {
        assert!(near(have, plain(need, q)), "{name}: quantile {q} is {have}, need {}", plain(need, q));
    }
    assert!(near(have.mean, need.iter().sum::<f64>() / need.len() as f64), "{name}: mean");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn figures_are_a_plain_recomputation_from_the_rows(times in requests(), most in 1.0f64..300.0) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r.jsonl");
        runs::written(&path, Class::Host, &times);
        let slo = Slo { ttft_ms: Some(most), tpot_ms: Some(most) };
        let made = report(&[results::read(&path).unwrap()], Options { slo: Some(slo), allow_incomplete: false }).unwrap();
        // The rows as anyone reads them, without npuc's types.
        let rows: Vec<Value> = runs::lines(&path).iter().map(|line| serde_json::from_str(line).unwrap()).collect();
        let rows: Vec<&Value> = rows.iter().filter(|row| row["kind"] == "request").collect();
        let commits = |row: &Value| row["token_trace"].as_array().unwrap().iter().map(|t| t["commit_ns"].as_u64().unwrap()).collect::<Vec<u64>>();
        let start = |row: &Value| row["start_ns"].as_u64().unwrap();
        let ms = |ns: u64| ns as f64 / 1e6;
        for dataset in ["all", "gsm8k", "humaneval"] {
            let rows: Vec<&Value> = rows.iter().copied().filter(|row| dataset == "all" || row["dataset"] == dataset).collect();
            let figures = match dataset {
                "all" => Some(&made.runs[0].all),
                name => made.runs[0].datasets.iter().find(|(other, _)| other == name).map(|(_, figures)| figures),
            };
            let Some(figures) = figures else { prop_assert!(rows.is_empty()); continue };
            let ttft: Vec<f64> = rows.iter().map(|row| ms(commits(row)[0] - start(row))).collect();
            let intervals: Vec<f64> = rows.iter().flat_map(|row| { let c = commits(row); (1..c.len()).map(|i| ms(c[i] - c[i - 1])).collect::<Vec<_>>() }).collect();
            let tpot: Vec<f64> = rows.iter().map(|row| commits(row)).filter(|c| c.len() > 1)
                .map(|c| ms(c[c.len() - 1] - c[0]) / (c.len() - 1) as f64).collect();
            let e2el: Vec<f64> = rows.iter().map(|row| ms(commits(row).last().unwrap() - start(row))).collect();
            check("ttft", figures.ttft_ms, &ttft);
            check("tpot", figures.tpot_ms, &tpot);
            check("interval", figures.tpot_interval_ms, &intervals);
            check("itl", figures.itl_ms, &intervals);
            check("e2el", figures.e2el_ms, &e2el);
            let tokens: usize = rows.iter().map(|row| commits(row).len()).sum();
            let rate = tokens as f64 / (e2el.iter().sum::<f64>() / 1e3);
            prop_assert!((figures.output_tokens_per_s.unwrap() - rate).abs() < 1e-6 * rate);
            if dataset == "all" {
                let met = rows.iter().filter(|row| {
                    let c = commits(row);
                    ms(c[0] - start(row)) <= most && (c.len() < 2 || ms(c[c.len() - 1] - c[0]) / (c.len() - 1) as f64 <= most)
                }).count() as f64;
                let slo = made.runs[0].slo.as_ref().unwrap();
                prop_assert!((slo.attainment - met / rows.len() as f64).abs() < 1e-12);
                prop_assert!((slo.goodput_per_s - met / (e2el.iter().sum::<f64>() / 1e3)).abs() < 1e-9 * slo.goodput_per_s.max(1.0));
                for [threshold, part] in &made.runs[0].ttft_curve {
                    let at = ttft.iter().filter(|&&ttft| ttft <= *threshold).count() as f64 / ttft.len() as f64;
                    // Where several requests have the same TTFT, the last point of the curve at it is the true one.
                    prop_assert!(*part <= at + 1e-12);
                }
            }
        }
    }
}
