//! Gates: the conditions under which figures count as faithful.
//!
//! A figure that was not measured breaks its condition: nothing passes for want of a measurement.

use std::fmt;
use std::str::FromStr;

use npuc::{Code, Diagnostic, Error, Result};

use super::figures::Fidelity;

/// One condition of a gate.
#[derive(Clone, Debug, PartialEq)]
struct Condition {
    figure: Figure,
    at_least: bool,
    strict: bool,
    limit: f64,
    text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Figure {
    Cosine,
    Sqnr,
    MaxAbs,
    Top1,
    Top10,
    Greedy,
    Kl,
    KlP99,
    KlMax,
    Perplexity,
    PerplexityRatio,
}

const FIGURES: [(&str, Figure); 11] = [
    ("cosine", Figure::Cosine),
    ("sqnr", Figure::Sqnr),
    ("max_abs", Figure::MaxAbs),
    ("top1", Figure::Top1),
    ("top10", Figure::Top10),
    ("greedy", Figure::Greedy),
    ("kl", Figure::Kl),
    ("kl_p99", Figure::KlP99),
    ("kl_max", Figure::KlMax),
    ("ppl", Figure::Perplexity),
    ("ppl_ratio", Figure::PerplexityRatio),
];

const FLOAT_GATE: &str = "cosine>=0.999,top1>=0.99,greedy>=0.99";
const WHOLE_NUMBERS_GATE: &str = "cosine>=0.98,top1>=0.85";

/// The conditions under which outputs count as faithful, written `cosine>=0.999,max_abs<=2e-3`.
#[derive(Clone, Debug, PartialEq)]
pub struct Gate(Vec<Condition>);

impl Gate {
    /// Nothing, or every condition that the figures break. A figure that was not measured breaks its
    /// condition, except in the default gate, which asks for what the reference has.
    pub fn check(&self, fidelity: &Fidelity) -> Result<()> {
        let faults = self.0.iter().filter_map(|condition| condition.fault(fidelity));
        Error::check(faults.collect())
    }

    /// The gate used when none is given: the same best ids, within float noise; in whole numbers, scores that point the same
    /// way and mostly the same best ids, since the first other id among near ties ends a greedy answer's agreement.
    pub fn default_for(fidelity: &Fidelity, whole_numbers: bool) -> Gate {
        let conditions = if whole_numbers { WHOLE_NUMBERS_GATE } else { FLOAT_GATE };
        let all: Gate = conditions.parse().expect("the default gates are well formed");
        Gate(all.0.into_iter().filter(|condition| condition.figure.of(fidelity).is_some()).collect())
    }
}

impl Figure {
    fn of(self, fidelity: &Fidelity) -> Option<f64> {
        let text = fidelity.text.as_ref();
        let kl = text.and_then(|text| text.kl.as_ref());
        match self {
            Figure::Cosine => fidelity.cosine_min,
            // Where no score differs the ratio has no number and no limit is too high.
            Figure::Sqnr => fidelity.sqnr_db.or_else(|| (fidelity.max_abs == Some(0.0)).then_some(f64::INFINITY)),
            Figure::MaxAbs => fidelity.max_abs,
            Figure::Top1 => fidelity.top1,
            Figure::Top10 => fidelity.top10,
            Figure::Greedy => fidelity.greedy,
            Figure::Kl => kl.map(|kl| kl.mean),
            Figure::KlP99 => kl.map(|kl| kl.p99),
            Figure::KlMax => kl.map(|kl| kl.max),
            Figure::Perplexity => text.map(|text| text.perplexity.value),
            Figure::PerplexityRatio => text.and_then(|text| text.perplexity_ratio),
        }
    }
}

impl Condition {
    fn fault(&self, fidelity: &Fidelity) -> Option<Diagnostic> {
        let figure = self.figure.of(fidelity);
        let holds = figure.is_some_and(|x| match (self.at_least, self.strict) {
            (true, false) => x >= self.limit,
            (true, true) => x > self.limit,
            (false, false) => x <= self.limit,
            (false, true) => x < self.limit,
        });
        let have = figure.map_or("not measured".to_string(), |x| format!("{x:.6}"));
        (!holds).then(|| {
            Diagnostic::error(Code::Unfaithful, "a figure breaks a condition of the gate")
                .need(&self.text)
                .have(have)
                .help("see the figures above; loosen the gate with --gate only if they are good enough for you")
        })
    }
}

impl fmt::Display for Gate {
    /// As it was written.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let conditions: Vec<&str> = self.0.iter().map(|condition| condition.text.as_str()).collect();
        f.write_str(&conditions.join(","))
    }
}

impl FromStr for Gate {
    type Err = Error;

    fn from_str(text: &str) -> Result<Gate> {
        text.split(',').map(|part| part.trim().parse()).collect::<Result<_>>().map(Gate)
    }
}

impl FromStr for Condition {
    type Err = Error;

    fn from_str(text: &str) -> Result<Condition> {
        let split = [">=", "<=", ">", "<"].into_iter().find_map(|op| Some((op, text.split_once(op)?)));
        let parsed = split.and_then(|(op, (name, limit))| {
            let (_, figure) = FIGURES.into_iter().find(|(known, _)| *known == name.trim())?;
            let limit: f64 = limit.trim().parse().ok()?;
            let (at_least, strict) = (op.starts_with('>'), op.len() == 1);
            limit.is_finite().then(|| Condition { figure, at_least, strict, limit, text: text.to_string() })
        });
        parsed.ok_or_else(|| {
            let names: Vec<&str> = FIGURES.iter().map(|(name, _)| *name).collect();
            Diagnostic::error(Code::BadArgument, "a gate's condition is malformed")
                .need(format!("<figure><comparison><number>, the figure one of {}", names.join(", ")))
                .have(text)
                .help("for example: cosine>=0.999,max_abs<=2e-3")
                .into()
        })
    }
}
