//! The rules of a target file: closed kinds of limits, each with its conditions, source and grade.
//!
//! A kind of limit says what is measured; a target file says the numbers. [`super::check()`] does the measuring.

use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};

use serde::{Deserialize, Deserializer, Serialize};

use super::number::{Number, Precision, WeightFormat};
use crate::diag::{Code, Severity};
use crate::ir::Op;
use crate::pass::Pass;

/// The name of an operation of the IR.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct OpName(pub &'static str);

impl<'de> Deserialize<'de> for OpName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<OpName, D::Error> {
        let name = String::deserialize(deserializer)?;
        let known = Op::NAMES.iter().find(|known| **known == name);
        known.map(|known| OpName(known)).ok_or_else(|| {
            serde::de::Error::custom(format!("unknown operation `{name}`; known are {}", Op::NAMES.join(", ")))
        })
    }
}

/// A text that says something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Text(pub String);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Text, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text.trim().is_empty() { Err(serde::de::Error::custom("the text is empty")) } else { Ok(Text(text)) }
    }
}

impl std::fmt::Display for Text {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// How well a statement about a chip is founded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Grade {
    /// The vendor's documentation, staff or source.
    Vendor,
    /// Somebody else's evidence from a board or compiler.
    ThirdParty,
    /// Tried with the vendor's tools on a host.
    Tried,
    /// Concluded from other statements.
    Inferred,
}

impl Grade {
    /// The name in target files.
    pub const fn name(self) -> &'static str {
        match self {
            Grade::Vendor => "vendor",
            Grade::ThirdParty => "third-party",
            Grade::Tried => "tried",
            Grade::Inferred => "inferred",
        }
    }
}

/// When a rule or flag applies: all that is given must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Condition {
    /// The activations are one of these; empty for any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub activation: Vec<Number>,
    /// The weights become one of these; empty for any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub weight: Vec<Number>,
}

impl Condition {
    /// Whether the activations of `precision` and a weight of `format` meet it. Without a weight at hand only a
    /// uniform precision can meet a condition on weights.
    pub fn holds(&self, precision: &Precision, format: Option<WeightFormat>) -> bool {
        let weight = format.or(precision.weight).map(|format| format.number);
        let among = |list: &[Number], number: Option<Number>| {
            list.is_empty() || number.is_some_and(|number| list.contains(&number))
        };
        among(&self.activation, Some(precision.activation)) && among(&self.weight, weight)
    }
}

/// What lifts a limit on output extents: all that is given must hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Exception {
    /// The vendor's compiler gets this flag.
    pub flag: Text,
    /// The operation is one of these; empty for any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ops: Vec<OpName>,
    /// The outputs are a multiple of this.
    pub output_multiple_of: Option<NonZeroUsize>,
    /// Where the statement comes from.
    pub source: Text,
    /// How well it is founded.
    pub grade: Grade,
}

/// The parts of a projection's shape that must be a multiple of something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Extent {
    /// The outputs of the projection to the vocabulary.
    Vocabulary,
    /// The outputs of any projection.
    Outputs,
    /// The inputs of any projection.
    Inputs,
}

/// What bytes are counted over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Per {
    /// The weights of one file, i.e. one chunk.
    File,
    /// The weights and activations of one graph of one chunk.
    Graph,
    /// The weights, state, ports and activations of all graphs of one chunk.
    Context,
    /// One weight.
    Tensor,
}

/// Where binary16 is known to run out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Hazard {
    /// The constant that hides positions.
    Mask,
    /// A softmax whose row the mask hides as a whole.
    HiddenRow,
    /// The square in the RMS normalisation.
    RmsSquare,
    /// Queries times keys before they are scaled.
    Scores,
    /// The product in SwiGLU.
    Swiglu,
    /// Weights that binary16 cannot hold; seen only when there are weights.
    Weights,
}

/// A kind of limit with its numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", rename_all_fields = "kebab-case")]
pub enum Limit {
    /// Every extent of operands and results.
    Dimension {
        /// The largest extent.
        max: NonZeroUsize,
    },
    /// The rank of operands and results.
    Rank {
        /// The largest rank.
        max: NonZeroUsize,
    },
    /// The rows that a projection computes at once.
    Batch {
        /// The row counts there are, at least one.
        #[serde(deserialize_with = "some")]
        allowed: Vec<NonZeroUsize>,
    },
    /// The width of an attention head.
    HeadDim {
        /// The widths there are, at least one.
        #[serde(deserialize_with = "some")]
        allowed: Vec<NonZeroUsize>,
    },
    /// An extent of a projection.
    Multiple {
        /// Which.
        extent: Extent,
        /// What it must be a multiple of.
        of: NonZeroUsize,
    },
    /// The inputs of a projection are whole groups of its weights' scales.
    GroupDivides {},
    /// The operations of one graph of one chunk.
    OpCount {
        /// The most there may be.
        max: NonZeroUsize,
    },
    /// The input and output ports of one graph of one chunk.
    BindingCount {
        /// The most there may be.
        max: NonZeroUsize,
    },
    /// Bytes.
    Bytes {
        /// What they are counted over.
        per: Per,
        /// The most there may be.
        max: NonZeroU64,
    },
    /// One row of the operand that a projection, product, softmax, norm or reduction reads as a whole.
    OnChip {
        /// Bytes of the memory next to the arithmetic.
        max: NonZeroU64,
    },
    /// The largest sum of products of a projection over integers.
    Accumulator {
        /// Bits of the accumulator, with its sign.
        bits: NonZeroU32,
    },
    /// A place where binary16 runs out.
    Fp16Range {
        /// Which.
        hazard: Hazard,
    },
    /// The generation of the unit, for graphs with attention.
    Generation {
        /// The first generation that the vendor made for transformers.
        min: u32,
    },
}

fn some<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<NonZeroUsize>, D::Error> {
    let numbers: Vec<NonZeroUsize> = Vec::deserialize(deserializer)?;
    if numbers.is_empty() { Err(serde::de::Error::custom("a rule that allows nothing")) } else { Ok(numbers) }
}

impl Limit {
    /// The code of what breaks it.
    pub const fn code(&self) -> Code {
        match self {
            Limit::Dimension { .. } => Code::DimensionLimit,
            Limit::Rank { .. } => Code::RankLimit,
            Limit::Batch { .. } => Code::BatchLimit,
            Limit::HeadDim { .. } => Code::HeadDim,
            Limit::Multiple { .. } => Code::ExtentMultiple,
            Limit::GroupDivides {} => Code::GroupSize,
            Limit::OpCount { .. } => Code::OpCount,
            Limit::BindingCount { .. } => Code::BindingCount,
            Limit::Bytes { .. } => Code::ByteLimit,
            Limit::OnChip { .. } => Code::OnChipLimit,
            Limit::Accumulator { .. } => Code::AccumulatorRange,
            Limit::Fp16Range { .. } => Code::Fp16Range,
            Limit::Generation { .. } => Code::ChipGeneration,
        }
    }
}

impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let list = |numbers: &[NonZeroUsize]| numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        match self {
            Limit::Dimension { max } => write!(f, "every extent at most {max}"),
            Limit::Rank { max } => write!(f, "rank at most {max}"),
            Limit::Batch { allowed } => write!(f, "{} rows at once", list(allowed)),
            Limit::HeadDim { allowed } => write!(f, "heads of width {}", list(allowed)),
            Limit::Multiple { extent: Extent::Vocabulary, of } => write!(f, "a vocabulary divisible by {of}"),
            Limit::Multiple { extent: Extent::Outputs, of } => write!(f, "outputs divisible by {of}"),
            Limit::Multiple { extent: Extent::Inputs, of } => write!(f, "inputs divisible by {of}"),
            Limit::GroupDivides {} => f.write_str("inputs divisible by the group size"),
            Limit::OpCount { max } => write!(f, "at most {max} operations a graph"),
            Limit::BindingCount { max } => write!(f, "at most {max} ports a graph"),
            Limit::Bytes { per, max } => {
                let per = match per {
                    Per::File => "file",
                    Per::Graph => "graph",
                    Per::Context => "context",
                    Per::Tensor => "tensor",
                };
                write!(f, "at most {max} bytes a {per}")
            }
            Limit::OnChip { max } => write!(f, "an operand's row of at most {max} bytes"),
            Limit::Accumulator { bits } => write!(f, "sums of products within {bits} bits"),
            Limit::Fp16Range { .. } => f.write_str("magnitudes up to 65504 (binary16)"),
            Limit::Generation { min } => write!(f, "generation {min} or later"),
        }
    }
}

/// What a remedy costs, the cheapest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cost {
    /// A flag of the vendor's compiler.
    Flag,
    /// An option of npuc.
    Option,
    /// A rewrite of the graph.
    Rewrite,
    /// Work on the CPU.
    Cpu,
    /// Another model or another chip.
    Other,
}

/// A change that npuc makes by itself to mend a misfit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mend {
    /// A rewrite of the graphs.
    Pass(Pass),
    /// The head in parts of so many rows, see [`crate::model::Head::Rows`].
    SplitHead(Vec<usize>),
    /// A flag, without its dashes, that the vendor's compiler gets.
    Flag(String),
    /// A rule of placement, see [`crate::place`].
    Place(String),
}

impl std::fmt::Display for Mend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Mend::Pass(pass) => write!(f, "{}: {}", pass.name(), pass.meaning().trim_end_matches('.')),
            Mend::SplitHead(rows) => {
                let rows: Vec<String> = rows.iter().map(usize::to_string).collect();
                write!(f, "split-head: the head in {} of {} outputs", parts(rows.len()), rows.join(" + "))
            }
            Mend::Flag(flag) => write!(f, "--{flag}: the vendor's compiler lifts the limit"),
            Mend::Place(rule) => write!(f, "--place {rule}: the CPU computes it"),
        }
    }
}

fn parts(count: usize) -> String {
    if count == 1 { "1 part".to_owned() } else { format!("{count} parts") }
}

/// Something that mends a misfit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Remedy {
    /// What it costs.
    pub cost: Cost,
    /// What to do.
    pub text: String,
    /// The flag or option, where it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub option: Option<String>,
    /// What `--fix` does, where npuc does it by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mend: Option<Mend>,
}

impl Remedy {
    /// A remedy without an option.
    pub fn new(cost: Cost, text: impl Into<String>) -> Remedy {
        Remedy { cost, text: text.into(), option: None, mend: None }
    }

    /// The same, with the flag or option that does it.
    pub fn option(mut self, option: impl Into<String>) -> Remedy {
        self.option = Some(option.into());
        self
    }

    /// The same, done by `--fix`.
    pub fn mend(mut self, mend: Mend) -> Remedy {
        self.mend = Some(mend);
        self
    }
}

impl std::fmt::Display for Remedy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.option {
            Some(option) => write!(f, "`{option}`: {}", self.text),
            None => f.write_str(&self.text),
        }
    }
}

/// One rule of a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Rule {
    /// What messages call it.
    pub name: Text,
    /// What is limited.
    pub limit: Limit,
    /// The operations it is about; empty for all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ops: Vec<OpName>,
    /// When it applies.
    #[serde(default)]
    pub when: Condition,
    /// What lifts it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unless: Vec<Exception>,
    /// Whether breaking it makes the model a misfit.
    #[serde(default = "stops")]
    pub severity: Severity,
    /// What happens if it is broken, for messages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<Text>,
    /// What mends it, besides what follows from the numbers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remedies: Vec<Remedy>,
    /// Where the rule comes from.
    pub source: Text,
    /// How well it is founded.
    pub grade: Grade,
}

const fn stops() -> Severity {
    Severity::Error
}
