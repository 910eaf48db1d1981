//! The flags of `npuc synth`.

use std::path::PathBuf;

use clap::Args;

#[derive(Args)]
pub(crate) struct SynthArgs {
    /// A config.json as Hugging Face writes it
    pub(crate) config: PathBuf,
    /// The folder of the checkpoint
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: PathBuf,
    /// The number format of the weights: bf16, f16 or f32
    #[arg(long, default_value = "bf16", value_name = "FORMAT")]
    pub(crate) format: String,
    /// The seed of the randomness; the same seed gives the same bytes
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub(crate) seed: u64,
}
