//! The scale of every value of a graph in int16, from the ranges of its part of the model.
//!
//! Values that must share a scale form a group, whose range is the largest of its members'.

use std::collections::BTreeMap;

use super::groups::{self, Groups};
use super::{INT16_MAX, Ranges, UNIT_SCALE, keys, largest, rotary, unit};
use crate::diag::{Code, Diagnostic, Error, Result};
use crate::ir::{Def, Graph, Op, ValueId};
use crate::model::Port;
use crate::tensor::{self, Tensor};

/// How far below every visible score a hidden one is at least: e^-12 is less than half a step of [`UNIT_SCALE`].
pub const MASK_MARGIN: f32 = 12.0;

/// How the values of a graph are computed.
#[derive(Clone, Debug, PartialEq)]
pub struct Scales {
    scales: Vec<Option<f32>>,
    float: Vec<bool>,
}

impl Scales {
    /// The scale of a value that is there in int16. The matrices and biases of projections and what only float
    /// operations use have none.
    pub fn scale(&self, value: ValueId) -> Option<f32> {
        self.scales[value.index()]
    }

    /// Whether a value is computed in float.
    pub fn float(&self, value: ValueId) -> bool {
        self.float[value.index()]
    }
}

/// The scales of a verified graph. Every port is int16, and so is all arithmetic but that of RMS normalisations, of
/// the residual stream between them and of exponentials, which is float between a DEQUANTIZE and a QUANTIZE: in int16 it is
/// far too coarse.
///
/// The port `mask` holds 0 where a row is visible and -32768 where it is hidden. With A the largest range of the scores
/// that it is added to, -32768 means `-(2A + MASK_MARGIN)`. A sum of scores within a and the mask has the range
/// `a + MASK_MARGIN` and saturates at its low end, which leaves what is hidden at least [`MASK_MARGIN`] below
/// everything visible.
///
/// The port of the rotary table has the range 1, whatever was seen.
///
/// Errors: [`Code::BadRange`] for a value of which no range is known, of which nothing but zeros was seen, or whose
/// range is too small or too large for a scale; [`Code::Misfit`] for a mask that is used in another way.
pub fn scales(graph: &Graph, ranges: &Ranges, weights: &BTreeMap<String, Tensor>) -> Result<Scales> {
    let float = groups::float(graph, ranges);
    let groups = groups::groups(graph, &float);
    let masked = groups::masked(graph);
    let needed = needed(graph, &float);
    let known = Known { graph, keys: keys(graph), ranges, weights };
    let mut faults = Vec::new();
    let mut of_root: BTreeMap<usize, f32> = BTreeMap::new();
    for (root, members) in groups::members(&groups, graph.values.len()) {
        if members.iter().any(|&member| needed[member]) && !masked[root] {
            match known.scale(&members, &needed) {
                Ok(scale) => _ = of_root.insert(root, scale),
                Err(error) => faults.extend_from_slice(error.diagnostics()),
            }
        }
    }
    Error::check(faults)?;
    mask_scales(graph, &groups, &masked, &mut of_root)?;
    let scale = |value: usize| of_root.get(&groups.root(value)).copied().filter(|_| needed[value]);
    Ok(Scales { scales: (0..graph.values.len()).map(scale).collect(), float })
}

/// For each value, whether it has to be there in int16.
fn needed(graph: &Graph, float: &[bool]) -> Vec<bool> {
    let whole = |(value, &float): (&crate::ir::Value, &bool)| match value.def {
        Def::Input => true,
        Def::Weight => false,
        Def::Op { .. } => !float,
    };
    let mut needed: Vec<bool> = graph.values.iter().zip(float).map(whole).collect();
    for (value, &float) in graph.values.iter().zip(float) {
        let (Def::Op { op, args }, false) = (&value.def, float) else { continue };
        for (place, arg) in args.iter().enumerate() {
            let matrix_or_bias = op.is_projection() && place > 0;
            needed[arg.index()] |= !(matrix_or_bias && graph.value(*arg).def == Def::Weight);
        }
    }
    graph.outputs.iter().for_each(|output| needed[output.value.index()] = true);
    needed
}

/// What the scale of a group follows from.
struct Known<'a> {
    graph: &'a Graph,
    keys: Vec<Option<String>>,
    ranges: &'a Ranges,
    weights: &'a BTreeMap<String, Tensor>,
}

impl Known<'_> {
    /// The scale of values that hold the same numbers.
    fn scale(&self, members: &[usize], needed: &[bool]) -> Result<f32> {
        let mut range = 0.0f32;
        let mut fixed = false;
        for &member in members {
            let value = &self.graph.values[member];
            range = range.max(match (&value.def, &self.keys[member]) {
                (Def::Op { op, .. }, _) if unit(op) => {
                    fixed = true;
                    0.0
                }
                (Def::Input | Def::Op { .. }, Some(key)) => self.ranges.get(key).ok_or_else(|| unknown(key))?,
                (Def::Input, None) if rotary(value) => 1.0,
                (Def::Weight, _) if needed[member] => largest_of(&value.name, self.weights)?,
                // What only moves numbers has those of other members.
                (Def::Input | Def::Op { .. }, None) | (Def::Weight, _) => 0.0,
            });
        }
        let subject = members.iter().find_map(|&member| self.keys[member].as_deref());
        let subject = subject.unwrap_or(&self.graph.values[members[0]].name);
        match fixed {
            true if range > 1.0 => {
                let message = "a value shares the scale of a softmax or sigmoid and is larger";
                let fault = Diagnostic::error(Code::BadRange, message).subject(subject);
                Err(fault.need("magnitudes of at most 1").have(range).into())
            }
            true => Ok(UNIT_SCALE),
            false => scale_of(subject, range),
        }
    }
}

pub(super) fn unknown(key: &str) -> Error {
    Diagnostic::error(Code::BadRange, "the range of a value is not known")
        .subject(key)
        .need("a range of every value, from the same model cut into the same parts")
        .help("calibrate the model again")
        .into()
}

/// The largest magnitude of a weight that is an operand of plain arithmetic.
fn largest_of(name: &str, weights: &BTreeMap<String, Tensor>) -> Result<f32> {
    tensor::weight(weights, name).as_ref().map(largest).ok_or_else(|| {
        Diagnostic::error(Code::MissingTensor, "the graph uses a weight that is not there").subject(name).into()
    })
}

/// The scale with which an int16 reaches `range`.
fn scale_of(subject: &str, range: f32) -> Result<f32> {
    let fault = |message: &str| Diagnostic::error(Code::BadRange, message).subject(subject).have(range);
    let scale = range / INT16_MAX;
    if range == 0.0 {
        let fault = fault("nothing but zeros was seen of a value");
        return Err(fault.need("a magnitude above 0").help("calibrate with text that uses all of the model").into());
    }
    if !range.is_finite() || !(SMALLEST_SCALE..=LARGEST_SCALE).contains(&scale) {
        let (low, high) = (SMALLEST_SCALE * INT16_MAX, LARGEST_SCALE * INT16_MAX);
        return Err(fault("the range of a value is no range for int16").need(format!("{low:e} to {high:e}")).into());
    }
    Ok(scale)
}

/// Scales are multiplied with each other and divided; products and quotients of scales within these bounds are well
/// inside f32.
pub(super) const SMALLEST_SCALE: f32 = 1e-15;
pub(super) const LARGEST_SCALE: f32 = 1e15;

/// Adds the scales of the mask and of the sums with it.
fn mask_scales(graph: &Graph, groups: &Groups, masked: &[bool], of_root: &mut BTreeMap<usize, f32>) -> Result<()> {
    let mut largest = 0.0f32;
    let mut sums: BTreeMap<usize, f32> = BTreeMap::new();
    for (index, value) in graph.values.iter().enumerate().filter(|(index, _)| masked[*index]) {
        let Def::Op { op: Op::Add {}, args } = &value.def else { continue };
        let scores = args.iter().find(|arg| !masked[arg.index()]);
        let scale = scores.and_then(|arg| of_root.get(&groups.root(arg.index())));
        let range = INT16_MAX
            * scale.ok_or_else(|| {
                let fault =
                    Diagnostic::error(Code::Misfit, "the mask is added to what is no score").subject(&value.name);
                fault.need("a sum of scores in int16 and the port `mask`")
            })?;
        largest = largest.max(range);
        let sum = sums.entry(groups.root(index)).or_default();
        *sum = sum.max(range + MASK_MARGIN);
    }
    for (root, range) in sums {
        of_root.insert(root, scale_of(&graph.values[root].name, range)?);
    }
    let mask = graph.values.iter().position(|value| value.def == Def::Input && value.name.parse() == Ok(Port::Mask));
    if let Some(mask) = mask {
        of_root.insert(groups.root(mask), (2.0 * largest + MASK_MARGIN) / 32768.0);
    }
    Ok(())
}

/// Gives the residual stream one range, and with it one scale, where it leaves one part of a model and enters the next:
/// the larger one. The graphs are those of any step shape. Call it for every two neighbours, first to last, before
/// the first of them is emitted.
///
/// Errors: [`Code::BadRange`] if a range is not known; [`Code::Misfit`] if `first` has no output or `second` no input
/// `hidden`.
pub fn share_boundary(first: (&Graph, &mut Ranges), second: (&Graph, &mut Ranges)) -> Result<()> {
    let (name, missing) = (Port::Hidden.to_string(), |which: &str| {
        Diagnostic::error(Code::Misfit, format!("the {which} part has no port to the other")).need("the port `hidden`")
    });
    let output = first.0.outputs.iter().find(|output| output.name == name).ok_or_else(|| missing("first"))?;
    if !second.0.values.iter().any(|value| value.def == Def::Input && value.name == name) {
        return Err(missing("second").into());
    }
    let groups = groups::groups(first.0, &groups::float(first.0, first.1));
    let root = groups.root(output.value.index());
    let keys = keys(first.0).into_iter().enumerate().filter(|(index, _)| groups.root(*index) == root);
    let mut joined: Vec<String> = keys.filter_map(|(_, key)| key).collect();
    joined.sort_unstable();
    let mut range = second.1.get(&name).ok_or_else(|| unknown(&name))?;
    for key in &joined {
        range = range.max(first.1.get(key).ok_or_else(|| unknown(key))?);
    }
    joined.iter().for_each(|key| first.1.widen(key, range));
    second.1.widen(&name, range);
    Ok(())
}
