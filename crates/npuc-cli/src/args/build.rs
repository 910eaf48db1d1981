//! The flags of `npuc build` and `npuc tune`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use npuc::front::config::Stack;

use super::{ChipArgs, RecipeArgs};

#[derive(Clone, Args)]
pub(crate) struct BuildArgs {
    /// Which of Whisper's models is built; a command of the user's builds both
    #[arg(skip)]
    pub(crate) stack: Option<Stack>,
    /// A Hugging Face folder, a .gguf file, or a folder of Whisper in CTranslate2's form
    pub(crate) model: PathBuf,
    /// The chip to build for
    #[arg(long, default_value = "host")]
    pub(crate) target: String,
    /// Step shapes: tokens at once against rows of cache; one of them takes a single token
    #[arg(long, value_delimiter = ',', value_name = "SHAPES")]
    pub(crate) shapes: Option<Vec<String>>,
    /// Store the weights after a recipe of `npuc recipes`, or a file that ends in .toml
    #[arg(long, value_name = "RECIPE")]
    pub(crate) recipe: Option<String>,
    #[command(flatten)]
    pub(crate) how: RecipeArgs,
    #[command(flatten)]
    pub(crate) chip: ChipArgs,
    /// How attention is laid out for Qualcomm's chips, IREE and Torq
    #[arg(long, value_enum, value_name = "HOW", default_value_t = Attention::Grouped)]
    pub(crate) attention: Attention,
    /// How many context binaries for Qualcomm's chips (2), or the layers of each (14,14); `auto` is the fewest that the limits
    /// allow
    #[arg(long, value_name = "N")]
    pub(crate) contexts: Option<String>,
    /// Make every context binary for Qualcomm's chips a second time without shared weights: --on qnn then loads it instead of
    /// preparing the graphs anew
    #[arg(long)]
    pub(crate) twins: bool,
    /// Where the weights of modules for IREE are; external-bf16 rounds them all to bf16
    #[arg(long, value_enum, value_name = "WHERE")]
    pub(crate) parameters: Option<ParametersArg>,
    /// Which operand plain weights are in modules for IREE: left loads faster and in half the memory, right makes faster steps
    /// on x86
    #[arg(long, value_enum, value_name = "SIDE", default_value_t = WeightsArg::Left)]
    pub(crate) weights: WeightsArg,
    /// Let Torq's compiler tell how many cycles it expects of every module: an estimate by its own model, never a time
    #[arg(long)]
    pub(crate) profile: bool,
    /// Write modules for IREE and Torq without compiling them
    #[arg(long)]
    pub(crate) no_compile: bool,
    /// Build without the tokenizer when it cannot be read; the bundle then takes token ids only
    #[arg(long)]
    pub(crate) no_tokenizer: bool,
    /// The folder of the bundle
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: PathBuf,
    /// Rewrite passes to run instead of the target's own, in order: simplify, decompose,
    /// decompose-attention, split-attention, decompose-rms-norm, decompose-rope, decompose-softmax,
    /// decompose-silu, decompose-short-conv, rescale-rms-norm, guard-swiglu, linear-to-conv, join-axes,
    /// keys-as-columns, split-joined-products
    #[arg(long, value_delimiter = ',', value_name = "PASSES")]
    pub(crate) passes: Option<Vec<String>>,
    /// Print every graph as IR after this pass
    #[arg(long, value_name = "PASS")]
    pub(crate) dump_after: Option<String>,
}

/// Where the weights of a module are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ParametersArg {
    /// In the module
    Inline,
    /// In a safetensors file, all in bf16
    ExternalBf16,
    /// In a safetensors file, as the recipe says
    External,
}

/// Which operand of a product the weights are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum WeightsArg {
    /// W · x
    Left,
    /// x · Wᵀ
    Right,
}

/// How attention is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Attention {
    /// The heads that share keys and values in one product
    Grouped,
    /// Every head in products of its own
    SplitHead,
}

#[derive(Args)]
pub(crate) struct TuneArgs {
    #[command(flatten)]
    pub(crate) build: BuildArgs,
    /// Try modules of single layers alone: the whole model as one module takes minutes to compile
    #[arg(long)]
    pub(crate) layers_only: bool,
}
