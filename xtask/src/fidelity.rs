//! The table of docs/fidelity.md: the real model in every format, measured on text that it was not rounded for.
//!
//! Takes about an hour on two cores. The texts are two books of the King James Bible as Debian's `bible-kjv` prints them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::fetch::smollm2;
use crate::{Result, root, run, step, target};

/// What weights are rounded for and ranges are taken from.
pub(crate) const CALIBRATION: &str = "ex1:1-ex40:38";
/// What is measured on.
pub(crate) const HELD: &str = "ge1:1-ge50:26";
/// Windows of 512 ids that are measured.
const WINDOWS: &str = "8";

/// A row: its name, the recipe's file, and the flags of `npuc quantize`. `CALIBRATION` stands for the text.
struct Row {
    name: &'static str,
    recipe: &'static str,
    flags: &'static [&'static str],
}

const FAST: &[&str] = &["--quality", "fast"];
const SEARCH: &[&str] = &["--quality", "search"];
const BEST: &[&str] = &["--quality", "best", "--calibration", "CALIBRATION"];
const ROTATED: &[&str] = &["--quality", "best", "--calibration", "CALIBRATION", "--rotate"];
const SCALED: &[&str] = &["--quality", "best", "--calibration", "CALIBRATION", "--scale"];
const RANGES: &[&str] = &["--quality", "search", "--calibration", "CALIBRATION"];
const OWN_TEXT: &[&str] = &["--quality", "best", "--samples", "16", "--tokens", "256"];

/// Where only the projections of the layers change, the table and the tied head stay in the q8_0 that the model has.
const ROWS: &[Row] = &[
    Row { name: "q8_0, fast", recipe: "base = \"q8_0\"", flags: FAST },
    Row { name: "int8, search", recipe: "linear = \"int8\"", flags: SEARCH },
    Row { name: "q4_0, fast", recipe: "base = \"q4_0\"", flags: FAST },
    Row { name: "q4_0, search", recipe: "base = \"q4_0\"", flags: SEARCH },
    Row { name: "q4_0, best", recipe: "base = \"q4_0\"", flags: BEST },
    Row { name: "q4_0 in the layers, fast", recipe: "linear = \"q4_0\"", flags: FAST },
    Row { name: "q4_0 in the layers, best", recipe: "linear = \"q4_0\"", flags: BEST },
    Row { name: "q4_0 in the layers, best on the model's own text", recipe: "linear = \"q4_0\"", flags: OWN_TEXT },
    Row { name: "q4_0 in the layers, best, scaled", recipe: "linear = \"q4_0\"", flags: SCALED },
    Row { name: "q4_0 in the layers, best, rotated, f16 head", recipe: "linear = \"q4_0\"", flags: ROTATED },
    Row { name: "int4 a channel in the layers, search", recipe: "linear = \"int4\"", flags: SEARCH },
    Row { name: "int4 a channel in the layers, best", recipe: "linear = \"int4\"", flags: BEST },
    Row { name: "bw4-g32 in the layers, search", recipe: "linear = \"bw4-g32\"", flags: SEARCH },
    Row { name: "bw4-g32 in the layers, best", recipe: "linear = \"bw4-g32\"", flags: BEST },
    Row { name: "lpbq4-g32 in the layers, search", recipe: "linear = \"lpbq4-g32\"", flags: SEARCH },
    Row { name: "lpbq4-g32 in the layers, best", recipe: "linear = \"lpbq4-g32\"", flags: BEST },
    Row {
        name: "lpbq4-g32, search, u16 activations, f16 residual",
        recipe: "linear = \"lpbq4-g32\"\nact = \"u16\"",
        flags: RANGES,
    },
    Row { name: "the same, u8 caches", recipe: "linear = \"lpbq4-g32\"\nact = \"u16\"\nkv = \"u8\"", flags: RANGES },
    Row {
        name: "the same, u16 caches, u16 residual",
        recipe: "linear = \"lpbq4-g32\"\nact = \"u16\"\nresidual = \"act\"",
        flags: RANGES,
    },
];

/// Measures every row and prints the table.
pub(crate) fn fidelity() -> Result<()> {
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--release", "--package", "npuc-cli"]).current_dir(root());
    step("release build", || run(&mut cargo))?;
    let model = smollm2()?;
    let dir = target().join("fidelity");
    fs::create_dir_all(&dir).map_err(|e| format!("cannot make {}: {e}", dir.display()))?;
    let (calibration, held) = (book(&dir, "calibration.txt", CALIBRATION)?, book(&dir, "held.txt", HELD)?);
    let mut table = String::from(
        "| weights and rounding | bits | perplexity | KL mean | median | 99 % | top-1 | cosine |\n|---|---|---|---|---|---|---|---|\n",
    );
    for row in ROWS {
        step(row.name, || {
            let line = measure(row, &model, &dir, &calibration, &held)?;
            print!("{line}");
            table.push_str(&line);
            Ok(())
        })?;
    }
    println!("{table}");
    Ok(())
}

/// A text as `bible` prints it.
pub(crate) fn book(dir: &Path, name: &str, verses: &str) -> Result<PathBuf> {
    let printed = Command::new("bible").arg(verses).output();
    let printed = printed.map_err(|e| format!("cannot start `bible`: {e}; it is in Debian's package bible-kjv"))?;
    let path = dir.join(name);
    fs::write(&path, printed.stdout).map_err(|e| format!("cannot write {}: {e}", path.display()))?;
    Ok(path)
}

/// Quantises and measures one row; gives its line of the table.
fn measure(row: &Row, model: &Path, dir: &Path, calibration: &Path, held: &Path) -> Result<String> {
    let (recipe, bundle) = (dir.join("recipe.toml"), dir.join("bundle"));
    fs::write(&recipe, row.recipe).map_err(|e| format!("cannot write {}: {e}", recipe.display()))?;
    let flags =
        row.flags.iter().map(|flag| if *flag == "CALIBRATION" { calibration.as_os_str() } else { flag.as_ref() });
    let mut quantize = Command::new(target().join("release/npuc"));
    quantize.args(["--json", "quantize"]).arg(model).arg("--recipe").arg(&recipe).arg("-o").arg(&bundle).args(flags);
    let mut verify = Command::new(target().join("release/npuc"));
    verify.args(["--json", "verify"]).arg(&bundle).arg("--against").arg(model).arg("--text").arg(held);
    verify.args(["--windows", WINDOWS, "--gate", "kl<1e9"]);
    let (made, measured) = (json(&mut quantize)?, json(&mut verify)?);
    let number = |value: &Value| value.as_f64().ok_or_else(|| format!("{}: a figure is absent: {measured}", row.name));
    let text = &measured["text"];
    let (bits, perplexity) = (number(&made["bits_per_weight"])?, number(&text["perplexity"]["value"])?);
    let kl = |name: &str| number(&text["kl"][name]);
    let (mean, median, p99) = (kl("mean")?, kl("median")?, kl("p99")?);
    let (top1, cosine) = (100.0 * number(&measured["top1"])?, number(&measured["cosine_mean"])?);
    let name = row.name;
    Ok(format!(
        "| {name} | {bits:.2} | {perplexity:.3} | {mean:.4} | {median:.4} | {p99:.3} | {top1:.1} % | {cosine:.5} |\n"
    ))
}

/// What a command prints as JSON.
fn json(command: &mut Command) -> Result<Value> {
    let output = command.output().map_err(|e| format!("cannot start {command:?}: {e}"))?;
    if !output.status.success() {
        return Err(format!("{command:?} failed: {}", String::from_utf8_lossy(&output.stderr)));
    }
    serde_json::from_slice(&output.stdout).map_err(|e| format!("{command:?} printed no JSON: {e}"))
}
