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
