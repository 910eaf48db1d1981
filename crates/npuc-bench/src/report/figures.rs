//! The figures of a set of requests.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::results::{Request, Results, Times};
use crate::slo::Slo;
use crate::stats::{Summary, sorted, summary};

/// Figures of requests; absent where the file has no times for them.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// Requests.
    pub requests: usize,
    /// Requests whose answer has no token.
    pub empty_answers: usize,
    /// Tokens of all answers.
    pub output_tokens: u64,
    /// See the definitions of the report.
    pub ttft_ms: Option<Summary>,
    /// Per request.
    pub tpot_ms: Option<Summary>,
    /// Per interval.
    pub tpot_interval_ms: Option<Summary>,
    /// See the definitions of the report.
    pub itl_ms: Option<Summary>,
    /// See the definitions of the report.
    pub e2el_ms: Option<Summary>,
    /// See the definitions of the report.
    pub output_tokens_per_s: Option<f64>,
    /// See the definitions of the report.
    pub decode_tokens_per_s: Option<f64>,
    /// See the definitions of the report.
    pub prefill_tokens_per_s: Option<f64>,
}

/// TTFT of requests with prompts of similar length.
#[derive(Clone, Debug, Serialize)]
pub struct PromptRow {
    /// The shortest and the longest prompt, in tokens.
    pub prompt_tokens: [u64; 2],
    /// `ceil(n / t)`: steps that a prompt of `n` tokens takes at least, where the largest step takes `t`; absent where `t` is not known.
    pub steps: Option<u64>,
    /// Steps that were recorded, the fewest and the most; absent where none were.
    pub recorded_steps: Option<[usize; 2]>,
    /// TTFT.
    pub ttft_ms: Summary,
}

/// What meets thresholds.
#[derive(Clone, Debug, Serialize)]
pub struct SloFigures {
    /// The thresholds.
    pub slo: Slo,
    /// The same in words.
    pub thresholds: String,
    /// Requests that have a TTFT.
    pub requests: usize,
    /// The part of them that meets the threshold of TTFT, if there is one.
    pub ttft_attainment: Option<f64>,
    /// The part of them that meets the threshold of TPOT, if there is one.
    pub tpot_attainment: Option<f64>,
    /// The part of them that meets all.
    pub attainment: f64,
    /// Requests a second that meet all.
    pub goodput_per_s: f64,
}

/// What the runner takes beside the virtual latency of a null step, in µs.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Overhead {
    /// By token.
    pub us: Summary,
    /// What npuc holds itself to, at the median.
    pub limit_us: f64,
}

/// What the runner may take for a token, at the median.
const OVERHEAD_LIMIT_US: f64 = 20.0;

pub(super) fn ms(ns: i64) -> f64 {
    ns as f64 / 1e6
}

pub(super) fn figures(requests: &[&Request]) -> Figures {
    let collect =
        |of: fn(&Request) -> Option<f64>| requests.iter().filter_map(|request| of(request)).collect::<Vec<f64>>();
    let e2el = collect(|request| request.e2el_ns().map(ms));
    let timed = requests.iter().filter(|request| request.e2el_ns().is_some());
    let timed_tokens: u64 = timed.filter_map(|request| request.tokens()).fold(0, u64::saturating_add);
    let intervals: Vec<f64> = requests.iter().flat_map(|request| request.intervals_ns()).map(ms).collect();
    let by_token = requests.iter().all(|request| match request.times {
        Times::Tokens(_) | Times::Absent => true,
        Times::Pieces(_) | Times::Ends { .. } => false,
    });
    let decode: Vec<(f64, f64)> = requests
        .iter()
        .filter_map(|request| {
            let after_first = request.tokens()?.checked_sub(1).filter(|&after| after > 0)? as f64;
            Some((after_first, request.tpot_ns()? * after_first))
        })
        .collect();
    let prefill: Vec<(f64, f64)> = requests
        .iter()
        .filter_map(|request| Some((request.prompt_tokens? as f64, request.ttft_ns()? as f64)))
        .collect();
    let rate = |pairs: &[(f64, f64)]| {
        let (count, ns) = pairs.iter().fold((0.0, 0.0), |sum, pair| (sum.0 + pair.0, sum.1 + pair.1));
        (ns > 0.0).then(|| count / (ns / 1e9))
    };
    let busy_ms: f64 = e2el.iter().sum();
    Figures {
        requests: requests.len(),
        empty_answers: requests.iter().filter(|request| request.tokens() == Some(0)).count(),
        output_tokens: requests.iter().filter_map(|request| request.tokens()).fold(0, u64::saturating_add),
        ttft_ms: summary(collect(|request| request.ttft_ns().map(ms))),
        tpot_ms: summary(collect(|request| request.tpot_ns().map(|ns| ns / 1e6))),
        itl_ms: summary(intervals.iter().copied().filter(|&interval| interval > 0.0).collect()),
        tpot_interval_ms: if by_token { summary(intervals) } else { None },
        e2el_ms: summary(e2el),
        output_tokens_per_s: (busy_ms > 0.0).then(|| timed_tokens as f64 / (busy_ms / 1e3)),
        decode_tokens_per_s: rate(&decode),
        prefill_tokens_per_s: rate(&prefill),
    }
}

/// Requests by `ceil(n / t)`, or by doublings of the length where `t` is not known.
pub(super) fn by_prompt(run: &Results, requests: &[&Request]) -> Vec<PromptRow> {
    let step = run.headers.first().and_then(|(_, header)| header.plan.model.step_tokens.first().copied());
    let step = step.filter(|&step| step > 0).map(|step| step as u64);
    let mut groups: BTreeMap<u64, Vec<(&Request, u64, f64)>> = BTreeMap::new();
    for request in requests {
        let (Some(tokens), Some(ttft)) = (request.prompt_tokens, request.ttft_ns()) else { continue };
        let group = step.map_or_else(|| u64::from(u64::BITS - tokens.leading_zeros()), |step| tokens.div_ceil(step));
        groups.entry(group).or_default().push((request, tokens, ms(ttft)));
    }
    let row = |(group, requests): (u64, Vec<(&Request, u64, f64)>)| {
        let lengths = requests.iter().map(|(_, tokens, _)| *tokens);
        let recorded = requests.iter().map(|(request, ..)| request.prefill.len()).filter(|&steps| steps > 0);
        Some(PromptRow {
            prompt_tokens: [lengths.clone().min()?, lengths.max()?],
            steps: step.map(|_| group),
            recorded_steps: recorded.clone().min().zip(recorded.max()).map(|(few, most)| [few, most]),
            ttft_ms: summary(requests.iter().map(|(.., ttft)| *ttft).collect())?,
        })
    };
    groups.into_iter().filter_map(row).collect()
}

/// At each value the part of values that are not larger.
pub(super) fn curve(values: Vec<f64>) -> Vec<[f64; 2]> {
    let values = sorted(values);
    let count = values.len() as f64;
    values.iter().enumerate().map(|(place, value)| [*value, (place + 1) as f64 / count]).collect()
}

pub(super) fn slo(slo: Slo, requests: &[&Request]) -> SloFigures {
    let timed: Vec<(f64, Option<f64>)> = requests
        .iter()
        .filter_map(|request| Some((ms(request.ttft_ns()?), request.tpot_ns().map(|ns| ns / 1e6))))
        .collect();
    let part = |slo: Slo| {
        timed.iter().filter(|(ttft, tpot)| slo.is_met(*ttft, *tpot)).count() as f64 / timed.len().max(1) as f64
    };
    let busy_s: f64 = requests.iter().filter_map(|request| request.e2el_ns()).map(|ns| ns as f64 / 1e9).sum();
    let attainment = part(slo);
    SloFigures {
        slo,
        thresholds: slo.to_string(),
        requests: timed.len(),
        ttft_attainment: slo.ttft_ms.map(|_| part(Slo { tpot_ms: None, ..slo })),
        tpot_attainment: slo.tpot_ms.map(|_| part(Slo { ttft_ms: None, ..slo })),
        attainment,
        goodput_per_s: if busy_s > 0.0 { attainment * timed.len() as f64 / busy_s } else { 0.0 },
    }
}

pub(super) fn overhead(run: &Results, requests: &[&Request]) -> Option<Overhead> {
    let null = run.headers.first()?.1.plan.null?;
    let over = |ns: i64| (ns as f64 - null.decode_ns as f64) / 1e3;
    let us = summary(requests.iter().flat_map(|request| request.intervals_ns()).map(over).collect())?;
    Some(Overhead { us, limit_us: OVERHEAD_LIMIT_US })
}
