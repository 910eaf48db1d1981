//! Cutting a step graph between layers, so that each chunk is a graph of its own.
//!
//! A value belongs to the layer that its path names (`layers.<n>.…`); what comes before the first layer goes to
//! the first chunk and what comes after to the last. Inputs and weights go wherever they are used.

use std::collections::BTreeMap;

use crate::diag::{Code, Diagnostic, Result};
use crate::ir::{Def, Graph, Output, Type, Value, ValueId};

/// The layers of a verified graph: one more than the largest that a path names.
pub fn layers(graph: &Graph) -> usize {
    let ops = graph.values.iter().filter(|value| matches!(value.def, Def::Op { .. }));
    ops.filter_map(|value| layer(&value.name)).max().map_or(0, |last| last + 1)
}

/// One graph per entry of `sizes`, which are layers a chunk. A value that a later chunk needs leaves as
/// `carry.<id>` and enters under the same name.
///
/// # Errors
/// [`Code::BadArgument`] if the sizes are not the graph's layers in sum or one is zero.
pub fn chunks(graph: &Graph, sizes: &[usize]) -> Result<Vec<Graph>> {
    let total = layers(graph);
    let sum = sizes.iter().try_fold(0usize, |sum, &size| sum.checked_add(size));
    if sum != Some(total) || sizes.contains(&0) || sizes.is_empty() {
        let have: Vec<String> = sizes.iter().map(usize::to_string).collect();
        return Err(Diagnostic::error(Code::BadArgument, "the chunks do not make up the model's layers")
            .need(format!("layers a chunk, each at least 1, {total} in sum"))
            .have(have.join(","))
            .into());
    }
    let ends: Vec<usize> = sizes
        .iter()
        .scan(0, |end, size| {
            *end += size;
            Some(*end)
        })
        .collect();
    let owners = owners(graph, &ends);
    let crossing = crossing(graph, &owners);
    Ok((0..sizes.len()).map(|chunk| cut(graph, &owners, &crossing, chunk)).collect())
}

fn layer(name: &str) -> Option<usize> {
    let (number, _) = name.strip_prefix("layers.")?.split_once('.')?;
    number.parse().ok()
}

/// The chunk that computes each value.
fn owners(graph: &Graph, ends: &[usize]) -> Vec<usize> {
    let last_layer = ends.last().copied().unwrap_or(0);
    let mut current = 0;
    let mut passed = 0;
    let mut owners = Vec::with_capacity(graph.values.len());
    for value in &graph.values {
        if let (Def::Op { .. }, name) = (&value.def, layer(&value.name)) {
            match name {
                Some(layer) => {
                    current = ends.partition_point(|&end| end <= layer);
                    passed = passed.max(layer + 1);
                }
                None if passed == last_layer => current = ends.len().saturating_sub(1),
                None => {}
            }
        }
        owners.push(current);
    }
    owners
}

/// For each value, whether another chunk than its own reads it.
fn crossing(graph: &Graph, owners: &[usize]) -> Vec<bool> {
    let mut crossing = vec![false; graph.values.len()];
    for (value, owner) in graph.values.iter().zip(owners) {
        if let Def::Op { args, .. } = &value.def {
            args.iter().for_each(|arg| crossing[arg.index()] |= owners[arg.index()] != *owner);
        }
    }
    crossing
}

/// A chunk under construction.
struct Cut<'a> {
    graph: &'a Graph,
    values: Vec<Value>,
    moved: BTreeMap<ValueId, ValueId>,
}

impl Cut<'_> {
    fn push(&mut self, id: ValueId, value: Value) -> ValueId {
        let new = ValueId(self.values.len() as u32);
        self.values.push(value);
        self.moved.insert(id, new);
        new
    }

    /// An operand: what the chunk has, or a copy of an input or weight, or what an earlier chunk hands over.
    fn operand(&mut self, id: ValueId) -> ValueId {
        if let Some(&known) = self.moved.get(&id) {
            return known;
        }
        let value = self.graph.value(id);
        let leaf = match value.def {
            Def::Input | Def::Weight => value.clone(),
            Def::Op { .. } => Value { name: carry(id), ty: Type::clone(&value.ty), def: Def::Input },
        };
        self.push(id, leaf)
    }
}

fn carry(id: ValueId) -> String {
    format!("carry.{}", id.0)
}

fn cut(graph: &Graph, owners: &[usize], crossing: &[bool], chunk: usize) -> Graph {
    let mut cut = Cut { graph, values: Vec::new(), moved: BTreeMap::new() };
    for id in graph.ids() {
        if let (Def::Op { op, args }, true) = (&graph.value(id).def, owners[id.index()] == chunk) {
            let args = args.iter().map(|&arg| cut.operand(arg)).collect();
            let value = Value { def: Def::Op { op: op.clone(), args }, ..graph.value(id).clone() };
            cut.push(id, value);
        }
    }
    let mut outputs = Vec::new();
    for (&id, &value) in &cut.moved {
        let own = owners[id.index()] == chunk && matches!(graph.value(id).def, Def::Op { .. });
        if own && crossing[id.index()] {
            outputs.push(Output { name: carry(id), value });
        }
    }
    for output in graph.outputs.iter().filter(|output| owners[output.value.index()] == chunk) {
        let value = cut.operand(output.value);
        outputs.push(Output { name: output.name.clone(), value });
    }
    Graph { name: format!("{}.{chunk}", graph.name), values: cut.values, outputs }
}

#[cfg(test)]
#[path = "chunk_tests.rs"]
mod tests;
