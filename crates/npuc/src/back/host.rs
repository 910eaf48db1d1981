//! The host back end: the IR text itself, which the runner parses, verifies and executes.

use super::Emitted;
use crate::target::Checked;

/// One file per graph, `graphs/<name>.ir`.
pub fn emit(graph: &Checked) -> Emitted {
    let graph = graph.graph();
    Emitted { path: format!("graphs/{}.ir", graph.name), bytes: graph.to_string().into_bytes() }
}
