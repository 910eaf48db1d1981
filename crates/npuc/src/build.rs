//! From an opened checkpoint to checked graphs: build, rewrite, check, once per step shape.

use std::collections::BTreeMap;

use crate::diag::{Code, Diagnostic, Result};
use crate::front::{Checkpoint, ModelConfig};
use crate::ir::{Graph, Type};
use crate::model::{self, StepShape};
use crate::pass::{self, Pass};
use crate::target::{self, Checked, Question, Target};
use crate::tensor::Tensor;

/// What to build.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The chip.
    pub target: Target,
    /// One graph each; prefill graphs take several tokens, a decode graph takes one.
    pub shapes: Vec<StepShape>,
    /// The passes to run, in order.
    pub passes: Vec<Pass>,
}

impl Plan {
    /// A plan with the target's own passes.
    ///
    /// Errors: a target that npuc cannot build for, and those of [`ordered`].
    pub fn new(target: Target, config: &ModelConfig, shapes: Vec<StepShape>) -> Result<Plan> {
        target.back_end()?;
        let shapes = ordered(config, shapes)?;
        let passes = target.passes(&[]);
        Ok(Plan { target, shapes, passes })
    }
}

/// The step shapes of a model's program, the one with most tokens first. An encoder has one shape.
///
/// Errors: [`Code::BadShape`] for a shape twice, capacities that differ (all graphs share one cache), no shape of one token
/// (`1t…c`).
pub fn ordered(config: &ModelConfig, mut shapes: Vec<StepShape>) -> Result<Vec<StepShape>> {
    shapes.sort_unstable_by(|a, b| b.cmp(a));
    let fault = |message: &str, need: &str| {
        let have: Vec<String> = shapes.iter().map(StepShape::to_string).collect();
        Err(Diagnostic::error(Code::BadShape, message).need(need).have(have.join(",")).into())
    };
    if shapes.windows(2).any(|pair| pair[0] == pair[1]) {
        return fault("a step shape is given twice", "every shape once");
    }
    if shapes.windows(2).any(|pair| pair[0].capacity != pair[1].capacity) {
        return fault("the step shapes have different capacities", "one capacity: all steps share the cache");
    }
    if config.reads_tokens() && shapes.last().is_none_or(|shape| shape.tokens != 1) {
        return fault("no step shape decodes", "a shape of one token, e.g. 128t1024c,1t1024c");
    }
    Ok(shapes)
}

/// Builds, rewrites and checks the graph of every shape, the one with most tokens first.
/// `observe` sees each graph after each pass, with the reasons of its changes.
pub fn lower(
    checkpoint: &Checkpoint,
    plan: &Plan,
    mut observe: impl FnMut(Pass, &Graph, &[String]),
) -> Result<Vec<(StepShape, Checked)>> {
    let types = weight_types(&checkpoint.tensors);
    let mut lowered = Vec::new();
    for &shape in &plan.shapes {
        let graph = model::build_step(&checkpoint.config, &types, shape, plan.target.protocol)?;
        let graph = pass::run(graph, &plan.passes, &mut observe)?;
        lowered.push((shape, target::check(graph, &plan.target, &Question::stored(&plan.target))?));
    }
    Ok(lowered)
}

/// The types of weights, by name.
pub fn weight_types(tensors: &BTreeMap<String, Tensor>) -> BTreeMap<String, Type> {
    let of = |tensor: &Tensor| Type { dtype: tensor.dtype, shape: tensor.shape.clone() };
    tensors.iter().map(|(name, tensor)| (name.clone(), of(tensor))).collect()
}
