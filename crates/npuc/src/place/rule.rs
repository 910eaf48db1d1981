//! Placement rules: a condition on an operation and the side that it then goes to, as one word of text.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Side;
use crate::diag::{Code, Diagnostic, Error, Result};
use crate::ir::{Def, Graph, Op, ValueId};
use crate::target::Precision;

/// Where the operations go that a condition holds for, written `CONDITION=npu` or `CONDITION=cpu`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Which operations.
    pub condition: Condition,
    /// Where they go.
    pub side: Side,
}

/// What an operation must be for a rule to hold for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// `op=matmul`: an operation of that name, one of [`Op::NAMES`].
    Op(&'static str),
    /// `op=gather`: the lookup of embedding rows, which the runner does on the CPU whatever the target.
    Gather,
    /// `name=lm_head*`: its path in the model matches; `*` stands for any characters, `?` for one.
    Name(String),
    /// `layers=0..4`: its path begins with `layers.N.`, N in the range; `layers=3` is `layers=3..4`.
    Layers(Range<usize>),
    /// `bytes>64MiB`: something of it has more or fewer bytes.
    Size(Measure, Bound, u64),
}

/// What is measured of an operation, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Weights and activations.
    Bytes,
    /// The operands that are weights: matrices of projections in the precision's format, all else as
    /// activations are, in f32 where those are integers.
    Weights,
    /// The result and the operands that are no weights.
    Activations,
    /// The result.
    Workspace,
}

impl Measure {
    const ALL: [Measure; 4] = [Measure::Bytes, Measure::Weights, Measure::Activations, Measure::Workspace];

    /// The name in rules.
    pub const fn name(self) -> &'static str {
        match self {
            Measure::Bytes => "bytes",
            Measure::Weights => "weights",
            Measure::Activations => "activations",
            Measure::Workspace => "workspace",
        }
    }

    /// The measured bytes of an operation of a verified graph; 0 for inputs and weights.
    pub fn of(self, graph: &Graph, id: ValueId, precision: &Precision) -> u64 {
        let Def::Op { op, args } = &graph.value(id).def else { return 0 };
        let is_weight = |id: &ValueId| graph.value(*id).def == Def::Weight;
        let elements = |id: ValueId| graph.value(id).ty.shape.elements().unwrap_or(usize::MAX) as u64;
        let active = |id: ValueId| elements(id).saturating_mul(precision.activation_bytes());
        let operands: BTreeSet<ValueId> = args.iter().copied().collect();
        let weights = || {
            let matrix = args.get(1).filter(|_| op.is_projection());
            let bytes = operands.iter().filter(|arg| is_weight(arg)).map(|arg| match matrix == Some(arg) {
                true => weight_bytes(graph, *arg, precision),
                false if precision.activation.is_float() => active(*arg),
                false => elements(*arg).saturating_mul(4),
            });
            bytes.fold(0, u64::saturating_add)
        };
        let activations = || {
            let entering = operands.iter().filter(|arg| !is_weight(arg)).map(|&arg| active(arg));
            entering.fold(active(id), u64::saturating_add)
        };
        match self {
            Measure::Bytes => weights().saturating_add(activations()),
            Measure::Weights => weights(),
            Measure::Activations => activations(),
            Measure::Workspace => active(id),
        }
    }
}

fn weight_bytes(graph: &Graph, id: ValueId, precision: &Precision) -> u64 {
    let ty = &graph.value(id).ty;
    precision.weight_format(ty.dtype).bytes(&ty.shape).unwrap_or(u64::MAX)
}

/// On which side of a number of bytes a condition holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// `>`
    Above,
    /// `<`
    Below,
}

impl Bound {
    const fn sign(self) -> char {
        match self {
            Bound::Above => '>',
            Bound::Below => '<',
        }
    }
}

impl Rule {
    /// Whether the rule holds for the operation `id` of a verified graph; never for inputs and weights.
    pub fn holds(&self, graph: &Graph, id: ValueId, precision: &Precision) -> bool {
        let value = graph.value(id);
        let Def::Op { op, .. } = &value.def else { return false };
        match &self.condition {
            Condition::Op(name) => op.name() == *name,
            Condition::Gather => false,
            Condition::Name(pattern) => matches(pattern, &value.name),
            Condition::Layers(layers) => layer(&value.name).is_some_and(|layer| layers.contains(&layer)),
            Condition::Size(measure, Bound::Above, limit) => measure.of(graph, id, precision) > *limit,
            Condition::Size(measure, Bound::Below, limit) => measure.of(graph, id, precision) < *limit,
        }
    }
}

/// The layer that a path lies in.
fn layer(path: &str) -> Option<usize> {
    let path = path.strip_prefix("encoder.").unwrap_or(path);
    path.strip_prefix("layers.")?.split_once('.')?.0.parse().ok()
}

/// Whether the whole of `text` is what `pattern` describes.
pub(crate) fn matches(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    let (mut p, mut t) = (0, 0);
    // The last star and the first character that it does not stand for yet.
    let mut retry = None;
    loop {
        match (pattern.get(p), text.get(t)) {
            (Some('*'), _) => {
                retry = Some((p, t));
                p += 1;
            }
            (Some('?'), Some(_)) => (p, t) = (p + 1, t + 1),
            (Some(a), Some(b)) if a == b => (p, t) = (p + 1, t + 1),
            (None, None) => return true,
            (_, None) => return false,
            (_, Some(_)) => {
                let Some((star, from)) = retry else { return false };
                retry = Some((star, from + 1));
                (p, t) = (star + 1, from + 1);
            }
        }
    }
}

/// Units of sizes, those without a name first.
const UNITS: [(&str, u64); 8] = [
    ("", 1),
    ("B", 1),
    ("KB", 1_000),
    ("KiB", 1 << 10),
    ("MB", 1_000_000),
    ("MiB", 1 << 20),
    ("GB", 1_000_000_000),
    ("GiB", 1 << 30),
];

const CONDITIONS: &str =
    "op=NAME, name=GLOB, layers=N, layers=N..M, or bytes, weights, activations or workspace with > or < and a size";

impl Serialize for Rule {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Rule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Rule, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(|error: Error| {
            let said: Vec<String> = error.diagnostics().iter().map(|fault| fault.message.clone()).collect();
            serde::de::Error::custom(said.join("; "))
        })
    }
}

impl FromStr for Rule {
    type Err = Error;

    /// Errors: [`Code::BadArgument`] with what is allowed in the place that is wrong.
    fn from_str(text: &str) -> Result<Rule> {
        let (condition, side) = text.rsplit_once('=').ok_or_else(|| {
            fault(text, "it names no side").need("CONDITION=npu or CONDITION=cpu, e.g. name=lm_head*=cpu")
        })?;
        let side = side.parse().map_err(|_| {
            fault(text, "it names no side").need("CONDITION=npu or CONDITION=cpu, e.g. name=lm_head*=cpu")
        })?;
        let rule = Rule { condition: condition_of(condition, text)?, side };
        if rule.condition == Condition::Gather && rule.side == Side::Npu {
            let fault = fault(text, "the runner looks up embedding rows itself, and graphs take them as a port");
            return Err(fault.need("op=gather=cpu").into());
        }
        Ok(rule)
    }
}

fn condition_of(condition: &str, text: &str) -> Result<Condition> {
    if condition == "op=gather" {
        return Ok(Condition::Gather);
    }
    if let Some(name) = condition.strip_prefix("op=") {
        let known = Op::NAMES.iter().find(|known| **known == name);
        let unknown = || fault(text, "it names no operation").need(Op::NAMES.join(", ")).have(name);
        return Ok(Condition::Op(known.ok_or_else(unknown)?));
    }
    if let Some(pattern) = condition.strip_prefix("name=") {
        if pattern.is_empty() {
            return Err(fault(text, "its pattern is empty").need("a path, with * and ? for what may vary").into());
        }
        return Ok(Condition::Name(pattern.to_owned()));
    }
    if let Some(layers) = condition.strip_prefix("layers=") {
        let need = "N or N..M with N below M; M is the first layer that is not meant";
        let wrong = || fault(text, "it names no layers").need(need).have(layers);
        return Ok(Condition::Layers(range(layers).ok_or_else(wrong)?));
    }
    for measure in Measure::ALL {
        let Some(rest) = condition.strip_prefix(measure.name()) else { continue };
        for bound in [Bound::Above, Bound::Below] {
            if let Some(size) = rest.strip_prefix(bound.sign()) {
                let need =
                    "a whole number of at most 2^64 - 1 bytes, in B, KB, MB, GB, KiB, MiB, GiB or without a unit";
                let wrong = || fault(text, "its size is none").need(need).have(size);
                return Ok(Condition::Size(measure, bound, bytes(size).ok_or_else(wrong)?));
            }
        }
    }
    Err(fault(text, "npuc does not know its condition").need(CONDITIONS).have(condition).into())
}

fn fault(text: &str, why: &str) -> Diagnostic {
    Diagnostic::error(Code::BadArgument, format!("`{text}` is no placement rule: {why}")).have(text)
}

fn whole_number<T: FromStr>(text: &str) -> Option<T> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

fn range(text: &str) -> Option<Range<usize>> {
    let (start, end) = match text.split_once("..") {
        Some((start, end)) => (whole_number(start)?, whole_number(end)?),
        None => {
            let layer: usize = whole_number(text)?;
            (layer, layer.checked_add(1)?)
        }
    };
    (start < end).then_some(start..end)
}

/// A size as a flag has it.
///
/// Errors: [`Code::BadArgument`].
pub fn parse_bytes(text: &str) -> Result<u64> {
    bytes(text).filter(|&bytes| bytes > 0).ok_or_else(|| {
        Diagnostic::error(Code::BadArgument, "a size is malformed")
            .need("a whole number in B, KB, MB, GB, KiB, MiB, GiB or without a unit, e.g. 4GiB")
            .have(text)
            .into()
    })
}

fn bytes(text: &str) -> Option<u64> {
    let (number, unit) = text.split_at(text.bytes().take_while(u8::is_ascii_digit).count());
    let (_, factor) = UNITS.into_iter().find(|(name, _)| *name == unit)?;
    whole_number::<u64>(number)?.checked_mul(factor)
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.condition, self.side)
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Condition::Op(name) => write!(f, "op={name}"),
            Condition::Gather => f.write_str("op=gather"),
            Condition::Name(pattern) => write!(f, "name={pattern}"),
            Condition::Layers(Range { start, end }) => write!(f, "layers={start}..{end}"),
            Condition::Size(measure, bound, bytes) => {
                let whole = |(_, factor): &&(&str, u64)| bytes.is_multiple_of(*factor);
                // Zero is a multiple of every unit.
                let unit = UNITS.iter().rev().filter(|_| *bytes > 0).find(whole);
                let (name, factor) = unit.copied().unwrap_or(("B", 1));
                write!(f, "{}{}{}{name}", measure.name(), bound.sign(), bytes / factor)
            }
        }
    }
}

#[cfg(test)]
#[path = "rule_tests.rs"]
mod tests;
