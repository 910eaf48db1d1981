//! The latency study of the repository: its workload, the run over the real model on this machine, the example page, and
//! screenshots of it.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::fetch::smollm2;
use crate::{Result, root, run, step, target};

/// The workload, in the repository.
const WORKLOAD: &str = "tests/data/bench/forty.jsonl";
/// The example page, in the repository.
const PAGE: &str = "docs/example-report.html";
const DATASETS: [(&str, u64, u64); 4] =
    [("gsm8k", 48, 180), ("humaneval", 80, 320), ("math500", 40, 240), ("mt_bench", 16, 480)];
/// Ids from the first that is no special token of SmolLM2 to the end of its vocabulary.
const IDS: (u64, u64) = (17, 49_152);

/// The lines of the workload: 40 requests of random ids, four datasets in turn. The ids mean nothing; only their number is like that of
/// real prompts.
fn workload() -> String {
    let mut state = 7u64;
    // A linear congruential generator (Knuth's MMIX); its high bits are used.
    let mut random = |(low, high): (u64, u64)| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        low + (state >> 33) % (high - low)
    };
    let mut lines = String::new();
    for place in 0..40 {
        let (dataset, shortest, longest) = DATASETS[place % 4];
        let tokens = random((shortest, longest));
        let ids: Vec<String> = (0..tokens).map(|_| random(IDS).to_string()).collect();
        let (number, new) = (place / 4, random((24, 65)));
        // Writing to a text cannot fail.
        let _ = writeln!(
            lines,
            "{{\"id\":\"{dataset}-{number}\",\"dataset\":\"{dataset}\",\"input_ids\":[{}],\"max_new_tokens\":{new},\"ignore_eos\":{},\
             \"synthetic\":true}}",
            ids.join(","),
            dataset != "mt_bench"
        );
    }
    lines
}

/// Writes the workload.
pub(crate) fn write_workload() -> Result<()> {
    fs::write(root().join(WORKLOAD), workload()).map_err(|e| format!("cannot write {WORKLOAD}: {e}"))
}

/// Measures SmolLM2-135M-Instruct over the workload on this machine, audits it and writes the example page; then the runner's
/// own time for a token of the same model on the null back end.
pub(crate) fn bench() -> Result<()> {
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--release", "--package", "npuc-cli"]).current_dir(root());
    step("release build", || run(&mut cargo))?;
    let model = smollm2()?;
    let folder = target().join("bench");
    fs::create_dir_all(&folder).map_err(|e| format!("cannot make {}: {e}", folder.display()))?;
    let bundle = folder.join("smollm2-135m");
    let npuc = || Command::new(target().join("release/npuc"));
    let mut build = npuc();
    build.arg("build").arg(model).args(["--shapes", "128t1024c,16t1024c,1t1024c", "-o"]).arg(&bundle);
    step("bundle", || run(&mut build))?;
    let results = folder.join("smollm2-135m.jsonl");
    let own = folder.join("null.jsonl");
    for old in [&results, &own] {
        remove(old)?;
    }
    let workload = root().join(WORKLOAD);
    let bench = |results: &Path, more: &[&str]| {
        let mut command = npuc();
        command.arg("bench").arg(&bundle).arg("--workload").arg(&workload).arg("-o").arg(results).args(more);
        run(&mut command)
    };
    step("null back end", || bench(&own, &["--on", "null"]))?;
    step("host", || bench(&results, &["--warmup", "1", "--slo", "ttft=500ms,tpot=60ms"]))?;
    for results in [&own, &results] {
        step("audit", || run(npuc().arg("audit").arg(results).arg("--workload").arg(&workload)))?;
    }
    step("report", || run(npuc().arg("report").arg(&results).arg("--html").arg(root().join(PAGE))))
}

fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(format!("cannot remove {}: {e}", path.display())),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Pictures of the example page by Chromium, for a person to look at: wide and as a phone, light and dark.
pub(crate) fn screenshots() -> Result<()> {
    let folder = target().join("screenshots");
    fs::create_dir_all(&folder).map_err(|e| format!("cannot make {}: {e}", folder.display()))?;
    for (width, height) in [(1200, 4000), (390, 6400)] {
        for (scheme, setting) in [("light", 1), ("dark", 0)] {
            let picture = folder.join(format!("{width}-{scheme}.png"));
            step(&picture.display().to_string(), || screenshot(&picture, (width, height), setting))?;
        }
    }
    Ok(())
}

fn screenshot(picture: &Path, (width, height): (u32, u32), scheme: u8) -> Result<()> {
    let profile: PathBuf = target().join("screenshots/profile");
    let mut chromium = Command::new("chromium");
    chromium.args([
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--hide-scrollbars",
    ]);
    chromium.args(["--disable-background-networking", "--disable-component-update", "--disable-sync"]);
    chromium.arg(format!("--blink-settings=preferredColorScheme={scheme}"));
    chromium.arg(format!("--user-data-dir={}", profile.display()));
    chromium.arg(format!("--window-size={width},{height}"));
    chromium.arg(format!("--screenshot={}", picture.display()));
    run(chromium.arg(format!("file://{}", root().join(PAGE).display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workload_of_the_repository_is_the_generators() {
        let file = fs::read_to_string(root().join(WORKLOAD)).expect("the workload is in the repository");
        assert!(file == workload(), "run `cargo xtask workload`");
        assert_eq!(file.lines().count(), 40);
    }
}
