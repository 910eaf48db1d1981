//! Writing a graph by hand: models are built with it.
//!
//! A misuse (operands that do not fit, two values under one name) is a fault of the code that builds, not
//! of its data: every method panics on it and says why. Configurations are checked before a model is built.

use std::collections::HashMap;

use super::infer::{check_type, infer};
use super::{Def, Graph, Op, Output, Type, Value, ValueId};
use crate::diag::Result;
use crate::tensor::{DType, Shape};

/// A graph under construction.
#[derive(Debug)]
pub struct GraphBuilder {
    graph: Graph,
    /// Inputs and weights by name.
    named: HashMap<String, ValueId>,
}

impl GraphBuilder {
    /// An empty graph.
    pub fn new(name: impl Into<String>) -> GraphBuilder {
        let graph = Graph { name: name.into(), values: Vec::new(), outputs: Vec::new() };
        GraphBuilder { graph, named: HashMap::new() }
    }

    /// A new f32 input.
    #[track_caller]
    pub fn input(&mut self, name: impl Into<String>, shape: impl Into<Shape>) -> ValueId {
        let name = name.into();
        assert!(!self.named.contains_key(&name), "input `{name}` is named twice");
        self.leaf(name, Type { dtype: DType::F32, shape: shape.into() }, Def::Input)
    }

    /// The weight of that name; asking again with the same type gives the same value.
    #[track_caller]
    pub fn weight(&mut self, name: impl Into<String>, dtype: DType, shape: impl Into<Shape>) -> ValueId {
        let (name, ty) = (name.into(), Type { dtype, shape: shape.into() });
        match self.named.get(&name) {
            None => self.leaf(name, ty, Def::Weight),
            Some(&id) => {
                let known = self.graph.value(id);
                assert!(known.def == Def::Weight, "`{name}` is already an input");
                assert!(known.ty == ty, "`{name}` is already {}, not {ty}", known.ty);
                id
            }
        }
    }

    /// The result of `op`; `path` names the part of the model it belongs to.
    #[track_caller]
    pub fn op(&mut self, path: impl Into<String>, op: Op, args: &[ValueId]) -> ValueId {
        let path = path.into();
        let types: Vec<&Type> = args.iter().map(|&id| &self.graph.value(id).ty).collect();
        match infer(&op, &types) {
            Ok(ty) => self.push(Value { name: path, ty, def: Def::Op { op, args: args.to_vec() } }),
            Err(why) => panic!("{path}: {why}"),
        }
    }

    /// Lets `value` leave under `name`.
    #[track_caller]
    pub fn output(&mut self, name: impl Into<String>, value: ValueId) {
        let name = name.into();
        assert!(self.graph.outputs.iter().all(|output| output.name != name), "output `{name}` is named twice");
        assert!(value.index() < self.graph.values.len(), "output `{name}` is no value of this graph");
        self.graph.outputs.push(Output { name, value });
    }

    /// The values of `graph`, whose inputs are what `input` says; gives where each is here. Its outputs are not taken.
    ///
    /// Errors: those of `input`.
    #[track_caller]
    pub fn append(&mut self, graph: &Graph, mut input: impl FnMut(&Value) -> Result<ValueId>) -> Result<Vec<ValueId>> {
        let mut moved: Vec<ValueId> = Vec::with_capacity(graph.values.len());
        for value in &graph.values {
            moved.push(match &value.def {
                Def::Input => input(value)?,
                Def::Weight => self.weight(value.name.clone(), value.ty.dtype, value.ty.shape.clone()),
                Def::Op { op, args } => {
                    let args: Vec<ValueId> = args.iter().map(|arg| moved[arg.index()]).collect();
                    self.op(value.name.clone(), op.clone(), &args)
                }
            });
        }
        Ok(moved)
    }

    /// The extents of `value`.
    #[track_caller]
    pub fn shape(&self, value: ValueId) -> &[usize] {
        &self.graph.value(value).ty.shape
    }

    /// The number format of `value`.
    #[track_caller]
    pub fn dtype(&self, value: ValueId) -> DType {
        self.graph.value(value).ty.dtype
    }

    /// The graph.
    pub fn finish(self) -> Graph {
        self.graph
    }

    #[track_caller]
    fn leaf(&mut self, name: String, ty: Type, def: Def) -> ValueId {
        if let Err(why) = check_type(&ty) {
            panic!("{name}: {why}");
        }
        let id = self.push(Value { name: name.clone(), ty, def });
        self.named.insert(name, id);
        id
    }

    fn push(&mut self, value: Value) -> ValueId {
        let id = u32::try_from(self.graph.values.len()).expect("a graph has fewer than 2^32 values");
        self.graph.values.push(value);
        ValueId(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::text::print;
    use crate::ir::verify::verify;

    #[test]
    fn a_built_graph_is_valid_and_shares_weights() {
        let mut g = GraphBuilder::new("g");
        let x = g.input("x", [2, 4]);
        let w = g.weight("w", DType::F32, [4]);
        assert_eq!(g.weight("w", DType::F32, [4]), w);
        let y = g.op("norm", Op::RmsNorm { eps: 0.5 }, &[x, w]);
        assert_eq!((g.shape(y), g.dtype(y)), (&[2, 4][..], DType::F32));
        g.output("y", y);
        let graph = g.finish();
        verify(&graph).unwrap();
        let text = r#"graph "g" {
  %0 = input "x" : f32[2, 4]
  %1 = weight "w" : f32[4]
  %2 = rms_norm(%0, %1) {eps = 0.5} : f32[2, 4] @ "norm"
  output "y" = %2
}
"#;
        assert_eq!(print(&graph), text);
    }

    #[test]
    fn misuse_says_why() {
        type Misuse = fn(&mut GraphBuilder, ValueId);
        let misuses: [(Misuse, &str); 6] = [
            (|g, _| _ = g.input("x", [1]), "input `x` is named twice"),
            (|g, _| _ = g.input("y", [0]), "y: f32[0] has an extent of zero"),
            (|g, _| _ = g.weight("x", DType::F32, [2]), "`x` is already an input"),
            (|g, x| _ = g.op("p", Op::Sum { axis: 1 }, &[x]), "p: `sum` needs an axis below the rank 1, and it is 1"),
            (|g, _| g.output("o", ValueId(7)), "output `o` is no value of this graph"),
            (|g, x| (0..2).for_each(|_| g.output("o", x)), "output `o` is named twice"),
        ];
        for (misuse, expected) in misuses {
            let panic = std::panic::catch_unwind(|| {
                let mut g = GraphBuilder::new("g");
                let x = g.input("x", [2]);
                misuse(&mut g, x);
            });
            assert_eq!(panic.unwrap_err().downcast_ref::<String>().map(String::as_str), Some(expected));
        }
    }
}
