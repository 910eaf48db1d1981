//! The ports of MediaTek's GenAI runtime around a step graph of the `Shift` protocol.
//!
//! Order and shapes are the runtime's (it goes by position); the names are npuc's. The runtime right-aligns the
//! valid rows of a cache, as `Shift` does, and takes back whole caches.

use std::collections::BTreeMap;

use crate::back::{convolution_state, rotary};
use crate::diag::{Code, Diagnostic, Result};
use crate::ir::verify::verify;
use crate::ir::{Def, Graph, GraphBuilder, Op, Type, ValueId};
use crate::model::{Port, StateKind};

/// What the mask holds where a row is hidden, in float. Source: the GenAI toolkit.
pub const HIDDEN_MASK: f32 = -100.0;

/// The same computation behind these ports, `t` tokens against a capacity of `c` rows:
///
/// | in | shape |
/// |---|---|
/// | `embeds` or `hidden` | `[1, t, hidden]` |
/// | `mask` | `[1, 1, t, c + t]`, cache first; 0 visible, [`HIDDEN_MASK`] hidden |
/// | `rotary` | `[1, 2, t, head_dim]`: cosines, then sines, each for both halves of a row |
/// | `past_k.<layer>` of all layers, then `past_v.<layer>` | `[1, kv_heads, c, head_dim]` |
/// | `heard_k.<layer>` of all layers, then `heard_v.<layer>`, of a decoder that listens | `[1, heads, positions, head_dim]` |
///
/// | out | shape |
/// |---|---|
/// | `hidden`, `logits`, or `logits.0`, `logits.1`, … where the head is cut | `[1, t, hidden, vocab or rows]` |
/// | `next_k.<layer>` of all layers, then `next_v.<layer>` | `[1, kv_heads, c, head_dim]` |
///
/// An encoder of sound has the ports `mel` `[1, bands, frames]` and, out, `heard_k.<layer>` and `heard_v.<layer>`.
/// A part without layers has the first port on each side alone.
///
/// Errors: a graph that breaks a rule of the IR ([`Code::IrInvalid`]); ports of another protocol, ports that are
/// missing ([`Code::Misfit`]).
pub fn contract(graph: &Graph) -> Result<Graph> {
    verify(graph)?;
    let inputs = input_ports(graph)?;
    let mut g = GraphBuilder::new(graph.name.clone());
    let given = declare(&mut g, &inputs)?;
    let moved = g.append(graph, |value| Ok(given[&value.name.parse::<Port>()?]))?;
    for (port, value) in ordered_outputs(graph)? {
        let value = match &graph.value(value).def {
            // The scores leave as they are computed: a reshape of so many would be one operation more that the limit on
            // extents refuses, also where a flag lifts it for projections.
            Def::Op { op: Op::Linear {}, args } if matches!(port, Port::Logits | Port::LogitsPart(_)) => {
                let mut args: Vec<ValueId> = args.iter().map(|arg| moved[arg.index()]).collect();
                args[0] = behind_one(&mut g, &port.to_string(), args[0]);
                g.op(graph.value(value).name.clone(), Op::Linear {}, &args)
            }
            Def::Op { .. } | Def::Input | Def::Weight => behind_one(&mut g, &port.to_string(), moved[value.index()]),
        };
        g.output(port.to_string(), value);
    }
    Ok(g.finish())
}

/// The value with one more extent of 1 in front.
fn behind_one(g: &mut GraphBuilder, path: &str, value: ValueId) -> ValueId {
    let shape = [&[1], g.shape(value)].concat();
    g.op(path, Op::Reshape { shape }, &[value])
}

fn input_ports(graph: &Graph) -> Result<BTreeMap<Port, &Type>> {
    let mut ports = BTreeMap::new();
    for value in graph.values.iter().filter(|value| value.def == Def::Input) {
        let port: Port = value.name.parse()?;
        match port {
            Port::Embeds
            | Port::Mel
            | Port::Heard(StateKind::Key | StateKind::Value, _)
            | Port::Hidden
            | Port::RopeCos
            | Port::RopeSin
            | Port::Mask
            | Port::Past(StateKind::Key | StateKind::Value, _) => {}
            Port::WriteMask
            | Port::History
            | Port::Past(StateKind::Conv, _)
            | Port::Heard(StateKind::Conv, _)
            | Port::Logits
            | Port::LogitsPart(_)
            | Port::New(..)
            | Port::Next(..)
            | Port::Cross(_) => return Err(other_protocol(port)),
        }
        ports.insert(port, &value.ty);
    }
    Ok(ports)
}

/// The inputs in the runtime's order, each then put into the shape that the graph takes.
fn declare(g: &mut GraphBuilder, ports: &BTreeMap<Port, &Type>) -> Result<BTreeMap<Port, ValueId>> {
    let mut given = BTreeMap::new();
    let entry = [Port::Embeds, Port::Mel, Port::Hidden].into_iter().find(|port| ports.contains_key(port));
    let entry = entry.ok_or_else(|| missing("`embeds`, `mel` or `hidden`"))?;
    let mut raw = vec![(entry, g.input(entry.to_string(), with_ones(1, ports[&entry])))];
    if let Some(ty) = ports.get(&Port::Mask) {
        raw.push((Port::Mask, g.input(Port::Mask.to_string(), with_ones(2, ty))));
    }
    let rotary = rotary::declare(g, [Port::RopeCos, Port::RopeSin].map(|port| ports.get(&port).copied()))?;
    let states: [fn(StateKind, usize) -> Port; 2] = [Port::Past, Port::Heard];
    for (make, kind) in states.into_iter().flat_map(|make| [(make, StateKind::Key), (make, StateKind::Value)]) {
        let of_kind =
            |port: &Port| matches!(*port, Port::Past(k, n) | Port::Heard(k, n) if *port == make(k, n) && k == kind);
        for (&port, ty) in ports.iter().filter(|(port, _)| of_kind(port)) {
            raw.push((port, g.input(port.to_string(), with_ones(1, ty))));
        }
    }
    for (port, value) in raw {
        let shape = ports[&port].shape.to_vec();
        given.insert(port, g.op(port.to_string(), Op::Reshape { shape }, &[value]));
    }
    if let (Some(rotary), Some(ty)) = (rotary, ports.get(&Port::RopeCos)) {
        let [cos, sin] = rotary::tables(g, rotary, ty);
        given.extend([(Port::RopeCos, cos), (Port::RopeSin, sin)]);
    }
    Ok(given)
}

/// The extents of a type behind `count` extents of 1.
fn with_ones(count: usize, ty: &Type) -> crate::Shape {
    crate::Shape([&vec![1; count][..], &ty.shape].concat())
}

/// The outputs in the runtime's order.
fn ordered_outputs(graph: &Graph) -> Result<Vec<(Port, ValueId)>> {
    let mut outputs = Vec::with_capacity(graph.outputs.len());
    for output in &graph.outputs {
        let port: Port = output.name.parse()?;
        let place = match port {
            Port::Hidden | Port::Logits => (0, 0),
            Port::LogitsPart(part) => (0, part),
            Port::Next(StateKind::Key, layer) | Port::Heard(StateKind::Key, layer) => (1, layer),
            Port::Next(StateKind::Value, layer) | Port::Heard(StateKind::Value, layer) => (2, layer),
            Port::Embeds
            | Port::Mel
            | Port::Heard(StateKind::Conv, _)
            | Port::RopeCos
            | Port::RopeSin
            | Port::Mask
            | Port::WriteMask
            | Port::History
            | Port::Next(StateKind::Conv, _)
            | Port::Past(..)
            | Port::New(..)
            | Port::Cross(_) => return Err(other_protocol(port)),
        };
        outputs.push((place, (port, output.value)));
    }
    outputs.sort_by_key(|(place, _)| *place);
    Ok(outputs.into_iter().map(|(_, output)| output).collect())
}

fn other_protocol(port: Port) -> crate::Error {
    if let Some(refusal) = convolution_state(port, "MediaTek's runtime has no place for what convolutions keep") {
        return refusal;
    }
    Diagnostic::error(Code::Misfit, "MediaTek's runtime has no such port")
        .subject(port.to_string())
        .need("a step graph of the shift protocol")
        .into()
}

fn missing(what: &str) -> crate::Error {
    Diagnostic::error(Code::Misfit, "the step graph lacks a port that MediaTek's runtime fills").need(what).into()
}
