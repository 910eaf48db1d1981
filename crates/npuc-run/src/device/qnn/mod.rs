//! Qualcomm's QNN libraries: descriptions of graphs are prepared for a chip's HTP, saved as context binaries, and executed.
//!
//! The libraries can crash on what they do not understand. They are loaded by a process of its own ([`worker`]); [`Qnn`] is that process
//! seen from here.

use std::collections::BTreeMap;

mod abi;
mod client;
pub mod compare;
pub mod info;
mod library;
mod profile;
mod protocol;
mod refusal;
mod replay;
mod schematic;
mod spill;
mod system;
mod tensor;
mod words;
mod worker;

pub use client::{Context, Graph, Qnn, Start, TIME_LIMIT};
pub use library::{HTP, SYSTEM, Versions};
pub use profile::{Bounds, Estimate, Profile, Told, Traffic};
pub use protocol::{Options, Prepare, Stored};
pub use worker::worker;

/// The variable that names a folder of Qualcomm's libraries other than the fetched ones: the user's own, or those of a device.
pub const LIBRARIES_VARIABLE: &str = "NPUC_QNN_LIBRARIES";

/// Weights by name.
type Weights = BTreeMap<String, npuc::Tensor>;
