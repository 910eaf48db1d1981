//! Back ends: each turns checked graphs into the files its target's tools read.

use serde::{Deserialize, Serialize};

use crate::diag::{Code, Diagnostic, Error};
use crate::ir::{Graph, Op};
use crate::model::{Port, StateKind, StepShape};
use crate::quant::Encodings;

mod chunk;
pub mod gguf;
pub mod host;
pub mod qnn;
mod rotary;
pub mod shell;
pub mod stablehlo;
pub mod tflite;

pub use chunk::Chunk;
pub use rotary::ROTARY;

use tflite::TfliteFile;

/// A back end, as target files name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BackEnd {
    /// IR text for the host executor.
    Host,
    /// TFLite files for MediaTek's compiler and LiteRT.
    Tflite,
    /// Descriptions of graphs for Qualcomm's QNN libraries, which make context binaries of them.
    Qnn,
    /// StableHLO modules for IREE.
    Iree,
    /// StableHLO modules for Synaptics' Torq compiler.
    Torq,
}

impl BackEnd {
    /// The name in target files.
    pub const fn name(self) -> &'static str {
        match self {
            BackEnd::Host => "host",
            BackEnd::Tflite => "tflite",
            BackEnd::Qnn => "qnn",
            BackEnd::Iree => "iree",
            BackEnd::Torq => "torq",
        }
    }

    /// Whether the back end can emit the operation of that name.
    pub fn emits(self, op: &str) -> bool {
        match self {
            BackEnd::Host => Op::NAMES.contains(&op),
            BackEnd::Tflite => tflite::emits(op),
            BackEnd::Qnn => qnn::emits(op),
            BackEnd::Iree | BackEnd::Torq => stablehlo::emits(op),
        }
    }
}

/// The form of a graph that a target's tools read.
#[derive(Debug)]
pub enum EmittedFile {
    /// A TFLite file with its weights.
    Tflite(TfliteFile),
    /// A description over the bundle's weights.
    Qnn(qnn::Description),
    /// A module of StableHLO.
    Module(stablehlo::Module),
}

/// A graph as it goes into a bundle.
#[derive(Debug)]
pub struct Emitted {
    /// Its step shape.
    pub shape: StepShape,
    /// The graph over the weights as the bundle stores them; its text is what the host executes.
    pub graph: Graph,
    /// The same in the form of the target's tools, with the path inside the bundle.
    pub file: Option<(String, EmittedFile)>,
    /// What the file's whole numbers mean, so that the host computes in them too.
    pub encodings: Option<Encodings>,
}

impl Emitted {
    /// The path and the module, if the graph has that form.
    pub fn module(&self) -> Option<(&str, &stablehlo::Module)> {
        match &self.file {
            Some((path, EmittedFile::Module(module))) => Some((path, module)),
            Some((_, EmittedFile::Tflite(_) | EmittedFile::Qnn(_))) | None => None,
        }
    }

    /// The TFLite file, if the graph has that form.
    pub fn tflite(&self) -> Option<&TfliteFile> {
        match &self.file {
            Some((_, EmittedFile::Tflite(file))) => Some(file),
            Some((_, EmittedFile::Qnn(_) | EmittedFile::Module(_))) | None => None,
        }
    }
}

/// The refusal of a port that holds what convolutions keep; `None` for any other port.
fn convolution_state(port: Port, message: &str) -> Option<Error> {
    let is_state = matches!(
        port,
        Port::History | Port::Past(StateKind::Conv, _) | Port::New(StateKind::Conv, _) | Port::Next(StateKind::Conv, _)
    );
    let fault = || {
        Diagnostic::error(Code::UnsupportedArchitecture, message)
            .subject(port.to_string())
            .need("a model whose layers all have attention, as in the Llama family")
            .have("a layer with a short convolution, as LFM2 has them")
            .help("build it for a target without such ports, e.g. --target host; `npuc targets` lists them")
            .into()
    };
    is_state.then(fault)
}
