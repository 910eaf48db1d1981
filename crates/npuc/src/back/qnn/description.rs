//! A graph as QNN's interface takes it, without the interface: what a worker process replays call by call.
//!
//! A description holds no weights. It names them, and [`weights`](super::weights) puts their numbers into QNN's form.

use serde::{Deserialize, Serialize};

use crate::diag::{Code, Diagnostic, Result};

/// The data types that npuc uses, of which QNN has more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DataType {
    /// Fixed point, signed 8 bits. Four-bit weights too, one number a byte.
    S8,
    /// Fixed point, 8 bits.
    U8,
    /// Fixed point, 16 bits.
    U16,
    /// Fixed point, signed 32 bits: biases.
    S32,
    /// IEEE half.
    F16,
    /// IEEE single.
    F32,
    /// Whole numbers, signed 32 bits.
    I32,
    /// Whole numbers, 32 bits: axes and permutations.
    U32,
}

impl DataType {
    /// Every data type, in the order of the enum.
    pub const ALL: [DataType; 8] = [
        DataType::S8,
        DataType::U8,
        DataType::U16,
        DataType::S32,
        DataType::F16,
        DataType::F32,
        DataType::I32,
        DataType::U32,
    ];

    /// The name in descriptions, e.g. `u16`.
    pub const fn name(self) -> &'static str {
        match self {
            DataType::S8 => "s8",
            DataType::U8 => "u8",
            DataType::U16 => "u16",
            DataType::S32 => "s32",
            DataType::F16 => "f16",
            DataType::F32 => "f32",
            DataType::I32 => "i32",
            DataType::U32 => "u32",
        }
    }

    /// The size of an element.
    pub const fn bytes(self) -> usize {
        match self {
            DataType::S8 | DataType::U8 => 1,
            DataType::U16 | DataType::F16 => 2,
            DataType::S32 | DataType::F32 | DataType::I32 | DataType::U32 => 4,
        }
    }
}

/// What the fixed-point numbers of a tensor mean: `(q + offset) * scale`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScaleOffset {
    /// The size of a step.
    pub scale: f32,
    /// What is added to a number.
    pub offset: i32,
}

/// Where a tensor's numbers come from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Role {
    /// The caller fills it.
    Input,
    /// The caller reads it.
    Output,
    /// A node computes it for others.
    Native,
    /// These whole numbers, as they are.
    Numbers(Vec<i64>),
    /// These real numbers, in the tensor's data type and encoding.
    Reals(Vec<f32>),
    /// The weight of that name, in the tensor's data type and encoding.
    Weight(String),
    /// The matrix `[out, in]` of that name as the filter `[1, 1, in, out]` of a convolution. Its encoding follows from the
    /// format that it is stored in.
    Filter(String),
    /// The same for f16 activations, which whole scales of blocks have no form for: they become float blocks.
    FloatFilter(String),
}

/// A tensor of a graph.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tensor {
    /// The name, unique in the graph: a port's, or `<path>/<operation>.<value>`, which leads back to the line of the IR.
    pub name: String,
    /// Where its numbers come from.
    pub role: Role,
    /// Its data type.
    pub dtype: DataType,
    /// Its extents, outermost first.
    pub shape: Vec<u32>,
    /// What its numbers mean; absent for floats, for whole numbers and for filters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encoding: Option<ScaleOffset>,
}

/// A parameter of a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Param {
    /// A switch.
    Bool(bool),
    /// A whole number.
    U32(u32),
    /// A signed whole number.
    I32(i32),
    /// A real number.
    F32(f32),
    /// The static tensor of that place.
    Tensor(usize),
}

/// An operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// The name, unique in the graph: that of its first output.
    pub name: String,
    /// QNN's name of the operation.
    pub op: String,
    /// Its parameters by QNN's names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub params: Vec<(String, Param)>,
    /// The places of its operands among the tensors.
    pub inputs: Vec<usize>,
    /// The places of its results.
    pub outputs: Vec<usize>,
}

impl Node {
    /// The places of the tensors among its parameters.
    pub fn param_tensors(&self) -> impl Iterator<Item = usize> {
        self.params.iter().filter_map(|(_, param)| match param {
            Param::Tensor(at) => Some(*at),
            Param::Bool(_) | Param::U32(_) | Param::I32(_) | Param::F32(_) => None,
        })
    }
}

/// A graph.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Description {
    /// The name in the context binary.
    pub name: String,
    /// The tensors; ports in the order in which they are passed.
    pub tensors: Vec<Tensor>,
    /// The operations, in the order of the computation.
    pub nodes: Vec<Node>,
}

impl Description {
    /// The input ports, in order.
    pub fn inputs(&self) -> impl Iterator<Item = &Tensor> {
        self.tensors.iter().filter(|tensor| tensor.role == Role::Input)
    }

    /// The output ports, in order.
    pub fn outputs(&self) -> impl Iterator<Item = &Tensor> {
        self.tensors.iter().filter(|tensor| tensor.role == Role::Output)
    }

    /// The text of its file: JSON with a tensor or node a line.
    pub fn to_text(&self) -> String {
        let name = line(&self.name);
        let tensors: Vec<String> = self.tensors.iter().map(line).collect();
        let nodes: Vec<String> = self.nodes.iter().map(line).collect();
        let (tensors, nodes) = (tensors.join(",\n"), nodes.join(",\n"));
        format!("{{\"name\":{name},\n\"tensors\":[\n{tensors}\n],\n\"nodes\":[\n{nodes}\n]}}\n")
    }

    /// Reads such a text.
    ///
    /// Errors: [`Code::BadBundle`] for what is no description.
    pub fn parse(text: &str) -> Result<Description> {
        let fault = |e: serde_json::Error| {
            Diagnostic::error(Code::BadBundle, format!("the description of a QNN graph does not parse: {e}"))
        };
        Ok(serde_json::from_str(text).map_err(fault)?)
    }
}

fn line<T: Serialize>(item: &T) -> String {
    serde_json::to_string(item).expect("a description has only text keys and plain values")
}
