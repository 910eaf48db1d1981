//! Service level objectives: thresholds that latencies are held against, never without their numbers.

use std::fmt;
use std::str::FromStr;

use npuc::{Code, Diagnostic, Error, Result};
use serde::{Deserialize, Serialize};

/// The thresholds of `--slo`; at least one is there.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Slo {
    /// The time to the first token, in ms.
    pub ttft_ms: Option<f64>,
    /// The time per output token of a request, in ms.
    pub tpot_ms: Option<f64>,
}

impl Slo {
    /// Whether a request meets every threshold; a request of one token has no time per token, and meets that one.
    pub fn is_met(&self, ttft_ms: f64, tpot_ms: Option<f64>) -> bool {
        self.ttft_ms.is_none_or(|most| ttft_ms <= most)
            && self.tpot_ms.is_none_or(|most| tpot_ms.is_none_or(|tpot| tpot <= most))
    }
}

impl fmt::Display for Slo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = |name: &str, value: Option<f64>| value.map(|ms| format!("{name} ≤ {ms} ms"));
        let parts: Vec<String> =
            [part("TTFT", self.ttft_ms), part("TPOT", self.tpot_ms)].into_iter().flatten().collect();
        f.write_str(&parts.join(" and "))
    }
}

impl FromStr for Slo {
    type Err = Error;

    /// `ttft=500ms,tpot=60ms`, either alone too.
    fn from_str(text: &str) -> Result<Slo> {
        let mut slo = Slo { ttft_ms: None, tpot_ms: None };
        let bad = || {
            let fault = Diagnostic::error(Code::BadArgument, "the objectives are malformed").subject("--slo");
            Error::from(fault.need("ttft=500ms,tpot=60ms, or one of them; each once, above 0").have(text))
        };
        for part in text.split(',') {
            let (name, value) = part.split_once('=').ok_or_else(bad)?;
            let place = match name.trim() {
                "ttft" => &mut slo.ttft_ms,
                "tpot" => &mut slo.tpot_ms,
                _ => return Err(bad()),
            };
            let ms = duration_ns(value).map_err(|_| bad())? as f64 / 1e6;
            if ms == 0.0 || place.replace(ms).is_some() {
                return Err(bad());
            }
        }
        Ok(slo)
    }
}

/// A duration such as `500ms`, `1.5s`, `20us` or `10min`, in ns.
///
/// Errors: no number, no unit, negative, or past the largest.
pub fn duration_ns(text: &str) -> Result<u64> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = match unit.trim() {
        "ns" => Some(1.0),
        "us" | "µs" => Some(1e3),
        "ms" => Some(1e6),
        "s" => Some(1e9),
        "min" => Some(60e9),
        "h" => Some(3600e9),
        _ => None,
    };
    let ns = number.parse::<f64>().ok().zip(factor).map(|(number, factor)| (number * factor).round());
    // 2^53 ns are 104 days; up to there every count of ns is exact.
    ns.filter(|&ns| ns <= (1u64 << 53) as f64).map(|ns| ns as u64).ok_or_else(|| {
        let fault = Diagnostic::error(Code::BadArgument, "a duration is malformed");
        fault.need("a number and ns, us, ms, s, min or h, at most 100 days, e.g. 500ms").have(text).into()
    })
}
