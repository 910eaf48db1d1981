//! Back ends: each turns checked graphs into the files its target's tools read.

pub mod host;

/// A file that a back end emits, relative to the bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Emitted {
    /// The path, with `/` between folders.
    pub path: String,
    /// The content.
    pub bytes: Vec<u8>,
}
