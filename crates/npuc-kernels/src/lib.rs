//! Row kernels over stored weight formats: they know slices and formats, no graph and no file layout.
//!
//! Every kernel has a portable form and, where it matters, an AVX2 form chosen at run time; both are
//! held to the same tests. This is one of the two places in npuc where `unsafe` is allowed.

#[cfg(target_endian = "big")]
compile_error!("the stored formats are little endian, and so must be the host");

pub mod attention;
pub mod dequant;
pub mod format;
mod gemm;
pub mod integer;
pub mod level;
pub mod linear;
pub mod lines;
pub mod map;
pub mod matmul;
pub mod quantize;
mod scratch;
#[cfg(test)]
mod testing;
pub mod vector;

pub use format::DType;
pub use level::Level;
