//! Encodings as Qualcomm's NPUs take them: u16 (or u8) activations with an offset, caches of u8 or u16, fixed ranges where an
//! operation has them, and floats in between where they are asked for.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::super::groups::{self, Groups, masked};
use super::super::histogram::{Method, Steps};
use super::super::scales::{LARGEST_SCALE, SMALLEST_SCALE, unknown};
use super::super::{MASK_MARGIN, Ranges, keys, moves, rotary, unit};
use super::{Encoding, Encodings, Real};
use crate::diag::{Code, Diagnostic, Error, Result};
use crate::exec::to_f32;
use crate::ir::{Def, Graph, Op, Value};
use crate::model::Port;
use crate::tensor::{self, Tensor};

/// The numbers of activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Activation {
    /// 0 to 65535 with an offset.
    U16,
    /// -32768 to 32767 without one.
    S16,
    /// 0 to 255 with an offset. No back end emits it: the host measures what it would cost.
    U8,
    /// Half precision.
    F16,
    /// Single precision.
    F32,
}

/// The numbers of the caches and of what is written to them, and of the keys and values of what is heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cache {
    /// 0 to 255 with an offset.
    U8,
    /// 0 to 65535 with an offset.
    U16,
    /// Half precision; single precision where activations are in that.
    F16,
}

/// How the values of a graph are encoded.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scheme {
    /// The numbers of activations.
    pub activation: Activation,
    /// The numbers of the caches.
    pub cache: Cache,
    /// How ranges are chosen.
    pub method: Method,
    /// Whether normalisations, the sums that they read and values with an outlier are computed in f16: the first
    /// token of real models has numbers of ten thousands there, beside which a step of 16 bits is as large as the rest.
    pub float_residual: bool,
}

/// The whole numbers of a kind of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whole {
    U8,
    U16,
    /// U16 with zero in the middle. Source: QNN's validation of a product of two activations in u16, whose second operand must
    /// have the offset -32768 (met on v75; the emulation computes others too).
    CentredU16,
    S16,
}

impl Whole {
    /// For a range.
    const fn steps(self) -> Steps {
        match self {
            Whole::U8 => Steps { count: 255, symmetric: false },
            Whole::U16 => Steps { count: 65535, symmetric: false },
            Whole::CentredU16 => Steps { count: 65534, symmetric: true },
            Whole::S16 => Steps { count: 65534, symmetric: true },
        }
    }

    /// The largest number.
    const fn largest(self) -> i32 {
        self.unit().high
    }

    /// What softmax and sigmoid give. Source: QNN takes 1/65536 and no offset for u16.
    const fn unit(self) -> Encoding {
        match self {
            Whole::U8 => Encoding { scale: 1.0 / 256.0, offset: 0, low: 0, high: 255 },
            Whole::U16 | Whole::CentredU16 => Encoding { scale: 1.0 / 65536.0, offset: 0, low: 0, high: 65535 },
            Whole::S16 => Encoding::int16(1.0 / 32768.0),
        }
    }

    /// A range with zero in it, whose ends may move by half a step so that zero is a number.
    fn encoding(self, subject: &str, (low, high): (f32, f32)) -> Result<Encoding> {
        let Steps { count, symmetric } = self.steps();
        let scale = ((f64::from(high) - f64::from(low)) / f64::from(count)) as f32;
        let fault = |message: &str| Diagnostic::error(Code::BadRange, message).subject(subject);
        if low == 0.0 && high == 0.0 {
            let fault = fault("nothing but zeros was seen of a value").have("0 to 0");
            return Err(fault
                .need("a magnitude above 0")
                .help("calibrate with text that uses all of the model")
                .into());
        }
        if !(SMALLEST_SCALE..=LARGEST_SCALE).contains(&scale) {
            let fault = fault("the range of a value is no range for whole numbers").have(format!("{low} to {high}"));
            return Err(fault.need(format!("steps of {SMALLEST_SCALE:e} to {LARGEST_SCALE:e}")).into());
        }
        if symmetric {
            let int16 = Encoding::int16(scale);
            let centred = Encoding { offset: -32768, low: 0, high: 65535, ..int16 };
            return Ok(if self == Whole::CentredU16 { centred } else { int16 });
        }
        Ok(Encoding { scale, offset: (low / scale).round() as i32, low: 0, high: count as i32 })
    }
}

/// What the numbers of a group are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// Keys and values that are kept.
    Cache,
    /// The second operand of a product of activations, which keeps nothing: an encoder's keys and values.
    Factor,
    /// Everything else.
    Plain,
}

/// The encodings of a verified graph whose attention is decomposed. Every value is `scheme.activation`, and what only
/// moves numbers shares its operands' encoding; caches, what is written to them, and the ports of what is heard are `scheme.cache`.
///
/// Softmax and sigmoid have 1/65536 (int16: 1/32768, u8: 1/256), rotary tables reach 1. The mask is kept out of the ranges. Where it
/// is hidden it holds its lowest number. With scores between `l <= 0` and `h >= 0` of their own encoding, the mask's
/// lowest number means `-D`, with `D` the largest `h - l + MASK_MARGIN` of all layers, and its highest exactly 0. A sum of
/// scores and the mask reaches from `l - MASK_MARGIN` or less to `h`, so what is visible stays what it is, and what is
/// hidden is at most `h - D <= l - MASK_MARGIN` before it saturates there: at least [`MASK_MARGIN`] less half a step
/// below everything visible. e^-12 is less than half a step of 1/65536.
///
/// Operations of undecomposed form are taken as they are; `float_residual` makes floats of whole normalisations too.
///
/// Errors: [`Code::BadRange`] for a value of which no range is known, of which nothing but zeros was seen, or whose
/// range is too small or too large; [`Code::Misfit`] for a mask that is used in another way.
pub fn qualcomm(
    graph: &Graph,
    ranges: &Ranges,
    weights: &BTreeMap<String, Tensor>,
    scheme: &Scheme,
) -> Result<Encodings> {
    let count = graph.values.len();
    let groups = groups::groups(graph, &vec![false; count]);
    let (caches, factors) = (caches(graph, &groups), factors(graph, &groups));
    let float = float(graph, ranges, scheme, |value| caches.contains(&groups.root(value)));
    let (masked, needed) = (masked(graph), needed(graph, &float));
    let plan = Plan { graph, keys: keys(graph), ranges, weights, scheme };
    let mut of_root: BTreeMap<usize, Encoding> = BTreeMap::new();
    let mut faults = Vec::new();
    for (root, members) in groups::members(&groups, count) {
        if members.iter().any(|&member| needed[member]) && !masked[root] {
            let purpose = match (caches.contains(&root), factors.contains(&root)) {
                (true, _) => Purpose::Cache,
                (false, true) => Purpose::Factor,
                (false, false) => Purpose::Plain,
            };
            match plan.encoding(&members, &needed, purpose) {
                Ok(encoding) => _ = of_root.insert(root, encoding),
                Err(error) => faults.extend_from_slice(error.diagnostics()),
            }
        }
    }
    Error::check(faults)?;
    if masked.iter().zip(&needed).any(|(masked, needed)| *masked && *needed) {
        plan.mask(&groups, &masked, &mut of_root)?;
    }
    let encoding = |value: usize| of_root.get(&groups.root(value)).copied().filter(|_| needed[value]);
    let real = match scheme.activation {
        Activation::U16 | Activation::S16 | Activation::U8 | Activation::F16 => Real::F16,
        Activation::F32 => Real::F32,
    };
    Ok(Encodings { encodings: (0..count).map(encoding).collect(), float, masked, real, matrices: None })
}

/// The groups of caches and of what is heard, by their roots.
fn caches(graph: &Graph, groups: &Groups) -> BTreeSet<usize> {
    let kept = |name: &str| matches!(name.parse(), Ok(Port::Past(..) | Port::Heard(..)));
    let enters = graph.values.iter().enumerate().filter(|(_, value)| value.def == Def::Input && kept(&value.name));
    let leaves = graph.outputs.iter().filter(|output| kept(&output.name)).map(|output| output.value.index());
    enters.map(|(index, _)| index).chain(leaves).map(|index| groups.root(index)).collect()
}

/// The groups of the second operands of products of activations, by their roots.
fn factors(graph: &Graph, groups: &Groups) -> BTreeSet<usize> {
    let second = |value: &Value| match &value.def {
        Def::Op { op: Op::MatMul { .. }, args } => args.get(1).map(|arg| groups.root(arg.index())),
        Def::Op { .. } | Def::Input | Def::Weight => None,
    };
    graph.values.iter().filter_map(second).collect()
}

/// For each value, whether it is a float. Caches differ from other values in what enters and in what only moves.
fn float(graph: &Graph, ranges: &Ranges, scheme: &Scheme, is_cache: impl Fn(usize) -> bool) -> Vec<bool> {
    let (of_activations, of_caches) =
        (matches!(scheme.activation, Activation::F16 | Activation::F32), matches!(scheme.cache, Cache::F16));
    let in_norms = match scheme.float_residual {
        true => groups::float(graph, ranges),
        false => vec![false; graph.values.len()],
    };
    let of = |(index, value): (usize, &Value)| match &value.def {
        Def::Weight => false,
        Def::Input if is_cache(index) => of_caches,
        Def::Op { op, .. } if is_cache(index) && moves(op) => of_caches,
        Def::Input if value.name.parse() == Ok(Port::Hidden) => of_activations || scheme.float_residual,
        Def::Input => of_activations,
        Def::Op { .. } => of_activations || in_norms[index],
    };
    graph.values.iter().enumerate().map(of).collect()
}

/// For each value, whether it has to be there in whole numbers: because it is computed in them, or read or leaves so.
fn needed(graph: &Graph, float: &[bool]) -> Vec<bool> {
    let whole = |(value, &float): (&Value, &bool)| value.def != Def::Weight && !float;
    let mut needed: Vec<bool> = graph.values.iter().zip(float).map(whole).collect();
    for (value, &float) in graph.values.iter().zip(float) {
        let (Def::Op { op, args }, false) = (&value.def, float) else { continue };
        for (place, arg) in args.iter().enumerate() {
            let matrix_or_bias = op.is_projection() && place > 0;
            needed[arg.index()] |= !(matrix_or_bias && graph.value(*arg).def == Def::Weight);
        }
    }
    needed
}

struct Plan<'a> {
    graph: &'a Graph,
    keys: Vec<Option<String>>,
    ranges: &'a Ranges,
    weights: &'a BTreeMap<String, Tensor>,
    scheme: &'a Scheme,
}

impl Plan<'_> {
    /// The whole numbers of a group.
    fn whole(&self, purpose: Purpose) -> Whole {
        match (purpose, self.scheme.cache, self.scheme.activation) {
            (Purpose::Cache, Cache::U8, _) => Whole::U8,
            (Purpose::Cache, Cache::U16, _) => Whole::CentredU16,
            (Purpose::Cache, Cache::F16, Activation::U8) | (Purpose::Factor | Purpose::Plain, _, Activation::U8) => {
                Whole::U8
            }
            (Purpose::Cache, Cache::F16, Activation::S16) | (Purpose::Factor | Purpose::Plain, _, Activation::S16) => {
                Whole::S16
            }
            (Purpose::Cache, Cache::F16, Activation::U16 | Activation::F16 | Activation::F32) => Whole::CentredU16,
            (Purpose::Factor, _, Activation::U16 | Activation::F16 | Activation::F32) => Whole::CentredU16,
            (Purpose::Plain, _, Activation::U16 | Activation::F16 | Activation::F32) => Whole::U16,
        }
    }

    /// The encoding of values that hold the same numbers.
    fn encoding(&self, members: &[usize], needed: &[bool], purpose: Purpose) -> Result<Encoding> {
        let whole = self.whole(purpose);
        let (mut low, mut high, mut fixed) = (0.0f32, 0.0f32, false);
        for &member in members {
            let value = &self.graph.values[member];
            let (from, to) = match (&value.def, &self.keys[member]) {
                (Def::Op { op, .. }, _) if unit(op) => {
                    fixed = true;
                    (0.0, 0.0)
                }
                (Def::Input | Def::Op { .. }, Some(key)) => {
                    self.ranges.range(key, self.scheme.method, whole.steps())?.ok_or_else(|| unknown(key))?
                }
                (Def::Input, None) if rotary(value) => (-1.0, 1.0),
                (Def::Weight, _) if needed[member] => self.extremes(&value.name)?,
                // What only moves numbers has those of other members.
                (Def::Input | Def::Op { .. }, None) | (Def::Weight, _) => (0.0, 0.0),
            };
            (low, high) = (low.min(from), high.max(to));
        }
        let subject = members.iter().find_map(|&member| self.keys[member].as_deref());
        let subject = subject.unwrap_or(&self.graph.values[members[0]].name);
        match fixed {
            true if low < 0.0 || high > 1.0 => {
                let message = "a value shares the encoding of a softmax or sigmoid and is beyond it";
                let fault = Diagnostic::error(Code::BadRange, message).subject(subject);
                Err(fault.need("numbers from 0 to 1").have(format!("{low} to {high}")).into())
            }
            true => Ok(whole.unit()),
            false => whole.encoding(subject, if whole.steps().symmetric { symmetric(low, high) } else { (low, high) }),
        }
    }

    /// The smallest and the largest number of a weight that plain arithmetic reads, and 0.
    fn extremes(&self, name: &str) -> Result<(f32, f32)> {
        let tensor = tensor::weight(self.weights, name).ok_or_else(|| {
            Diagnostic::error(Code::MissingTensor, "the graph uses a weight that is not there").subject(name)
        })?;
        let numbers = to_f32(&tensor);
        Ok(numbers.iter().fold((0.0, 0.0), |(low, high), &x| (x.min(low), x.max(high))))
    }

    /// Adds the encodings of the mask and of the sums with it.
    fn mask(&self, groups: &Groups, masked: &[bool], of_root: &mut BTreeMap<usize, Encoding>) -> Result<()> {
        let whole = self.whole(Purpose::Plain);
        let mut deepest = 0.0f32;
        let mut sums: BTreeMap<usize, (f32, f32)> = BTreeMap::new();
        for (index, value) in self.graph.values.iter().enumerate().filter(|(index, _)| masked[*index]) {
            let Def::Op { op: Op::Add {}, args } = &value.def else { continue };
            let scores = args.iter().find(|arg| !masked[arg.index()]);
            let scores = scores.and_then(|arg| of_root.get(&groups.root(arg.index()))).ok_or_else(|| {
                let fault =
                    Diagnostic::error(Code::Misfit, "the mask is added to what is no score").subject(&value.name);
                fault.need("a sum of scores in whole numbers and the port `mask`")
            })?;
            let (low, high) = (scores.real(scores.low), scores.real(scores.high));
            deepest = deepest.max(high - low + MASK_MARGIN);
            let (lowest, highest) = sums.entry(groups.root(index)).or_default();
            (*lowest, *highest) = (lowest.min(low - MASK_MARGIN), highest.max(high));
        }
        if sums.is_empty() {
            let fault = Diagnostic::error(Code::Misfit, "the mask is added to no score");
            return Err(fault
                .subject(Port::Mask.to_string())
                .help("run the pass `decompose-attention` or `split-attention` first")
                .into());
        }
        for (root, (low, high)) in sums {
            let name = &self.graph.values[root].name;
            of_root.insert(
                root,
                match whole {
                    Whole::S16 => whole.encoding(name, symmetric(low, high))?,
                    Whole::U8 | Whole::U16 | Whole::CentredU16 => {
                        // A step less, so that the low end can be a whole step and `high` is still within.
                        let scale = (high - low) / (whole.largest() - 1) as f32;
                        let known = whole.encoding(name, (low, high))?;
                        Encoding { scale, offset: (low / scale).floor() as i32, ..known }
                    }
                },
            );
        }
        let mask = |value: &Value| value.def == Def::Input && value.name.parse() == Ok(Port::Mask);
        if let Some(mask) = self.graph.values.iter().position(mask) {
            of_root.insert(
                groups.root(mask),
                match whole {
                    Whole::S16 => Encoding::int16(deepest / 32768.0),
                    Whole::U8 | Whole::U16 | Whole::CentredU16 => {
                        let largest = whole.largest();
                        Encoding { scale: deepest / largest as f32, offset: -largest, low: 0, high: largest }
                    }
                },
            );
        }
        Ok(())
    }
}

fn symmetric(low: f32, high: f32) -> (f32, f32) {
    let largest = high.max(-low);
    (-largest, largest)
}
