//! Torq's simulator: one process a step, with the ports as raw files.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, io};

use npuc::{Code, Diagnostic, Result};
use tempfile::TempDir;

use super::{ModuleSpec, PortInfo, shown, total_bytes, type_name};
use crate::toolchain::Installed;
use crate::toolchain::child::{Call, Ended, remove};
use crate::vendor_log;

/// The folder in memory that Linux has.
const MEMORY: &str = "/dev/shm";

/// The program and the folder of its files.
#[derive(Debug)]
pub(super) struct Simulator {
    program: PathBuf,
    folder: TempDir,
}

impl Simulator {
    /// Errors: [`Code::MissingTool`] if the tool has no such program, [`Code::Unwritable`] without a folder for its files.
    pub(super) fn new(spec: &ModuleSpec, tool: &Installed) -> Result<Simulator> {
        let program = tool.run_module().filter(|program| program.is_file()).ok_or_else(|| {
            Diagnostic::error(Code::MissingTool, "the tool has no program that executes modules")
                .subject(tool.tool.name())
                .help(format!("run `npuc toolchain install {}`", tool.tool.name()))
        })?;
        let folder = folder(total_bytes(&spec.inputs) + total_bytes(&spec.outputs));
        let folder = folder.map_err(|e| {
            Diagnostic::error(Code::Unwritable, format!("cannot make a folder for the simulator's files: {e}"))
        })?;
        Ok(Simulator { program, folder })
    }

    /// Computes one step.
    pub(super) fn run(&self, spec: &ModuleSpec, inputs: &[&[f32]]) -> Result<Vec<Vec<f32>>> {
        let mut command = Command::new(&self.program);
        command.arg(valued("--module=", &spec.vmfb)).arg(format!("--function={}", spec.function));
        if let Some((scope, path)) = &spec.parameters {
            command.arg(valued(&format!("--parameters={scope}="), path));
        }
        for (index, (port, values)) in spec.inputs.iter().zip(inputs).enumerate() {
            let file = self.folder.path().join(format!("in{index}.bin"));
            let mut bytes = Vec::with_capacity(port.len_bytes());
            port.put(values, &mut bytes);
            let fault =
                |e: io::Error| Diagnostic::error(Code::Unwritable, format!("cannot write the file: {e}")).file(&file);
            fs::write(&file, bytes).map_err(fault)?;
            command.arg(valued(&format!("--input={}=@", described(port)), &file));
        }
        let files: Vec<PathBuf> =
            (0..spec.outputs.len()).map(|index| self.folder.path().join(format!("out{index}.bin"))).collect();
        for file in &files {
            remove(file)?;
            command.arg(valued("--output=@", file));
        }
        let name = shown(&self.program);
        let call = Call { name: &name, subject: &shown(&spec.vmfb), log: &spec.log, limit: spec.limit };
        let ended = call.make(command, &mut |_| ())?;
        if !matches!(&ended, Ended::Status(status) if status.success()) {
            let answer = call.answer()?;
            return Err(call.failure(&ended, &answer, &vendor_log::decode(&answer), &[]).into());
        }
        spec.outputs.iter().zip(&files).map(|(port, file)| taken(port, file, spec, &name)).collect()
    }
}

/// The numbers of a result.
fn taken(port: &PortInfo, file: &Path, spec: &ModuleSpec, name: &str) -> Result<Vec<f32>> {
    let bytes = fs::read(file).unwrap_or_default();
    if bytes.len() == port.len_bytes() {
        return Ok(port.take(&bytes));
    }
    Err(Diagnostic::error(Code::ToolFailed, format!("{name} wrote a result of another size"))
        .file(&spec.log)
        .subject(&port.name)
        .need(format!("{} bytes for {}", port.len_bytes(), described(port)))
        .have(format!("{} bytes", bytes.len()))
        .into())
}

/// A folder with room for so many bytes: in memory if there is twice the room, else where temporary files are.
fn folder(bytes: u64) -> io::Result<TempDir> {
    if room(Path::new(MEMORY)) >= bytes.saturating_mul(2) {
        // Memory that may not be written to is none.
        if let Ok(folder) = tempfile::tempdir_in(MEMORY) {
            return Ok(folder);
        }
    }
    tempfile::tempdir()
}

/// The bytes that are free in a file system; none where there is no such folder.
#[cfg(unix)]
fn room(folder: &Path) -> u64 {
    rustix::fs::statvfs(folder).map_or(0, |data| data.f_bavail.saturating_mul(data.f_frsize))
}

#[cfg(not(unix))]
fn room(_: &Path) -> u64 {
    0
}

/// A port in the words of the program, e.g. `1x64xbf16`.
fn described(port: &PortInfo) -> String {
    let extents: String = port.shape.iter().map(|extent| format!("{extent}x")).collect();
    format!("{extents}{}", type_name(port.format))
}

/// A flag whose value ends in a path.
fn valued(flag: &str, path: &Path) -> std::ffi::OsString {
    let mut text = std::ffi::OsString::from(flag);
    text.push(path);
    text
}
