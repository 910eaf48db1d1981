//! Emitted TFLite files in the LiteRT interpreter against the host; it needs the network once.

use std::process::Command;

use crate::fetch::smollm2;
use crate::{Result, root, run, step};

/// Installs the interpreter and holds small models and SmolLM2-135M-Instruct, cut into chunks, against the host.
pub(crate) fn litert() -> Result<()> {
    let mut install = Command::new("cargo");
    install.args(["run", "--release", "--package", "npuc-cli", "--", "toolchain", "install", "litert"]);
    step("interpreter", || run(install.current_dir(root())))?;
    let model = smollm2()?;
    let mut test = Command::new("cargo");
    test.args(["test", "--release", "--package", "npuc-run", "--test", "litert", "--test", "litert_integer"]);
    test.args(["--test", "litert_integer_models", "--test", "litert_whisper", "--", "--nocapture"]);
    test.env("NPUC_LITERT", "1").env("NPUC_REAL_MODEL", model).current_dir(root());
    step("TFLite against the host", || run(&mut test))
}
