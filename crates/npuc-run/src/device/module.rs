//! Modules that IREE or Torq compiled, executed on this machine: a function with ports in, ports out.
//!
//! IREE's runtime stays in a process of its own, with the parameters loaded once; Torq's simulator is a process for each step. A
//! crash, a hang or a refusal in there is an error here, and everything they say is kept in a log.

use std::path::{Path, PathBuf};
use std::time::Duration;

use npuc::{Code, Diagnostic, Error, Result};

use super::port::{PortFormat, PortInfo};
use crate::toolchain::{Installed, Tool, find};

mod resident;
mod simulator;
mod vulkan;

use resident::Resident;
use simulator::Simulator;

/// How long a step may take unless the caller says otherwise.
pub const TIME_LIMIT: Duration = Duration::from_secs(600);

/// What executes a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runner {
    /// IREE on this machine's CPU.
    IreeCpu,
    /// IREE on a Vulkan driver that computes on the CPU, with code for that driver.
    IreeVulkan,
    /// The same driver with vectors as wide as code for Mali's fourth Valhall generation needs: narrower ones drop half of each
    /// sum without a word.
    ValhallOnVulkan,
    /// Torq's simulator.
    TorqSim,
}

impl Runner {
    /// The tools that it needs.
    pub const fn tools(self) -> &'static [Tool] {
        match self {
            Runner::IreeCpu => &[Tool::Iree],
            Runner::IreeVulkan | Runner::ValhallOnVulkan => &[Tool::Iree, Tool::Vulkan],
            Runner::TorqSim => &[Tool::Torq],
        }
    }

    /// Its tools in the user's cache.
    ///
    /// Errors: [`Code::MissingTool`] with the install command.
    pub fn find_tools(self) -> Result<Vec<Installed>> {
        self.tools().iter().map(|tool| find(*tool)).collect()
    }
}

/// A module and how it is executed.
#[derive(Clone, Debug)]
pub struct ModuleSpec {
    /// What executes it.
    pub runner: Runner,
    /// The compiled module.
    pub vmfb: PathBuf,
    /// The function's name.
    pub function: String,
    /// The scope of external parameters and the safetensors file that has them.
    pub parameters: Option<(String, PathBuf)>,
    /// The arguments, in order.
    pub inputs: Vec<PortInfo>,
    /// The results, in order.
    pub outputs: Vec<PortInfo>,
    /// The file that keeps everything the tools say.
    pub log: PathBuf,
    /// How long loading and each step may take.
    pub limit: Duration,
}

/// A module that can be executed.
#[derive(Debug)]
pub struct Module {
    spec: ModuleSpec,
    tools: Vec<Installed>,
    engine: Engine,
    outputs: Vec<Vec<f32>>,
}

/// How often a module is started or a step computed where the device is lost on the way. Mesa says so when a timeline semaphore is
/// signalled with a value that is not above its last (`vk_sync_timeline.c`); between the threads of IREE's Vulkan driver that
/// happens now and then on a busy machine. A step depends on its arguments alone, so it can be computed again.
const ATTEMPTS: usize = 3;

/// Whether the error is that of a software Vulkan's race, and not of the module.
fn is_lost(runner: Runner, error: &Error) -> bool {
    match runner {
        Runner::IreeVulkan | Runner::ValhallOnVulkan => error.to_string().contains("VK_ERROR_DEVICE_LOST"),
        Runner::IreeCpu | Runner::TorqSim => false,
    }
}

#[derive(Debug)]
enum Engine {
    Resident(Resident),
    Simulator(Simulator),
}

impl Engine {
    fn start(spec: &ModuleSpec, tools: &[Installed]) -> Result<Engine> {
        Ok(match spec.runner {
            Runner::IreeCpu | Runner::IreeVulkan | Runner::ValhallOnVulkan => {
                Engine::Resident(Resident::start(spec, tools)?)
            }
            Runner::TorqSim => Engine::Simulator(Simulator::new(spec, tool(tools, Tool::Torq)?)?),
        })
    }

    fn run(&mut self, spec: &ModuleSpec, inputs: &[&[f32]]) -> Result<Vec<Vec<f32>>> {
        match self {
            Engine::Resident(process) => process.run(spec, inputs),
            Engine::Simulator(simulator) => simulator.run(spec, inputs),
        }
    }
}

impl Module {
    /// Makes the module ready. `tools` are those of [`Runner::tools`], in any order.
    ///
    /// # Errors
    /// [`Code::MissingTool`] if a tool is not among `tools`, or IREE's runtime has no Python; [`Code::VendorRefusal`] if the runtime
    /// refuses the module for a reason that npuc knows, else [`Code::ToolFailed`]. The simulator refuses at the first step.
    pub fn open(spec: ModuleSpec, tools: &[Installed]) -> Result<Module> {
        let mut engine = Engine::start(&spec, tools);
        for _ in 1..ATTEMPTS {
            match engine {
                Err(error) if is_lost(spec.runner, &error) => engine = Engine::start(&spec, tools),
                Ok(_) | Err(_) => break,
            }
        }
        let outputs = spec.outputs.iter().map(|port| vec![0.0; port.elements()]).collect();
        Ok(Module { engine: engine?, spec, tools: tools.to_vec(), outputs })
    }

    /// What the module is and how it is executed.
    pub fn spec(&self) -> &ModuleSpec {
        &self.spec
    }

    /// Computes one step from the arguments, in order; see [`PortFormat`] for what enters a port.
    ///
    /// # Errors
    /// As [`Module::open`]. After an error of IREE's runtime the module answers no more.
    ///
    /// # Panics
    /// If an input is absent or has another length than its port.
    pub fn run(&mut self, inputs: &[&[f32]]) -> Result<()> {
        assert_eq!(inputs.len(), self.spec.inputs.len(), "inputs of the module");
        for (port, values) in self.spec.inputs.iter().zip(inputs) {
            assert_eq!(values.len(), port.elements(), "elements of the port `{}`", port.name);
        }
        let mut outputs = self.engine.run(&self.spec, inputs);
        for _ in 1..ATTEMPTS {
            match outputs {
                Err(error) if is_lost(self.spec.runner, &error) => {
                    self.engine = Engine::start(&self.spec, &self.tools)?;
                    outputs = self.engine.run(&self.spec, inputs);
                }
                Ok(_) | Err(_) => break,
            }
        }
        self.outputs = outputs?;
        Ok(())
    }

    /// The elements of a result after a step, by port order; zeros before the first.
    pub fn output(&self, port: usize) -> &[f32] {
        &self.outputs[port]
    }
}

/// A tool among others.
fn tool(tools: &[Installed], tool: Tool) -> Result<&Installed> {
    tools.iter().find(|installed| installed.tool == tool).ok_or_else(|| {
        Diagnostic::error(Code::MissingTool, "the tool that executes the module is not there")
            .subject(tool.name())
            .help(format!("run `npuc toolchain install {}`", tool.name()))
            .into()
    })
}

/// What the numbers of a port are called in MLIR; whole numbers have no sign there.
const fn type_name(format: PortFormat) -> &'static str {
    match format {
        PortFormat::F32 => "f32",
        PortFormat::F16 => "f16",
        PortFormat::Bf16 => "bf16",
        PortFormat::I8 | PortFormat::U8(_) => "i8",
        PortFormat::Int16(_) | PortFormat::U16(_) => "i16",
        PortFormat::I32 => "i32",
    }
}

/// The size of the ports' numbers together.
fn total_bytes(ports: &[PortInfo]) -> u64 {
    ports.iter().map(|port| port.len_bytes() as u64).sum()
}

/// The end of a file's path in messages.
fn shown(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}
