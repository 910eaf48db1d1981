//! Which plots a report has.

use crate::record::{Quantity, Reading};
use crate::results::Results;
use crate::stats::median;

use super::svg::{Mark, Plot, Series};
use super::{Report, RunReport};

/// The plots of a report over the runs it is of; those without points come out empty.
pub(super) fn plots(report: &Report, runs: &[Results]) -> Vec<Plot> {
    let both: Vec<(&RunReport, &Results)> = report.runs.iter().zip(runs).collect();
    let mut plots = vec![
        attainment(&both, Threshold::Ttft),
        attainment(&both, Threshold::Tpot),
        by_prompt(&both),
        over_run(&both),
        over_position(&both),
    ];
    plots.extend(sensors(&both));
    plots
}

#[derive(Clone, Copy)]
enum Threshold {
    Ttft,
    Tpot,
}

fn series(place: usize, run: &RunReport, mark: Mark, points: Vec<[f64; 2]>) -> Series {
    Series { name: format!("{} ({})", run.name, run.label), colour: place, mark, points }
}

fn attainment(runs: &[(&RunReport, &Results)], which: Threshold) -> Plot {
    let curve = |run: &RunReport| {
        let curve = match which {
            Threshold::Ttft => &run.ttft_curve,
            Threshold::Tpot => &run.tpot_curve,
        };
        // A curve begins where no request meets it.
        let first = curve.first().map(|point| [point[0], 0.0]);
        first.into_iter().chain(curve.iter().copied()).map(|[ms, part]| [ms, part * 100.0]).collect()
    };
    let threshold = |run: &RunReport| {
        let slo = run.slo.as_ref()?.slo;
        let ms = match which {
            Threshold::Ttft => slo.ttft_ms?,
            Threshold::Tpot => slo.tpot_ms?,
        };
        Some((ms, format!("{ms} ms")))
    };
    let mut lines: Vec<(f64, String)> = runs.iter().filter_map(|(run, _)| threshold(run)).collect();
    lines.dedup_by(|a, b| a.0 == b.0);
    let name = match which {
        Threshold::Ttft => "TTFT",
        Threshold::Tpot => "TPOT per request",
    };
    Plot {
        title: format!("Attainment over thresholds of {name}"),
        x: format!("threshold of {name}, ms"),
        y: "requests that meet it, %".into(),
        lines,
        series: runs.iter().enumerate().map(|(place, (run, _))| series(place, run, Mark::Steps, curve(run))).collect(),
    }
}

fn by_prompt(runs: &[(&RunReport, &Results)]) -> Plot {
    let points = |results: &Results| {
        let point =
            |request: &crate::results::Request| Some([request.prompt_tokens? as f64, request.ttft_ns()? as f64 / 1e6]);
        results.complete().filter_map(point).collect()
    };
    let longest =
        runs.iter().flat_map(|(_, results)| results.complete()).filter_map(|request| request.prompt_tokens).max();
    let step = runs.first().and_then(|(_, results)| results.headers.first()?.1.plan.model.step_tokens.first().copied());
    let lines = match (step, longest) {
        (Some(step), Some(longest)) if step > 0 && longest / step as u64 <= 12 => {
            let steps = 1..=longest / step as u64;
            steps
                .map(|steps| {
                    (
                        steps as f64 * step as f64,
                        if steps == 1 { format!("{step} tokens: a step") } else { String::new() },
                    )
                })
                .collect()
        }
        _ => Vec::new(),
    };
    Plot {
        title: "TTFT by length of the prompt".into(),
        x: "tokens of the prompt".into(),
        y: "TTFT, ms".into(),
        lines,
        series: runs
            .iter()
            .enumerate()
            .map(|(place, (run, results))| series(place, run, Mark::Dots, points(results)))
            .collect(),
    }
}

fn over_run(runs: &[(&RunReport, &Results)]) -> Plot {
    let points = |results: &Results| {
        let requests = results.complete().enumerate();
        requests.filter_map(|(place, request)| Some([(place + 1) as f64, request.tpot_ns()? / 1e6])).collect()
    };
    Plot {
        title: "TPOT of each request over the run".into(),
        x: "request".into(),
        y: "TPOT per request, ms".into(),
        lines: Vec::new(),
        series: runs
            .iter()
            .enumerate()
            .map(|(place, (run, results))| series(place, run, Mark::Dots, points(results)))
            .collect(),
    }
}

/// Groups of positions in the plot of intervals.
const BINS: usize = 40;

fn over_position(runs: &[(&RunReport, &Results)]) -> Plot {
    let points = |results: &Results| {
        let mut intervals: Vec<(u64, f64)> = Vec::new();
        for request in results.complete() {
            let Some(prompt) = request.prompt_tokens else { continue };
            let placed = request.intervals_ns().into_iter().enumerate();
            intervals.extend(placed.map(|(place, ns)| (prompt.saturating_add(place as u64 + 1), ns as f64 / 1e6)));
        }
        intervals.sort_by_key(|(position, _)| *position);
        let bin = intervals.len().div_ceil(BINS).max(1);
        let middle = |bin: &[(u64, f64)]| {
            let (positions, times): (Vec<f64>, Vec<f64>) =
                bin.iter().map(|&(position, ms)| (position as f64, ms)).unzip();
            Some([median(&positions)?, median(&times)?])
        };
        intervals.chunks(bin).filter_map(middle).collect()
    };
    Plot {
        title: "Interval between tokens over the context".into(),
        x: "tokens before".into(),
        y: "median interval, ms".into(),
        lines: Vec::new(),
        series: runs
            .iter()
            .enumerate()
            .map(|(place, (run, results))| series(place, run, Mark::Line, points(results)))
            .collect(),
    }
}

/// Readings of the first run over its time.
fn sensors(runs: &[(&RunReport, &Results)]) -> Vec<Plot> {
    let Some((run, results)) = runs.first() else { return Vec::new() };
    let Some((_, header)) = results.headers.first() else { return Vec::new() };
    let shown = [
        (Quantity::Millicelsius, "Temperature", "°C", 1e3),
        (Quantity::CpuKilohertz, "CPU frequency", "MHz", 1e3),
        (Quantity::DeviceHertz, "Accelerator and bus frequency", "MHz", 1e6),
        (Quantity::BatteryMicroamps, "Battery current", "mA", 1e3),
    ];
    let plot = |(quantity, title, unit, divisor): (Quantity, &str, &str, f64)| {
        let of = header.sensors.iter().enumerate().filter(|(_, sensor)| sensor.quantity == quantity);
        let lines = of.enumerate().map(|(colour, (place, sensor))| {
            let first = results.requests.iter().filter(|request| request.segment == 0);
            let samples = first.flat_map(|request| &request.samples);
            let point = |sample: &crate::record::Sample| match sample.values.get(place) {
                Some(Reading::Number(number)) => Some([sample.at_ns as f64 / 1e9, *number as f64 / divisor]),
                Some(Reading::Word(_) | Reading::Absent) | None => None,
            };
            Series { name: sensor.name.clone(), colour, mark: Mark::Line, points: samples.filter_map(point).collect() }
        });
        Plot {
            title: format!("{title} during {} ({})", run.name, run.label),
            x: "seconds".into(),
            y: format!("{title}, {unit}"),
            lines: Vec::new(),
            series: lines.collect(),
        }
    };
    shown.into_iter().map(plot).collect()
}
