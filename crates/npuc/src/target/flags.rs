//! The flags of the compiler that makes modules of graphs.

use std::collections::BTreeSet;

use super::{Precision, Target, WeightFormat};
use crate::ir::{Def, Graph, Value};
use crate::tensor::DType;

/// The flags that the target's compiler needs for a graph: those that go with the formats of all its projections, with the user's
/// `changes`: `--name=value` takes the place of what there is of that name, `--name=` removes it.
pub fn graph_flags(target: &Target, graph: &Graph, changes: &[String]) -> Vec<String> {
    let formats: BTreeSet<DType> = graph.values.iter().filter_map(|value| projected(graph, value)).collect();
    let precisions: Vec<Precision> = match formats.is_empty() {
        true => vec![Precision::stored(target.float)],
        false => formats.into_iter().map(|dtype| of_weights(target, dtype)).collect(),
    };
    let all = |flag: &&str| precisions.iter().all(|precision| target.flags_for(precision).contains(flag));
    let flags = target.flags_for(&precisions[0]).into_iter().filter(all);
    let mut flags: Vec<String> = flags.flat_map(str::split_whitespace).map(str::to_owned).collect();
    for change in changes {
        let name = change.split_inclusive('=').next().unwrap_or(change);
        let place = flags.iter().position(|flag| flag.starts_with(name));
        match (place, name != change) {
            (Some(place), true) => flags[place].clone_from(change),
            (None, true) => flags.push(change.clone()),
            (Some(place), false) => drop(flags.remove(place)),
            (None, false) => {}
        }
    }
    flags
}

fn of_weights(target: &Target, dtype: DType) -> Precision {
    Precision { weight: Some(WeightFormat::stored(dtype)), ..Precision::stored(target.float) }
}

/// The format of the matrix of a projection.
fn projected(graph: &Graph, value: &Value) -> Option<DType> {
    match &value.def {
        Def::Op { op, args } if op.is_projection() => args.get(1).map(|&weight| graph.value(weight).ty.dtype),
        Def::Op { .. } | Def::Input | Def::Weight => None,
    }
}
