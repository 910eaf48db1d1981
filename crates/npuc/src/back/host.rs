//! The host back end: the IR text itself, which the runner parses, verifies and executes.

use super::Emitted;
use crate::model::StepShape;
use crate::target::Checked;

/// The graph of a step as it is.
pub fn emit(shape: StepShape, graph: &Checked) -> Emitted {
    Emitted { shape, graph: graph.graph().clone(), file: None, encodings: None }
}
