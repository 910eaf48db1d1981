//! IREE's runtime in a process that stays: the module and its parameters are loaded once, steps come one after the other.

use std::path::Path;
use std::process::Command;

use npuc::{Code, Diagnostic, Error, Result};
use serde::Serialize;

use super::{ModuleSpec, PortInfo, Runner, shown, tool, type_name, vulkan};
use crate::device::process::{Answer, Log, Process};
use crate::toolchain::{Installed, Tool, python_3_11};
use crate::vendor_log;

const SCRIPT: &str = include_str!("resident.py");
const NAME: &str = "IREE's runtime";

/// The running process.
#[derive(Debug)]
pub(super) struct Resident {
    process: Process,
    /// Held while the process runs: what the driver reads is in it.
    _driver: Option<tempfile::TempDir>,
}

/// What the script is told of a module.
#[derive(Serialize)]
struct Load<'a> {
    driver: &'static str,
    module: &'a str,
    function: &'a str,
    scope: Option<&'a str>,
    parameters: Option<&'a str>,
    inputs: Vec<(&'a [usize], &'static str)>,
    outputs: Vec<(&'a [usize], &'static str)>,
}

impl Resident {
    /// Starts the process and loads the module.
    pub(super) fn start(spec: &ModuleSpec, tools: &[Installed]) -> Result<Resident> {
        let iree = tool(tools, Tool::Iree)?;
        let python = iree.python.clone().map_or_else(|| python_3_11(Tool::Iree), Ok)?;
        let mut command = Command::new(python);
        // -S leaves out the packages of the machine, so that those that are pinned are used.
        command.args(["-S", "-s", "-u", "-c", SCRIPT]);
        let path = std::env::join_paths(&iree.folders)
            .map_err(|e| Diagnostic::error(Code::ToolFailed, format!("the tool's folders cannot be named: {e}")))?;
        command.env("PYTHONPATH", path).env("PYTHONDONTWRITEBYTECODE", "1");
        let driver = match spec.runner {
            Runner::IreeCpu | Runner::TorqSim => None,
            Runner::IreeVulkan => Some(vulkan::set(&mut command, tool(tools, Tool::Vulkan)?, vulkan::LLVMPIPE_BITS)?),
            Runner::ValhallOnVulkan => {
                Some(vulkan::set(&mut command, tool(tools, Tool::Vulkan)?, vulkan::VALHALL_BITS)?)
            }
        };
        Resident::load(command, driver, spec)
    }

    /// Starts the command and has it load the module.
    pub(super) fn load(command: Command, driver: Option<tempfile::TempDir>, spec: &ModuleSpec) -> Result<Resident> {
        let process = Process::spawn(NAME, command, Log::at(Some(&spec.log))?, spec.limit)?;
        let mut resident = Resident { process, _driver: driver };
        let request = [b"L".to_vec(), request(spec)?].concat();
        resident.ask(spec, request, b'M', "loading a module")?;
        Ok(resident)
    }

    /// Computes one step.
    pub(super) fn run(&mut self, spec: &ModuleSpec, inputs: &[&[f32]]) -> Result<Vec<Vec<f32>>> {
        let mut request = b"R".to_vec();
        for (port, values) in spec.inputs.iter().zip(inputs) {
            port.put(values, &mut request);
        }
        let answer = self.ask(spec, request, b'O', "computing a step")?;
        let bad = || self.process.bad_answer().in_file(&spec.log);
        let mut rest = &answer[..];
        let mut outputs = Vec::with_capacity(spec.outputs.len());
        for port in &spec.outputs {
            let (now, later) = rest.split_at_checked(port.len_bytes()).ok_or_else(bad)?;
            outputs.push(port.take(now));
            rest = later;
        }
        if rest.is_empty() { Ok(outputs) } else { Err(bad()) }
    }

    /// Sends a request and waits for the answer, which must be of the kind `expected`.
    fn ask(&mut self, spec: &ModuleSpec, request: Vec<u8>, expected: u8, doing: &str) -> Result<Vec<u8>> {
        let module = shown(&spec.vmfb);
        match self.process.ask(request, expected, doing, &mut |_| ()).map_err(|e| e.in_file(&spec.log))? {
            Answer::Good(rest) => Ok(rest),
            Answer::Refused(text) => Err(self.refusal(spec, &String::from_utf8_lossy(&text), &module, doing)),
        }
    }

    /// The fault of a request that the runtime refuses.
    fn refusal(&self, spec: &ModuleSpec, text: &str, module: &str, doing: &str) -> Error {
        let log =
            std::fs::read(&spec.log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
        if let Some(refusal) = vendor_log::diagnostic(&vendor_log::decode(&log), &[], &spec.log) {
            return refusal.help(format!("the module was {module}")).into();
        }
        // The exception stands behind the places that led to it, which are indented, and may be of several lines.
        let exception = text.lines().skip(1).find(|line| !line.starts_with(' ')).unwrap_or(text);
        self.process
            .failure(&format!("{NAME} failed while {doing}"))
            .file(&spec.log)
            .subject(module)
            .have(exception)
            .into()
    }
}

/// The module in the script's words.
fn request(spec: &ModuleSpec) -> Result<Vec<u8>> {
    let text = |path: &Path| -> Result<String> {
        let fault = || Diagnostic::error(Code::BadArgument, "IREE's runtime takes only paths that are UTF-8");
        path.to_str().map(str::to_owned).ok_or_else(|| fault().have(path.display()).into())
    };
    let module = text(&spec.vmfb)?;
    let parameters = spec.parameters.as_ref().map(|(_, path)| text(path)).transpose()?;
    let load = Load {
        driver: match spec.runner {
            Runner::IreeCpu | Runner::TorqSim => "local-task",
            Runner::IreeVulkan | Runner::ValhallOnVulkan => "vulkan",
        },
        module: &module,
        function: &spec.function,
        scope: spec.parameters.as_ref().map(|(scope, _)| scope.as_str()),
        parameters: parameters.as_deref(),
        inputs: described(&spec.inputs),
        outputs: described(&spec.outputs),
    };
    let json = serde_json::to_vec(&load);
    Ok(json.map_err(|e| Diagnostic::error(Code::ToolFailed, format!("the module cannot be described: {e}")))?)
}

fn described(ports: &[PortInfo]) -> Vec<(&[usize], &'static str)> {
    ports.iter().map(|port| (port.shape.as_slice(), type_name(port.format))).collect()
}
