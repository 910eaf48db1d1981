//! Tools that npuc drives but does not contain: which there are, fetching them, finding them.
//!
//! A fetched tool is pinned by the hashes of its wheels; what is found is therefore what was tested. [`ncc`] is the user's own.

use std::path::{Path, PathBuf};
use std::process::Command;

use npuc::{Code, Diagnostic, Error, Result};
use npuc_fetch::{FetchError, Wheel, cache, install as install_wheel, unpacked};

pub(crate) mod child;
pub mod ncc;

/// A tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tool {
    /// The LiteRT interpreter, which executes TFLite files.
    LiteRt,
    /// Qualcomm's QNN libraries, which prepare graphs for HTP NPUs and execute them in emulation.
    Qnn,
}

impl Tool {
    /// Every tool.
    pub const ALL: &'static [Tool] = &[Tool::LiteRt, Tool::Qnn];

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Tool::LiteRt => "litert",
            Tool::Qnn => "qnn",
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
            Tool::LiteRt => &LITERT,
            Tool::Qnn => &QNN,
        }
    }
}

/// The interpreter, and the one package that it cannot do without.
const LITERT: [Wheel; 2] = [
    Wheel {
        requirement: "ai-edge-litert==2.3.0",
        pip_args: &["--python-version", "3.11", "--platform", "manylinux_2_27_x86_64"],
        file: "ai_edge_litert-2.3.0-cp311-cp311-manylinux_2_27_x86_64.whl",
        sha256: "1f15078a6725d2357d9de9221664c29afa0545d807559c5f7199ce5e40b96b23",
    },
    Wheel {
        requirement: "numpy==2.4.6",
        pip_args: &["--python-version", "3.11", "--platform", "manylinux_2_28_x86_64"],
        file: "numpy-2.4.6-cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl",
        sha256: "89cd468399cfd2504718f0ba50e410dca55a170b61a02ad92bb18c8a65186e93",
    },
];

/// The libraries for this machine, of which [`Installed::libraries`] is the folder.
const QNN: [Wheel; 1] = [Wheel {
    requirement: "onnxruntime-qnn==2.7.0",
    pip_args: &["--python-version", "3.11", "--platform", "manylinux_2_35_x86_64"],
    file: "onnxruntime_qnn-2.7.0-cp311-cp311-manylinux_2_35_x86_64.whl",
    sha256: "c56c01562b8534fe8980cfea4601408d950c065f8251fb862ce82101c52c9849",
}];

/// A tool that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installed {
    /// The tool.
    pub tool: Tool,
    /// The folders of its unpacked wheels.
    pub folders: Vec<PathBuf>,
    /// The Python that runs it, where one does.
    pub python: Option<PathBuf>,
}

impl Installed {
    /// The folder of the tool's shared libraries: those of [`Tool::Qnn`] lie together.
    pub fn libraries(&self) -> PathBuf {
        let first = self.folders.first().map(PathBuf::as_path).unwrap_or(Path::new("."));
        match self.tool {
            Tool::LiteRt => first.to_path_buf(),
            Tool::Qnn => first.join("onnxruntime_qnn"),
        }
    }
}

/// Fetches the tool into the user's cache unless it is there. `say` is told of attempts that fail.
///
/// Errors: [`Code::MissingTool`] if it cannot be fetched, or if this machine cannot run it.
pub fn install(tool: Tool, say: &mut dyn FnMut(&str)) -> Result<Installed> {
    let python = python(tool)?;
    let fault = |e: FetchError| missing(tool, &format!("the tool was not installed: {e}"));
    let cache = cache().map_err(fault)?;
    let folders = tool.wheels().iter().map(|wheel| install_wheel(&cache, wheel, say).map_err(fault));
    let folders = folders.collect::<Result<_>>()?;
    Ok(Installed { tool, folders, python })
}

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
    let folders: Option<Vec<PathBuf>> = tool.wheels().iter().map(|wheel| unpacked(cache, wheel)).collect();
    let folders = folders.ok_or_else(|| {
        Diagnostic::error(Code::MissingTool, "the tool is not installed")
            .subject(tool.name())
            .help(format!("run `npuc toolchain install {}`", tool.name()))
    })?;
    Ok(Installed { tool, folders, python: python(tool)? })
}

/// The Python that runs the tool, if one has to, on a machine that the wheels are made for.
fn python(tool: Tool) -> Result<Option<PathBuf>> {
    let fault = |message: &str| Diagnostic::error(Code::MissingTool, message).subject(tool.name());
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Err(fault("the tool does not run on this machine").need("Linux on x86-64").into());
    }
    match tool {
        Tool::LiteRt => python_3_11(tool).map(Some),
        Tool::Qnn => Ok(None),
    }
}

fn python_3_11(tool: Tool) -> Result<PathBuf> {
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
