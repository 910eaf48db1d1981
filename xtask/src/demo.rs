//! The demonstration: a real model from checkpoint to text on this machine.

use std::process::Command;

use crate::fetch::smollm2;
use crate::{Result, root, run, step, target};

const PROMPT: &str = "Why is the sky blue? Answer in two sentences.";

/// Fetches SmolLM2-135M-Instruct, builds a host bundle and answers one prompt.
pub(crate) fn demo() -> Result<()> {
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--release", "--package", "npuc-cli"]).current_dir(root());
    step("release build", || run(&mut cargo))?;
    let npuc = target().join("release/npuc");
    let mut model = None;
    step("model", || {
        let path = smollm2()?;
        println!("{}", path.display());
        model = Some(path);
        Ok(())
    })?;
    let model = model.ok_or("the model was not fetched")?;
    let bundle = target().join("demo/smollm2-135m");
    let show = |args: &[&str], paths: &[&std::path::Path]| {
        let quoted = args.iter().map(|arg| if arg.contains(' ') { format!("\"{arg}\"") } else { arg.to_string() });
        println!("$ npuc {}", quoted.collect::<Vec<_>>().join(" "));
        run(Command::new(&npuc).args(args.iter().map(|arg| match *arg {
            "MODEL" => paths[0].as_os_str(),
            "DIR" => paths[1].as_os_str(),
            other => other.as_ref(),
        })))
    };
    std::fs::create_dir_all(target().join("demo")).map_err(|e| format!("cannot make the demo's folder: {e}"))?;
    let paths = [model.as_path(), bundle.as_path()];
    step("inspect", || show(&["inspect", "MODEL", "--shapes", "128t1024c,1t1024c"], &paths))?;
    let build = ["build", "MODEL", "--target", "host", "--shapes", "128t1024c,1t1024c", "-o", "DIR"];
    step("build", || show(&build, &paths))?;
    step("run", || show(&["run", "DIR", "--chat", "-p", PROMPT, "-n", "128"], &paths))
}
