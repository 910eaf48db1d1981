//! Tools that npuc drives but does not contain: which there are, fetching them, finding them, calling their compilers.
//!
//! A fetched tool is pinned by the hashes of its wheels and packages; what is found is therefore what was tested. [`ncc`] is the
//! user's own.

use std::path::{Path, PathBuf};
use std::process::Command;

use npuc::{Code, Diagnostic, Error, Result};
use npuc_fetch::debian::{self, Package};
use npuc_fetch::{FetchError, Wheel, cache, install as install_wheel, install_as, unpacked, unpacked_as};

use libc::Libc;

pub(crate) mod child;
pub mod compile;
mod libc;
pub mod ncc;
mod pins;
pub mod torq_profile;

/// A tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tool {
    /// The LiteRT interpreter, which executes TFLite files.
    LiteRt,
    /// Qualcomm's QNN libraries, which prepare graphs for HTP NPUs and execute them in emulation.
    Qnn,
    /// IREE's compiler and runtime, for StableHLO on CPUs and GPUs.
    Iree,
    /// Synaptics' Torq compiler, and its runtime with a simulator of the NPU.
    Torq,
    /// A Vulkan driver that computes on the CPU.
    Vulkan,
}

impl Tool {
    /// Every tool.
    pub const ALL: &'static [Tool] = &[Tool::LiteRt, Tool::Qnn, Tool::Iree, Tool::Torq, Tool::Vulkan];

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Tool::LiteRt => "litert",
            Tool::Qnn => "qnn",
            Tool::Iree => "iree",
            Tool::Torq => "torq",
            Tool::Vulkan => "vulkan",
        }
    }

    /// The tool and its version, as manifests name it.
    pub const fn version(self) -> &'static str {
        match self {
            Tool::LiteRt => "litert 2.3.0",
            Tool::Qnn => "qnn 2.51",
            Tool::Iree => "iree 3.13.0",
            Tool::Torq => "torq 2.3.0",
            Tool::Vulkan => "lavapipe 22.3",
        }
    }

    /// One line for people.
    pub const fn summary(self) -> &'static str {
        match self {
            Tool::LiteRt => "LiteRT 2.3.0: executes TFLite files on this machine (needs Python 3.11)",
            Tool::Qnn => {
                "QNN 2.51: prepares graphs for Snapdragon's NPUs and emulates them (Qualcomm's licence: fetched by you, no \
                 part of npuc)"
            }
            Tool::Iree => {
                "IREE 3.13.0: compiles StableHLO for this machine, Vulkan and Mali; executes it here (needs Python 3.11)"
            }
            Tool::Torq => "Torq 2.3.0: compiles StableHLO for Synaptics' SL2610 and simulates it",
            Tool::Vulkan => "Mesa's lavapipe 22.3: a Vulkan driver that computes on the CPU, unpacked for npuc alone",
        }
    }

    /// The tool of that [`Tool::name`].
    ///
    /// Errors: [`Code::BadArgument`] with the names that there are.
    pub fn parse(name: &str) -> Result<Tool> {
        Tool::ALL.iter().copied().find(|tool| tool.name() == name).ok_or_else(|| {
            let known: Vec<&str> = Tool::ALL.iter().map(|tool| tool.name()).collect();
            Diagnostic::error(Code::BadArgument, format!("npuc fetches no tool `{name}`"))
                .need(format!("one of: {}", known.join(", ")))
                .have(name)
                .into()
        })
    }

    const fn wheels(self) -> &'static [Wheel] {
        match self {
            Tool::LiteRt => &pins::LITERT,
            Tool::Qnn => &pins::QNN,
            Tool::Iree => &pins::IREE,
            Tool::Torq => &pins::TORQ,
            Tool::Vulkan => &[],
        }
    }
}

/// A tool that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installed {
    /// The tool.
    pub tool: Tool,
    /// The folders of its unpacked wheels or packages.
    pub folders: Vec<PathBuf>,
    /// The Python that runs it, where one does. IREE's compiler works without, its runtime does not.
    pub python: Option<PathBuf>,
}

impl Installed {
    /// The folder of the tool's shared libraries: those of [`Tool::Qnn`] lie together.
    pub fn libraries(&self) -> PathBuf {
        match self.tool {
            Tool::Qnn => self.folder(0).join("onnxruntime_qnn"),
            Tool::LiteRt | Tool::Iree | Tool::Torq | Tool::Vulkan => self.folder(0).to_path_buf(),
        }
    }

    /// The tool's compiler of MLIR, if it has one.
    pub fn compiler(&self) -> Option<PathBuf> {
        match self.tool {
            Tool::Iree => Some(self.folder(0).join("iree/compiler/_mlir_libs/iree-compile")),
            Tool::Torq => Some(self.folder(0).join(TORQ_COMPILE)),
            Tool::LiteRt | Tool::Qnn | Tool::Vulkan => None,
        }
    }

    /// The program that executes one call of a compiled module, if the tool has one.
    pub fn run_module(&self) -> Option<PathBuf> {
        match self.tool {
            Tool::Iree => Some(self.folder(1).join("iree/_runtime_libs/iree-run-module")),
            Tool::Torq => Some(self.folder(1).join(TORQ_RUN_MODULE)),
            Tool::LiteRt | Tool::Qnn | Tool::Vulkan => None,
        }
    }

    fn folder(&self, index: usize) -> &Path {
        self.folders.get(index).map(PathBuf::as_path).unwrap_or(Path::new("."))
    }
}

const TORQ_COMPILE: &str = "torq/_compiler_libs/torq-compile";
const TORQ_RUN_MODULE: &str = "torq/_runtime_libs/torq-run-module";
/// The programs of Torq's wheels that use the C libraries; the compiler starts the linker.
const TORQ_PROGRAMS: [&str; 3] = [TORQ_COMPILE, "iree/compiler/_mlir_libs/iree-lld", TORQ_RUN_MODULE];

/// Fetches the tool into the user's cache unless it is there. `say` is told what is done and of attempts that fail.
///
/// Errors: [`Code::MissingTool`] if it cannot be fetched, or if this machine cannot run it.
pub fn install(tool: Tool, say: &mut dyn FnMut(&str)) -> Result<Installed> {
    let python = python(tool)?;
    let fault = |e: FetchError| missing(tool, &format!("the tool was not installed: {e}"));
    let cache = cache().map_err(fault)?;
    let folders = match tool {
        Tool::LiteRt | Tool::Qnn | Tool::Iree => {
            tool.wheels().iter().map(|wheel| install_wheel(&cache, wheel, say)).collect()
        }
        Tool::Torq => install_torq(&cache, say),
        Tool::Vulkan => install_vulkan(&cache, say),
    };
    Ok(Installed { tool, folders: folders.map_err(fault)?, python })
}

/// Torq's wheels, with the programs set to newer C libraries where the machine's are too old.
fn install_torq(cache: &Path, say: &mut dyn FnMut(&str)) -> std::result::Result<Vec<PathBuf>, FetchError> {
    let wheels = Tool::Torq.wheels();
    if libc::is_new_enough() {
        return wheels.iter().map(|wheel| install_wheel(cache, wheel, say)).collect();
    }
    let libc = Libc::install(cache, say)?;
    let set = |folder: &Path| {
        let programs = TORQ_PROGRAMS.iter().map(|program| folder.join(program));
        programs.filter(|program| program.is_file()).try_for_each(|program| libc.set(&program))
    };
    wheels.iter().map(|wheel| install_as(cache, wheel, &libc::form(), say, set)).collect()
}

/// The driver's packages, without those whose library the machine has.
fn install_vulkan(cache: &Path, say: &mut dyn FnMut(&str)) -> std::result::Result<Vec<PathBuf>, FetchError> {
    let packages = vulkan_packages();
    if packages.iter().any(|package| debian::unpacked(cache, package).is_none()) {
        say(
            "the driver and the libraries that this machine lacks are unpacked in npuc's cache; nothing is installed system-wide",
        );
    }
    debian::install(cache, &packages, say)
}

fn vulkan_packages() -> Vec<Package> {
    let lacks =
        |library: &str| library.is_empty() || !SYSTEM.iter().any(|folder| Path::new(folder).join(library).exists());
    pins::VULKAN.iter().filter(|(_, library)| lacks(library)).map(|(package, _)| *package).collect()
}

/// Where machines have their shared libraries.
const SYSTEM: [&str; 4] = ["/usr/lib/x86_64-linux-gnu", "/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"];

/// The tool in the user's cache.
///
/// Errors: [`Code::MissingTool`] with the install command, or if the user has no cache.
pub fn find(tool: Tool) -> Result<Installed> {
    let cache = cache().map_err(|e| missing(tool, &format!("the tool cannot be looked up: {e}")))?;
    find_in(&cache, tool)
}

fn missing(tool: Tool, message: &str) -> Error {
    Diagnostic::error(Code::MissingTool, message).subject(tool.name()).into()
}

fn find_in(cache: &Path, tool: Tool) -> Result<Installed> {
    let folders = folders_in(cache, tool).ok_or_else(|| {
        Diagnostic::error(Code::MissingTool, "the tool is not installed")
            .subject(tool.name())
            .help(format!("run `npuc toolchain install {}`", tool.name()))
    })?;
    Ok(Installed { tool, folders, python: python(tool)? })
}

fn folders_in(cache: &Path, tool: Tool) -> Option<Vec<PathBuf>> {
    let wheels = tool.wheels();
    let packages = |packages: &[Package]| packages.iter().map(|package| debian::unpacked(cache, package)).collect();
    match tool {
        Tool::LiteRt | Tool::Qnn | Tool::Iree => wheels.iter().map(|wheel| unpacked(cache, wheel)).collect(),
        Tool::Torq if libc::is_new_enough() => wheels.iter().map(|wheel| unpacked(cache, wheel)).collect(),
        Tool::Torq => {
            let _: Vec<PathBuf> = packages(&pins::LIBC)?;
            wheels.iter().map(|wheel| unpacked_as(cache, wheel, &libc::form())).collect()
        }
        Tool::Vulkan => packages(&vulkan_packages()),
    }
}

/// The Python that runs the tool, if one does, on a machine that the tool is made for.
fn python(tool: Tool) -> Result<Option<PathBuf>> {
    let fault = |message: &str| Diagnostic::error(Code::MissingTool, message).subject(tool.name());
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Err(fault("the tool does not run on this machine").need("Linux on x86-64").into());
    }
    match tool {
        Tool::LiteRt => python_3_11(tool).map(Some),
        // Its compiler needs none.
        Tool::Iree => Ok(python_3_11(tool).ok()),
        Tool::Qnn | Tool::Torq | Tool::Vulkan => Ok(None),
    }
}

/// Errors: [`Code::MissingTool`] with what is needed.
pub(crate) fn python_3_11(tool: Tool) -> Result<PathBuf> {
    let fault = |message: &str| Diagnostic::error(Code::MissingTool, message).subject(tool.name());
    let script = "import sys; print(sys.implementation.name, *sys.version_info[:2])";
    let is_3_11 = |name: &&str| {
        let output = Command::new(name).args(["-I", "-c", script]).output();
        output.is_ok_and(|output| output.status.success() && output.stdout.trim_ascii() == b"cpython 3 11")
    };
    let found = ["python3.11", "python3"].into_iter().find(is_3_11);
    found.map(PathBuf::from).ok_or_else(|| {
        fault("the tool needs another Python")
            .need("CPython 3.11 as `python3.11` or `python3` on the PATH")
            .help("install Python 3.11")
            .into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absent_tool_says_how_to_install_it() {
        let empty = std::env::temp_dir().join("npuc-no-such-cache");
        for &tool in Tool::ALL {
            let message = format!(
                "error[missing-tool]: the tool is not installed\n  --> {0}\n  = help: run `npuc toolchain install {0}`",
                tool.name()
            );
            let error = find_in(&empty, tool).expect_err("nothing is there");
            assert_eq!((error.to_string(), error.exit_status()), (message, 4));
            assert_eq!(Tool::parse(tool.name()), Ok(tool));
            assert!(tool.wheels().iter().all(|wheel| wheel.sha256.len() == 64 && wheel.requirement.contains("==")));
        }
        let error = Tool::parse("ncc").expect_err("npuc does not fetch it");
        assert_eq!(error.diagnostics()[0].message, "npuc fetches no tool `ncc`");
    }
}
