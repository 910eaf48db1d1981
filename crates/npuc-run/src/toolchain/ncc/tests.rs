//! Stand-ins for the compiler that go well and wrong in every way.

use std::os::unix::fs::PermissionsExt;

use npuc::Code;
use npuc::back::tflite::ncc::{File as NccFile, plan};
use npuc::ir::text;
use npuc::target::{self, Precision, Question};

use super::*;

const GRAPH: &str = r#"graph "128t1024c" {
  %0 = input "hidden" : f32[128, 2048]
  %1 = weight "lm_head.weight" : f16[128256, 2048]
  %2 = linear(%0, %1) : f32[128, 128256] @ "lm_head"
  output "logits" = %2
}"#;

fn lines(names: &[&str]) -> Vec<Line> {
    let target = target::find("genio-720").unwrap();
    let precision = Precision::parse("4W16A", target.float).unwrap();
    let question = Question::new(&target, precision, &[]).unwrap();
    let files: Vec<NccFile> = names.iter().map(|name| NccFile::of(name, "1t8c".parse().unwrap())).collect();
    plan(&target, &question, &files).unwrap().lines
}

/// A program that runs `script` with the output's name in `$out` and the input's in `$in`.
fn stand_in(folder: &Path, script: &str) -> PathBuf {
    let path = folder.join(PROGRAM);
    let text = format!(
        "#!/bin/sh\nprintf '%s\\n' \"$*\" >>arguments\nwhile [ \"$1\" != -d ]; do shift; done\nout=$2 in=$3\n{script}\n"
    );
    // A child writes it: no other child of this process can then hold it open for writing, and so keep it from starting.
    let write = r#"printf '%s' "$1" >"$2" && chmod 755 "$2""#;
    let status = Command::new("sh").args(["-c", write, "sh", &text]).arg(&path).status().unwrap();
    assert!(status.success());
    path
}

/// Compiles files of those names in a fresh folder with the stand-in; gives the folder, the result and what was said.
fn compile_with(
    names: &[&str],
    script: &str,
    limit_ms: u64,
) -> (tempfile::TempDir, Result<Vec<Compiled>>, Vec<String>) {
    let folder = tempfile::tempdir().unwrap();
    let work = folder.path().join("a 'folder'");
    fs::create_dir(&work).unwrap();
    let lines = lines(names);
    for line in &lines {
        fs::write(work.join(&line.file.tflite), &line.file.tflite).unwrap();
        fs::write(work.join(&line.file.dla), "of an earlier run").unwrap();
    }
    let ncc = stand_in(folder.path(), script);
    let graph = text::parse(GRAPH).unwrap();
    let mut said = Vec::new();
    let limit = Duration::from_millis(limit_ms);
    let result = compile(&ncc, &lines, &[graph], &work, limit, &mut |text| said.push(text.to_owned()));
    (folder, result, said)
}

#[test]
fn good_files_are_whole_and_their_logs_kept() {
    let names = ["it's \"one\" $(x)", "-two", "drei\nvier"];
    let (folder, result, said) =
        compile_with(&names, "echo '  Target: MDLA_5_3'; echo on >&2; cp \"$in\" \"$out\"", 10_000);
    let compiled = result.unwrap();
    for (line, compiled) in lines(&names).iter().zip(&compiled) {
        assert_eq!(fs::read_to_string(&compiled.dla).unwrap(), line.file.tflite);
        assert_eq!(compiled.bytes, line.file.tflite.len() as u64);
        assert_eq!(fs::read_to_string(&compiled.log).unwrap(), "  Target: MDLA_5_3\non\n");
        assert_eq!(compiled.findings.len(), 1);
        assert!(!compiled.dla.with_file_name(line.partial()).exists());
    }
    assert_eq!(said[1], "ncc-tflite 2 of 3: the generation graph -two.tflite");
    let arguments = fs::read_to_string(folder.path().join("a 'folder'/arguments")).unwrap();
    let expected: Vec<String> = lines(&names).iter().map(|line| format!("{}\n", line.arguments().join(" "))).collect();
    assert_eq!(arguments, expected.concat());
}

#[test]
fn what_goes_wrong_is_told() {
    const REFUSAL: &str = "printf '%s\\n' 'NIR[3]: FullyConnectedLayer<3>{FULLY_CONNECTED}' ' operand 1: {128256, 2048}' \
                           ' MDLA: Dimension should be <= 65535.' ' EDMA: unsupported operation'; exit 6";
    // The script, the time limit; the code, the message, a text in the whole diagnostic, the exit status.
    let cases = [
        (
            REFUSAL,
            10_000,
            Code::VendorRefusal,
            "ncc-tflite: the MDLA takes no extent above 65535",
            "lm_head (128t1024c.ir:4)",
            1,
        ),
        (
            REFUSAL,
            10_000,
            Code::VendorRefusal,
            "ncc-tflite: the MDLA takes no extent above 65535",
            "`--flag gno=LTS`",
            1,
        ),
        (
            "echo 'Cannot find an execution plan because of unsupported operations'; exit 1",
            10_000,
            Code::VendorRefusal,
            "ncc-tflite: the compiler has no plan for the file, for units refuse operations",
            "npuc explain",
            1,
        ),
        ("echo boom; exit 3", 10_000, Code::ToolFailed, "ncc-tflite ended (exit status: 3)", "help: log: boom", 4),
        (
            "echo half >\"$out\"; kill -SEGV $$",
            10_000,
            Code::ToolFailed,
            "ncc-tflite ended (signal: 11 (SIGSEGV)",
            "one.dla.log",
            4,
        ),
        (
            "echo slow; echo half >\"$out\"; exec sleep 30",
            300,
            Code::ToolFailed,
            "ncc-tflite did not end in time",
            "need: an end within 0.3 s",
            4,
        ),
        ("echo done", 10_000, Code::ToolFailed, "ncc-tflite said success and wrote nothing", "help: log: done", 4),
        (": >\"$out\"", 10_000, Code::ToolFailed, "ncc-tflite said success and wrote nothing", "one.tflite", 4),
    ];
    for (script, limit_ms, code, message, text, status) in cases {
        let (folder, result, said) = compile_with(&["one", "two"], script, limit_ms);
        let error = result.unwrap_err();
        let fault = &error.diagnostics()[0];
        assert_eq!((fault.code, error.exit_status()), (code, status), "{script}");
        assert!(fault.message.starts_with(message), "{script}: {fault}");
        assert!(fault.to_string().contains(text), "{script}: {fault}");
        // The first failure ends the work; neither an earlier output nor half of one is left.
        assert_eq!(said.len(), 1, "{script}");
        let work = folder.path().join("a 'folder'");
        let left =
            ["one.dla", "one.part.dla", "one.dla.log", "two.dla", "two.dla.log"].map(|name| work.join(name).exists());
        assert_eq!(left, [false, false, true, true, false], "{script}");
    }
}

#[test]
fn the_compiler_is_found_on_the_path() {
    let folder = tempfile::tempdir().unwrap();
    let ncc = stand_in(folder.path(), "");
    let path = std::env::join_paths([Path::new("/no/such/folder"), folder.path()]).unwrap();
    assert_eq!(find_in(&path, PROGRAM), Some(ncc.clone()));
    fs::set_permissions(&ncc, fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(find_in(&path, PROGRAM), None);
    let absent = compile(&ncc, &lines(&["a"]), &[], folder.path(), TIME_LIMIT, &mut |_| ());
    assert_eq!(absent.unwrap_err().diagnostics()[0].code, Code::ToolFailed);
}
