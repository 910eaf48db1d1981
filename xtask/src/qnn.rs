//! Real sizes through Qualcomm's libraries: the real model in both modes for two chips, run in emulation, and the shapes of Llama 3.2 1B
//! and 3B with random weights as context binaries.
//!
//! Takes about an hour on two cores, 16 GB of memory and 20 GB of disk. The 3B shapes need `../shared/configs`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::fetch::smollm2;
use crate::{Result, root, run, step, target};

/// The most that a context binary of the 3B shape may have, and what the published one has.
const LIMIT_3B_BYTES: u64 = 1_800_000_000;
const PUBLISHED_3B_BYTES: u64 = 2_531_520_512;
/// The memory that the process with the libraries should have at most; it is told where it has more.
const LIMIT_WORKER_BYTES: u64 = 12_000_000_000;
const U16: &[&str] = &["--recipe", "w4a16-lpbq-g32", "--quality", "search"];
const F16: &[&str] = &["--recipe", "f16-bw4-g32", "--quality", "search"];

/// Measures everything and holds the 3B binary against its limits.
pub(crate) fn qnn_full() -> Result<()> {
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--release", "--package", "npuc-cli"]).current_dir(root());
    step("release build", || run(&mut cargo))?;
    let dir = target().join("qnn-full");
    fs::create_dir_all(&dir).map_err(|e| format!("cannot make {}: {e}", dir.display()))?;
    step("libraries", || run(npuc().args(["toolchain", "install", "qnn"])))?;
    faithful(&dir)?;
    let configs = root().join("../shared/configs");
    if !configs.is_dir() {
        println!("NOT RUN: the shapes of Llama 3.2, whose configs in ../shared/configs are absent");
        return Ok(());
    }
    for (name, capacity) in [("llama-3.2-1b", 1024), ("llama-3.2-3b", 2048)] {
        let model = dir.join(name);
        let config = configs.join(format!("{name}.json"));
        step(&format!("{name}: weights"), || run(npuc().arg("synth").arg(config).arg("-o").arg(&model)))?;
        for attention in ["grouped", "split-head"] {
            sized(&dir, name, capacity, attention)?;
        }
        fs::remove_dir_all(&model).map_err(|e| format!("cannot remove {}: {e}", model.display()))?;
    }
    Ok(())
}

/// SmolLM2 in emulation against the host in the same numbers and in float, on both chips and in both modes.
fn faithful(dir: &Path) -> Result<()> {
    let model = smollm2()?;
    let calibration = crate::fidelity::book(dir, "calibration.txt", crate::fidelity::CALIBRATION)?;
    let held = crate::fidelity::book(dir, "held.txt", crate::fidelity::HELD)?;
    for chip in ["sm8650", "sm8750"] {
        for (mode, flags) in [("u16", U16), ("f16", F16)] {
            let bundle = dir.join(format!("smollm2-{chip}-{mode}"));
            let mut build = npuc();
            build.arg("build").arg(&model).args(["--target", chip, "--shapes", "32t128c,1t128c", "-o"]).arg(&bundle);
            build.args(flags);
            if mode == "u16" {
                build.arg("--calibration").arg(&calibration).args(["--samples", "8", "--tokens", "128"]);
            }
            step(&format!("SmolLM2, {chip}, {mode}: build"), || run(&mut build))?;
            let mut test = Command::new("cargo");
            test.args(["test", "--package", "npuc-cli", "--test", "qnn_real", "--", "--nocapture"]);
            test.env("NPUC_QNN_BUNDLE", &bundle).env("NPUC_QNN_MODEL", &model).env("NPUC_QNN_TEXT", &held);
            step(&format!("SmolLM2, {chip}, {mode}: emulation"), || run(test.current_dir(root())))?;
        }
    }
    Ok(())
}

/// Builds a shape and tells time, memory, bytes and ports.
fn sized(dir: &Path, name: &str, capacity: usize, attention: &str) -> Result<()> {
    let bundle = dir.join(format!("{name}-{attention}"));
    let shapes = format!("32t{capacity}c,1t{capacity}c");
    let mut build = npuc();
    build.arg("--json").arg("build").arg(dir.join(name)).args(["--target", "sm8650", "--shapes", &shapes]);
    build.args(["--recipe", "w4a16-lpbq-g32", "--quality", "fast", "--samples", "1", "--tokens", "64"]);
    build.args(["--attention", attention, "-o"]).arg(&bundle);
    println!("== {name}, {attention}: build");
    let start = std::time::Instant::now();
    let output = build.output().map_err(|e| format!("cannot start {build:?}: {e}"))?;
    let seconds = start.elapsed().as_secs_f64();
    if !output.status.success() {
        return Err(format!("{build:?} failed: {}", String::from_utf8_lossy(&output.stderr)));
    }
    let report: Value = serde_json::from_slice(&output.stdout).map_err(|e| format!("npuc's report: {e}"))?;
    let contexts = report["contexts"].as_array().cloned().unwrap_or_default();
    let total: u64 = contexts.iter().filter_map(|context| context["bytes"].as_u64()).sum();
    let worker = report["worker_peak_bytes"].as_u64().unwrap_or(u64::MAX);
    println!("{seconds:.0} s, worker {worker} bytes, npuc {} bytes", report["peak_rss_bytes"]);
    for context in &contexts {
        println!("{}", serde_json::to_string(context).unwrap_or_default());
    }
    if name.ends_with("3b") {
        println!("the published context binary of this shape has {PUBLISHED_3B_BYTES} bytes");
        if worker > LIMIT_WORKER_BYTES {
            println!("MISSED: {worker} bytes of memory, mapped files included; {LIMIT_WORKER_BYTES} were wanted");
        }
        if contexts.len() != 1 || total > LIMIT_3B_BYTES {
            let need = format!("one context of at most {LIMIT_3B_BYTES} bytes");
            return Err(format!("{name}: {} contexts of {total} bytes; need {need}", contexts.len()));
        }
    }
    fs::remove_dir_all(&bundle).map_err(|e| format!("cannot remove {}: {e}", bundle.display()))
}

fn npuc() -> Command {
    let mut command = Command::new(program());
    command.current_dir(root());
    command
}

fn program() -> PathBuf {
    target().join("release/npuc")
}
