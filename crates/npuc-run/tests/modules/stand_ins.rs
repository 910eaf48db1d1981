//! Stand-ins for compilers and runtimes that go wrong in every way.

use std::process::Command;

use super::*;

/// A tool whose programs, and Python, run `script`; `$out` is what the compiler is to write.
fn stand_in(tool: Tool, folder: &Path, script: &str) -> Installed {
    let installed = Installed {
        tool,
        folders: vec![folder.to_path_buf(), folder.to_path_buf()],
        python: Some(folder.join("python")),
    };
    let programs = [installed.compiler(), installed.run_module(), installed.python.clone()];
    let text = format!("#!/bin/sh\nfor out; do :; done\n{script}\n");
    for path in programs.into_iter().flatten() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        // A child writes it: no other child of this process can then hold it open for writing, and so keep it from starting.
        let write = r#"printf '%s' "$1" >"$2" && chmod 755 "$2""#;
        assert!(Command::new("sh").args(["-c", write, "sh", &text]).arg(&path).status().unwrap().success());
    }
    installed
}

#[test]
fn compilers_that_go_wrong() {
    let lram = "echo 'error: failed to allocate LRAM addresses' >&2";
    // The script, the time limit; the code, the message, a text in the whole diagnostic, the exit status.
    let cases = [
        (
            "echo boom >&2; exit 3",
            10_000,
            Code::ToolFailed,
            "torq-compile ended (exit status: 3)",
            "help: log: boom",
            4,
        ),
        ("kill -SEGV $$", 10_000, Code::ToolFailed, "torq-compile ended (signal: 11 (SIGSEGV)", "m.mlir", 4),
        (
            "echo slow; echo half >\"$out\"; exec sleep 30",
            300,
            Code::ToolFailed,
            "torq-compile did not end in time",
            "need: an end within 0.3 s",
            4,
        ),
        ("echo done", 10_000, Code::ToolFailed, "torq-compile said success and wrote nothing", "help: log: done", 4),
        (": >\"$out\"", 10_000, Code::ToolFailed, "torq-compile said success and wrote nothing", "m.log", 4),
        (
            &format!("{lram}; exit 1"),
            10_000,
            Code::VendorRefusal,
            "torq-compile: the buffers of the step do not fit",
            "stream-schedule",
            1,
        ),
        (
            &format!("{lram}; kill -ABRT $$"),
            10_000,
            Code::VendorRefusal,
            "torq-compile: the buffers of the step do not fit",
            "npuc explain",
            1,
        ),
    ];
    for (script, limit_ms, code, message, text, status) in cases {
        let folder = tempfile::tempdir().unwrap();
        let tool = stand_in(Tool::Torq, folder.path(), script);
        let [mlir, vmfb, log] = ["m.mlir", "m.vmfb", "m.log"].map(|name| folder.path().join(name));
        fs::write(&vmfb, "of an earlier run").unwrap();
        let limit = Duration::from_millis(limit_ms);
        let result =
            compile(&Compilation { tool: &tool, flags: &[], mlir: &mlir, vmfb: &vmfb, log: &log, limit }, &mut |_| ());
        let error = result.expect_err(script);
        let fault = &error.diagnostics()[0];
        assert_eq!((fault.code, error.exit_status()), (code, status), "{script}: {error}");
        assert!(fault.message.starts_with(message), "{script}: {fault}");
        assert!(fault.to_string().contains(text), "{script}: {fault}");
        // Neither an earlier module nor half of one is left; the log is.
        let left = [&vmfb, &folder.path().join("m.vmfb.part"), &log].map(|path| path.exists());
        assert_eq!(left, [false, false, true], "{script}");
    }
}

/// The flags come first, and a good module is whole.
#[test]
fn a_compiler_that_goes_well() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = folder.path().join("arguments");
    let script = format!("printf '%s\\n' \"$@\" >'{}'; echo module >\"$out\"", arguments.display());
    let tool = stand_in(Tool::Iree, folder.path(), &script);
    let [mlir, vmfb, log] = ["-m.mlir", "m.vmfb", "m.log"].map(|name| folder.path().join(name));
    let mut said = Vec::new();
    let flags = ["--iree-opt-level=O2".to_owned()];
    let compilation = Compilation { tool: &tool, flags: &flags, mlir: &mlir, vmfb: &vmfb, log: &log, limit: LIMIT };
    let made = compile(&compilation, &mut |line| said.push(line.to_owned()));
    assert_eq!((made.unwrap().vmfb_bytes, fs::read_to_string(&vmfb).unwrap().as_str()), (7, "module\n"));
    assert_eq!(said, [format!("iree-compile {}", mlir.display())]);
    let given = fs::read_to_string(arguments).unwrap();
    assert_eq!(given.lines().take(flags.len()).collect::<Vec<_>>(), flags);
}

#[test]
fn tools_that_are_not_there() {
    let folder = tempfile::tempdir().unwrap();
    let empty = |tool| Installed { tool, folders: vec![folder.path().to_path_buf(); 2], python: None };
    let [mlir, log] = ["m.mlir", "m.log"].map(|name| folder.path().join(name));
    let mut errors = Vec::new();
    // Neither an empty folder nor a tool without a compiler compiles.
    for tool in [Tool::Torq, Tool::Iree, Tool::Vulkan] {
        let (name, tool) = (tool.name(), empty(tool));
        let vmfb = folder.path().join("m.vmfb");
        let result = compile(
            &Compilation { tool: &tool, flags: &[], mlir: &mlir, vmfb: &vmfb, log: &log, limit: LIMIT },
            &mut |_| (),
        );
        errors.push((name, result.map(drop).unwrap_err()));
    }
    for (runner, tools, missing) in [
        (Runner::TorqSim, vec![empty(Tool::Torq)], "torq"),
        (Runner::TorqSim, vec![empty(Tool::Iree)], "torq"),
        (Runner::IreeCpu, vec![], "iree"),
        (Runner::IreeVulkan, vec![empty(Tool::Iree)], "vulkan"),
        (Runner::ValhallOnVulkan, vec![empty(Tool::Iree), empty(Tool::Vulkan)], "vulkan"),
    ] {
        let mut tools = tools;
        tools.iter_mut().for_each(|tool| tool.python = Some("python3".into()));
        let spec = spec(runner, folder.path(), vec![], vec![]);
        errors.push((missing, Module::open(spec, &tools).map(drop).unwrap_err()));
    }
    for (missing, error) in errors {
        let fault = &error.diagnostics()[0];
        assert_eq!((fault.code, error.exit_status()), (Code::MissingTool, 4), "{error}");
        assert!(fault.help.iter().any(|line| line == &format!("run `npuc toolchain install {missing}`")), "{error}");
    }
}

#[test]
fn runtimes_that_go_wrong() {
    let frame =
        |answer: &str| format!("head -c 8 >/dev/null; printf '\\{:03o}\\0\\0\\0\\0\\0\\0\\0{answer}'", answer.len());
    let refuses = format!("{}; exec sleep 30", frame("Eno!"));
    let good = format!("{}; exec sleep 30", frame("M"));
    let short = format!(
        "{}; head -c 8 >/dev/null; {}; exec sleep 30",
        frame("M"),
        frame("Oab").replace("head -c 8 >/dev/null; ", "")
    );
    // The tool, what its program does, the time limit; the message, a text in the whole diagnostic.
    let cases = [
        (Tool::Torq, "echo boom >&2; exit 3", 10_000, "torq-run-module ended (exit status: 3)", "help: log: boom"),
        (Tool::Torq, "kill -SEGV $$", 10_000, "torq-run-module ended (signal: 11 (SIGSEGV)", "run.log"),
        (Tool::Torq, "echo slow; exec sleep 30", 300, "torq-run-module did not end in time", "help: log: slow"),
        (Tool::Torq, "exit 0", 10_000, "torq-run-module wrote a result of another size", "8 bytes for 1x4xbf16"),
        (
            Tool::Iree,
            "echo boom >&2; exit 3",
            10_000,
            "IREE's runtime ended (exit status: 3) while loading a module",
            "log: boom",
        ),
        (Tool::Iree, "exec sleep 30", 300, "IREE's runtime did not answer in time while loading a module", "run.log"),
        (Tool::Iree, &refuses, 10_000, "IREE's runtime failed while loading a module", "have: no!"),
        (Tool::Iree, &good, 3_000, "IREE's runtime did not answer in time while computing a step", "run.log"),
        (Tool::Iree, &short, 10_000, "IREE's runtime gave an answer of another size", "run.log"),
    ];
    for (tool, script, limit_ms, message, text) in cases {
        let folder = tempfile::tempdir().unwrap();
        let runner = if tool == Tool::Torq { Runner::TorqSim } else { Runner::IreeCpu };
        let ports = || vec![port("p", &[1, 4], PortFormat::Bf16)];
        let mut spec = spec(runner, folder.path(), ports(), ports());
        spec.limit = Duration::from_millis(limit_ms);
        let tools = [stand_in(tool, folder.path(), script)];
        let run = |mut module: Module| module.run(&[&[1.0; 4]]);
        let error = Module::open(spec, &tools).and_then(run).expect_err(script);
        let fault = &error.diagnostics()[0];
        assert_eq!((fault.code, error.exit_status()), (Code::ToolFailed, 4), "{script}: {error}");
        assert!(fault.message.starts_with(message), "{script}: {fault}");
        assert!(fault.to_string().contains(text), "{script}: {fault}");
    }
}

/// A software Vulkan that loses its device is started anew, also in the middle of a step, and not for ever.
#[test]
fn lost_devices_are_started_anew() {
    let frame = |answer: &str| format!("printf '\\{:03o}\\0\\0\\0\\0\\0\\0\\0{answer}'", answer.len());
    let read = "head -c 8 >/dev/null";
    let lost = frame("EVK_ERROR_DEVICE_LOST");
    // The start that the program succeeds at, whether the first one that loads is lost in a step; whether a step is computed.
    for (starts, in_step, good) in [(1, false, true), (3, false, true), (4, false, false), (1, true, true)] {
        let folder = tempfile::tempdir().unwrap();
        let count = folder.path().join("count");
        let (loaded, stepped) = (frame("M"), frame("O"));
        let step = match in_step {
            true => format!("[ $n -eq {starts} ] && {{ {read}; {lost}; exec sleep 30; }}"),
            false => String::new(),
        };
        let script = format!(
            "echo >>'{0}'; n=$(wc -l <'{0}')\n{read}\n[ $n -lt {starts} ] && {{ {lost}; exec sleep 30; }}\n{loaded}\n{step}\n\
             {read}; {stepped}; exec sleep 30",
            count.display()
        );
        let vulkan = Installed { tool: Tool::Vulkan, folders: vec![folder.path().to_path_buf()], python: None };
        let tools = [stand_in(Tool::Iree, folder.path(), &script), vulkan];
        let libraries = folder.path().join("usr/lib/x86_64-linux-gnu");
        fs::create_dir_all(&libraries).unwrap();
        fs::write(libraries.join("libvulkan_lvp.so"), "").unwrap();
        let spec = spec(Runner::IreeVulkan, folder.path(), vec![], vec![]);
        let result = Module::open(spec, &tools).and_then(|mut module| module.run(&[]));
        assert_eq!(result.is_ok(), good, "{starts} {in_step}: {result:?}");
        let most = fs::read_to_string(&count).unwrap().lines().count();
        assert_eq!(most, if in_step { 2 } else { starts.min(3) }, "{starts} {in_step}");
    }
}
