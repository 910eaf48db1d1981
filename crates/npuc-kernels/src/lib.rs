//! Row kernels over stored weight formats: they know slices and formats, no graph and no file layout.
//!
//! Every kernel has a portable form and, where it matters, an AVX2 form chosen at run time; both are
//! held to the same tests. This is one of the two places in npuc where `unsafe` is allowed.

pub mod format;
pub mod map;

pub use format::DType;
