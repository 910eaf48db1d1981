//! What a worker and the process that started it say to each other: JSON behind the kind of a message, but for the numbers of a run.

use std::path::PathBuf;

use npuc::back::qnn::description::{DataType, ScaleOffset};
use npuc::{Code, Diagnostic, Error};
use serde::{Deserialize, Serialize};

use super::profile::{Profile, Told};

/// The kind of a request to load the libraries of a folder: [`Open`]; answered with [`super::Versions`].
pub(super) const OPEN: u8 = b'O';
/// The kind of a request to prepare a context: [`Prepare`]; answered with [`Prepared`].
pub(super) const PREPARE: u8 = b'P';
/// The kind of a request to load a context binary: [`Binary`]; answered with [`Prepared`].
pub(super) const LOAD: u8 = b'L';
/// The kind of a request to execute a graph: context and graph (u32 each), then the input ports' bytes; answered with the output ports'.
pub(super) const RUN: u8 = b'R';
/// The kind of a request to read a context binary: [`Binary`]; answered with [`super::ContextInfo`].
pub(super) const INFO: u8 = b'I';
/// The kind of a request to free a context: its number (u32); answered with nothing.
pub(super) const FREE: u8 = b'F';
/// The kind of an answer.
pub(super) const ANSWER: u8 = b'A';

/// Loads libraries.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Open {
    pub(super) libraries: PathBuf,
    /// Whether the HTP back end is needed; without it only context binaries are read.
    pub(super) back_end: bool,
}

/// How graphs are prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// How much work goes into a graph: 0 to 3.
    pub optimisation: u8,
}

impl Default for Options {
    fn default() -> Options {
        Options { optimisation: 3 }
    }
}

/// Where a weight lies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stored {
    /// The name, as descriptions say it.
    pub name: String,
    /// The name of its format.
    pub dtype: String,
    /// Its extents.
    pub shape: Vec<usize>,
    /// The file.
    pub file: PathBuf,
    /// Where its bytes begin there.
    pub offset: u64,
}

/// Prepares a context.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prepare {
    /// The chip's number, e.g. 57 for SM8650.
    pub soc: u32,
    /// Whether graphs keep equal weights once. A binary of such a context loads on the chip only.
    pub shared: bool,
    /// How graphs are prepared.
    pub options: Options,
    /// The files of the graphs' descriptions.
    pub descriptions: Vec<PathBuf>,
    /// The weights that they name.
    pub weights: Vec<Stored>,
    /// Where the context binary goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binary: Option<PathBuf>,
    /// Whether the graphs stay for execution.
    pub keep: bool,
    /// What the library is asked to tell of each graph.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<Profile>,
}

/// A context binary to be loaded or read.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Binary {
    pub(super) binary: PathBuf,
}

/// A context that is there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Prepared {
    /// Its number, if it stays.
    pub(super) context: Option<u32>,
    pub(super) graphs: Vec<PreparedGraph>,
    /// The size of the context binary, if it was asked for.
    pub(super) binary_bytes: Option<u64>,
    /// The most memory that the worker has had so far.
    pub(super) peak_bytes: Option<u64>,
}

/// A graph of such a context.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PreparedGraph {
    pub(super) name: String,
    pub(super) nodes: usize,
    /// How long its tensors and nodes took.
    pub(super) compose_ms: u64,
    /// How long its preparation took.
    pub(super) finalize_ms: u64,
    pub(super) inputs: Vec<Port>,
    pub(super) outputs: Vec<Port>,
    /// What the library told of it, if it was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) told: Option<Told>,
}

/// A port.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Port {
    pub(super) name: String,
    pub(super) dtype: DataType,
    pub(super) shape: Vec<u32>,
    pub(super) encoding: Option<ScaleOffset>,
}

/// A fault as it travels.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Fault {
    code: String,
    message: String,
    file: Option<PathBuf>,
    subject: Option<String>,
    need: Option<String>,
    have: Option<String>,
    help: Vec<String>,
}

/// An error as it travels.
pub(super) fn faults(error: &Error) -> Vec<Fault> {
    let fault = |fault: &Diagnostic| Fault {
        code: fault.code.name().into(),
        message: fault.message.clone(),
        file: fault.file.clone(),
        subject: fault.subject.clone(),
        need: fault.need.clone(),
        have: fault.have.clone(),
        help: fault.help.clone(),
    };
    error.diagnostics().iter().map(fault).collect()
}

impl From<Fault> for Diagnostic {
    fn from(fault: Fault) -> Diagnostic {
        let code = Code::from_name(&fault.code).unwrap_or(Code::ToolFailed);
        let Fault { code: _, message, file, subject, need, have, help } = fault;
        Diagnostic { file, subject, need, have, help, ..Diagnostic::error(code, message) }
    }
}
