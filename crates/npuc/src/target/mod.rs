//! Targets: what a chip takes. A target knows graphs and rules, never a model.

use crate::diag::{Code, Diagnostic, Result};
use crate::model::CacheProtocol;

pub mod check;

pub use check::{Checked, check};

/// A chip, or the host, that npuc builds for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The name on the command line and in manifests.
    pub name: &'static str,
    /// One line for people.
    pub summary: &'static str,
    /// How caches travel between its steps.
    pub protocol: CacheProtocol,
}

/// The machine npuc runs on, with f32 arithmetic over weights as they are stored.
pub const HOST: Target = Target {
    name: "host",
    summary: "this machine's CPU: f32 arithmetic over weights as they are stored",
    protocol: CacheProtocol::Append,
};

/// Every target npuc builds for.
pub const TARGETS: &[Target] = &[HOST];

/// The target of that name.
pub fn find(name: &str) -> Result<Target> {
    TARGETS.iter().copied().find(|target| target.name == name).ok_or_else(|| {
        let known: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
        Diagnostic::error(Code::BadArgument, "npuc does not know this target")
            .need(format!("one of: {}", known.join(", ")))
            .have(name)
            .into()
    })
}
