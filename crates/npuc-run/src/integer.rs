//! A checkpoint in whole numbers on the host: what an NPU would compute, before anything is built for it.
//!
//! The weights are those of the checkpoint as they are stored, whole numbers with a scale a row (int8, int4, LPBQ) exactly,
//! others as the real numbers that they denote; activations are what the arithmetic says.

use std::collections::BTreeMap;
use std::sync::Arc;

use npuc::build::{Plan, weight_types};
use npuc::front::Checkpoint;
use npuc::ir::Graph;
use npuc::model::{self, StepShape};
use npuc::pass::{self, Pass};
use npuc::quant::{self, Encodings, Ranges, Scheme, WeightFormat};
use npuc::{Result, Tensor, back, target};

use crate::calibrate::{HEADROOM, Material, embeds_reach, seen};
use crate::program::{Program, Segment, Step};

/// The passes before whole numbers as Qualcomm's NPUs have them; norms and rotary embeddings stay whole.
pub const QUALCOMM_PASSES: [Pass; 3] = [Pass::DecomposeAttention, Pass::DecomposeSilu, Pass::Simplify];

/// The same with attention head by head, which has other keys of calibration.
pub const QUALCOMM_SPLIT_PASSES: [Pass; 3] = [Pass::SplitAttention, Pass::DecomposeSilu, Pass::Simplify];

/// Whose whole numbers are computed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arithmetic {
    /// Qualcomm's, see [`quant::qualcomm`].
    Qualcomm(Scheme),
    /// Qualcomm's with attention head by head: scores have a range for each head.
    QualcommSplit(Scheme),
    /// TFLite's, see [`quant::scales()`]: int16 activations, and matrices rounded by rows to that format, whatever the
    /// checkpoint stores.
    Tflite(WeightFormat),
}

impl Arithmetic {
    fn passes(self) -> Vec<Pass> {
        match self {
            Arithmetic::Qualcomm(_) => QUALCOMM_PASSES.to_vec(),
            Arithmetic::QualcommSplit(_) => QUALCOMM_SPLIT_PASSES.to_vec(),
            Arithmetic::Tflite(_) => back::tflite::PASSES.to_vec(),
        }
    }
}

/// The steps of those shapes in the operations of that arithmetic, in real numbers still. No target is asked whether it takes
/// the weights' formats: they are those of the NPU whose arithmetic it is.
fn lowered(checkpoint: &Checkpoint, shapes: Vec<StepShape>, arithmetic: Arithmetic) -> Result<Program> {
    let Plan { target, shapes, .. } = Plan::new(target::host(), &checkpoint.config, shapes)?;
    let types = weight_types(&checkpoint.tensors);
    let step = |shape: StepShape| {
        let graph = model::build_step(&checkpoint.config, &types, shape, target.protocol)?;
        let graph = pass::run(graph, &arithmetic.passes(), |_, _, _| {})?;
        Ok(Step { shape, segments: vec![Segment { graph, emitted: None, encodings: None }] })
    };
    let steps = shapes.into_iter().map(step).collect::<Result<_>>()?;
    Ok(Program::of_steps(checkpoint.clone(), &target, steps))
}

/// What the values of a model are over text or sound in f32, with the headroom of [`HEADROOM`]. The weights may be others
/// than those that the ranges are then used for.
///
/// Errors: no tokens, ids outside the vocabulary, sequences longer than the model's context, values that are not finite.
pub fn ranges<'a>(
    checkpoint: &Checkpoint,
    arithmetic: Arithmetic,
    material: impl Into<Material<'a>>,
    threads: usize,
) -> Result<Ranges> {
    let material = material.into();
    let program = lowered(checkpoint, material.shapes(&checkpoint.config)?, arithmetic)?;
    let mut ranges = Ranges::default();
    for seen in seen(&program, material, threads)?.iter().flatten() {
        ranges.join(seen);
    }
    let mut ranges = ranges.with_headroom(HEADROOM)?;
    if let Some(reach) = embeds_reach(checkpoint) {
        ranges.widen("embeds", reach);
    }
    Ok(ranges)
}

/// The encodings of one graph of the model.
fn encodings(
    graph: &Graph,
    ranges: &Ranges,
    weights: &BTreeMap<String, Tensor>,
    arithmetic: Arithmetic,
) -> Result<Encodings> {
    match arithmetic {
        Arithmetic::Qualcomm(scheme) | Arithmetic::QualcommSplit(scheme) => {
            quant::qualcomm(graph, ranges, weights, &scheme)
        }
        Arithmetic::Tflite(matrices) => Ok(quant::tflite(graph, &quant::scales(graph, ranges, weights)?, matrices)),
    }
}

/// A checkpoint as a program that sessions on the host compute in whole numbers, one graph a shape. The ranges are those
/// of [`ranges`] for the same arithmetic.
///
/// Errors: shapes that the model cannot take, ranges that are not known or have no whole numbers.
pub fn program(
    checkpoint: &Checkpoint,
    shapes: Vec<StepShape>,
    ranges: &Ranges,
    arithmetic: Arithmetic,
) -> Result<Program> {
    let mut program = lowered(checkpoint, shapes, arithmetic)?;
    for segment in program.steps.iter_mut().flat_map(|step| &mut step.segments) {
        segment.encodings = Some(Arc::new(encodings(&segment.graph, ranges, &program.weights, arithmetic)?));
    }
    program.whole_numbers = true;
    Ok(program)
}
