//! The intermediate representation: one static graph of one step of a model.
//!
//! # Meaning
//!
//! A [`Graph`] is a list of [`Value`]s, each defined once, by an input, a weight or an operation on
//! earlier values; the list is in an order in which it can be computed. Every value has a fixed shape of
//! rank 1 to 4 and holds real numbers. A weight is a constant whose number format is part of its type;
//! an operation means its formula over the real numbers that its operands denote, whatever their format,
//! so a graph over quantised weights means the same computation on the dequantised ones. Operations are
//! the closed enum [`Op`]; each has one line of meaning there. There are no side effects, no
//! control flow and no hidden state: caches enter as inputs and leave as outputs.
//!
//! Arithmetic broadcasts as numpy does: shapes are aligned at the last axis and extents of 1 stretch.

use crate::tensor::{DType, Shape};

pub mod build;
pub mod infer;
pub mod op;
pub mod text;
pub mod verify;

#[cfg(test)]
pub(crate) mod arbitrary;
#[cfg(test)]
pub(crate) mod naive;
#[cfg(test)]
mod property_tests;

pub use build::GraphBuilder;
pub use op::Op;

/// The index of a value in [`Graph::values`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub u32);

impl ValueId {
    /// The position in [`Graph::values`].
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Number format and extents of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Type {
    /// The number format.
    pub dtype: DType,
    /// Extents, outermost first, rank 1 to 4.
    pub shape: Shape,
}

/// What a value is computed from.
#[derive(Clone, Debug, PartialEq)]
pub enum Def {
    /// A port that the caller fills at every step.
    Input,
    /// A constant, found by the value's name among the weights.
    Weight,
    /// An operation on earlier values.
    Op {
        /// The operation.
        op: Op,
        /// Its operands, in the order of the op table.
        args: Vec<ValueId>,
    },
}

/// One value of a graph.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// The port name of an input, the canonical name of a weight, or the path in the model of a
    /// computed value, e.g. `layers.0.self_attn.q_proj`. Inputs and weights have unique names; paths
    /// may repeat where one part of the model takes several operations.
    pub name: String,
    /// Its type.
    pub ty: Type,
    /// Its definition.
    pub def: Def,
}

/// A value that leaves the graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// The port name, unique among the outputs.
    pub name: String,
    /// The value.
    pub value: ValueId,
}

/// One step of a model, for fixed shapes.
#[derive(Clone, Debug, PartialEq)]
pub struct Graph {
    /// The name, e.g. `128t1024c`.
    pub name: String,
    /// Every value, operands before the operations that use them.
    pub values: Vec<Value>,
    /// The values that leave, in port order.
    pub outputs: Vec<Output>,
}

impl Graph {
    /// The value of that id.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.index()]
    }

    /// The ids of all values, in order.
    pub fn ids(&self) -> impl DoubleEndedIterator<Item = ValueId> + use<> {
        (0..self.values.len() as u32).map(ValueId)
    }
}
