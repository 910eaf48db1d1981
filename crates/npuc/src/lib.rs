//! npuc, the compiler: checkpoint → IR → target files. Pure: no clock, environment, network or terminal.
//!
//! The stages are the modules, in the order the data takes: [`front`] reads checkpoints, [`model`]
//! builds graphs of the [`ir`], later stages rewrite, check, emit and run them.

pub mod back;
pub mod build;
pub mod bundle;
pub mod diag;
pub mod exec;
pub mod fit;
pub mod front;
pub mod ir;
pub mod mend;
pub mod model;
pub mod pass;
pub mod place;
pub mod quant;
pub mod synth;
pub mod target;
pub mod tensor;

pub use diag::{Code, Diagnostic, Error, Result};
pub use tensor::{DType, Shape, Tensor};
