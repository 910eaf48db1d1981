//! The QNN back end: every graph as a neutral description that a worker process replays through Qualcomm's libraries.

pub mod check;
pub mod description;
mod emit;
mod export;
mod ops;
mod ports;
pub mod weights;

pub use check::check;
pub use description::Description;
pub use emit::emit;
pub use export::{Activations, Exported, chunks, export, forecast_bytes};
pub(crate) use ops::emits;
pub use ports::contract;

/// What the name of an output ends with where an input has the same: QNN wants a name of its own for every tensor, and a context between
/// two others takes and gives `hidden`.
const OUT: &str = ".out";

/// The port that an output tensor of a QNN graph is.
pub fn output_port(tensor: &str) -> &str {
    tensor.strip_suffix(OUT).unwrap_or(tensor)
}
