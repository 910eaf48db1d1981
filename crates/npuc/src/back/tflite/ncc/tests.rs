//! Command lines for every chip and precision, and the script under a real shell with a stand-in for the compiler.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use super::*;
use crate::target::find;

fn question(target: &Target, precision: &str, flags: &[&str]) -> Question {
    let flags: Vec<String> = flags.iter().map(|&flag| flag.to_owned()).collect();
    Question::new(target, Precision::parse(precision, target.float).unwrap(), &flags).unwrap()
}

fn plan_of(target: &str, precision: &str, flags: &[&str], files: &[File]) -> Result<Plan> {
    let target = find(target).unwrap();
    plan(&target, &question(&target, precision, flags), files)
}

fn files() -> [File; 2] {
    ["128t1024c", "1t1024c"].map(|shape| File::of(&format!("m_{shape}_0"), shape.parse().unwrap()))
}

#[test]
fn flags_follow_chip_precision_and_role() {
    const GENIO_720: &str = "--arch=mdla5.3,edma3.6";
    const NO_EDPA: &str = "--suppress-input --suppress-output --disallow-bridge";
    const GNO: &str = "--gno=LTS --gno-exp --gno-non-4d-tiling";
    const SPLIT: &str = " --split-16a4w-conv-oc";
    let genio_720_int = format!("{GENIO_720} {NO_EDPA} --l1-size-kb=256 --num-mdla=1");
    // The chip, the precision, flags that lift limits; the prompt graph's flags and what the generation graph adds.
    let cases = [
        ("genio-720", "FP", &[][..], format!("{GENIO_720} --relax-fp32 {NO_EDPA}"), ""),
        ("genio-720", "FP32", &[], format!("{GENIO_720} --relax-fp32 {NO_EDPA}"), ""),
        ("genio-720", "stored", &[], format!("{GENIO_720} --relax-fp32 {NO_EDPA}"), ""),
        ("genio-720", "FP", &["gno=LTS"], format!("{GENIO_720} --relax-fp32 {NO_EDPA} --gno=LTS"), ""),
        ("genio-720", "8W16A", &[], genio_720_int.clone(), ""),
        ("genio-720", "16W16A", &[], genio_720_int.clone(), ""),
        ("genio-720", "8W8A", &[], genio_720_int.clone(), ""),
        ("genio-720", "4W16A", &[], genio_720_int.clone(), SPLIT),
        ("genio-720", "4W16A", &["gno=LTS"], format!("{genio_720_int} {GNO}"), SPLIT),
        ("genio-720", "8W16A", &["--gno=LTS"], format!("{genio_720_int} {GNO}"), ""),
        ("genio-700", "FP", &[], "--arch=mdla3.0 --relax-fp32".into(), ""),
        ("genio-700", "8W16A", &[], "--arch=mdla3.0".into(), ""),
        ("dimensity-9400", "FP", &[], "--arch=mdla5.5 --relax-fp32".into(), ""),
        ("dimensity-9400", "8W16A", &[], "--arch=mdla5.5 --l1-size-kb=7168 --num-mdla=4".into(), ""),
        ("dimensity-9400", "4W16A", &[], "--arch=mdla5.5 --l1-size-kb=7168 --num-mdla=4".into(), SPLIT),
        ("dimensity-9400", "4W8A", &[], "--arch=mdla5.5 --l1-size-kb=7168 --num-mdla=4".into(), ""),
    ];
    for (target, precision, flags, prompt, generation) in cases {
        let plan = plan_of(target, precision, flags, &files()).unwrap();
        let said: Vec<String> = plan.lines.iter().map(|line| line.flags.join(" ")).collect();
        assert_eq!(said, [prompt.clone(), format!("{prompt}{generation}")], "{target} {precision} {flags:?}");
        let float = precision.starts_with('F') || precision == "stored";
        assert_eq!(!plan.warnings.is_empty(), float && !flags.is_empty(), "{target} {precision} {flags:?}");
        let arguments = format!("{prompt} -d ./m_128t1024c_0.part.dla ./m_128t1024c_0.tflite");
        assert_eq!(plan.lines[0].arguments().join(" "), arguments);
    }
}

#[test]
fn what_cannot_be_compiled_is_refused() {
    let file = |tflite: &str, dla: &str| File { tflite: tflite.into(), dla: dla.into(), role: Role::Prompt };
    let good = file("a.tflite", "a.dla");
    let cases = [
        ("sm8650", vec![good.clone()], "ncc-tflite does not compile for sm8650"),
        ("host", vec![good.clone()], "ncc-tflite does not compile for host"),
        ("genio-720", vec![file("", "a.dla")], "a file cannot have this name"),
        ("genio-720", vec![file("/a.tflite", "a.dla")], "a file cannot have this name"),
        ("genio-720", vec![file("a.tflite", "../a.dla")], "a file cannot have this name"),
        ("genio-720", vec![file("a.tflite", "a\0.dla")], "a file cannot have this name"),
        ("genio-720", vec![file("a", "a")], "two files have one name"),
        ("genio-720", vec![good, file("b.tflite", "a.dla")], "two files have one name"),
    ];
    for (target, files, message) in cases {
        let error = plan_of(target, "FP", &[], &files).unwrap_err();
        assert_eq!(error.diagnostics()[0].message, message);
        assert_eq!(error.exit_status(), 2);
    }
}

/// A compiler that records its arguments, one a line, and behaves as the file `mode` beside it says.
const STAND_IN: &str = r#"#!/bin/sh
here=${0%/*}
printf '%s\n' "$@" >>"$here/arguments"
printf '%s\n' "an answer"
mode=$(cat "$here/mode")
while [ "$1" != -d ]; do shift; done
case $mode in
refuses) printf '%s\n' "a reason" >&2; exit 3 ;;
silent) ;;
empty) : >"$2" ;;
*) cp "$3" "$2" ;;
esac
"#;

/// A child writes it: no other child of this process can then hold it open for writing, and so keep it from starting.
fn write_program(path: &Path, text: &str) {
    let write = r#"printf '%s' "$1" >"$2" && chmod 755 "$2""#;
    let status = Command::new("sh").args(["-c", write, "sh", text]).arg(path).status().unwrap();
    assert!(status.success());
}

/// Runs the script of the files with the stand-in in `mode`, or without one.
fn run(folder: &Path, tools: &Path, mode: Option<&str>) -> Output {
    let names = odd_names();
    let plan = plan_of("genio-720", "4W16A", &["gno=LTS"], &names).unwrap();
    fs::write(folder.join(SCRIPT_FILE), plan.script()).unwrap();
    let syntax = Command::new("sh").arg("-n").arg(folder.join(SCRIPT_FILE)).output().unwrap();
    assert!(syntax.status.success(), "{syntax:?}");
    for file in &names {
        fs::write(folder.join(&file.tflite), &file.tflite).unwrap();
    }
    if let Some(mode) = mode {
        write_program(&tools.join(PROGRAM), STAND_IN);
        fs::write(tools.join("mode"), mode).unwrap();
    }
    let path = format!("{}:/usr/bin:/bin", tools.display());
    Command::new("/bin/sh").arg(folder.join(SCRIPT_FILE)).env("PATH", path).output().unwrap()
}

fn odd_names() -> [File; 3] {
    ["it's a \"model\" $HOME `id` \\ 100%", "-rf", "zwei\nZeilen ü;&|*?"]
        .map(|stem| File::of(stem, "1t8c".parse().unwrap()))
}

#[test]
fn the_script_survives_any_name() {
    let (folder, tools) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let folder = folder.path().join("a 'folder' $(x)");
    fs::create_dir(&folder).unwrap();
    let output = run(&folder, tools.path(), Some("works"));
    assert!(output.status.success(), "{output:?}");
    let plan = plan_of("genio-720", "4W16A", &["gno=LTS"], &odd_names()).unwrap();
    let expected: String = plan.lines.iter().flat_map(Line::arguments).map(|word| format!("{word}\n")).collect();
    assert_eq!(fs::read_to_string(tools.path().join("arguments")).unwrap(), expected);
    for line in &plan.lines {
        assert_eq!(fs::read_to_string(folder.join(&line.file.dla)).unwrap(), line.file.tflite);
        assert_eq!(fs::read_to_string(folder.join(line.log())).unwrap(), "an answer\n");
        assert!(!folder.join(line.partial()).exists());
    }
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("2 of 3: the generation graph -rf.tflite\n"), "{said}");
}

#[test]
fn the_script_stops_at_the_first_refusal() {
    // The mode of the stand-in; the exit status, what is said, the log.
    let cases = [
        (None, 4, "ncc-tflite is not on the PATH", None),
        (Some("refuses"), 1, "ended with status 3 and did not make", Some("an answer\na reason\n")),
        (Some("silent"), 1, "ended with status 0 and did not make", Some("an answer\n")),
        (Some("empty"), 1, "npuc explain \"./it's a", Some("an answer\n")),
    ];
    for (mode, status, said, log) in cases {
        let (folder, tools) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let first = &odd_names()[0];
        // What an earlier run left does not pass for the new output.
        fs::write(folder.path().join(&first.dla), "old").unwrap();
        let output = run(folder.path(), tools.path(), mode);
        assert_eq!(output.status.code(), Some(status), "{mode:?} {output:?}");
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.contains(said), "{mode:?}: {stderr}");
        assert_eq!(fs::read_to_string(folder.path().join(format!("{}.log", first.dla))).ok().as_deref(), log);
        assert!(!folder.path().join(&odd_names()[1].dla).exists());
        assert_eq!(folder.path().join(&first.dla).exists(), mode.is_none());
    }
}
