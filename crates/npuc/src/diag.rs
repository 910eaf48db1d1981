//! What npuc says when something is wrong: one error type for every crate.
//!
//! A [`Diagnostic`] names what, where, need and have, and what to do; an [`Error`] is one or more of them.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// What a code means for the process: the exit status of the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The question was understood and the answer is no (misfit, unfaithful): exit 1.
    No,
    /// The command line is wrong: exit 2.
    Usage,
    /// A file or its content is wrong: exit 3.
    Input,
    /// A tool that the command needs is missing: exit 4.
    Tool,
}

impl Class {
    /// The exit status of this class.
    pub const fn exit_status(self) -> u8 {
        match self {
            Class::No => 1,
            Class::Usage => 2,
            Class::Input => 3,
            Class::Tool => 4,
        }
    }
}

macro_rules! codes {
    ($($(#[doc = $doc:literal])+ $name:ident $text:literal $class:ident,)+) => {
        /// The kinds of diagnostics. Each has a page `docs/diagnostics/<code>.md`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Code { $($(#[doc = $doc])+ $name,)+ }

        impl Code {
            /// Every code, in the order of the enum.
            pub const ALL: &'static [Code] = &[$(Code::$name,)+];

            /// The text form, e.g. `truncated-file`.
            pub const fn name(self) -> &'static str {
                match self { $(Code::$name => $text,)+ }
            }

            /// The page that explains the code, in Markdown.
            pub const fn page(self) -> &'static str {
                match self {
                    $(Code::$name => include_str!(concat!("../../../docs/diagnostics/", $text, ".md")),)+
                }
            }

            /// What the code means for the process.
            pub const fn class(self) -> Class {
                match self { $(Code::$name => Class::$class,)+ }
            }
        }
    };
}

codes! {
    /// A file or folder cannot be read.
    Unreadable "unreadable" Input,
    /// A file or folder cannot be written.
    Unwritable "unwritable" Input,
    /// The path holds nothing that npuc knows how to read.
    UnknownFormat "unknown-format" Input,
    /// A file ends before what its header promises.
    TruncatedFile "truncated-file" Input,
    /// A header is malformed.
    BadHeader "bad-header" Input,
    /// Tensor data overlaps, leaves the file or has the wrong size.
    BadOffsets "bad-offsets" Input,
    /// Two tensors or keys share a name.
    DuplicateName "duplicate-name" Input,
    /// A shard that the index names is absent.
    MissingShard "missing-shard" Input,
    /// One part of a split file was given alone.
    SplitPart "split-part" Input,
    /// A tensor is stored in a format npuc does not read.
    UnknownTensorType "unknown-tensor-type" Input,
    /// A configuration or metadata key is absent, malformed or contradicts another.
    BadConfig "bad-config" Input,
    /// The architecture is not one npuc builds.
    UnsupportedArchitecture "unsupported-architecture" Input,
    /// The rotary embedding has a type npuc does not build.
    UnsupportedRope "unsupported-rope" Input,
    /// The activation function is not one npuc builds.
    UnsupportedActivation "unsupported-activation" Input,
    /// The model attends over a sliding window.
    SlidingWindow "sliding-window" Input,
    /// A tensor that the model needs is absent.
    MissingTensor "missing-tensor" Input,
    /// A tensor has another shape than the configuration says.
    WrongShape "wrong-shape" Input,
    /// What is stored contradicts `tie_word_embeddings`.
    TiedHead "tied-head" Input,
    /// The checkpoint has tensors that the model does not use.
    UnusedTensors "unused-tensors" Input,
    /// A weight holds NaN or infinity.
    NonFiniteWeights "non-finite-weights" Input,
    /// The model has no tokenizer and the command needs one.
    NoTokenizer "no-tokenizer" Input,
    /// The tokenizer files are malformed or of a kind npuc does not read.
    BadTokenizer "bad-tokenizer" Input,
    /// The chat template is absent, malformed or refuses the messages.
    BadTemplate "bad-template" Input,
    /// A token id is outside the vocabulary.
    BadTokenId "bad-token-id" Input,
    /// Prompt and answer do not fit the context that was built.
    ContextExceeded "context-exceeded" Input,
    /// Audio is in a form, rate or number of channels that npuc does not read.
    UnsupportedAudio "unsupported-audio" Input,
    /// Audio has samples that are no numbers or far above full scale.
    BadSamples "bad-samples" Input,
    /// A step shape is malformed or impossible for the model.
    BadShape "bad-shape" Usage,
    /// An argument of the command line is malformed.
    BadArgument "bad-argument" Usage,
    /// IR text does not parse.
    IrSyntax "ir-syntax" Input,
    /// A graph breaks a rule of the IR.
    IrInvalid "ir-invalid" Input,
    /// A bundle's manifest is malformed, of another version or incomplete.
    BadBundle "bad-bundle" Input,
    /// A file of a bundle is not the file that was written.
    HashMismatch "hash-mismatch" Input,
    /// A recipe is malformed, has an unknown name or is about weights that are not there.
    BadRecipe "bad-recipe" Usage,
    /// A reference file lacks what the comparison needs or does not match the model.
    BadReference "bad-reference" Input,
    /// A target file is malformed.
    BadTarget "bad-target" Input,
    /// npuc can check against the target but not build for it.
    NoBackEnd "no-back-end" Usage,
    /// The target cannot take the model.
    Misfit "misfit" No,
    /// An extent of a tensor is larger than the target takes.
    DimensionLimit "dimension-limit" No,
    /// A tensor has more axes than the target takes.
    RankLimit "rank-limit" No,
    /// A projection computes a number of rows that the target does not take.
    BatchLimit "batch-limit" No,
    /// No unit of the target takes the operation.
    UnsupportedOp "unsupported-op" No,
    /// The target does not take this combination of activations and weights.
    UnsupportedFormat "unsupported-format" No,
    /// The target does not take heads of this width.
    HeadDim "head-dim" No,
    /// An extent is not the multiple that the target needs.
    ExtentMultiple "extent-multiple" No,
    /// The groups of a weight's scales do not divide its inputs.
    GroupSize "group-size" No,
    /// A graph has more operations than the target's tools take.
    OpCount "op-count" No,
    /// A graph has more ports than the target takes.
    BindingCount "binding-count" No,
    /// Something needs more bytes than the target has or takes.
    ByteLimit "byte-limit" No,
    /// A row does not fit the memory next to the arithmetic.
    OnChipLimit "on-chip-limit" No,
    /// Sums of products may leave the accumulator.
    AccumulatorRange "accumulator-range" No,
    /// Values may leave the range of binary16.
    Fp16Range "fp16-range" No,
    /// The vendor does not promise transformers on this generation.
    ChipGeneration "chip-generation" No,
    /// The vendor's compiler or runtime refuses what npuc made.
    VendorRefusal "vendor-refusal" No,
    /// The range of a value is not known, or no scale follows from it.
    BadRange "bad-range" Input,
    /// The outputs differ from the reference by more than the gate allows.
    Unfaithful "unfaithful" No,
    /// A workload or one of its requests is malformed or does not fit the model.
    BadWorkload "bad-workload" Input,
    /// A result file of a measurement is malformed, damaged, or of another run.
    BadRun "bad-run" Input,
    /// A measurement has not all requests, or was broken off in between.
    IncompleteRun "incomplete-run" No,
    /// An audit found that figures of a measurement cannot be trusted.
    UnsoundRun "unsound-run" No,
    /// The work needs more memory than there is.
    OutOfMemory "out-of-memory" Input,
    /// A tool that the command needs is not installed.
    MissingTool "missing-tool" Tool,
    /// A tool failed, stopped or did not answer in time.
    ToolFailed "tool-failed" Tool,
}

impl Code {
    /// The code of that [`Code::name`], if there is one.
    pub fn from_name(name: &str) -> Option<Code> {
        Code::ALL.iter().copied().find(|code| code.name() == name)
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for Code {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// Whether the work can go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The work stops.
    Error,
    /// The work goes on; the user should know.
    Warning,
}

/// One fault: what, where, the limit and the actual value, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Diagnostic {
    /// Whether the work can go on.
    pub severity: Severity,
    /// The kind of fault.
    pub code: Code,
    /// What is wrong, in one sentence without a full stop.
    pub message: String,
    /// The file it was found in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// The tensor, metadata key or value path it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// The 1-based line of the text (IR, JSON) it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<usize>,
    /// What was needed or allowed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub need: Option<String>,
    /// What was found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub have: Option<String>,
    /// What the user can do, the cheapest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub help: Vec<String>,
}

impl Diagnostic {
    /// A fault that stops the work.
    pub fn error(code: Code, message: impl Into<String>) -> Diagnostic {
        Diagnostic {
            severity: Severity::Error,
            code,
            message: message.into(),
            file: None,
            subject: None,
            line: None,
            need: None,
            have: None,
            help: Vec::new(),
        }
    }

    /// A fault that does not stop the work.
    pub fn warning(code: Code, message: impl Into<String>) -> Diagnostic {
        Diagnostic { severity: Severity::Warning, ..Diagnostic::error(code, message) }
    }

    /// The same fault where the work can go on all the same.
    pub fn into_warning(mut self) -> Diagnostic {
        self.severity = Severity::Warning;
        self
    }

    /// Names the file.
    pub fn file(mut self, file: impl AsRef<Path>) -> Diagnostic {
        self.file = Some(file.as_ref().to_path_buf());
        self
    }

    /// Names the tensor, key or value.
    pub fn subject(mut self, subject: impl Into<String>) -> Diagnostic {
        self.subject = Some(subject.into());
        self
    }

    /// Names the 1-based line.
    pub fn line(mut self, line: usize) -> Diagnostic {
        self.line = Some(line);
        self
    }

    /// States what was needed or allowed.
    pub fn need(mut self, need: impl fmt::Display) -> Diagnostic {
        self.need = Some(need.to_string());
        self
    }

    /// States what was found.
    pub fn have(mut self, have: impl fmt::Display) -> Diagnostic {
        self.have = Some(have.to_string());
        self
    }

    /// Adds something the user can do.
    pub fn help(mut self, help: impl Into<String>) -> Diagnostic {
        self.help.push(help.into());
        self
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        write!(f, "{severity}[{}]: {}", self.code, plain(&self.message))?;
        let file = self.file.as_ref().map(|file| match self.line {
            Some(line) => format!("{}:{line}", file.display()),
            None => file.display().to_string(),
        });
        let line = self.line.filter(|_| self.file.is_none()).map(|line| format!("line {line}"));
        let place: Vec<String> = file.into_iter().chain(line).chain(self.subject.clone()).collect();
        if !place.is_empty() {
            write!(f, "\n  --> {}", plain(&place.join(": ")))?;
        }
        for (label, text) in [("need", &self.need), ("have", &self.have)] {
            if let Some(text) = text {
                write!(f, "\n  = {label}: {}", plain(text))?;
            }
        }
        for help in &self.help {
            write!(f, "\n  = help: {}", plain(help))?;
        }
        Ok(())
    }
}

/// The text with control characters escaped: names from files must not drive the user's terminal.
fn plain(text: &str) -> String {
    let escape = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(escape).collect()
}

/// One or more faults that stopped the work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.iter().map(Diagnostic::to_string).collect::<Vec<_>>().join("\n"))]
pub struct Error(Vec<Diagnostic>);

/// The result of everything in npuc that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// The faults, at least one.
    pub fn diagnostics(&self) -> &[Diagnostic] {
        &self.0
    }

    /// `Ok` if there are no faults, all of them otherwise.
    pub fn check(faults: Vec<Diagnostic>) -> Result<()> {
        if faults.is_empty() { Ok(()) } else { Err(Error(faults)) }
    }

    /// The exit status that the worst fault calls for.
    pub fn exit_status(&self) -> u8 {
        self.0.iter().map(|d| d.code.class().exit_status()).max().unwrap_or(3)
    }

    /// The same faults, with `file` named where none is.
    pub fn in_file(mut self, file: &Path) -> Error {
        for fault in &mut self.0 {
            fault.file.get_or_insert_with(|| file.to_path_buf());
        }
        self
    }
}

impl From<Diagnostic> for Error {
    fn from(fault: Diagnostic) -> Error {
        Error(vec![fault])
    }
}
