//! The LiteRT interpreter in a process of its own, which executes TFLite files with its default kernels.
//!
//! A crash, a hang or a refusal in there is an error here, with the end of the interpreter's log.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use npuc::quant::Encoding;
use npuc::{Code, Diagnostic, Result};
use serde::Deserialize;

use super::port::{PortFormat, PortInfo};
use super::process::{Answer, Log, Process};
use crate::toolchain::Installed;

/// How long a request may take unless the caller says otherwise.
pub const TIME_LIMIT: Duration = Duration::from_secs(300);

const SCRIPT: &str = include_str!("litert.py");
const NAME: &str = "the LiteRT interpreter";

/// A running interpreter, which holds any number of models.
#[derive(Debug)]
pub struct LiteRt {
    process: Process,
    models: u32,
}

/// A loaded TFLite file.
#[derive(Clone, Debug)]
pub struct Model {
    index: u32,
    /// The inputs, in order.
    pub inputs: Vec<PortInfo>,
    /// The outputs, in order.
    pub outputs: Vec<PortInfo>,
}

#[derive(Deserialize)]
struct Ports {
    inputs: Vec<RawPort>,
    outputs: Vec<RawPort>,
}

/// A port as the interpreter describes it.
#[derive(Deserialize)]
struct RawPort {
    name: String,
    shape: Vec<usize>,
    #[serde(rename = "type")]
    ty: String,
    scale: f32,
    zero_point: i64,
}

impl RawPort {
    /// Errors: a port that is neither f32 nor int16 around 0.
    fn read(self) -> Result<PortInfo> {
        let format = match (self.ty.as_str(), self.zero_point) {
            ("float32", _) => PortFormat::F32,
            ("int16", 0) if self.scale > 0.0 => PortFormat::Int16(Encoding::int16(self.scale)),
            (ty, zero_point) => {
                return Err(Diagnostic::error(
                    Code::ToolFailed,
                    "a port of the TFLite file is of a kind npuc does not fill",
                )
                .subject(self.name)
                .need("f32, or int16 with a scale and the zero point 0")
                .have(format!("{ty} with the scale {} and the zero point {zero_point}", self.scale))
                .into());
            }
        };
        Ok(PortInfo { name: self.name, shape: self.shape, format })
    }
}

impl LiteRt {
    /// Starts the interpreter; a request that takes longer than `limit` fails and ends it.
    ///
    /// Errors: [`Code::ToolFailed`] if it does not start.
    pub fn start(tool: &Installed, limit: Duration) -> Result<LiteRt> {
        let path = std::env::join_paths(&tool.folders)
            .map_err(|e| Diagnostic::error(Code::ToolFailed, format!("the tool's folders cannot be named: {e}")))?;
        let python = tool.python.as_ref();
        let python = python.ok_or_else(|| Diagnostic::error(Code::MissingTool, "no Python was found for the tool"))?;
        let mut command = Command::new(python);
        // -S leaves out the packages of the machine, so that those that are pinned are used.
        command.args(["-S", "-s", "-u", "-c", SCRIPT]);
        command.env("PYTHONPATH", path).env("PYTHONDONTWRITEBYTECODE", "1");
        LiteRt::spawn(command, limit)
    }

    fn spawn(command: Command, limit: Duration) -> Result<LiteRt> {
        Ok(LiteRt { process: Process::spawn(NAME, command, Log::at(None)?, limit)?, models: 0 })
    }

    /// Loads a TFLite file, to be computed on `threads` threads.
    ///
    /// Errors: [`Code::ToolFailed`] if the interpreter refuses it or ends; ports that are neither f32 nor int16.
    pub fn load(&mut self, path: &Path, threads: usize) -> Result<Model> {
        let fault = |message: &str| Diagnostic::error(Code::ToolFailed, message).file(path);
        let too_many =
            |_| fault("more threads than the interpreter takes").need(format!("at most {}", i32::MAX)).have(threads);
        let count = i32::try_from(threads).map_err(too_many)?;
        let request = [b"L", &count.to_le_bytes()[..], path.as_os_str().as_encoded_bytes()].concat();
        let answer = self.ask(request, b'M', "loading a TFLite file").map_err(|e| e.in_file(path))?;
        let ports: Ports = serde_json::from_slice(&answer).map_err(|e| {
            fault(&format!("the LiteRT interpreter describes the ports in a way npuc cannot read: {e}"))
        })?;
        let read = |ports: Vec<RawPort>| {
            let ports: Result<Vec<PortInfo>> = ports.into_iter().map(RawPort::read).collect();
            ports.map_err(|e| e.in_file(path))
        };
        let (inputs, outputs) = (read(ports.inputs)?, read(ports.outputs)?);
        let index = self.models;
        self.models += 1;
        Ok(Model { index, inputs, outputs })
    }

    /// Computes the model from its inputs, in order; gives its outputs, in order. What enters an int16 port is rounded
    /// to the nearest of its numbers and saturates, which is what a mask is meant to do.
    ///
    /// Errors: [`Code::ToolFailed`] if the interpreter fails or ends.
    ///
    /// # Panics
    /// If an input is absent or has another length than its port.
    pub fn run(&mut self, model: &Model, inputs: &[&[f32]]) -> Result<Vec<Vec<f32>>> {
        assert_eq!(inputs.len(), model.inputs.len(), "inputs of the model");
        let mut request = [b"R", &model.index.to_le_bytes()[..]].concat();
        for (port, values) in model.inputs.iter().zip(inputs) {
            assert_eq!(values.len(), port.elements(), "elements of the port `{}`", port.name);
            port.put(values, &mut request);
        }
        let answer = self.ask(request, b'O', "computing a step")?;
        let mut rest = &answer[..];
        let mut outputs = Vec::with_capacity(model.outputs.len());
        for port in &model.outputs {
            let (now, later) = rest.split_at_checked(port.len_bytes()).ok_or_else(|| self.process.bad_answer())?;
            outputs.push(port.take(now));
            rest = later;
        }
        if rest.is_empty() { Ok(outputs) } else { Err(self.process.bad_answer()) }
    }

    /// Sends a request and waits for the answer, which must be of the kind `expected`.
    fn ask(&mut self, request: Vec<u8>, expected: u8, doing: &str) -> Result<Vec<u8>> {
        match self.process.ask(request, expected, doing, &mut |_| ())? {
            Answer::Good(rest) => Ok(rest),
            Answer::Refused(text) => {
                let text = String::from_utf8_lossy(&text);
                let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
                Err(self.process.failure(&format!("{NAME} failed while {doing}")).have(last).into())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What enters an int16 port, and what it then means.
    #[test]
    fn ports_of_whole_numbers() {
        let port = |ty: &str, scale: f32, zero_point: i64| {
            RawPort { name: "p".into(), shape: vec![5], ty: ty.into(), scale, zero_point }.read()
        };
        let values = [0.0, 0.26, -0.24, 1e9, -1e9];
        for (ty, scale, expected) in
            [("int16", 0.5, [0.0, 0.5, 0.0, 16383.5, -16384.0]), ("float32", 0.0, [0.0, 0.26, -0.24, 1e9, -1e9])]
        {
            let port = port(ty, scale, 0).expect(ty);
            let mut bytes = Vec::new();
            port.put(&values, &mut bytes);
            assert_eq!((bytes.len(), port.take(&bytes)), (port.len_bytes(), expected.to_vec()));
        }
        for (ty, scale, zero_point) in [("int8", 0.5, 0), ("int16", 0.5, 3), ("int16", 0.0, 0), ("int16", f32::NAN, 0)]
        {
            let error = port(ty, scale, zero_point).expect_err(ty);
            assert!(error.diagnostics()[0].have.as_deref().is_some_and(|have| have.starts_with(ty)), "{error}");
        }
    }

    /// Stand-ins for an interpreter that refuses, and for one that describes its ports otherwise.
    #[test]
    fn what_goes_wrong_is_told() {
        for (answer, message) in [
            ("\\004\\0\\0\\0\\0\\0\\0\\0Eno!", "the LiteRT interpreter failed while loading a TFLite file"),
            ("\\003\\0\\0\\0\\0\\0\\0\\0M{}", "the LiteRT interpreter describes the ports in a way npuc cannot read"),
        ] {
            let mut command = Command::new("sh");
            command.args(["-c", &format!("head -c 8 >/dev/null; printf '{answer}'; exec sleep 30")]);
            let mut litert = LiteRt::spawn(command, Duration::from_secs(10)).expect("sh starts");
            let error = litert.load(Path::new("m.tflite"), 1).expect_err(answer);
            let fault = &error.diagnostics()[0];
            assert_eq!((fault.code, error.exit_status()), (Code::ToolFailed, 4), "{answer}");
            assert!(fault.message.contains(message), "{answer}: {fault}");
        }
    }
}
