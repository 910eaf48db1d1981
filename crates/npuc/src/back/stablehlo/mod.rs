//! The StableHLO back end: step graphs as MLIR text for IREE and for Synaptics' Torq compiler, which is built on it.
//!
//! The text is small and deterministic; weights are parameters in a safetensors file, or constants that are written into
//! the text piece by piece. What the compilers can and cannot take was measured with IREE 3.13.0 and torq-compile 2.3.0.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::tensor::DType;

mod cache;
mod constant;
mod emit;
mod export;
mod module;
mod ops;
mod parameters;
mod projection;

#[cfg(test)]
mod tests;

pub use constant::Constant;
pub use emit::{SCOPE, Style, emit, emit_traced};
pub use export::{DESCRIPTION, Exported, PARAMETERS, export};
pub use module::Module;
pub use parameters::{Entry, Parameters};

/// Whose compiler reads the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Dialect {
    /// IREE, for CPUs and GPUs: activations in f32.
    Iree,
    /// Torq: activations in bf16, weights in the text.
    Torq,
}

impl Dialect {
    /// The elements of activations and ports.
    pub const fn activation(self) -> Element {
        match self {
            Dialect::Iree => Element::F32,
            Dialect::Torq => Element::Bf16,
        }
    }

    /// The folder of the modules in a bundle.
    pub const fn folder(self) -> &'static str {
        match self {
            Dialect::Iree => "iree",
            Dialect::Torq => "torq",
        }
    }
}

/// Which operand of a product a plain matrix of weights is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Side {
    /// `W · x`: IREE reads the matrix as it is stored.
    #[default]
    Left,
    /// `x · Wᵀ`: faster steps on x86, but IREE keeps a second, transposed copy of the weights and takes longer to load.
    Right,
}

/// How Torq multiplies with weights in blocks. The numbers are the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Products {
    /// Each matrix by itself.
    Apart,
    /// Matrices of the same values as one, whose result is cut, where none is wider than what it reads: queries, keys and values.
    #[default]
    Joined,
    /// Each matrix as two, whose results are joined.
    Halved,
}

/// How Torq writes new rows into caches. The numbers are the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CacheWrites {
    /// Chosen where the mask says so, a few heads at a time.
    #[default]
    Chosen,
    /// As the graph has it: what stays and what is new, multiplied with the mask and added.
    Added,
}

/// Where the weights of a module are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Storage {
    /// In the text.
    Inline,
    /// In a safetensors file beside it, in the formats of the recipe.
    External,
}

/// The elements of a tensor, as MLIR writes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Element {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// The upper half of a binary32.
    Bf16,
    /// Signed bytes.
    I8,
    /// Signed half bytes, the first of two in the low half.
    I4,
}

impl Element {
    /// The name in MLIR.
    pub const fn name(self) -> &'static str {
        match self {
            Element::F32 => "f32",
            Element::F16 => "f16",
            Element::Bf16 => "bf16",
            Element::I8 => "i8",
            Element::I4 => "i4",
        }
    }

    /// Bits of an element.
    pub const fn bits(self) -> usize {
        match self {
            Element::F32 => 32,
            Element::F16 | Element::Bf16 => 16,
            Element::I8 => 8,
            Element::I4 => 4,
        }
    }

    /// The elements of a plain stored format; `None` for blocks.
    pub const fn of(dtype: DType) -> Option<Element> {
        match dtype {
            DType::F32 => Some(Element::F32),
            DType::F16 => Some(Element::F16),
            DType::BF16 => Some(Element::Bf16),
            DType::Q4_0 | DType::Q4_1 | DType::Q5_0 | DType::Q5_1 | DType::Q8_0 => None,
            DType::Q2K | DType::Q3K | DType::Q4K | DType::Q5K | DType::Q6K => None,
            DType::Int8 | DType::Int4 | DType::Lpbq4(_) | DType::Bw4(_) => None,
        }
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A port of a module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModulePort {
    /// The name in the step graph.
    pub name: String,
    /// The extents.
    pub shape: Vec<usize>,
    /// The elements.
    pub element: Element,
}

/// The type of a tensor in MLIR, e.g. `tensor<1x64xf32>`.
fn tensor_type(shape: &[usize], element: Element) -> String {
    let extents: String = shape.iter().map(|extent| format!("{extent}x")).collect();
    format!("tensor<{extents}{element}>")
}

/// Whether the back end can emit the operation of that name.
pub fn emits(op: &str) -> bool {
    const EMITTED: &[&str] = &[
        "linear",
        "short_conv",
        "matmul",
        "softmax",
        "sigmoid",
        "exp",
        "abs",
        "rsqrt",
        "affine",
        "add",
        "sub",
        "mul",
        "div",
        "sum",
        "mean",
        "max",
        "concat",
        "slice",
        "reshape",
        "transpose",
    ];
    EMITTED.contains(&op)
}
