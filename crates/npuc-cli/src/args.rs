//! The flags of every command, with the help a newcomer reads.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use npuc::fit::Request;
use npuc::front::config::Stack;
use npuc::mend::Preference;
use npuc::model::StepShape;
use npuc::pass::Pass;
use npuc::quant::solve::Grouping;

mod bench;
mod build;
mod device;
mod push;
mod synth;
mod transcribe;

pub(crate) use bench::{AuditArgs, BenchArgs, NullArgs, ReportArgs, ServeArgs};
pub(crate) use build::{Attention, BuildArgs, ParametersArg, TuneArgs, WeightsArg};
pub(crate) use device::{DeviceArgs, On};
pub(crate) use push::PushArgs;
pub(crate) use synth::SynthArgs;
pub(crate) use transcribe::{FormatArg, Threshold, TranscribeArgs};

const START: &str = "\
Where to begin:
  npuc inspect MODEL                      what a checkpoint holds and what it needs
  npuc check MODEL --target genio-720     whether and why it does not fit a chip; config.json will do
  npuc run MODEL --chat -p \"Hello\"        answer on this machine, straight from the checkpoint
  npuc build MODEL --target host \\
       --shapes 128t1024c,1t1024c -o DIR  a bundle: prefill and decode graphs over shared weights
  npuc run DIR --chat                     talk to the bundle

MODEL is a Hugging Face folder (config.json, *.safetensors, tokenizer.json) or a .gguf file.
No model at hand? In npuc's source folder `cargo xtask demo` fetches a small one and runs it.

Exit status: 0 good · 1 the answer is no (misfit, unfaithful) · 2 usage · 3 bad input · 4 a missing tool";

/// Compiles transformers for edge NPUs, runs them, and says how faithful they are.
#[derive(Parser)]
#[command(name = "npuc", version, after_help = START, arg_required_else_help = true, max_term_width = 100)]
pub(crate) struct Cli {
    /// Print JSON instead of text: one object, with --chat one per answer
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Tell what a checkpoint or bundle holds, what memory it needs and what is odd about it
    Inspect(InspectArgs),
    /// Tell whether a model fits a chip, what does not and why, and what memory it needs
    Check(CheckArgs),
    /// Show what is known of the chips, with sources
    Targets(TargetsArgs),
    /// Compile a checkpoint into a bundle
    Build(BuildArgs),
    /// Build for a chip in the fastest of the forms that its compiler estimates, which are all tried
    Tune(TuneArgs),
    /// Store a model's weights in fewer bits, as a GGUF file or a bundle for this machine
    Quantize(QuantizeArgs),
    /// List the recipes: formats of weights, activations and caches
    Recipes(RecipesArgs),
    /// Choose a format for every matrix that keeps a model closest to itself within a budget of bits, as a recipe
    Solve(SolveArgs),
    /// Answer a prompt with a bundle or, built on the spot, a checkpoint
    Run(RunArgs),
    /// Write down what is said in a WAV file, with a Whisper model
    Transcribe(TranscribeArgs),
    /// Measure a bundle or checkpoint: against reference outputs or another model, or its perplexity on a text
    Verify(VerifyArgs),
    /// Measure the latency of a model under a workload, so that it can be resumed and audited
    Bench(BenchArgs),
    /// Look for every way in which measured latencies can be wrong, npuc's or another tool's
    Audit(AuditArgs),
    /// Report measured latencies as tables, curves and plots, or compare several runs
    Report(ReportArgs),
    /// Answer requests from standard input, an event a line, for other programs that measure
    ServeJsonl(ServeArgs),
    /// Estimate a bundle's DDR traffic and speed on one of Qualcomm's chips, without the chip
    Estimate(crate::estimate::EstimateArgs),
    /// Tell what a context binary for Qualcomm's chips holds, npuc's or another's, or how two of them differ
    Context(crate::context::ContextArgs),
    /// Find the first operation where two forms of a model part
    Diff(crate::diff::DiffArgs),
    /// Put a bundle for a Qualcomm chip on a phone, over adb
    Push(PushArgs),
    /// Explain a code, e.g. `npuc explain tied-head`, or a log of a vendor's tool; without either, list the codes
    Explain(ExplainArgs),
    /// Make a checkpoint of a model's real size with random weights from its config.json
    Synth(SynthArgs),
    /// Fetch the tools that npuc drives, or list them
    #[command(subcommand)]
    Toolchain(ToolchainCommand),
    /// Drive Qualcomm's libraries for another npuc, over pipes
    #[command(hide = true)]
    QnnWorker,
}

#[derive(Subcommand)]
pub(crate) enum ToolchainCommand {
    /// Fetch a tool with pip or apt into your cache folder, checked against its pinned hashes; nothing is installed system-wide
    Install {
        /// The tool, e.g. litert
        tool: String,
    },
    /// Tell which tools there are and whether they are installed
    List,
}

/// How misfits are mended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Fix {
    /// Rewrites first
    Rewrites,
    /// Flags of the vendor's compiler first
    Flags,
}

impl From<Fix> for Preference {
    fn from(fix: Fix) -> Preference {
        match fix {
            Fix::Rewrites => Preference::Rewrites,
            Fix::Flags => Preference::Flags,
        }
    }
}

#[derive(Args)]
pub(crate) struct InspectArgs {
    /// A Hugging Face folder, a .gguf file or a bundle
    pub(crate) model: PathBuf,
    /// Step shapes to tell the memory of, e.g. 128t1024c,1t1024c
    #[arg(long, value_delimiter = ',', value_name = "SHAPES")]
    pub(crate) shapes: Option<Vec<String>>,
}

/// Which operations go where.
#[derive(Clone, Args)]
pub(crate) struct PlaceArgs {
    /// Where operations go, e.g. op=matmul=cpu, name=lm_head*=cpu, layers=0..4=cpu, bytes>64MiB=cpu (also weights,
    /// activations, workspace; =npu takes back); may be repeated, later rules win over earlier ones and the target's own
    #[arg(long, value_name = "RULE")]
    pub(crate) place: Vec<String>,
    /// Refuse any operation that would not be computed by the NPU
    #[arg(long)]
    pub(crate) deny_fallback: bool,
}

#[derive(Args)]
pub(crate) struct CheckArgs {
    /// A Hugging Face folder, a .gguf file, or a config.json alone
    pub(crate) model: PathBuf,
    /// A chip of `npuc targets`, or a file in the same form that ends in .toml
    #[arg(long)]
    pub(crate) target: String,
    /// FP, FP32, FP16, BF16, 8W16A, 4W16A, 16W16A, 8W8A, 4WFP, 8WFP, integers also in groups (4W16A-g32), or
    /// stored; without it, FP, and stored for the host
    #[arg(long)]
    pub(crate) precision: Option<String>,
    /// Step shapes: tokens at once against rows of cache
    #[arg(long, value_delimiter = ',', value_name = "SHAPES")]
    pub(crate) shapes: Option<Vec<String>>,
    /// How many chunks (5) or the layers of each (4,4,4,2,2); without it, the fewest that the limits allow
    #[arg(long)]
    pub(crate) chunks: Option<String>,
    /// A flag that the vendor's compiler will get and that lifts a limit, e.g. gno=LTS (may be repeated)
    #[arg(long, value_name = "FLAG", allow_hyphen_values = true)]
    pub(crate) flag: Vec<String>,
    /// Mend what does not fit, compute both forms on this machine and tell the difference: with rewrites that can be
    /// proved here, or the cheapest way (flags of the vendor's compiler first)
    #[arg(long, value_enum, value_name = "HOW", num_args = 0..=1, require_equals = true, default_missing_value = "rewrites")]
    pub(crate) fix: Option<Fix>,
    #[command(flatten)]
    pub(crate) place: PlaceArgs,
    /// Let the weights of TFLite files lie behind the flatbuffer, so that a file may exceed 2 GiB: LiteRT reads such files,
    /// whether ncc-tflite does is not known
    #[arg(long)]
    pub(crate) outer_buffers: bool,
    /// Write the graphs that the lines of the messages are about into this folder
    #[arg(long, value_name = "DIR")]
    pub(crate) ir: Option<PathBuf>,
    /// Print SARIF 2.1.0 instead of text
    #[arg(long, conflicts_with = "json")]
    pub(crate) sarif: bool,
}

#[derive(Args)]
pub(crate) struct TargetsArgs {
    /// One of them, or a file that ends in .toml; without it, list them
    pub(crate) name: Option<String>,
}

/// What a build for a chip needs and one for this machine does not.
#[derive(Clone, Args)]
pub(crate) struct ChipArgs {
    /// The formats of weights and activations, as in `npuc check`; without it, FP
    #[arg(long)]
    pub(crate) precision: Option<String>,
    /// How many chunks (5) or the layers of each (4,4,4,2,2); without it, the fewest that the limits allow
    #[arg(long)]
    pub(crate) chunks: Option<String>,
    /// A flag that the vendor's compiler gets and that lifts a limit, e.g. gno=LTS (may be repeated)
    #[arg(long, value_name = "FLAG", allow_hyphen_values = true)]
    pub(crate) flag: Vec<String>,
    /// How misfits are mended
    #[arg(long, value_enum, value_name = "HOW", default_value_t = Fix::Rewrites)]
    pub(crate) fix: Fix,
    /// Refuse what does not fit instead of mending it
    #[arg(long, conflicts_with = "fix")]
    pub(crate) no_fix: bool,
    #[command(flatten)]
    pub(crate) place: PlaceArgs,
    /// Let the weights of TFLite files lie behind the flatbuffer, so that a file may exceed 2 GiB: LiteRT reads such files,
    /// whether ncc-tflite does is not known
    #[arg(long)]
    pub(crate) outer_buffers: bool,
}

/// How well weights are rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum QualityArg {
    /// To the nearest number, with the scale of each block's largest magnitude
    Fast,
    /// To the nearest number, with searched scales
    Search,
    /// By GPTQ on calibration text
    Best,
}

/// What a model's weights become.
#[derive(Clone, Args)]
pub(crate) struct RecipeArgs {
    /// How weights are rounded; without it, best where there is calibration text, and search otherwise
    #[arg(long, value_enum)]
    pub(crate) quality: Option<QualityArg>,
    /// A text to calibrate with, plain or (.jsonl) one object with `text` a line; without it, the model writes one itself
    #[arg(long, value_name = "FILE")]
    pub(crate) calibration: Option<PathBuf>,
    /// Sequences of calibration text at most
    #[arg(long, default_value_t = 32, value_name = "N")]
    pub(crate) samples: usize,
    /// Tokens of each sequence at most, and no more than the model's context
    #[arg(long, default_value_t = 512, value_name = "N")]
    pub(crate) tokens: usize,
    /// Turn the residual stream and the values by Hadamard matrices first, which spreads outliers; a tied head then becomes
    /// a matrix of its own
    #[arg(long)]
    pub(crate) rotate: bool,
    /// Scale the inputs of projections by their size on the calibration text first (AWQ), with --quality best
    #[arg(long)]
    pub(crate) scale: bool,
    /// The seed of the signs of --rotate
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub(crate) seed: u64,
    /// How ranges of whole-number activations follow from the text: minmax, mse or percentile=P; without it, minmax
    #[arg(long, value_name = "METHOD")]
    pub(crate) ranges: Option<String>,
    /// Refuse what the recipe asks for and cannot be, instead of taking the nearest format
    #[arg(long)]
    pub(crate) strict: bool,
    /// Refuse to begin if the work needs more memory than this, e.g. 1GiB
    #[arg(long, value_name = "BYTES")]
    pub(crate) max_rss: Option<String>,
}

#[derive(Args)]
pub(crate) struct QuantizeArgs {
    /// Which of Whisper's models is quantised, by `npuc build`
    #[arg(skip)]
    pub(crate) stack: Option<Stack>,
    /// A Hugging Face folder or a .gguf file
    pub(crate) model: PathBuf,
    /// A recipe of `npuc recipes`, or a file that ends in .toml
    #[arg(long, value_name = "RECIPE")]
    pub(crate) recipe: String,
    #[command(flatten)]
    pub(crate) how: RecipeArgs,
    /// A .gguf file, or the folder of a bundle for this machine
    #[arg(short, long, value_name = "FILE|DIR")]
    pub(crate) output: PathBuf,
    /// The chip whose formats the weights must be in; without it, any that the output can hold
    #[arg(long)]
    pub(crate) target: Option<String>,
    /// Step shapes of a bundle
    #[arg(long, value_delimiter = ',', value_name = "SHAPES")]
    pub(crate) shapes: Option<Vec<String>>,
    /// Write no tokenizer
    #[arg(long)]
    pub(crate) no_tokenizer: bool,
    /// Threads to compute with; without it, as many as the machine has
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,
}

#[derive(Args)]
pub(crate) struct RecipesArgs {
    /// One of them, or a file that ends in .toml: print it as TOML; without it, list them
    pub(crate) name: Option<String>,
}

/// Which matrices get the same format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum By {
    /// Each its own
    Tensor,
    /// Those of a layer
    Layer,
    /// Those that are the same in every layer, e.g. all down projections
    Role,
}

impl From<By> for Grouping {
    fn from(by: By) -> Grouping {
        match by {
            By::Tensor => Grouping::Tensor,
            By::Layer => Grouping::Layer,
            By::Role => Grouping::Role,
        }
    }
}

#[derive(Args)]
pub(crate) struct SolveArgs {
    /// A Hugging Face folder or a .gguf file
    pub(crate) model: PathBuf,
    /// The chip whose formats the weights may have
    #[arg(long)]
    pub(crate) target: String,
    /// Bits of a weight at most, over all matrices: projections, head and table, scales included
    #[arg(long, value_name = "BITS", allow_negative_numbers = true)]
    pub(crate) budget_bits: f64,
    /// Activations as recipes have them; without it, float where the target takes floats, else int16
    #[arg(long, value_name = "ACT")]
    pub(crate) act: Option<String>,
    /// Formats to choose among, e.g. q4_0,q8_0; without it, all that the target takes
    #[arg(long, value_delimiter = ',', value_name = "FORMATS")]
    pub(crate) formats: Option<Vec<String>>,
    /// Which matrices get the same format
    #[arg(long, value_enum, default_value_t = By::Tensor)]
    pub(crate) by: By,
    /// The text to measure on; without it and --ids, the model writes one itself
    #[command(flatten)]
    pub(crate) corpus: CorpusArgs,
    /// Token ids of a window of the text, of which the second half is scored
    #[arg(long, default_value_t = npuc_run::fidelity::DEFAULT_CONTEXT, value_name = "N")]
    pub(crate) context: usize,
    /// Measure on the first N windows of the text
    #[arg(long, default_value_t = 2, value_name = "N")]
    pub(crate) windows: usize,
    /// What counts as faithful, as in `npuc verify`; without it, nothing is asked
    #[arg(long, value_name = "CONDITIONS")]
    pub(crate) gate: Option<String>,
    /// A .toml file for the recipe, which is printed in any case
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Threads to compute with; without it, as many as the machine has
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,
}

#[derive(Args)]
pub(crate) struct RunArgs {
    /// A bundle, a Hugging Face folder or a .gguf file
    pub(crate) model: PathBuf,
    #[command(flatten)]
    pub(crate) prompt: PromptArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    /// The most tokens to answer with; without it, until the model stops or the context is full
    #[arg(short = 'n', long, value_name = "N")]
    pub(crate) max_new: Option<usize>,
    /// Stop before this text (may be repeated)
    #[arg(long, value_name = "TEXT")]
    pub(crate) stop: Vec<String>,
    /// Go on after the ids that end an answer
    #[arg(long)]
    pub(crate) ignore_eos: bool,
    /// Drop the oldest tokens of a prompt that does not fit the context
    #[arg(long)]
    pub(crate) truncate: bool,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    /// Keep a value of the graph: a port, a path such as layers.0.mlp.down_proj, or %index (may be repeated)
    #[arg(long, value_name = "NAME", requires = "dump_file")]
    pub(crate) dump: Vec<String>,
    /// Where the values of --dump go after the last step, as safetensors
    #[arg(long, value_name = "FILE", requires = "dump")]
    pub(crate) dump_file: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct PromptArgs {
    /// The prompt: text to continue or, with --chat, a message
    #[arg(short, long, value_name = "TEXT", conflicts_with = "ids")]
    pub(crate) prompt: Option<String>,
    /// Use the model's chat template; without -p, messages are read from standard input, one a line
    #[arg(long, conflicts_with = "ids")]
    pub(crate) chat: bool,
    /// The system message of --chat
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    /// The date that chat templates see, instead of today's
    #[arg(long, value_name = "YYYY-MM-DD")]
    pub(crate) date: Option<String>,
    /// A file of token ids, separated by white space or commas (- for standard input); needs no tokenizer
    #[arg(long, value_name = "FILE")]
    pub(crate) ids: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct SamplingArgs {
    /// Randomness; 0 takes the best token every time
    #[arg(long, default_value_t = 0.0, value_name = "T", allow_negative_numbers = true)]
    pub(crate) temperature: f32,
    /// Sample among the K best tokens; 0 for all
    #[arg(long, default_value_t = 0, value_name = "K")]
    pub(crate) top_k: usize,
    /// Sample among the best tokens that together have probability P
    #[arg(long, default_value_t = 1.0, value_name = "P", allow_negative_numbers = true)]
    pub(crate) top_p: f32,
    /// Sample among tokens at least P times as probable as the best
    #[arg(long, default_value_t = 0.0, value_name = "P", allow_negative_numbers = true)]
    pub(crate) min_p: f32,
    /// Make tokens that are there already less likely (above 1)
    #[arg(long, default_value_t = 1.0, value_name = "R", allow_negative_numbers = true)]
    pub(crate) repetition_penalty: f32,
    /// The seed of the randomness
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub(crate) seed: u64,
}

#[derive(Args)]
pub(crate) struct VerifyArgs {
    /// A bundle, a Hugging Face folder or a .gguf file; of Whisper the folder with both bundles, or a checkpoint
    pub(crate) model: PathBuf,
    /// Safetensors with input_ids, and logits or greedy_ids; for Whisper with input_features and decoder_input_ids instead;
    /// without it, this machine computes the reference
    #[arg(long, value_name = "FILE", conflicts_with_all = ["text", "ids", "audio"])]
    pub(crate) reference: Option<PathBuf>,
    /// The checkpoint or bundle that this machine computes the reference with, or the word `float` for MODEL's own
    /// checkpoint in float; without it, MODEL itself
    #[arg(long, value_name = "MODEL", conflicts_with = "reference")]
    pub(crate) against: Option<PathBuf>,
    /// Compare with the golden outputs of the bundle MODEL what a board gave: safetensors with `logits` after each of the golden
    /// ids, or `out.<port>` of the golden step
    #[arg(long, value_name = "FILE", conflicts_with_all = ["reference", "against", "text", "ids", "audio"])]
    pub(crate) device_outputs: Option<PathBuf>,
    /// Speech to measure Whisper on, a WAV file
    #[arg(long, value_name = "FILE.wav", group = "corpus")]
    pub(crate) audio: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) corpus: CorpusArgs,
    /// Token ids of a window of the text, of which the second half is scored; without it, 512
    #[arg(long, value_name = "N", requires = "corpus")]
    pub(crate) context: Option<usize>,
    /// Measure only the first N windows of the text or sound
    #[arg(long, value_name = "N", requires = "corpus")]
    pub(crate) windows: Option<usize>,
    /// What counts as faithful, of cosine, sqnr, max_abs, top1, top10, greedy, and over a text kl, kl_p99, kl_max, ppl and
    /// ppl_ratio; without it cosine>=0.999,top1>=0.99,greedy>=0.99, and cosine>=0.98,top1>=0.85 for bundles in whole numbers
    #[arg(long, value_name = "CONDITIONS")]
    pub(crate) gate: Option<String>,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
}

/// What a model is measured on.
#[derive(Args)]
pub(crate) struct CorpusArgs {
    /// A text to measure on, in UTF-8
    #[arg(long, value_name = "FILE", group = "corpus")]
    pub(crate) text: Option<PathBuf>,
    /// The same as token ids, separated by white space or commas (- for standard input); needs no tokenizer
    #[arg(long, value_name = "FILE", group = "corpus")]
    pub(crate) ids: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct ExplainArgs {
    /// The code in the brackets of the message; a file that keeps what a vendor's compiler or runtime said; or an error number of QNN
    #[arg(value_name = "CODE|LOG|NUMBER")]
    pub(crate) what: Option<String>,
    /// With a log: the IR text of a graph that it may be about, as `npuc check --ir` writes it (may be repeated)
    #[arg(long, value_name = "FILE", requires = "what")]
    pub(crate) ir: Vec<PathBuf>,
}

/// Step shapes from a flag.
pub(crate) fn shapes(texts: Option<&Vec<String>>) -> npuc::Result<Option<Vec<StepShape>>> {
    texts.map(|texts| texts.iter().map(|text| text.trim().parse()).collect()).transpose()
}

impl PlaceArgs {
    /// The request with the rules of the flags behind the target's own.
    pub(crate) fn apply(&self, mut request: Request) -> npuc::Result<Request> {
        for rule in &self.place {
            request.placement.push(rule.trim().parse()?);
        }
        request.deny_fallback = self.deny_fallback;
        Ok(request)
    }
}

/// Passes from a flag.
pub(crate) fn passes(texts: &[String]) -> npuc::Result<Vec<Pass>> {
    texts.iter().map(|text| Pass::parse(text.trim())).collect()
}

/// Threads from a flag, or as many as the machine has.
pub(crate) fn threads(given: Option<usize>) -> usize {
    given.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
}
