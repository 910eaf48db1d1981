//! The ports of a QNN graph around a step graph of the `Append` protocol.

use std::collections::BTreeMap;

use crate::back::{convolution_state, rotary};
use crate::diag::{Code, Diagnostic, Result};
use crate::ir::verify::verify;
use crate::ir::{Def, Graph, GraphBuilder, Type, ValueId};
use crate::model::{Port, StateKind};

/// The same computation behind these ports, `t` tokens against a capacity of `c` rows. In QNN every port has rank 4, with
/// extents of 1 in front.
///
/// | in | shape |
/// |---|---|
/// | `embeds` or `hidden` | `[t, hidden]` |
/// | `mask` | `[t, c + t]`, cache first |
/// | `rotary` | `[1, 2, t, head_dim]`: cosines, then sines, each for both halves of a row |
/// | `past_k.<layer>` of all layers, then `past_v.<layer>` | `[kv_heads, c, head_dim]` |
/// | `heard_k.<layer>` of all layers, then `heard_v.<layer>`, of a decoder that listens | `[heads, positions, head_dim]` |
///
/// | out | shape |
/// |---|---|
/// | `hidden`, `logits`, or `logits.0`, `logits.1`, … where the head is cut | `[t, hidden, vocab or rows]` |
/// | `new_k.<layer>` of all layers, then `new_v.<layer>` | `[kv_heads, t, head_dim]` |
///
/// An encoder of sound has the ports `mel` `[bands, frames]` and, out, `heard_k.<layer>` and `heard_v.<layer>`.
///
/// With `L` layers in one context these are `2 L + 3` inputs and `2 L + 1` outputs. Source of the number and kind of ports:
/// a published context binary of Llama 3.2 3B, 59 inputs and 57 outputs.
///
/// Errors: a graph that breaks a rule of the IR ([`Code::IrInvalid`]); ports of another protocol ([`Code::Misfit`]).
pub fn contract(graph: &Graph) -> Result<Graph> {
    verify(graph)?;
    let mut ports: Vec<(usize, Port, &Type)> = Vec::new();
    for value in graph.values.iter().filter(|value| value.def == Def::Input) {
        let port: Port = value.name.parse()?;
        ports.push((input_place(port)?, port, &value.ty));
    }
    ports.sort_by_key(|&(place, port, _)| (place, port));
    let mut g = GraphBuilder::new(graph.name.clone());
    let mut given: BTreeMap<Port, ValueId> = BTreeMap::new();
    let table = |port| ports.iter().find(|(_, known, _)| *known == port).map(|(_, _, ty)| *ty);
    let tables = [Port::RopeCos, Port::RopeSin].map(table);
    for &(_, port, ty) in &ports {
        if given.contains_key(&port) {
            continue;
        }
        if !matches!(port, Port::RopeCos | Port::RopeSin) {
            given.insert(port, g.input(port.to_string(), ty.shape.clone()));
        } else if let Some(rotary) = rotary::declare(&mut g, tables)? {
            let [cos, sin] = rotary::tables(&mut g, rotary, ty);
            given.extend([(Port::RopeCos, cos), (Port::RopeSin, sin)]);
        }
    }
    let moved = g.append(graph, |value| Ok(given[&value.name.parse::<Port>()?]))?;
    let mut outputs = Vec::new();
    for output in &graph.outputs {
        let port: Port = output.name.parse()?;
        outputs.push((output_place(port)?, port, moved[output.value.index()]));
    }
    outputs.sort_by_key(|&(place, port, _)| (place, port));
    outputs.into_iter().for_each(|(_, port, value)| g.output(port.to_string(), value));
    Ok(g.finish())
}

/// The place of an input port among the kinds.
fn input_place(port: Port) -> Result<usize> {
    match port {
        Port::Embeds | Port::Mel | Port::Hidden => Ok(0),
        Port::Mask => Ok(1),
        Port::RopeCos | Port::RopeSin => Ok(2),
        Port::Past(StateKind::Key, _) => Ok(3),
        Port::Past(StateKind::Value, _) => Ok(4),
        Port::Heard(StateKind::Key, _) => Ok(5),
        Port::Heard(StateKind::Value, _) => Ok(6),
        Port::WriteMask
        | Port::History
        | Port::Past(StateKind::Conv, _)
        | Port::Heard(StateKind::Conv, _)
        | Port::Logits
        | Port::LogitsPart(_)
        | Port::New(..)
        | Port::Next(..)
        | Port::Cross(_) => Err(other_protocol(port)),
    }
}

/// The place of an output port among the kinds.
fn output_place(port: Port) -> Result<usize> {
    match port {
        Port::Hidden | Port::Logits | Port::LogitsPart(_) => Ok(0),
        Port::New(StateKind::Key, _) | Port::Heard(StateKind::Key, _) => Ok(1),
        Port::New(StateKind::Value, _) | Port::Heard(StateKind::Value, _) => Ok(2),
        Port::Embeds
        | Port::Mel
        | Port::Heard(StateKind::Conv, _)
        | Port::RopeCos
        | Port::RopeSin
        | Port::Mask
        | Port::WriteMask
        | Port::History
        | Port::New(StateKind::Conv, _)
        | Port::Past(..)
        | Port::Next(..)
        | Port::Cross(_) => Err(other_protocol(port)),
    }
}

fn other_protocol(port: Port) -> crate::Error {
    if let Some(refusal) = convolution_state(port, "a QNN graph of npuc's has no place for what convolutions keep") {
        return refusal;
    }
    Diagnostic::error(Code::Misfit, "a QNN graph has no such port")
        .subject(port.to_string())
        .need("a step graph of the append protocol")
        .into()
}
