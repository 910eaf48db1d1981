//! `npuc build`: a checkpoint becomes a bundle.

use std::path::Path;
use std::time::Instant;

use npuc::back::BackEnd;
use npuc::bundle::is_bundle;
use npuc::bundle::write::{self, Contents, Written};
use npuc::front::{self, Checkpoint};
use npuc::{Diagnostic, Result, target};

use crate::args::BuildArgs;
use crate::output::Output;

pub(crate) mod host;
mod tflite;

/// Runs the command.
pub(crate) fn command(args: &BuildArgs, output: Output) -> Result<()> {
    let target = target::find(&args.target)?;
    match target.back_end()? {
        BackEnd::Host => host::build(args, &target, output),
        BackEnd::Tflite => tflite::build(args, &target, output),
    }
}

fn open(args: &BuildArgs) -> Result<Checkpoint> {
    if is_bundle(&args.model) {
        let fault = Diagnostic::error(npuc::Code::BadArgument, "this is a bundle, built already").file(&args.model);
        return Err(fault.need("a Hugging Face folder or a .gguf file").help("run it with `npuc run`").into());
    }
    let mut checkpoint = front::open(&args.model)?;
    if args.no_tokenizer {
        checkpoint.tokenizer = None;
    }
    Ok(checkpoint)
}

/// Writes the bundle under a bar.
fn write(dir: &Path, checkpoint: &Checkpoint, contents: Contents<'_>, output: Output) -> Result<Written> {
    let bar = output.bytes_bar("writing");
    let written = write::write(dir, checkpoint, contents, &mut |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    })?;
    bar.finish_and_clear();
    Ok(written)
}

fn ms(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}
