//! Opening a model for `run`, `verify` and `diff` on the device that the flags name.

use std::path::Path;

use npuc::back::tflite::Storage;
use npuc::fit::Request;
use npuc::front::{self, Checkpoint};
use npuc::model::{CacheProtocol, Chunks, StepShape, layers};
use npuc::{Code, Diagnostic, Result, bundle, target};
use npuc_run::device::litert::TIME_LIMIT;
use npuc_run::program::{DEFAULT_CAPACITY, Program, shapes_of};
use npuc_run::session::Session;
use npuc_run::toolchain::{Installed, Tool, find};

use crate::args::{DeviceArgs, On, shapes, threads};

/// The program and a session on the device; values in `keep` can be read after a step. `capacity` is how many rows of
/// cache a checkpoint gets where no shapes are given.
pub(crate) fn open(
    model: &Path,
    device: &DeviceArgs,
    capacity: Option<usize>,
    keep: &[String],
) -> Result<(Program, Session)> {
    let refused = |message: &str, help: &str| {
        Err(Diagnostic::error(Code::BadArgument, message).subject("--chunks").help(help).into())
    };
    let is_bundle = bundle::is_bundle(model);
    match device.on {
        On::Host if device.chunks.is_some() => {
            refused("the host computes a model whole", "add --on litert, or leave out --chunks")
        }
        On::Litert if is_bundle && device.chunks.is_some() => {
            refused("a bundle has the chunks it was built with", "leave out --chunks, or name the checkpoint")
        }
        On::Host => {
            let program = if is_bundle {
                Program::open(model, shapes(device.shapes.as_ref())?)?
            } else {
                let checkpoint = front::open(model)?;
                let shapes = shapes_for(&checkpoint, device, capacity)?;
                Program::from_checkpoint(checkpoint, Some(shapes))?
            };
            let session = Session::new(&program, threads(device.threads), keep)?;
            Ok((program, session))
        }
        On::Litert => {
            let tool = find(Tool::LiteRt)?;
            if !keep.is_empty() {
                return Err(Diagnostic::error(Code::BadArgument, "only the host keeps values (--dump)").into());
            }
            if is_bundle {
                let program = Program::open(model, shapes(device.shapes.as_ref())?)?;
                let session = Session::on_litert(&program, &tool, threads(device.threads), TIME_LIMIT)?;
                return Ok((program, session));
            }
            through_tflite(model, device, capacity, &tool)
        }
    }
}

/// A model beside another one, for this machine: a checkpoint gets the shapes of the other, a bundle has its own.
pub(crate) fn open_beside(model: &Path, other: &Program) -> Result<Program> {
    let shapes = other.steps.iter().map(|step| step.shape).collect();
    Program::open(model, (!bundle::is_bundle(model)).then_some(shapes))
}

fn shapes_for(checkpoint: &Checkpoint, device: &DeviceArgs, capacity: Option<usize>) -> Result<Vec<StepShape>> {
    let capacity = capacity.unwrap_or(DEFAULT_CAPACITY);
    Ok(shapes(device.shapes.as_ref())?.unwrap_or_else(|| shapes_of(&checkpoint.config, capacity)))
}

/// A checkpoint on the spot. The interpreter maps the files, which live on until it ends.
fn through_tflite(
    model: &Path,
    device: &DeviceArgs,
    capacity: Option<usize>,
    tool: &Installed,
) -> Result<(Program, Session)> {
    let checkpoint = front::open(model)?;
    let shapes = shapes_for(&checkpoint, device, capacity)?;
    let request = Request::plain(target::host().with_protocol(CacheProtocol::Shift), shapes);
    let chunks = device.chunks.as_deref().map_or(Ok(Chunks::Equal(1)), str::parse)?;
    let parts = chunks.parts(layers(&checkpoint.config))?;
    let folder = tempfile::tempdir().map_err(|e| {
        Diagnostic::error(Code::Unwritable, format!("cannot make a folder for the TFLite files: {e}"))
            .help("set TMPDIR to a folder with free space")
    })?;
    let files = folder.path().join("files");
    let program = Program::through_tflite(&checkpoint, &request, &parts, Storage::F32, &files)?;
    let session = Session::on_litert(&program, tool, threads(device.threads), TIME_LIMIT)?;
    Ok((program, session))
}
