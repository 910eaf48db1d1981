//! The check before emission: the only maker of [`Checked`], and emitters take nothing else.

use crate::diag::Result;
use crate::ir::{Graph, verify};

use super::Target;

/// A graph that a target takes.
#[derive(Clone, Debug, PartialEq)]
pub struct Checked {
    graph: Graph,
    target: Target,
}

impl Checked {
    /// The graph.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The target that takes it.
    pub fn target(&self) -> Target {
        self.target
    }
}

/// Checks a graph against a target. The host takes every graph that keeps the rules of the IR.
///
/// Errors: all misfits at once.
pub fn check(graph: Graph, target: Target) -> Result<Checked> {
    verify::verify(&graph)?;
    Ok(Checked { graph, target })
}
