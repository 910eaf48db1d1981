//! The real model against recorded references; longer than CI should wait, and it needs the network once.

use std::process::Command;

use crate::fetch::smollm2;
use crate::{Result, root, run, step, target};

/// Holds SmolLM2-135M-Instruct, as a checkpoint and as a bundle, against what independent programs say of it.
pub(crate) fn real() -> Result<()> {
    let model = smollm2()?;
    let bundle = target().join("real/smollm2-135m");
    std::fs::create_dir_all(target().join("real")).map_err(|e| format!("cannot make the bundle's folder: {e}"))?;
    let mut build = Command::new("cargo");
    build.args(["run", "--release", "--package", "npuc-cli", "--", "build"]).arg(&model);
    build.args(["--shapes", "128t1024c,1t1024c", "-o"]).arg(&bundle).current_dir(root());
    step("bundle", || run(&mut build))?;
    let mut test = Command::new("cargo");
    test.args(["test", "--release", "--package", "npuc-run", "--test", "real_model", "--", "--nocapture"]);
    test.env("NPUC_REAL_MODEL", model).env("NPUC_REAL_BUNDLE", bundle).current_dir(root());
    step("references", || run(&mut test))
}
