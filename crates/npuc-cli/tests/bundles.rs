//! Bundles from the command line: the same bytes every time, every flipped byte found, whole or absent.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use sha2::{Digest, Sha256};

mod program;

use program::{checkpoint, files, npuc};

const MODEL: &str = "qwen2-bf16";

fn build(model: &Path, to: &Path) {
    let output = npuc().arg("build").arg(model).args(["--shapes", "8t32c,1t32c", "-o"]).arg(to).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Standard output, standard error and exit status of `npuc run` over a few ids.
fn run(bundle: &Path) -> (String, String, i32) {
    let ids = bundle.with_extension("ids");
    fs::write(&ids, "5 6 7, 8").unwrap();
    let output =
        npuc().arg("run").arg(bundle).arg("--ids").arg(&ids).args(["-n", "4", "--ignore-eos"]).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (text(&output.stdout), text(&output.stderr), output.status.code().unwrap())
}

#[test]
fn the_same_checkpoint_gives_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (folder.path().join("first"), folder.path().join("a/b/second"));
    build(&checkpoint(MODEL), &first);
    build(&checkpoint(MODEL), &second);
    build(&checkpoint(MODEL), &second);
    assert!(files(&first) == files(&second));
    assert_eq!(run(&first).0, run(&second).0);
    let left: Vec<_> = fs::read_dir(folder.path().join("a/b")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "the bundle and the ids: {left:?}");
}

#[test]
fn one_flipped_byte_is_found_wherever_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let bundle = folder.path().join("bundle");
    build(&checkpoint(MODEL), &bundle);
    assert_eq!(run(&bundle).2, 0);
    for (name, bytes) in files(&bundle) {
        for at in [0, bytes.len() / 3, bytes.len() - 1] {
            let mut flipped = bytes.clone();
            flipped[at] ^= 0x10;
            fs::write(bundle.join(&name), &flipped).unwrap();
            let (stdout, stderr, status) = run(&bundle);
            assert_eq!((stdout.as_str(), status), ("", 3), "{} at {at}: {stderr}", name.display());
            assert!(stderr.contains(&*name.to_string_lossy()), "{} at {at}: {stderr}", name.display());
            assert!(stderr.starts_with("error["), "{stderr}");
        }
        fs::write(bundle.join(&name), &bytes).unwrap();
    }
    assert_eq!(run(&bundle).2, 0);
}

#[test]
fn an_absent_or_short_file_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let bundle = folder.path().join("bundle");
    build(&checkpoint(MODEL), &bundle);
    for (name, bytes) in files(&bundle) {
        if name == Path::new("manifest.json") {
            continue;
        }
        for broken in [None, Some(&bytes[..bytes.len() - 1])] {
            match broken {
                None => fs::remove_file(bundle.join(&name)).unwrap(),
                Some(bytes) => fs::write(bundle.join(&name), bytes).unwrap(),
            }
            let (_, stderr, status) = run(&bundle);
            assert_eq!(status, 3, "{stderr}");
            assert!(stderr.contains(&*name.to_string_lossy()), "{}: {stderr}", name.display());
        }
        fs::write(bundle.join(&name), &bytes).unwrap();
    }
}

#[test]
fn a_failed_build_leaves_the_place_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let bundle = folder.path().join("bundle");
    // A limit on file sizes stands in for a full disk: the write of the weights fails in its middle.
    let limited = |to: &Path| {
        let command = "ulimit -f 100; exec \"$0\" build \"$1\" --shapes 8t32c,1t32c -o \"$2\"";
        let npuc = npuc();
        let output =
            Command::new("sh").args(["-c", command]).arg(npuc.get_program()).arg(checkpoint(MODEL)).arg(to).output();
        let output = output.unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(3), "{stderr}");
        assert!(stderr.starts_with("error[unwritable]: cannot write: File too large"), "{stderr}");
        for part in ["bundle/weights.bin", "= help: raise the limit on file sizes (ulimit -f)"] {
            assert!(stderr.contains(part), "no `{part}` in {stderr}");
        }
    };
    limited(&bundle);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left");
    build(&checkpoint(MODEL), &bundle);
    let before = files(&bundle);
    limited(&bundle);
    assert!(files(&bundle) == before, "the earlier bundle stays");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");
}

#[test]
fn a_full_disk_is_told_with_need_and_have() {
    let folder = tempfile::tempdir().unwrap();
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=64k", "npuc"]).arg(folder.path()).output();
    if !mounted.is_ok_and(|output| output.status.success()) {
        eprintln!("NOT RUN: a full disk needs the right to mount a small tmpfs");
        return;
    }
    let output =
        npuc().arg("build").arg(checkpoint(MODEL)).arg("-o").arg(folder.path().join("bundle")).output().unwrap();
    let left = fs::read_dir(folder.path()).unwrap().count();
    let unmounted = Command::new("umount").arg(folder.path()).status().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(unmounted.success());
    assert_eq!((output.status.code(), left), (Some(3), 0), "{stderr}");
    assert!(stderr.starts_with("error[unwritable]: cannot write: no storage space"), "{stderr}");
    assert!(stderr.contains(" bytes for the bundle\n  = have: 65536 bytes free\n"), "{stderr}");
}

#[test]
fn only_bundles_and_empty_folders_are_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let other = folder.path().join("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("precious"), "data").unwrap();
    let app = folder.path().join("app");
    fs::create_dir(&app).unwrap();
    fs::write(app.join("manifest.json"), "{\"name\": \"my app\"}").unwrap();
    let bundle = folder.path().join("bundle");
    build(&checkpoint(MODEL), &bundle);
    fs::write(bundle.join("notes.txt"), "mine").unwrap();
    let dangling = folder.path().join("dangling");
    std::os::unix::fs::symlink(folder.path().join("nowhere"), &dangling).unwrap();
    let name = "  = help: name a new folder, or one that holds nothing but a bundle to replace\n";
    for (place, message, rest) in [
        (&other, "the output exists and is not a bundle", name.to_string()),
        (&other.join("precious"), "the output exists and is not a bundle", name.to_string()),
        (&app, "the output exists and is not a bundle", name.to_string()),
        (&bundle, "the output is a bundle with a file that is not its own", format!("  = have: notes.txt\n{name}")),
        (&dangling, "the output is a link that points to nothing", "  = help: name the folder itself\n".into()),
    ] {
        let output = npuc().arg("build").arg(checkpoint(MODEL)).arg("-o").arg(place).output().unwrap();
        let expected = format!("error[unwritable]: {message}\n  --> {}\n{rest}", place.display());
        assert_eq!((String::from_utf8(output.stderr).unwrap(), output.status.code()), (expected, Some(3)));
    }
    assert_eq!(fs::read(other.join("precious")).unwrap(), b"data");
    assert!(app.join("manifest.json").is_file() && bundle.join("notes.txt").is_file());
    let link = folder.path().join("link");
    fs::remove_file(bundle.join("notes.txt")).unwrap();
    std::os::unix::fs::symlink(&bundle, &link).unwrap();
    build(&checkpoint(MODEL), &link);
    assert!(link.is_symlink(), "the link stays and its folder is replaced");
    let empty = folder.path().join("empty");
    fs::create_dir(&empty).unwrap();
    build(&checkpoint(MODEL), &empty);
}

#[test]
fn builds_to_one_place_do_not_mix() {
    let folder = tempfile::tempdir().unwrap();
    let bundle = folder.path().join("bundle");
    let start = |shapes: &str| {
        let mut command = npuc();
        command.arg("build").arg(checkpoint(MODEL)).args(["--shapes", shapes, "-o"]).arg(&bundle);
        command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    };
    for _ in 0..8 {
        let builds = [start("8t32c,1t32c"), start("4t16c,1t16c"), start("1t8c")];
        let outputs = builds.map(|build| build.wait_with_output().unwrap());
        for output in &outputs {
            let stderr = String::from_utf8_lossy(&output.stderr);
            let refused = "error[unwritable]: another build is writing to this place";
            assert!(output.status.success() || stderr.starts_with(refused), "{stderr}");
        }
        assert!(outputs.iter().any(|output| output.status.success()));
        assert_eq!(run(&bundle).2, 0, "{}", run(&bundle).1);
    }
}

/// Rewrites the manifest with `change` and a digest that fits.
fn forge(bundle: &Path, change: impl Fn(&mut serde_json::Value)) {
    let path = bundle.join("manifest.json");
    let text = fs::read_to_string(&path).unwrap();
    let mut manifest: serde_json::Value = serde_json::from_str(&text).unwrap();
    manifest.as_object_mut().unwrap().shift_remove("digest");
    change(&mut manifest);
    let body = serde_json::to_string_pretty(&manifest).unwrap();
    let body = format!("{}\n", body.strip_prefix("{\n").unwrap());
    let digest: String = Sha256::digest(body.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
    fs::write(path, format!("{{\n  \"digest\": \"{digest}\",\n{body}")).unwrap();
}

#[test]
fn a_forged_manifest_is_an_error_not_a_crash() {
    let folder = tempfile::tempdir().unwrap();
    let bundle = folder.path().join("bundle");
    build(&checkpoint(MODEL), &bundle);
    let whole = fs::read(bundle.join("manifest.json")).unwrap();
    let check = |change: &dyn Fn(&mut serde_json::Value), message: &str| {
        forge(&bundle, change);
        for command in ["run", "inspect", "verify"] {
            let mut npuc = npuc();
            npuc.arg(command).arg(&bundle);
            match command {
                "run" => npuc.args(["--ids", "-"]),
                "verify" => npuc.arg("--reference").arg(checkpoint(MODEL).join("expected.safetensors")),
                _ => &mut npuc,
            };
            let output = npuc.stdin(Stdio::null()).output().unwrap();
            let stderr = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(3), "{command}: {stderr}");
            assert!(stderr.starts_with(message), "{command}: {stderr}");
        }
        fs::write(bundle.join("manifest.json"), &whole).unwrap();
    };
    forge(&bundle, |_| {});
    assert_eq!(run(&bundle).2, 0, "a digest that fits is no forgery");
    let number = |key: &'static str, value: u64| move |m: &mut serde_json::Value| m["model"][key] = value.into();
    check(&|m| m["weights"] = serde_json::json!([]), "error[bad-bundle]: a weight of the model is absent");
    check(&number("heads", 0), "error[bad-config]: a number of the model is not possible");
    check(&number("kv_heads", 3), "error[bad-config]: a number of the model is not possible");
    check(&number("head_dim", 7), "error[bad-config]: a number of the model is not possible");
    check(&number("vocab", 1 << 40), "error[bad-config]: a number of the model is not possible");
    check(&number("vocab", 1 << 20), "error[bad-bundle]: a weight of the model is absent or of another shape");
    check(&number("layers", 5), "error[bad-bundle]: a weight of the model is absent or of another shape");
    check(&number("head_dim", 1 << 16), "error[bad-bundle]: a weight of the model is absent or of another shape");
    check(
        &|m| m["back_end"] = "other".into(),
        "error[bad-bundle]: the manifest does not parse: unknown variant `other`",
    );
    check(&|m| m["schema"] = 99.into(), "error[bad-bundle]: the bundle was built by another version of npuc");
    check(&|m| m["files"][0]["path"] = "../escape".into(), "error[bad-bundle]: the manifest names a file outside");
    check(
        &|m| m["weights"][0]["offset"] = (1u64 << 60).into(),
        "error[bad-bundle]: the weight does not lie in its file",
    );
    check(
        &|m| m["graphs"][0]["shape"] = "9t32c".into(),
        "error[bad-bundle]: a graph is of another shape than its record",
    );
}

#[test]
fn dumps_follow_links_and_leave_devices_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (target, link) = (folder.path().join("values"), folder.path().join("link"));
    fs::write(&target, "").unwrap();
    std::os::unix::fs::symlink(&target, &link).unwrap();
    for place in [link.as_path(), Path::new("/dev/null")] {
        let mut command = npuc();
        command.arg("run").arg(checkpoint(MODEL)).args(["--ids", "-", "-n", "1", "--dump", "logits", "--dump-file"]);
        let mut child = command.arg(place).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"1 2 3").unwrap();
        assert!(child.wait().unwrap().success());
    }
    assert!(link.is_symlink() && fs::metadata(&target).unwrap().len() > 0);
    assert!(!fs::metadata("/dev/null").unwrap().is_file());
}

#[test]
fn more_memory_than_there_is_is_told_before_it_is_missed() {
    let mut command = npuc();
    command.arg("run").arg(checkpoint("llama3-tied-q8_0.gguf"));
    let output = command.args(["-p", "a", "--shapes", "131072t131072c,1t131072c"]).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    let start = "error[out-of-memory]: the caches and intermediate values do not fit the memory\n  = need: ";
    assert!(output.status.code() == Some(3) && stderr.starts_with(start), "{stderr}");
}

#[test]
fn output_that_nobody_takes() {
    for (stream, arguments) in
        [("> /dev/full", "inspect"), ("> /dev/full 2> /dev/full", "inspect --json"), ("2> /dev/full", "run")]
    {
        let command = format!("\"$0\" {arguments} \"$1\" {stream}");
        let npuc = npuc();
        let status = Command::new("sh").args(["-c", &command]).arg(npuc.get_program()).arg(checkpoint(MODEL)).status();
        assert!(matches!(status.unwrap().code(), Some(2 | 3)), "{command}");
    }
}
