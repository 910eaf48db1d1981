//! `npuc synth`: a checkpoint of random weights from a configuration.

use npuc::synth::{Format, write};
use npuc::{Code, Diagnostic, Result};
use serde::Serialize;

use crate::args::SynthArgs;
use crate::output::{Output, bytes};

#[derive(Serialize)]
struct Report {
    folder: String,
    format: &'static str,
    seed: u64,
    weights_bytes: u64,
}

/// Runs the command.
pub(crate) fn command(args: &SynthArgs, output: Output) -> Result<()> {
    let format = Format::parse(&args.format)?;
    let text = std::fs::read(&args.config)
        .map_err(|e| Diagnostic::error(Code::Unreadable, format!("cannot read the file: {e}")).file(&args.config))?;
    let weights_bytes = write(&args.output, &text, &args.config, format, args.seed)?;
    let folder = args.output.display().to_string();
    let report = Report { folder, format: format.dtype().name(), seed: args.seed, weights_bytes };
    let text = format!("{}: random weights in {}, {}\n", report.folder, report.format, bytes(weights_bytes));
    output.result(&report, &text)
}
