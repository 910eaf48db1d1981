//! Real sizes through Torq's and IREE's compilers: LFM2-350M in 4 and 8 bits for SL2610 in the fastest of all forms, and the shape of
//! Llama 3.2 1B as modules with external parameters.
//!
//! Takes about half an hour on two cores, 4 GB of memory and 8 GB of disk. Needs `../shared/configs`.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::{Result, root, run, step, target};

/// The most cycles that the compiler may expect of a step with all projections in 4 bits.
const LIMIT_CYCLES: u64 = 45_000_000;
/// The most that the slices may differ in, as a part of the busier one's time.
const LIMIT_IMBALANCE: f64 = 0.2;
/// Products of LFM2-350M: 10 layers of 5, 6 of 7, and the head.
const PRODUCTS: u64 = 93;

/// Builds everything, prints the figures and fails at the end if a limit was missed.
pub(crate) fn torq_full() -> Result<()> {
    let configs = root().join("../shared/configs");
    if !configs.is_dir() {
        println!("NOT RUN: ../shared/configs is absent");
        return Ok(());
    }
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--release", "--package", "npuc-cli"]).current_dir(root());
    step("release build", || run(&mut cargo))?;
    for tool in ["torq", "iree"] {
        step(tool, || run(npuc().args(["toolchain", "install", tool])))?;
    }
    let dir = target().join("torq-full");
    fs::create_dir_all(&dir).map_err(|e| format!("cannot make {}: {e}", dir.display()))?;
    let mut missed = Vec::new();
    let lfm2 = synth(&dir, &configs, "lfm2-350m")?;
    let mixed = dir.join("q8_0-q4_0-head.toml");
    fs::write(&mixed, "linear = \"q8_0\"\nlm_head = \"q4_0\"\n").map_err(|e| format!("{}: {e}", mixed.display()))?;
    let mixed = mixed.to_string_lossy().into_owned();
    for (recipe, limited) in [("q4_0", true), (mixed.as_str(), false)] {
        missed.extend(tuned(&dir, &lfm2, recipe, limited)?);
    }
    let llama = synth(&dir, &configs, "llama-3.2-1b")?;
    for chip in ["mali-valhall", "iree-cpu"] {
        let flags = ["--target", chip, "--parameters", "external-bf16", "--shapes", "1t1024c"];
        let (report, _, seconds) = built(&dir, &llama, "build", &flags)?;
        println!("{chip}: {seconds:.0} s, {}", report["compiled"][0]);
    }
    if missed.is_empty() { Ok(()) } else { Err(missed.join("; ")) }
}

/// The fastest form of LFM2-350M against its limits; gives what was missed.
fn tuned(dir: &Path, model: &Path, recipe: &str, limited: bool) -> Result<Vec<String>> {
    let flags = ["--target", "sl2610", "--shapes", "1t64c", "--recipe", recipe, "--quality", "fast", "--profile"];
    let (report, tries, seconds) = built(dir, model, "tune", &flags)?;
    for tried in tries.as_array().into_iter().flatten() {
        println!("tried: {tried}");
    }
    let list = |key: &str| report[key].as_array().cloned().unwrap_or_default();
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let packed: u64 = list("modules").iter().map(|module| number(&module["packed"])).sum();
    let estimates: Vec<Value> = list("compiled").iter().map(|module| module["estimate"].clone()).collect();
    let cycles: u64 = estimates.iter().map(|estimate| number(&estimate["cycles"])).sum();
    let busy = |slice: &str| -> u64 { estimates.iter().map(|e| number(&e["slices"][slice]["busy_cycles"])).sum() };
    let other = |estimate: &Value| -> u64 {
        estimate["other"].as_object().into_iter().flatten().map(|(_, work)| number(&work["events"])).sum()
    };
    let off: u64 = estimates.iter().map(|estimate| number(&estimate["css"]["events"]) + other(estimate)).sum();
    let (zero, one) = (busy("0"), busy("1"));
    let imbalance = 1.0 - zero.min(one) as f64 / zero.max(one).max(1) as f64;
    let peak = list("compiled").iter().map(|module| number(&module["peak_rss_bytes"])).max().unwrap_or(0);
    let form = format!("{recipe} in {} modules", estimates.len());
    println!("{form}: {packed} packed products, {off} events off the slices, {cycles} cycles (estimate),");
    println!("  slices {zero} and {one} ({:.1} % apart), {seconds:.0} s, compiler {peak} bytes", 100.0 * imbalance);
    let mut missed = Vec::new();
    if packed != PRODUCTS || off != 0 {
        missed.push(format!("{form}: {packed} of {PRODUCTS} products packed, {off} events off the slices"));
    }
    if limited && cycles >= LIMIT_CYCLES {
        missed.push(format!("{form}: {cycles} cycles, fewer than {LIMIT_CYCLES} were wanted"));
    }
    if limited && imbalance > LIMIT_IMBALANCE {
        missed.push(format!("{form}: the slices are {:.0} % apart", 100.0 * imbalance));
    }
    missed.iter().for_each(|line| println!("MISSED: {line}"));
    Ok(missed)
}

fn synth(dir: &Path, configs: &Path, name: &str) -> Result<std::path::PathBuf> {
    let model = dir.join(name);
    let config = configs.join(format!("{name}.json"));
    step(&format!("{name}: weights"), || run(npuc().arg("synth").arg(config).arg("-o").arg(&model)))?;
    Ok(model)
}

/// Builds a bundle, gives the report, the tries and the seconds that it took, and removes it.
fn built(dir: &Path, model: &Path, command: &str, flags: &[&str]) -> Result<(Value, Value, f64)> {
    let bundle = dir.join("bundle");
    let mut build = npuc();
    build.arg("--json").arg(command).arg(model).args(flags).arg("--no-tokenizer").arg("-o").arg(&bundle);
    println!("== {flags:?}: {command}");
    let start = std::time::Instant::now();
    let output = build.output().map_err(|e| format!("cannot start {build:?}: {e}"))?;
    let seconds = start.elapsed().as_secs_f64();
    if !output.status.success() {
        return Err(format!("{build:?} failed: {}", String::from_utf8_lossy(&output.stderr)));
    }
    let tries = fs::read(bundle.join("tune.json")).unwrap_or_else(|_| b"[]".to_vec());
    let tries = serde_json::from_slice(&tries).map_err(|e| format!("tune.json: {e}"))?;
    fs::remove_dir_all(&bundle).map_err(|e| format!("cannot remove {}: {e}", bundle.display()))?;
    let report = serde_json::from_slice(&output.stdout).map_err(|e| format!("npuc's report: {e}"))?;
    Ok((report, tries, seconds))
}

fn npuc() -> Command {
    let mut command = Command::new(target().join("release/npuc"));
    command.current_dir(root());
    command
}
