//! Opening a model for `run` and `verify` on the device that the flags name.

use std::path::Path;

use npuc::back::tflite::Storage;
use npuc::fit::Request;
use npuc::model::{CacheProtocol, Chunks, layers};
use npuc::{Code, Diagnostic, Result, bundle, front, target};
use npuc_run::device::litert::TIME_LIMIT;
use npuc_run::program::{Program, default_shapes};
use npuc_run::session::Session;
use npuc_run::toolchain::{Installed, Tool, find};

use crate::args::{DeviceArgs, On, shapes, threads};

/// The program and a session on the device; values in `keep` can be read after a step.
pub(crate) fn open(model: &Path, device: &DeviceArgs, keep: &[String]) -> Result<(Program, Session)> {
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
            let program = Program::open(model, shapes(device.shapes.as_ref())?)?;
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
            through_tflite(model, device, &tool)
        }
    }
}

/// A checkpoint on the spot. The interpreter maps the files, which live on until it ends.
fn through_tflite(model: &Path, device: &DeviceArgs, tool: &Installed) -> Result<(Program, Session)> {
    let checkpoint = front::open(model)?;
    let shapes = shapes(device.shapes.as_ref())?.unwrap_or_else(|| default_shapes(&checkpoint.config));
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
