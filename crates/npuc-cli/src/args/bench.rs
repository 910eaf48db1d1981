//! The flags of `npuc bench`, `audit`, `report` and `serve-jsonl`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use npuc_bench::record::Class;

use super::DeviceArgs;

const BENCH: &str = "\
A workload has a request a line, e.g.
  {\"id\":\"gsm8k-0\",\"dataset\":\"gsm8k\",\"input_ids\":[5,6,7],\"max_new_tokens\":64}
with `prompt` or `messages` in place of `input_ids` where the model has a tokenizer. All lines are
checked before the first one runs. docs/workload.md defines this file and the results.

After a kill, a power loss or a full disk, the same command with --resume goes on behind the last
whole line. Exit status: 0 complete, 1 stopped by --max-time, 4 the back end failed.";

/// How latencies are measured.
#[derive(Args)]
#[command(after_help = BENCH)]
pub(crate) struct BenchArgs {
    /// A bundle, a Hugging Face folder or a .gguf file
    #[arg(value_name = "DIR|MODEL")]
    pub(crate) model: PathBuf,
    /// The requests, a JSON object a line
    #[arg(long, value_name = "FILE")]
    pub(crate) workload: PathBuf,
    /// The results, a line a request; a new file, or with --resume the one to go on with
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
    /// Go on behind the last whole line of the results, as a new segment
    #[arg(long)]
    pub(crate) resume: bool,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    #[command(flatten)]
    pub(crate) null: NullArgs,
    /// Thresholds that the results are held against, e.g. ttft=500ms,tpot=60ms
    #[arg(long, value_name = "THRESHOLDS")]
    pub(crate) slo: Option<String>,
    /// Run the first N requests without recording them, before every segment
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub(crate) warmup: usize,
    /// Measure only the first N requests
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<usize>,
    /// Pause after every request: seconds, or e.g. 500ms, 2min
    #[arg(long, default_value = "0", value_name = "TIME")]
    pub(crate) cooldown: String,
    /// Begin no request later than this after the first one: seconds, or e.g. 90min
    #[arg(long, value_name = "TIME")]
    pub(crate) max_time: Option<String>,
    /// Randomness; 0 takes the best token every time
    #[arg(long, default_value_t = 0.0, value_name = "T", allow_negative_numbers = true)]
    pub(crate) temperature: f32,
    /// The seed of the randomness; request i, counted from 0, has seed + i
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub(crate) seed: u64,
    /// The date that chat templates see, instead of today's
    #[arg(long, value_name = "YYYY-MM-DD")]
    pub(crate) date: Option<String>,
    /// Time between two readings of battery, temperatures and frequencies: seconds, or e.g. 500ms
    #[arg(long, default_value = "500ms", value_name = "TIME")]
    pub(crate) sample_every: String,
    /// Where the system's sensors are
    #[arg(long, default_value = "/sys", value_name = "DIR", hide = true)]
    pub(crate) sysfs: PathBuf,
}

/// How --on null behaves.
#[derive(Args)]
pub(crate) struct NullArgs {
    /// With --on null: the time of a step of several tokens and of one, e.g. prefill=10ms,decode=2ms, which is what it is without;
    /// fail-after=N lets every step after the Nth fail
    #[arg(long, value_name = "LATENCIES")]
    pub(crate) null: Option<String>,
}

#[derive(Args)]
pub(crate) struct AuditArgs {
    /// Results of `npuc bench` or another tool
    #[arg(value_name = "FILE")]
    pub(crate) results: PathBuf,
    /// The workload that should have been measured
    #[arg(long, value_name = "FILE")]
    pub(crate) workload: Option<PathBuf>,
    /// The model, where the workload has requests of text
    #[arg(long, value_name = "MODEL", requires = "workload")]
    pub(crate) model: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) map: MapArgs,
}

/// How files of other tools are read.
#[derive(Args)]
pub(crate) struct MapArgs {
    /// Where a file of another tool has a field, e.g. --map requests=runs[] --map commit_ms=tokens[].t; docs/workload.md lists the
    /// fields (may be repeated)
    #[arg(long, value_name = "FIELD=PATH")]
    pub(crate) map: Vec<String>,
}

/// What another tool's results were measured on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MeasuredOn {
    /// The CPU of a machine
    Host,
    /// A program that computes as a chip does
    Emulation,
    /// A chip
    Device,
}

impl From<MeasuredOn> for Class {
    fn from(on: MeasuredOn) -> Class {
        match on {
            MeasuredOn::Host => Class::Host,
            MeasuredOn::Emulation => Class::Emulation,
            MeasuredOn::Device => Class::Device,
        }
    }
}

#[derive(Args)]
pub(crate) struct ReportArgs {
    /// Results of `npuc bench` or other tools; several are compared with the first
    #[arg(required = true, value_name = "FILE")]
    pub(crate) results: Vec<PathBuf>,
    /// Write one HTML file that needs nothing else
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Print Markdown instead of text
    #[arg(long, conflicts_with_all = ["csv", "json"])]
    pub(crate) md: bool,
    /// Print the latencies as CSV instead of text
    #[arg(long, conflicts_with = "json")]
    pub(crate) csv: bool,
    /// Thresholds, e.g. ttft=500ms,tpot=60ms; without it, those that the results were measured with
    #[arg(long, value_name = "THRESHOLDS")]
    pub(crate) slo: Option<String>,
    /// Take runs that are incomplete or have several segments too, and mark their figures
    #[arg(long)]
    pub(crate) allow_incomplete: bool,
    /// What files that do not say so were measured on
    #[arg(long, value_enum, value_name = "WHAT")]
    pub(crate) measured_on: Option<MeasuredOn>,
    #[command(flatten)]
    pub(crate) map: MapArgs,
}

const SERVE: &str = "\
Requests come on standard input, each a line as in a workload; events leave on standard output, each a
line: ready, token, end, error. A line that is wrong gets an error and the next one is read.
docs/workload.md defines the events.";

#[derive(Args)]
#[command(after_help = SERVE)]
pub(crate) struct ServeArgs {
    /// A bundle, a Hugging Face folder or a .gguf file
    #[arg(value_name = "DIR|MODEL")]
    pub(crate) model: PathBuf,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    #[command(flatten)]
    pub(crate) null: NullArgs,
    /// Randomness; 0 takes the best token every time
    #[arg(long, default_value_t = 0.0, value_name = "T", allow_negative_numbers = true)]
    pub(crate) temperature: f32,
    /// The seed of the randomness, of every request
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub(crate) seed: u64,
    /// The date that chat templates see, instead of today's
    #[arg(long, value_name = "YYYY-MM-DD")]
    pub(crate) date: Option<String>,
}
