//! Targets: what a chip takes, as data. A target knows graphs and rules, never a model.
//!
//! Each chip is one file in `targets/`, compiled in; `--target ./my.toml` reads a user's own in the same form.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::ops::Deref;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use serde::{Deserialize, Serialize};

use crate::back::BackEnd;
use crate::diag::{Code, Diagnostic, Result, Severity};
use crate::model::CacheProtocol;
use crate::pass::Pass;
use crate::place;

pub mod check;
mod file;
mod flags;
mod graph;
mod hazard;
pub mod ledger;
mod misfit;
pub mod number;
mod remedy;
pub mod rule;

#[cfg(test)]
mod tests;

pub use check::{Checked, Question, check, fallbacks, misfits};
pub use flags::graph_flags;
pub(crate) use misfit::fold;
pub use misfit::{Misfit, Place};
pub use number::{Granularity, Number, Precision, WeightFormat};
pub use rule::{Grade, Mend, Rule};

use rule::{Condition, OpName, Text};

/// A chip, or the host. Cheap to clone.
#[derive(Clone, Debug, PartialEq)]
pub struct Target(Arc<Chip>);

impl Deref for Target {
    type Target = Chip;

    fn deref(&self) -> &Chip {
        &self.0
    }
}

/// What a target file says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Chip {
    /// The name on the command line and in manifests.
    pub name: String,
    /// One line for people.
    pub summary: Text,
    /// The vendor's numbers of the chips it stands for.
    #[serde(default)]
    pub chips: Vec<String>,
    /// The generation of the NPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<Generation>,
    /// The back end that builds for it; absent where npuc can only check.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub back_end: Option<BackEnd>,
    /// Qualcomm's number of the chip, for the back end `qnn`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub soc_model: Option<u32>,
    /// The memory beside the chip.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dram: Option<Dram>,
    /// How caches travel between its steps.
    pub protocol: CacheProtocol,
    /// What a mask holds where a position is hidden.
    #[serde(default = "hidden_mask")]
    pub hidden_mask: i32,
    /// How caches and weights are best laid out.
    #[serde(default)]
    pub layouts: Vec<Statement>,
    /// The float format that the precision FP means.
    pub float: Number,
    /// Whether the vendor's tools give single operations to another unit when the NPU refuses them.
    #[serde(default)]
    pub fallback: bool,
    /// The units, the NPU first.
    #[serde(rename = "unit")]
    pub units: Vec<Unit>,
    /// Which operations the units take or refuse.
    pub ops: Vec<OpSupport>,
    /// Which formats activations and weights may have together.
    #[serde(rename = "format")]
    pub formats: Vec<FormatSupport>,
    /// The rules.
    #[serde(default, rename = "rule")]
    pub rules: Vec<Rule>,
    /// The flags that the vendor's compiler needs.
    #[serde(default, rename = "flag")]
    pub flags: Vec<ToolFlag>,
    /// Which operations go to the CPU unless the user says otherwise, as rules of [`crate::place`].
    #[serde(default, rename = "place")]
    pub places: Vec<PlaceDefault>,
    /// Passes that the chip needs besides those that decompose what it lacks, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rewrites: Vec<Pass>,
    /// What is known and cannot be checked on a graph.
    #[serde(default, rename = "note")]
    pub notes: Vec<Statement>,
}

/// A rule of placement that a target brings along.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlaceDefault {
    /// The rule.
    pub rule: place::Rule,
    /// Where the statement comes from.
    pub source: Text,
    /// How well it is founded.
    pub grade: Grade,
}

/// The constant of float masks where a target says nothing.
const fn hidden_mask() -> i32 {
    -1_000_000_000
}

/// The generation of an NPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Generation {
    /// The vendor's name.
    pub name: Text,
    /// The number that generations are compared by.
    pub major: u32,
}

/// The memory beside a chip.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Dram {
    /// The most bytes a second that all units of the chip have together, with the fastest memory that it takes.
    pub bytes_per_s: NonZeroU64,
    /// Where the statement comes from.
    pub source: Text,
    /// How well it is founded.
    pub grade: Grade,
}

/// A statement with its source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Statement {
    /// What is said.
    pub text: Text,
    /// Where it comes from.
    pub source: Text,
    /// How well it is founded.
    pub grade: Grade,
}

/// A part of a chip that computes or moves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Unit {
    /// The name in messages.
    pub name: Text,
    /// What it is.
    pub kind: UnitKind,
    /// How many there are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cores: Option<u32>,
    /// Bytes of the memory next to its arithmetic.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_chip_bytes: Option<u64>,
    /// Where the statement comes from.
    pub source: Text,
    /// How well it is founded.
    pub grade: Grade,
}

/// What a unit is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UnitKind {
    /// The NPU, or what stands for it.
    Npu,
    /// A mover of data beside the NPU.
    Dma,
    /// A processor that takes over what the NPU does not.
    Cpu,
}

/// Operations that a unit takes or refuses, each with the vendor's name for what it becomes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OpSupport {
    /// The unit.
    pub unit: String,
    /// The activations it is true for; empty for all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub activations: Vec<Number>,
    /// What it takes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub takes: BTreeMap<OpName, Text>,
    /// What it is known to refuse.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub refuses: BTreeMap<OpName, Text>,
    /// Where the statement comes from.
    pub source: Text,
    /// How well it is founded.
    pub grade: Grade,
}

/// Formats that activations and the weights of projections may have together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FormatSupport {
    /// The activations.
    pub activation: Number,
    /// The weights.
    pub weights: Vec<Number>,
    /// One scale a tensor.
    #[serde(default)]
    pub tensor: bool,
    /// One scale a channel.
    #[serde(default)]
    pub channel: bool,
    /// The sizes of groups that there may be.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<usize>,
    /// What the inputs of a projection are a multiple of.
    #[serde(default, rename = "inputs-multiple-of", skip_serializing_if = "Option::is_none")]
    pub inputs_multiple_of: Option<usize>,
    /// Where the statement comes from.
    pub source: Text,
    /// How well it is founded.
    pub grade: Grade,
}

impl FormatSupport {
    /// Whether projections of that many inputs may have weights of that format.
    pub fn takes_inputs(&self, format: WeightFormat, inputs: usize) -> bool {
        self.takes(format) && self.inputs_multiple_of.is_none_or(|of| inputs.is_multiple_of(of))
    }

    /// Whether projections of some numbers of inputs may have weights of that format.
    pub fn takes(&self, format: WeightFormat) -> bool {
        let by_itself = format.number.is_float() || matches!(format.number, Number::Block(_));
        let granularity = match format.granularity {
            Granularity::Tensor => self.tensor,
            Granularity::Channel => self.channel,
            Granularity::Group(len) => self.groups.contains(&len),
        };
        self.weights.contains(&format.number) && (by_itself || granularity)
    }
}

/// A flag of the vendor's compiler.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolFlag {
    /// As it is written.
    pub flag: Text,
    /// When it is needed.
    #[serde(default)]
    pub when: Condition,
    /// Where the statement comes from.
    pub source: Text,
    /// How well it is founded.
    pub grade: Grade,
}

impl Chip {
    /// The unit that takes an operation in the given activations, and the vendor's name for what it becomes;
    /// an NPU before others.
    pub fn taker(&self, op: &str, activation: Number) -> Option<(&Unit, &str)> {
        let by_unit = |unit: &&Unit| {
            let mut of_unit = self.ops.iter().filter(|ops| ops.unit == unit.name.0);
            let fits = |ops: &&OpSupport| ops.activations.is_empty() || ops.activations.contains(&activation);
            of_unit.find_map(|ops| ops.takes.iter().find(|(name, _)| name.0 == op && fits(&ops)).map(|(_, text)| text))
        };
        let mut units: Vec<&Unit> = self.units.iter().collect();
        units.sort_by_key(|unit| match unit.kind {
            UnitKind::Npu => 0,
            UnitKind::Dma => 1,
            UnitKind::Cpu => 2,
        });
        units.into_iter().find_map(|unit| by_unit(&unit).map(|name| (unit, name.0.as_str())))
    }

    /// Whether npuc itself executes what is built.
    pub fn is_host(&self) -> bool {
        self.back_end == Some(BackEnd::Host)
    }

    /// The rules of placement that hold unless the user says otherwise.
    pub fn placement(&self) -> Vec<place::Rule> {
        self.places.iter().map(|place| place.rule.clone()).collect()
    }

    /// Whether npuc builds operations on the CPU between files of the NPU: not between TFLite files in whole numbers, nor
    /// between context binaries.
    pub fn builds_cpu_segments(&self, precision: &Precision) -> bool {
        match self.back_end {
            Some(BackEnd::Host) | None => true,
            Some(BackEnd::Tflite) => precision.activation.is_float(),
            Some(BackEnd::Qnn | BackEnd::Iree | BackEnd::Torq) => false,
        }
    }

    /// Whether an NPU and a CPU share the work, so that operations can be placed.
    pub fn has_cpu_beside_npu(&self) -> bool {
        let has = |kind: UnitKind| self.units.iter().any(|unit| unit.kind == kind);
        has(UnitKind::Npu) && has(UnitKind::Cpu)
    }

    /// Why an operation that the NPU does not compute is no small matter, where no tool gives it to another unit.
    pub(crate) fn why_whole(&self) -> Option<String> {
        (!self.fallback).then(|| "one refused operation fails the whole file".to_owned())
    }

    /// Bytes of an element of a port or cache: TFLite files of a float precision have ports in f32, whatever the chip
    /// computes in.
    pub fn port_bytes(&self, precision: &Precision) -> u64 {
        match self.back_end {
            Some(BackEnd::Tflite) if precision.activation.is_float() => 4,
            Some(BackEnd::Tflite | BackEnd::Host | BackEnd::Qnn | BackEnd::Iree | BackEnd::Torq) | None => {
                precision.activation_bytes()
            }
        }
    }

    /// The unit that computes, for messages.
    pub fn main_unit(&self) -> &Unit {
        &self.units[0]
    }

    /// The passes that put a graph into the operations the chip takes, with those of `mends` before or after them:
    /// what a mend rewrites is either an operation that the chip may lack or one that is left.
    pub fn passes(&self, mends: &[Mend]) -> Vec<Pass> {
        let lacks = |op: &str| self.ops.iter().all(|ops| ops.takes.keys().all(|name| name.0 != op));
        let plain = [
            ("attention", Pass::DecomposeAttention),
            ("short_conv", Pass::DecomposeShortConv),
            ("rms_norm", Pass::DecomposeRmsNorm),
            ("layer_norm", Pass::DecomposeLayerNorm),
            ("rope", Pass::DecomposeRope),
            ("softmax", Pass::DecomposeSoftmax),
            ("silu", Pass::DecomposeSilu),
            ("gelu", Pass::DecomposeGelu),
        ];
        let decompose = plain.into_iter().filter(|(op, _)| lacks(op)).map(|(_, pass)| pass);
        let own = self.rewrites.iter().copied();
        let mends = mends.iter().filter_map(|mend| match mend {
            Mend::Pass(pass) => Some(*pass),
            Mend::SplitHead(_) | Mend::Flag(_) | Mend::Place(_) => None,
        });
        let (after, before): (Vec<Pass>, Vec<Pass>) = own.chain(mends).partition(|pass| pass.follows_decomposition());
        before.into_iter().chain(decompose).chain(after).chain([Pass::Simplify]).collect()
    }

    /// The operations that npuc promises to build for the chip: those it takes, if there is a back end.
    pub fn buildable(&self) -> Vec<&'static str> {
        let taken = || self.ops.iter().flat_map(|ops| ops.takes.keys().map(|name| name.0));
        self.back_end.map(|_| taken().collect()).unwrap_or_default()
    }

    /// The flags that the vendor's compiler needs for a precision.
    pub fn flags_for(&self, precision: &Precision) -> Vec<&str> {
        self.flags.iter().filter(|flag| flag.when.holds(precision, None)).map(|flag| flag.flag.0.as_str()).collect()
    }

    /// The flags that lift a limit.
    pub fn lifting_flags(&self) -> Vec<&str> {
        let flags = self.rules.iter().flat_map(|rule| rule.unless.iter().map(|unless| unless.flag.0.as_str()));
        let mut flags: Vec<&str> = flags.collect();
        flags.sort_unstable();
        flags.dedup();
        flags
    }
}

impl Target {
    /// The same target with another cache protocol.
    pub fn with_protocol(mut self, protocol: CacheProtocol) -> Target {
        Arc::make_mut(&mut self.0).protocol = protocol;
        self
    }

    /// The same target without the rules that only warn.
    pub fn without_warnings(mut self) -> Target {
        Arc::make_mut(&mut self.0).rules.retain(|rule| rule.severity == Severity::Error);
        self
    }

    /// The back end that builds for it.
    ///
    /// # Errors
    /// [`Code::NoBackEnd`] where npuc can only check.
    pub fn back_end(&self) -> Result<BackEnd> {
        self.back_end.ok_or_else(|| {
            let built: Vec<&str> =
                all().iter().filter(|target| target.back_end.is_some()).map(|target| target.name.as_str()).collect();
            Diagnostic::error(Code::NoBackEnd, format!("npuc has no back end for {} yet", self.name))
                .need(format!("a target that npuc builds for: {}", built.join(", ")))
                .have(&self.name)
                .help(format!("`npuc check MODEL --target {}` tells whether and why a model does not fit", self.name))
                .into()
        })
    }
}

macro_rules! shipped {
    ($($name:literal),+ $(,)?) => {
        /// The name and text of every target that npuc brings along.
        const SHIPPED: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../../../../targets/", $name, ".toml")))),+];
    };
}

shipped![
    "host",
    "genio-720",
    "genio-700",
    "genio-1200",
    "dimensity-9300",
    "dimensity-9400",
    "sm8550",
    "sm8650",
    "sm8750",
    "sm8850",
    "sl2610",
    "mali-valhall",
    "iree-cpu",
    "iree-vulkan",
];

/// Every target that npuc brings along.
pub fn all() -> &'static [Target] {
    static ALL: LazyLock<Vec<Target>> = LazyLock::new(|| {
        let read = |(name, text): &(&str, &str)| {
            let path = format!("targets/{name}.toml");
            file::parse(text, Path::new(&path)).expect("the targets brought along are well formed; a test reads each")
        };
        SHIPPED.iter().map(read).collect()
    });
    &ALL
}

/// The machine npuc runs on.
pub fn host() -> Target {
    all()[0].clone()
}

/// The target of that name, or of that file where `name` ends in `.toml`.
///
/// # Errors
/// A name npuc does not know; what is wrong in the file, with line and column ([`Code::BadTarget`]).
pub fn find(name: &str) -> Result<Target> {
    if name.ends_with(".toml") {
        return file::open(Path::new(name));
    }
    all().iter().find(|target| target.name == name).cloned().ok_or_else(|| {
        let known: Vec<&str> = all().iter().map(|target| target.name.as_str()).collect();
        Diagnostic::error(Code::BadArgument, "npuc does not know this target")
            .need(format!("one of: {}, or a file that ends in .toml", known.join(", ")))
            .have(name)
            .into()
    })
}
