//! A stand-in for adb, over a folder in place of the phone, that goes well and wrong at every call.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use super::super::libraries;
use super::super::tests::{elf, sdk};
use super::super::{Pushed, Sources, plan};
use super::*;

/// A stand-in that notes its calls, fails at the one of the number in the file `fail-at`, and answers otherwise what the
/// folder says: pushes copy, and the phone's shell is that of this machine.
const ADB: &str = r#"#!/bin/sh
here=${0%/*}
printf '%s\n' "$#" "$@" >>"$here/calls"
count=$(($(cat "$here/count") + 1))
echo "$count" >"$here/count"
[ "$1 $2" = '-s SERIAL' ] || exit 9
shift 2
if [ "$count" = "$(cat "$here/fail-at")" ]; then
    . "$here/failure"
fi
case $1 in
get-state) echo '* daemon started successfully' >&2; printf 'device\r\n' ;;
push) cp "$2" "$3" && echo "$2: 1 file pushed." ;;
shell) shift; PATH="$here/phone-bin:$PATH" sh -c "$*" ;;
esac
"#;

const GETPROP: &str = "#!/bin/sh\n[ \"$1\" = ro.soc.model ] && echo SM8650\n";

struct Bench {
    folder: tempfile::TempDir,
    plan: Plan,
}

impl Bench {
    /// A bundle, libraries and a phone, with an earlier bundle on it whose manifest has another content.
    fn new(libraries_there: bool) -> Bench {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in ["a 'b'/graphs", "phone-bin", "sdk", "phone/bundle"] {
            fs::create_dir_all(at(name)).unwrap();
        }
        let files = [("manifest.json", "the manifest"), ("graphs/it's.ir", "a graph")];
        files.iter().for_each(|(name, text)| fs::write(at("a 'b'").join(name), text).unwrap());
        fs::write(at("phone/bundle/manifest.json"), "an old manifest").unwrap();
        sdk(&at("sdk"), " v2.51.0.260929181845 ");
        fs::write(at("npuc-android"), elf(183, "program")).unwrap();
        program(&at("adb"), ADB);
        program(&at("phone-bin/getprop"), GETPROP);
        let pushed = Pushed {
            files: files.iter().map(|(name, text)| ((*name).to_owned(), text.len() as u64)).collect(),
            build_id: Some("v2.51.0.260929181845".into()),
            target: "sm8650".into(),
            chips: vec!["SM8650".into()],
            arch: 75,
        };
        let found = libraries::find(&at("sdk"), 75).unwrap();
        let runner = libraries::runner(&at("npuc-android")).unwrap();
        let to = at("phone");
        let to = to.to_str().unwrap();
        if libraries_there {
            for library in &found {
                let place = super::super::place(to, library.machine, &library.name);
                fs::create_dir_all(Path::new(&place).parent().unwrap()).unwrap();
                fs::copy(&library.path, place).unwrap();
            }
        }
        let libraries = (!libraries_there).then_some(&found[..]);
        let bundle = at("a 'b'");
        let sources = Sources { bundle: &bundle, runner: Some(&runner), libraries };
        let plan = plan(&pushed, &sources, "SERIAL", to, false).unwrap();
        let bench = Bench { plan, folder };
        bench.reset(0, "");
        bench
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Lets the stand-in do `failure` at a call.
    fn reset(&self, fail_at: usize, failure: &str) {
        for (name, text) in [("calls", ""), ("count", "0"), ("failure", failure), ("fail-at", &fail_at.to_string())] {
            fs::write(self.at(name), text).unwrap();
        }
    }

    /// The arguments of every call that was made, each call with its number of arguments first.
    fn calls(&self) -> String {
        fs::read_to_string(self.at("calls")).unwrap()
    }

    /// The calls of the plan's first steps in the same form.
    fn planned(&self, steps: usize) -> String {
        let call = |step: &Step| {
            let words: Vec<&str> =
                ["-s", "SERIAL"].into_iter().chain(step.arguments.iter().map(String::as_str)).collect();
            format!("{}\n{}\n", words.len(), words.join("\n"))
        };
        self.plan.steps[..steps].iter().map(call).collect()
    }

    fn run(&self) -> Result<()> {
        let limits = Limits { call: Duration::from_secs(20), bytes_per_s: 1 };
        run(&self.at("adb"), &self.plan, limits, &mut |_, _| ())
    }

    fn run_script(&self) -> std::process::Output {
        fs::write(self.at("push.sh"), self.plan.script()).unwrap();
        Command::new("sh").arg(self.at("push.sh")).env("ADB", self.at("adb")).output().unwrap()
    }

    /// Every file on the phone that has its own name is what was pushed, and the manifest is there only with all others.
    fn check_phone(&self, whole: bool) {
        let bundle = |name: &str| (format!("bundle/{name}"), self.at("a 'b'").join(name));
        let library =
            |place: &str, sdk: &str, name: &str| (format!("{place}/{name}"), self.at("sdk/lib").join(sdk).join(name));
        let files = [
            bundle("manifest.json"),
            bundle("graphs/it's.ir"),
            ("bin/npuc".to_owned(), self.at("npuc-android")),
            library("lib", "aarch64-android", "libQnnHtp.so"),
            library("lib", "aarch64-android", "libQnnSystem.so"),
            library("lib", "aarch64-android", "libQnnHtpV75Stub.so"),
            library("dsp", "hexagon-v75/unsigned", "libQnnHtpV75Skel.so"),
        ];
        let there = files.map(|(name, from)| {
            let bytes = fs::read(self.at("phone").join(&name)).ok();
            let same = bytes.as_deref() == Some(&fs::read(from).unwrap());
            assert!(bytes.is_none() || same || name == "bundle/manifest.json", "{name}");
            same
        });
        assert_eq!(there == [true; 7], whole);
        assert_eq!(there[0], whole, "a manifest without the other files");
    }
}

/// A child writes the program: no other child of this process can then hold it open for writing, and so keep it from starting.
fn program(path: &Path, text: &str) {
    let write = r#"printf '%s' "$1" >"$2" && chmod 755 "$2""#;
    assert!(Command::new("sh").args(["-c", write, "sh", text]).arg(path).status().unwrap().success());
}

/// npuc and the script make the planned calls, with libraries and with those of an earlier push, and all arrives.
#[test]
fn a_push_and_its_script_make_the_same_calls() {
    for libraries_there in [false, true] {
        let bench = Bench::new(libraries_there);
        bench.run().unwrap();
        let calls = bench.calls();
        assert_eq!(calls, bench.planned(bench.plan.steps.len()));
        bench.check_phone(true);
        let mode = fs::metadata(bench.at("phone/bin/npuc")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o755);

        fs::remove_dir_all(bench.at("phone/bundle")).unwrap();
        bench.reset(0, "");
        let output = bench.run_script();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(bench.calls(), calls);
        bench.check_phone(true);
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(said.ends_with(&format!("{}\n", bench.plan.start_here())), "{said}");
    }
}

/// Whatever call fails is told with its number and adb's words, is the last, and leaves nothing that looks whole; the script
/// stops at the same.
#[test]
fn every_failing_call_ends_the_push() {
    // With libraries of an earlier push, steps 5 and 6 are others.
    for (libraries_there, numbers) in [(false, 1..=26), (true, 5..=6)] {
        let bench = Bench::new(libraries_there);
        let count = bench.plan.steps.len();
        assert!(libraries_there || *numbers.end() == count);
        for number in numbers {
            let failure = "echo 'adb: error: device offline' >&2; exit 1";
            // Half a file arrives.
            let failure = format!("[ \"$1\" = push ] && head -c 3 \"$2\" >\"$3\"\n{failure}");
            let _ = fs::remove_dir_all(bench.at("phone/bundle"));
            bench.reset(number, &failure);
            let error = bench.run().unwrap_err();
            let fault = &error.diagnostics()[0];
            let step = &bench.plan.steps[number - 1];
            let place = format!("step {number} of {count}: {}", step.what);
            assert_eq!((fault.code, &*fault.message), (Code::ToolFailed, "adb ended (exit status: 1)"));
            assert_eq!((fault.subject.as_deref(), error.exit_status()), (Some(&*place), 4));
            assert_eq!(fault.help.last().unwrap(), "adb said: adb: error: device offline");
            assert_eq!(bench.calls(), bench.planned(number), "{place}");
            bench.check_phone(false);

            // All kinds of steps, at a third of the time.
            if number % 3 != 2 && number < 21 {
                continue;
            }
            bench.reset(number, &failure);
            let output = bench.run_script();
            assert_eq!((output.status.code(), bench.calls()), (Some(1), bench.planned(number)), "{place}");
            let said = String::from_utf8(output.stderr).unwrap();
            assert!(said.contains(&format!("push.sh: step {number} of {count}: {}", step.what)), "{said}");
        }
    }
}

/// Answers that are not what is needed, a step's start each, and what is said of them.
#[test]
fn wrong_answers_end_the_push() {
    let old = "v2.50.0.260929181845";
    for (start, answer, code, message, need_have) in [
        ("ask whether", "unauthorized", Code::ToolFailed, "the phone is not ready", "device; unauthorized"),
        (
            "ask for the phone's chip",
            "SM8550",
            Code::Misfit,
            "the phone has another chip than the bundle was built for",
            "SM8650 (sm8650); SM8550",
        ),
        (
            "ask for the free",
            "Filesystem 1024-blocks Used Available Capacity Mounted on\n/dev/x 9 9 0 100% /data",
            Code::ByteLimit,
            "the phone has too little space",
            "46 bytes; 0 bytes free",
        ),
        (
            "ask for the libraries' version",
            old,
            Code::MissingTool,
            "the libraries are older than those that made the context binaries",
            "v2.51.0.260929181845 or later; v2.50.0.260929181845",
        ),
        (
            "ask for the libraries' version",
            "",
            Code::MissingTool,
            "the version of the phone's libraries is not known",
            "v2.51.0.260929181845 or later; none in the file",
        ),
        ("measure it's.ir", "3", Code::ToolFailed, "a file came to the phone in another size", "7 bytes; 3"),
    ] {
        let bench = Bench::new(true);
        let number = 1 + bench.plan.steps.iter().position(|step| step.what.starts_with(start)).unwrap();
        bench.reset(number, &format!("printf '%s\\n' '{answer}'; exit 0"));
        let error = bench.run().unwrap_err();
        let fault = &error.diagnostics()[0];
        assert_eq!((fault.code, &*fault.message), (code, message));
        let have = [fault.need.as_deref(), fault.have.as_deref()].map(Option::unwrap).join("; ");
        assert_eq!(have, need_have);
        assert!(fault.subject.as_ref().unwrap().starts_with(&format!("step {number} of ")), "{fault}");
        assert_eq!(bench.calls(), bench.planned(number), "{start}");
        bench.check_phone(false);
        bench.reset(number, &format!("printf '%s\\n' '{answer}'; exit 0"));
        let output = bench.run_script();
        assert_eq!((output.status.code(), bench.calls()), (Some(1), bench.planned(number)), "{start}");
    }
}

#[test]
fn a_call_that_hangs_ends_in_time() {
    let bench = Bench::new(false);
    bench.reset(6, "exec sleep 30");
    let limits = Limits { call: Duration::from_millis(400), bytes_per_s: u64::MAX };
    let error = run(&bench.at("adb"), &bench.plan, limits, &mut |_, _| ()).unwrap_err();
    let fault = &error.diagnostics()[0];
    assert_eq!((fault.code, &*fault.message), (Code::ToolFailed, "adb did not end in time"));
    assert_eq!(fault.need.as_deref(), Some("an end within 0.4 s"));
    let absent = run(&bench.at("no-adb"), &bench.plan, limits, &mut |_, _| ()).unwrap_err();
    assert!(absent.diagnostics()[0].message.starts_with("adb cannot be called: "));
}

/// The command that starts an answer, on this machine: what it starts gets the libraries' folders and outlives the shell.
#[test]
fn an_answer_starts_with_its_environment() {
    let bench = Bench::new(false);
    bench.run().unwrap();
    let script =
        "#!/bin/sh\necho \"$NPUC_QNN_LIBRARIES|$LD_LIBRARY_PATH|$ADSP_LIBRARY_PATH|$*\"\nsleep 0.3\necho done\n";
    program(&bench.at("phone/bin/npuc"), script);
    assert!(Command::new("sh").args(["-c", &bench.plan.start]).status().unwrap().success());
    let log = bench.at("phone/log");
    let start = std::time::Instant::now();
    let mut said = String::new();
    while !said.ends_with("done\n") && start.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(50));
        said = fs::read_to_string(&log).unwrap_or_default();
    }
    let phone = bench.at("phone");
    let phone = phone.display();
    let expected = format!(
        "{phone}/lib|{phone}/lib:/vendor/lib64|{phone}/dsp;{}|run bundle --on qnn -p Hello -n 64\ndone\n",
        super::super::VENDOR_DSP
    );
    assert_eq!(said, expected);
}
