//! The tables of a report, and their text, Markdown and CSV. Every row says what it was measured on.

use std::fmt::Write as _;

use serde::Serialize;

use crate::stats::Summary;

use super::{Figures, Report, RunReport};

/// A table; all cells are text.
#[derive(Clone, Debug, Serialize)]
pub struct Table {
    /// What it shows.
    pub title: String,
    /// The names of the columns.
    pub columns: Vec<&'static str>,
    /// The rows, each with a cell for every column.
    pub rows: Vec<Vec<String>>,
}

/// The tables, those without rows left out.
pub fn tables(report: &Report) -> Vec<Table> {
    let runs = &report.runs;
    let all = [
        latency("Latency", runs, |run| vec![("all".to_string(), &run.all)]),
        latency("Latency by dataset", runs, |run| {
            run.datasets.iter().map(|(name, figures)| (name.clone(), figures)).collect()
        }),
        rates(runs),
        by_prompt(runs),
        attainment(runs),
        slo(runs),
        energy(runs),
        overhead(runs),
        drift(runs),
        comparison(report),
    ];
    all.into_iter().filter(|table| !table.rows.is_empty()).collect()
}

/// What begins every row of a run.
fn first_cells(run: &RunReport) -> Vec<String> {
    vec![run.name.clone(), run.label.clone(), run.state.clone()]
}

fn number(value: f64) -> String {
    format!("{value:.3}")
}

fn optional(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_string(), number)
}

fn row(run: &RunReport, cells: impl IntoIterator<Item = String>) -> Vec<String> {
    first_cells(run).into_iter().chain(cells).collect()
}

fn summary_cells(summary: &Summary) -> Vec<String> {
    let Summary { count, mean, p50, p90, p95, p99, max } = *summary;
    std::iter::once(count.to_string()).chain([mean, p50, p90, p95, p99, max].map(number)).collect()
}

fn latency<'a>(title: &str, runs: &'a [RunReport], of: impl Fn(&'a RunReport) -> Vec<(String, &'a Figures)>) -> Table {
    let mut rows = Vec::new();
    for run in runs {
        for (dataset, figures) in of(run) {
            let named = [
                ("ttft_ms", &figures.ttft_ms),
                ("tpot_ms, per request", &figures.tpot_ms),
                ("tpot_ms, per interval", &figures.tpot_interval_ms),
                ("itl_ms", &figures.itl_ms),
                ("e2el_ms", &figures.e2el_ms),
            ];
            for (name, summary) in named {
                if let Some(summary) = summary {
                    let cells = [dataset.clone(), name.to_string()].into_iter().chain(summary_cells(summary));
                    rows.push(row(run, cells));
                }
            }
        }
    }
    let columns =
        vec!["run", "measured on", "state", "dataset", "figure", "count", "mean", "P50", "P90", "P95", "P99", "max"];
    Table { title: title.into(), columns, rows }
}

fn rates(runs: &[RunReport]) -> Table {
    let cells = |run: &RunReport| {
        let Figures {
            requests,
            empty_answers,
            output_tokens,
            output_tokens_per_s,
            decode_tokens_per_s,
            prefill_tokens_per_s,
            ..
        } = run.all;
        let counts = [requests.to_string(), empty_answers.to_string(), output_tokens.to_string()];
        row(
            run,
            counts.into_iter().chain([output_tokens_per_s, decode_tokens_per_s, prefill_tokens_per_s].map(optional)),
        )
    };
    Table {
        title: "Tokens and rates".into(),
        columns: vec![
            "run",
            "measured on",
            "state",
            "requests",
            "empty answers",
            "output tokens",
            "output tokens/s",
            "decode tokens/s",
            "prefill tokens/s",
        ],
        rows: runs.iter().map(cells).collect(),
    }
}

fn by_prompt(runs: &[RunReport]) -> Table {
    let mut rows = Vec::new();
    for run in runs {
        for group in &run.by_prompt {
            let range = |[low, high]: [String; 2]| if low == high { low } else { format!("{low} to {high}") };
            let steps = group.steps.map_or_else(|| "-".into(), |steps| steps.to_string());
            let recorded =
                group.recorded_steps.map_or_else(|| "-".into(), |steps| range(steps.map(|steps| steps.to_string())));
            let cells = [range(group.prompt_tokens.map(|tokens| tokens.to_string())), steps, recorded];
            rows.push(row(run, cells.into_iter().chain(summary_cells(&group.ttft_ms))));
        }
    }
    Table {
        title: "TTFT in ms by length of the prompt".into(),
        columns: vec![
            "run",
            "measured on",
            "state",
            "prompt tokens",
            "ceil(n/t) steps",
            "recorded steps",
            "count",
            "mean",
            "P50",
            "P90",
            "P95",
            "P99",
            "max",
        ],
        rows,
    }
}

/// Points of the curves: the thresholds that so many parts of the requests meet.
const PARTS: [f64; 7] = [0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 1.0];

fn attainment(runs: &[RunReport]) -> Table {
    let threshold = |curve: &[[f64; 2]], part: f64| {
        // Rounding of place / count must not push a part past its own request.
        curve.iter().find(|point| point[1] >= part - 1e-12).map_or_else(|| "-".into(), |point| number(point[0]))
    };
    let mut rows = Vec::new();
    for run in runs {
        for (name, curve) in [("ttft_ms", &run.ttft_curve), ("tpot_ms, per request", &run.tpot_curve)] {
            if !curve.is_empty() {
                rows.push(row(run, std::iter::once(name.to_string()).chain(PARTS.map(|part| threshold(curve, part)))));
            }
        }
    }
    Table {
        title: "The threshold in ms that this part of the requests meets".into(),
        columns: vec!["run", "measured on", "state", "figure", "10 %", "25 %", "50 %", "75 %", "90 %", "95 %", "100 %"],
        rows,
    }
}

fn slo(runs: &[RunReport]) -> Table {
    let percent = |part: f64| format!("{:.2} %", part * 100.0);
    let cells = |run: &RunReport| {
        let slo = run.slo.as_ref()?;
        let part = |value: Option<f64>| value.map_or_else(|| "-".into(), percent);
        let cells = [
            slo.thresholds.clone(),
            slo.requests.to_string(),
            part(slo.ttft_attainment),
            part(slo.tpot_attainment),
            percent(slo.attainment),
            number(slo.goodput_per_s),
        ];
        Some(row(run, cells))
    };
    Table {
        title: "Attainment of the thresholds".into(),
        columns: vec![
            "run",
            "measured on",
            "state",
            "thresholds",
            "requests",
            "TTFT met",
            "TPOT met",
            "all met",
            "goodput, requests/s",
        ],
        rows: runs.iter().filter_map(cells).collect(),
    }
}

fn energy(runs: &[RunReport]) -> Table {
    let cells = |run: &RunReport| match &run.energy {
        Some(energy) => row(
            run,
            std::iter::once(energy.requests.to_string())
                .chain([energy.joules, energy.joules_per_token, energy.watts].map(number))
                .chain([String::new()]),
        ),
        None => row(run, ["0", "-", "-", "-", run.no_energy.as_deref().unwrap_or("-")].map(str::to_string)),
    };
    Table {
        title: "Energy by the battery's voltage and current".into(),
        columns: vec!["run", "measured on", "state", "requests", "J", "J/token", "W", "why not"],
        rows: runs.iter().map(cells).collect(),
    }
}

fn overhead(runs: &[RunReport]) -> Table {
    let cells = |run: &RunReport| {
        let overhead = run.overhead.as_ref()?;
        let verdict = if overhead.us.p50 <= overhead.limit_us { "kept" } else { "not kept" };
        let limit = format!("P50 ≤ {} µs: {verdict}", overhead.limit_us);
        Some(row(run, summary_cells(&overhead.us).into_iter().chain([limit])))
    };
    Table {
        title: "The runner's own time for a token in µs, beside virtual latencies".into(),
        columns: vec!["run", "measured on", "state", "count", "mean", "P50", "P90", "P95", "P99", "max", "limit"],
        rows: runs.iter().filter_map(cells).collect(),
    }
}

fn drift(runs: &[RunReport]) -> Table {
    let percent = |part: f64| format!("{:+.1} %", part * 100.0);
    let cells = |run: &RunReport| {
        let drift = run.drift?;
        let over_position = drift.over_position.map_or_else(|| "-".into(), percent);
        Some(row(run, [number(drift.median_ms), percent(drift.over_run), over_position, drift.outliers.to_string()]))
    };
    Table {
        title: "Drift of the interval between tokens".into(),
        columns: vec![
            "run",
            "measured on",
            "state",
            "median, ms",
            "over the run",
            "over positions",
            "outliers (> 5 medians)",
        ],
        rows: runs.iter().filter_map(cells).collect(),
    }
}

fn comparison(report: &Report) -> Table {
    let mut rows = Vec::new();
    for comparison in &report.comparisons {
        let interval = |[low, high]: [f64; 2]| format!("{low:.3} to {high:.3}");
        for place in 0..2 {
            let difference = if place == 0 { String::new() } else { format!("{:+.3}", comparison.difference) };
            let interval95 = if place == 0 { String::new() } else { interval(comparison.difference95) };
            rows.push(vec![
                comparison.runs[place].clone(),
                comparison.measured_on[place].clone(),
                comparison.figure.to_string(),
                number(comparison.values[place]),
                interval(comparison.intervals95[place]),
                difference,
                interval95,
            ]);
        }
    }
    Table {
        title: "Comparison".into(),
        columns: vec!["run", "measured on", "figure", "value", "95 % interval", "difference", "95 % interval of it"],
        rows,
    }
}

/// The line that names a run.
fn heading(run: &RunReport) -> String {
    let mark = if run.is_marked { "; NOT A WHOLE RUN: figures are of what is there" } else { "" };
    plain(&format!("{}: {}, measured on {}, {}{mark}", run.name, run.file, run.label, run.state))
}

/// The report as text for a terminal.
pub fn text(report: &Report) -> String {
    let mut out = String::new();
    for run in &report.runs {
        line(&mut out, &heading(run));
        for (name, value) in &run.facts {
            line(&mut out, &format!("  {name:<10}{}", plain(value)));
        }
    }
    for table in tables(report) {
        line(&mut out, &format!("\n{}", table.title));
        let header: Vec<String> = table.columns.iter().map(|column| column.to_string()).collect();
        let rows = table.rows.iter().map(|row| row.iter().map(|cell| plain(cell)).collect());
        let all: Vec<Vec<String>> = std::iter::once(header).chain(rows).collect();
        let width = |place: usize| all.iter().map(|row| row[place].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..table.columns.len()).map(width).collect();
        for row in all {
            let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
            line(&mut out, cells.join("  ").trim_end());
        }
    }
    sentences(&mut out, report, "");
    out
}

fn sentences(out: &mut String, report: &Report, bullet: &str) {
    if !report.comparisons.is_empty() {
        line(out, "");
    }
    for comparison in &report.comparisons {
        line(out, &format!("{bullet}{}", comparison.sentence));
    }
    line(out, &format!("\n{bullet}Quantiles: {}.", report.quantiles));
    for definition in &report.definitions {
        line(out, &format!("{bullet}{}: {}.", definition.name, definition.meaning));
    }
}

/// The report in Markdown.
pub fn markdown(report: &Report) -> String {
    let escaped = |cell: &str| plain(cell).replace('|', "\\|").replace('<', "&lt;");
    let mut out = String::new();
    line(&mut out, "# Latency");
    for run in &report.runs {
        line(&mut out, &format!("\n**{}**\n", heading(run)));
        for (name, value) in &run.facts {
            line(&mut out, &format!("* {name}: {}", escaped(value)));
        }
    }
    for table in tables(report) {
        line(&mut out, &format!("\n## {}\n", table.title));
        line(&mut out, &format!("| {} |", table.columns.join(" | ")));
        line(&mut out, &format!("|{}", "---|".repeat(table.columns.len())));
        for row in &table.rows {
            let cells: Vec<String> = row.iter().map(|cell| escaped(cell)).collect();
            line(&mut out, &format!("| {} |", cells.join(" | ")));
        }
    }
    sentences(&mut out, report, "* ");
    out
}

/// The tables of latencies in CSV, one after the other under one header.
pub fn csv(report: &Report) -> String {
    let quoted = |cell: &str| match cell.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell.to_string(),
    };
    let [all, datasets] = [
        // No dataset is called nothing.
        latency("", &report.runs, |run| vec![(String::new(), &run.all)]),
        latency("", &report.runs, |run| run.datasets.iter().map(|(name, figures)| (name.clone(), figures)).collect()),
    ];
    let mut out = String::new();
    line(&mut out, &all.columns.join(","));
    for row in all.rows.iter().chain(&datasets.rows) {
        let cells: Vec<String> = row.iter().map(|cell| quoted(&plain(cell))).collect();
        line(&mut out, &cells.join(","));
    }
    out
}

/// The text without what drives a terminal: names come from files.
fn plain(text: &str) -> String {
    text.replace(|c: char| c.is_control(), "?")
}

/// Appends a line; writing to a text cannot fail.
fn line(out: &mut String, text: &str) {
    let _ = writeln!(out, "{text}");
}
