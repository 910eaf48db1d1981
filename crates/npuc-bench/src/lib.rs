//! Latency of a model under a workload: measured in one session, request by request, so that a run can be resumed, audited and
//! reported.
//!
//! A run is [`runner::run`] over a [`workload::Workload`] into a file of [`record`] lines that [`chain`] each other. [`audit()`] and
//! [`report()`] take a [`results::Results`], which is such a file or another tool's. docs/workload.md defines the formats.

pub mod audit;
pub mod chain;
pub mod clock;
pub mod foreign;
pub mod host;
pub mod json;
pub mod mapping;
pub mod measure;
pub mod read;
pub mod record;
pub mod report;
pub mod results;
pub mod resume;
pub mod runner;
pub mod sensors;
pub mod serve;
pub mod slo;
pub mod stats;
pub mod workload;

pub use audit::audit;
pub use report::report;
