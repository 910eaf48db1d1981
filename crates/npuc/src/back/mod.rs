//! Back ends: each turns checked graphs into the files its target's tools read.

use serde::{Deserialize, Serialize};

use crate::ir::Op;

pub mod host;
pub mod tflite;

/// A back end, as target files name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BackEnd {
    /// IR text for the host executor.
    Host,
}

impl BackEnd {
    /// The name in target files.
    pub const fn name(self) -> &'static str {
        match self {
            BackEnd::Host => "host",
        }
    }

    /// Whether the back end can emit the operation of that name.
    pub fn emits(self, op: &str) -> bool {
        match self {
            BackEnd::Host => Op::NAMES.contains(&op),
        }
    }
}

/// A file that a back end emits, relative to the bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Emitted {
    /// The path, with `/` between folders.
    pub path: String,
    /// The content.
    pub bytes: Vec<u8>,
}
