//! Opening a model for `run` and `verify` on the device that the flags name.

use std::path::Path;

use npuc::back::tflite::Storage;
use npuc::build::Plan;
use npuc::model::{CacheProtocol, Chunks, layers};
use npuc::{Code, Diagnostic, Result, bundle, front, target};
use npuc_run::device::chunks::chunked_steps;
use npuc_run::device::litert::TIME_LIMIT;
use npuc_run::program::{Program, default_shapes};
use npuc_run::session::Session;
use npuc_run::toolchain::{Tool, find};

use crate::args::{DeviceArgs, On, shapes, threads};

/// The program and a session on the device; values in `keep` can be read after a step.
pub(crate) fn open(model: &Path, device: &DeviceArgs, keep: &[String]) -> Result<(Program, Session)> {
    let (shapes, threads) = (shapes(device.shapes.as_ref())?, threads(device.threads));
    match device.on {
        On::Host => {
            if device.chunks.is_some() {
                return Err(Diagnostic::error(Code::BadArgument, "the host computes a model whole")
                    .subject("--chunks")
                    .help("add --on litert, or leave out --chunks")
                    .into());
            }
            let program = Program::open(model, shapes)?;
            let session = Session::new(&program, threads, keep)?;
            Ok((program, session))
        }
        On::Litert => {
            let tool = find(Tool::LiteRt)?;
            if bundle::is_bundle(model) {
                return Err(Diagnostic::error(Code::BadArgument, "a bundle for the host has no TFLite files")
                    .file(model)
                    .help("name the checkpoint: its TFLite files are made on the spot")
                    .into());
            }
            if !keep.is_empty() {
                return Err(Diagnostic::error(Code::BadArgument, "only the host keeps values (--dump)").into());
            }
            let checkpoint = front::open(model)?;
            let shapes = shapes.unwrap_or_else(|| default_shapes(&checkpoint.config));
            let plan = Plan::new(target::host().with_protocol(CacheProtocol::Shift), shapes)?;
            let program = Program::build(checkpoint, &plan)?;
            let chunks = device.chunks.as_deref().map_or(Ok(Chunks::Equal(1)), str::parse)?;
            let parts = chunks.parts(layers(&program.config))?;
            // The interpreter maps the files, which live on until it ends.
            let folder = tempfile::tempdir().map_err(|e| {
                Diagnostic::error(Code::Unwritable, format!("cannot make a folder for the TFLite files: {e}"))
                    .help("set TMPDIR to a folder with free space")
            })?;
            let steps = chunked_steps(&program, &parts, Storage::F32, folder.path(), &tool, threads, TIME_LIMIT)?;
            let session = Session::on_litert(&program, steps)?;
            Ok((program, session))
        }
    }
}
