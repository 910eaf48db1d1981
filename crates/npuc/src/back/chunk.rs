//! A model cut into graphs: one for every step shape and part, behind the ports of a back end.

use std::collections::BTreeMap;

use crate::diag::Result;
use crate::fit::Request;
use crate::front::ModelConfig;
use crate::ir::{Graph, Type};
use crate::model::{self, Part, StepShape};
use crate::pass::{self, Pass};

/// One graph of a model.
#[derive(Clone, Debug)]
pub struct Chunk {
    /// The step's shape.
    pub shape: StepShape,
    /// The part of the model.
    pub part: Part,
    /// The place of the part among the parts.
    pub number: usize,
    /// The graph behind the back end's ports.
    pub graph: Graph,
}

/// The graph of every shape and part, shapes first, behind the ports of `contract` and then lowered by `passes`.
///
/// Errors: shapes and parts that the model cannot take.
pub(super) fn chunks(
    config: &ModelConfig,
    weights: &BTreeMap<String, Type>,
    request: &Request,
    parts: &[Part],
    passes: &[Pass],
    contract: fn(&Graph) -> Result<Graph>,
) -> Result<Vec<Chunk>> {
    let mut chunks = Vec::with_capacity(request.shapes.len() * parts.len());
    for &shape in &request.shapes {
        for (number, part) in parts.iter().enumerate() {
            let part = request.mended(part);
            let graph = model::build_part(config, weights, shape, request.target.protocol, &part)?;
            let mut graph = pass::run(contract(&graph)?, passes, |_, _, _| {})?;
            graph.name = format!("{shape}.{number}");
            chunks.push(Chunk { shape, part, number, graph });
        }
    }
    Ok(chunks)
}
