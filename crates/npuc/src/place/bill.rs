//! What a placement costs: changes of side and the bytes that cross with them.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::{Segment, Side};
use crate::ir::{Def, Type};
use crate::model::Port;

/// The cost of one step in segments.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Bill {
    /// Graphs that are computed one after the other.
    pub segments: usize,
    /// Those of the NPU.
    pub npu_segments: usize,
    /// Changes of side during a step.
    pub hops: usize,
    /// Bytes of the results that the other side reads, each once, in a step. Ports of the whole graph are not counted.
    pub bytes_per_step: u64,
    /// The same over the tokens of a step, rounded up; `None` for graphs without a port that has a row for each token.
    pub bytes_per_token: Option<u64>,
}

/// The cost of a placement whose ports have elements of so many bytes.
pub fn bill(segments: &[Segment], element_bytes: u64) -> Bill {
    let hops = segments.windows(2).filter(|pair| pair[0].side != pair[1].side).count();
    let mut made: BTreeMap<&str, Side> = BTreeMap::new();
    let mut crossed: BTreeSet<&str> = BTreeSet::new();
    let mut bytes_per_step = 0u64;
    for segment in segments {
        for value in segment.graph.values.iter().filter(|value| value.def == Def::Input) {
            let from_other = made.get(value.name.as_str()).is_some_and(|side| *side != segment.side);
            if from_other && crossed.insert(&value.name) {
                bytes_per_step = bytes_per_step.saturating_add(bytes(&value.ty, element_bytes));
            }
        }
        let names = segment.graph.outputs.iter().map(|output| output.name.as_str());
        made.extend(names.filter(|name| matches!(name.parse(), Ok(Port::Cross(_)))).map(|name| (name, segment.side)));
    }
    Bill {
        segments: segments.len(),
        npu_segments: segments.iter().filter(|segment| segment.side == Side::Npu).count(),
        hops,
        bytes_per_step,
        bytes_per_token: tokens(segments).map(|tokens| bytes_per_step.div_ceil(tokens)),
    }
}

fn bytes(ty: &Type, element_bytes: u64) -> u64 {
    (ty.shape.elements().unwrap_or(usize::MAX) as u64).saturating_mul(element_bytes)
}

/// The rows of the ports `[.., tokens, width]`.
fn tokens(segments: &[Segment]) -> Option<u64> {
    let ports = segments.iter().flat_map(|segment| {
        let graph = &segment.graph;
        let inputs = graph.values.iter().filter(|value| value.def == Def::Input);
        let inputs = inputs.map(|value| (value.name.as_str(), &value.ty));
        inputs.chain(graph.outputs.iter().map(|output| (output.name.as_str(), &graph.value(output.value).ty)))
    });
    let mut rows = ports.filter_map(|(name, ty)| match name.parse().ok()? {
        Port::Embeds | Port::Hidden | Port::Logits => ty.shape.iter().rev().nth(1).map(|&rows| rows as u64),
        Port::LogitsPart(_)
        | Port::Mel
        | Port::Heard(..)
        | Port::RopeCos
        | Port::RopeSin
        | Port::Mask
        | Port::WriteMask
        | Port::History
        | Port::Past(..)
        | Port::New(..)
        | Port::Next(..)
        | Port::Cross(_) => None,
    });
    rows.next()
}
