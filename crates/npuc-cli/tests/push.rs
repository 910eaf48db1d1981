//! `npuc push` from the command line, with a stand-in for adb and a folder in place of the phone.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use sha2::{Digest, Sha256};

mod program;

use program::{checkpoint, files, npuc};

/// Pushes copy, and the phone's shell is that of this machine.
const ADB: &str = r#"#!/bin/sh
echo "$*" >>"${0%/*}/calls"
[ "$1 $2" = '-s S1' ] || exit 9
shift 2
case $* in
get-state) echo device ;;
'shell getprop ro.soc.model') cat "${0%/*}/chip" ;;
push*) cp "$2" "$3" ;;
shell*) shift; sh -c "$*" ;;
esac
"#;

/// A folder with the stand-in, libraries of no known version, npuc's program, and a bundle that claims to be for a phone.
/// No bundle of the tests has context binaries, so none says which libraries it needs, and all pushes are forced.
fn bench() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    // A child writes it: no other child can then hold it open for writing, and so keep it from starting.
    let write = r#"printf '%s' "$1" >"$2" && chmod 755 "$2""#;
    assert!(Command::new("sh").args(["-c", write, "sh", ADB]).arg(at("adb")).status().unwrap().success());
    fs::write(at("chip"), "SM8650").unwrap();
    fs::create_dir_all(at("sdk")).unwrap();
    for (name, machine) in
        [("libQnnHtp.so", 183u16), ("libQnnSystem.so", 183), ("libQnnHtpV75Stub.so", 183), ("libQnnHtpV75Skel.so", 164)]
    {
        elf(&at("sdk").join(name), machine);
    }
    elf(&at("npuc-android"), 183);
    let built = call("build qwen3-bf16 --shapes 8t32c,1t32c -o TMP/bundle", folder.path());
    assert!(built.status.success(), "{}", text(&built.stderr));
    let bytes = fs::read_to_string(at("bundle/manifest.json")).unwrap();
    let (_, body) = bytes.split_once(",\n").unwrap();
    let body = body.replace(r#""target": "host""#, r#""target": "sm8650""#);
    let digest: String = Sha256::digest(&body).iter().map(|byte| format!("{byte:02x}")).collect();
    fs::create_dir(at("host")).unwrap();
    fs::copy(at("bundle/manifest.json"), at("host/manifest.json")).unwrap();
    fs::write(at("bundle/manifest.json"), format!("{{\n  \"digest\": \"{digest}\",\n{body}")).unwrap();
    folder
}

fn elf(path: &Path, machine: u16) {
    let mut bytes = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0".to_vec();
    bytes.extend(machine.to_le_bytes());
    fs::write(path, bytes).unwrap();
}

fn call(line: &str, folder: &Path) -> Output {
    let mut command = npuc();
    let words = line.split(' ').map(|word| word.replace("TMP", folder.to_str().unwrap()));
    command.current_dir(checkpoint("")).env("ADB", folder.join("adb")).args(words).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

const GOOD: &str = "push TMP/bundle --serial S1 --to TMP/phone --libraries TMP/sdk --runner TMP/npuc-android --force";

#[test]
fn a_bundle_arrives_whole() {
    let folder = bench();
    let at = |name: &str| folder.path().join(name);
    let told = call(&format!("{GOOD} --dry-run"), folder.path());
    assert!(told.status.success(), "{}", text(&told.stderr));
    assert!(!at("calls").exists() && !at("phone").exists());
    let steps = text(&told.stdout);
    assert!(steps.contains("   1  ask whether the phone is there\n   2  ask for the phone's chip\n"), "{steps}");

    let pushed = call(GOOD, folder.path());
    assert!(pushed.status.success(), "{}", text(&pushed.stderr));
    let calls = fs::read_to_string(at("calls")).unwrap();
    let said = text(&pushed.stdout);
    assert!(said.contains(&format!(" went to {} of S1 in {} steps\n", at("phone").display(), calls.lines().count())));
    assert!(said.contains("adb -s S1 shell 'cd "), "{said}");
    let mut sent = files(&at("bundle"));
    let script = sent.remove(Path::new("push.sh")).unwrap();
    assert!(files(&at("phone/bundle")) == sent);
    assert!(files(&at("phone/dsp")).keys().eq([Path::new("libQnnHtpV75Skel.so")]));
    assert_eq!(files(&at("phone/lib")).len(), 3);
    assert_eq!(fs::metadata(at("phone/bin/npuc")).unwrap().permissions().mode() & 0o111, 0o111);
    // The bundle on the phone is one.
    let inspected = call("inspect TMP/phone/bundle", folder.path());
    assert!(inspected.status.success(), "{}", text(&inspected.stderr));

    // The script makes the same calls, from any folder.
    fs::remove_file(at("calls")).unwrap();
    fs::remove_dir_all(at("phone")).unwrap();
    let run = Command::new("sh").arg(at("bundle/push.sh")).env("ADB", at("adb")).current_dir("/").output().unwrap();
    assert!(run.status.success(), "{}", text(&run.stderr));
    assert_eq!(fs::read_to_string(at("calls")).unwrap(), calls);
    assert!(files(&at("phone/bundle")) == sent);

    // Libraries and npuc may stay from an earlier push.
    let again = call("push TMP/bundle --serial S1 --to TMP/phone --force --json", folder.path());
    assert!(again.status.success(), "{}", text(&again.stderr));
    let report: serde_json::Value = serde_json::from_slice(&again.stdout).unwrap();
    assert_eq!((&report["serial"], &report["dry_run"]), (&"S1".into(), &false.into()));
    assert_ne!(fs::read(at("bundle/push.sh")).unwrap(), script);
    // A build may replace a bundle that was pushed.
    let built = call("build qwen3-bf16 --shapes 8t32c,1t32c -o TMP/bundle", folder.path());
    assert!(built.status.success(), "{}", text(&built.stderr));
    assert!(!at("bundle/push.sh").exists());
}

#[test]
fn what_goes_wrong_is_told() {
    let folder = bench();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("x86")).unwrap();
    elf(&at("x86/libQnnHtp.so"), 62);
    let change = |name: &str, chip: &str| fs::write(at(name), chip).unwrap();
    for (line, chip, status, words) in [
        (
            "push TMP/bundle --serial S1 --libraries TMP/sdk".to_owned(),
            "SM8650",
            4,
            "error[missing-tool]: the libraries' version is not known",
        ),
        (
            "push TMP/bundle --serial S1".to_owned(),
            "SM8650",
            4,
            "error[missing-tool]: the bundle does not say which libraries made its context binaries",
        ),
        (
            "push TMP/bundle --serial S1 --force --libraries TMP/x86".to_owned(),
            "SM8650",
            4,
            "need: an ELF file for aarch64\n  = have: one for x86-64",
        ),
        (GOOD.replace("S1", "S2"), "SM8650", 4, "error[tool-failed]: adb ended (exit status: 9)\n  --> step 1 of "),
        (GOOD.to_owned(), "SM8750", 1, "need: SM8650 (sm8650)\n  = have: SM8750"),
        (GOOD.replace("TMP/phone", "phone"), "SM8650", 2, "the phone's folder cannot be this"),
        (GOOD.replace("TMP/bundle", "TMP/sdk"), "SM8650", 3, "manifest.json"),
        (
            "push TMP/bundle --serial S1 --to TMP/phone --force".to_owned(),
            "SM8650",
            4,
            "help: give --libraries: the folder of Qualcomm's SDK (QAIRT)",
        ),
    ] {
        change("chip", chip);
        let output = call(&line, folder.path());
        assert_eq!(output.status.code(), Some(status), "{line}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains(words), "{line}: {}", text(&output.stderr));
        assert!(!at("phone/bundle/manifest.json").exists(), "{line}");
    }
    let mut absent = npuc();
    absent.args(["push", "bundle", "--serial", "S1", "--force"]).current_dir(folder.path());
    let output = absent.env("ADB", "no-such-adb").output().unwrap();
    assert_eq!(output.status.code(), Some(4));
    assert!(text(&output.stderr).contains("the variable ADB names no program\n  --> no-such-adb"));
    change("bundle/manifest.json", &fs::read_to_string(at("host/manifest.json")).unwrap());
    let host = call(GOOD, folder.path());
    assert_eq!(host.status.code(), Some(2));
    assert!(text(&host.stderr).contains("the bundle is for none of Qualcomm's chips"));
}
