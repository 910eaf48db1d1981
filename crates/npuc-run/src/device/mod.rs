//! Devices: what executes step graphs. Each gives the same interface over the same ports.

use npuc::Result;
use npuc::ir::ValueId;
use npuc_kernels::lines::Lines;

pub mod chain;
pub mod host;
pub mod litert;
pub mod module;
pub mod null;
pub mod port;
mod process;
pub mod qnn;

use chain::Chain;
use host::HostStep;
use null::NullStep;

/// One step graph on the device that executes it.
pub enum Device {
    /// npuc's own executor.
    Host(HostStep),
    /// The step's segments one after the other, each on a device of its own.
    Chain(Chain),
    /// Nothing computes; only time passes.
    Null(NullStep),
}

impl Device {
    /// Names and element counts of the input ports, in order.
    pub fn inputs(&self) -> Vec<(String, usize)> {
        match self {
            Device::Host(step) => step.executor().inputs().map(|(name, len)| (name.to_owned(), len)).collect(),
            Device::Chain(step) => step.inputs().collect(),
            Device::Null(step) => step.inputs(),
        }
    }

    /// Names and element counts of the output ports, in order.
    pub fn outputs(&self) -> Vec<(String, usize)> {
        match self {
            Device::Host(step) => step.executor().outputs().map(|(name, len)| (name.to_owned(), len)).collect(),
            Device::Chain(step) => step.outputs().collect(),
            Device::Null(step) => step.outputs(),
        }
    }

    /// Computes one step from the buffers of the input ports, in port order and in as many groups as the caller
    /// keeps them in. The host cannot fail and allocates nothing.
    ///
    /// Errors: the device failed ([`npuc::Code::ToolFailed`]).
    pub fn run(&mut self, inputs: &[&[Lines]]) -> Result<()> {
        match self {
            Device::Host(step) => step.run(inputs),
            Device::Chain(step) => return step.run(inputs),
            Device::Null(step) => return step.run(inputs),
        }
        Ok(())
    }

    /// The elements of an output port after a step, by port order.
    pub fn output(&self, port: usize) -> &[f32] {
        match self {
            Device::Host(step) => step.executor().output(port),
            Device::Chain(step) => step.output(port),
            Device::Null(step) => step.output(port),
        }
    }

    /// Lets the host give memory of weights back after each use: slower, and for models that are larger than the memory should be.
    pub fn spare_memory(&mut self) {
        match self {
            Device::Host(step) => step.spare_memory(),
            Device::Chain(step) => step.spare_memory(),
            Device::Null(_) => {}
        }
    }

    /// The values computed in whole numbers on the host of which numbers were cut off, with how many.
    pub fn saturated(&self) -> Vec<(String, u64)> {
        match self {
            Device::Host(step) => step.saturated(),
            Device::Chain(step) => step.saturated(),
            Device::Null(_) => Vec::new(),
        }
    }

    /// The elements of a kept value after a step; only the host keeps values.
    pub fn kept(&self, value: ValueId) -> Option<&[f32]> {
        match self {
            Device::Host(step) => step.executor().kept(value),
            Device::Chain(_) | Device::Null(_) => None,
        }
    }
}
