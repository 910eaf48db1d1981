//! The flags that say what executes the step graphs; `run`, `verify` and `diff` share them.

use clap::{Args, ValueEnum};
use npuc_bench::record::Class;
use npuc_run::device::module::Runner;
use npuc_run::toolchain::Tool;

/// What executes the step graphs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum On {
    Host,
    Litert,
    Qnn,
    IreeCpu,
    IreeVulkan,
    TorqSim,
    Null,
}

impl On {
    /// Where a figure was measured, as reports say it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            On::Host => "host",
            On::Litert => "litert on the host",
            On::Qnn => "emulation",
            On::IreeCpu => "iree on the host",
            On::IreeVulkan => "iree on a software Vulkan",
            On::TorqSim => "simulation",
            On::Null => "null",
        }
    }
}

impl On {
    /// The word on the command line.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            On::Host => "host",
            On::Litert => "litert",
            On::Qnn => "qnn",
            On::IreeCpu => "iree-cpu",
            On::IreeVulkan => "iree-vulkan",
            On::TorqSim => "torq-sim",
            On::Null => "null",
        }
    }

    /// What figures may be compared with.
    pub(crate) const fn class(self) -> Class {
        match self {
            On::Host | On::Litert | On::IreeCpu => Class::Host,
            On::Qnn | On::IreeVulkan | On::TorqSim => Class::Emulation,
            On::Null => Class::Null,
        }
    }

    /// The tools that compute.
    pub(crate) const fn tools(self) -> &'static [Tool] {
        match self {
            On::Host | On::Null => &[],
            On::Litert => &[Tool::LiteRt],
            On::Qnn => &[Tool::Qnn],
            On::IreeCpu => &[Tool::Iree],
            On::IreeVulkan => &[Tool::Iree, Tool::Vulkan],
            On::TorqSim => &[Tool::Torq],
        }
    }

    /// What executes compiled modules there.
    pub(crate) const fn runners(self) -> &'static [Runner] {
        match self {
            On::Host | On::Litert | On::Qnn | On::Null => &[],
            On::IreeCpu => &[Runner::IreeCpu],
            On::IreeVulkan => &[Runner::IreeVulkan, Runner::ValhallOnVulkan],
            On::TorqSim => &[Runner::TorqSim],
        }
    }
}

/// Where and how the step graphs are executed.
#[derive(Args)]
pub(crate) struct DeviceArgs {
    /// What executes the step graphs: npuc itself, LiteRT from the TFLite files of a bundle or made of a checkpoint,
    /// Qualcomm's emulation of the chip that a bundle was built for, IREE on this CPU or on a software Vulkan, or Torq's simulator;
    /// null computes nothing and is for `bench` and `serve-jsonl`
    #[arg(long, value_enum, default_value_t = On::Host)]
    pub(crate) on: On,
    /// How --on litert cuts a checkpoint: layers of each file (4,4,4,2,2) or a number of equal ones; without it, one
    #[arg(long, value_name = "CHUNKS")]
    pub(crate) chunks: Option<String>,
    /// Step shapes when MODEL is a checkpoint
    #[arg(long, value_delimiter = ',', value_name = "SHAPES")]
    pub(crate) shapes: Option<Vec<String>>,
    /// Threads to compute with; without it, as many as the machine has
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,
}
