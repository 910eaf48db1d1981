//! Work that was broken off goes on where it stopped and gives the same bytes; other work begins anew.

use std::os::unix::fs::symlink;

use super::*;

const TEXT: &str = "A short text about a clock and a mill, which turns every day. ";

/// A folder with a calibration text and an output that cannot be written: what was done stays in the work folder.
fn broken_off(how: &str, output: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("text"), TEXT.repeat(20)).unwrap();
    fs::write(folder.path().join("other"), TEXT.repeat(21)).unwrap();
    symlink("/dev/full", folder.path().join(output)).unwrap();
    let (stderr, status) = said(&format!("quantize qwen2-bf16 {how} -o TMP/{output}"), folder.path());
    assert_eq!(status, 3, "{stderr}");
    assert!(stderr.contains("error[unwritable]: cannot write: No space left on device"), "{stderr}");
    fs::remove_file(folder.path().join(output)).unwrap();
    let work = folder.path().join(format!(".{output}.work-npuc"));
    (folder, work)
}

/// The weights whose losses a run reports: those that it rounded itself.
fn rounded(report: &Value) -> Vec<String> {
    let losses = report["losses"].as_array().cloned().unwrap_or_default();
    losses.iter().map(|loss| loss["name"].as_str().unwrap().to_owned()).collect()
}

/// The options of runs, and what they write.
const RUNS: [(&str, &str); 3] = [
    ("--recipe q4_0 --calibration TMP/text --samples 3 --tokens 64", "out.gguf"),
    ("--recipe q8_0 --calibration TMP/text --samples 3 --tokens 64 --rotate --scale", "out.gguf"),
    ("--recipe q4_1 --quality best --samples 2 --tokens 48 --scale", "out.gguf"),
];

/// The stage that a weight of a model of two layers belongs to.
fn stage_of(name: &str) -> usize {
    match name.strip_prefix("layers.") {
        Some(rest) if rest.starts_with('0') => 1,
        Some(_) => 2,
        None => 3,
    }
}

#[test]
fn it_goes_on_with_the_same_bytes() {
    for (how, output) in RUNS {
        for gone in [&[][..], &[3], &[2, 3], &[1, 2], &[0, 1, 2, 3]] {
            let (folder, work) = broken_off(how, output);
            let stage = |number: usize| work.join(format!("stage-{number:03}.weights"));
            assert!((0..4).all(|number| stage(number).is_file()), "the table, two layers, the head");
            gone.iter().for_each(|number| fs::remove_file(stage(*number)).unwrap());
            let whole = quantise(&format!("qwen2-bf16 {how} -o TMP/whole.gguf"), folder.path());
            let report = quantise(&format!("qwen2-bf16 {how} -o TMP/{output}"), folder.path());
            let expected: Vec<String> = rounded(&whole).into_iter().filter(|w| gone.contains(&stage_of(w))).collect();
            assert_eq!(rounded(&report), expected, "{how} without the stages {gone:?}");
            let read = |name: &str| fs::read(folder.path().join(name)).unwrap();
            assert!(read(output) == read("whole.gguf"), "{how} without the stages {gone:?}");
            assert!(!work.exists(), "the work is done");
        }
    }
}

#[test]
fn other_work_begins_anew() {
    let (how, output) = RUNS[0];
    for changed in [
        how.replace("q4_0", "q4_1"),
        how.replace("TMP/text", "TMP/other"),
        how.replace("--samples 3", "--samples 2"),
        format!("{how} --scale"),
        format!("{how} --rotate"),
        "--recipe w8 --quality best --samples 1 --tokens 40 --rotate --seed 1".to_owned(),
    ] {
        let (folder, work) = broken_off(how, output);
        let fresh = quantise(&format!("qwen2-bf16 {changed} -o TMP/fresh.gguf"), folder.path());
        let report = quantise(&format!("qwen2-bf16 {changed} -o TMP/{output}"), folder.path());
        assert_eq!(rounded(&report), rounded(&fresh), "{changed}: every weight is rounded");
        assert!(!rounded(&fresh).is_empty());
        let read = |name: &str| fs::read(folder.path().join(name)).unwrap();
        assert!(read(output) == read("fresh.gguf"), "{changed}");
        assert!(!work.exists());
    }
}

#[test]
fn another_model_in_the_same_place_begins_anew() {
    let folder = tempfile::tempdir().unwrap();
    let line = "quantize TMP/model --recipe q4_0 --quality best --samples 1 --tokens 40 -o TMP/out.gguf";
    let mut tiny = Tiny::new();
    tiny.write(&folder.path().join("model"));
    symlink("/dev/full", folder.path().join("out.gguf")).unwrap();
    assert_eq!(said(line, folder.path()).1, 3);
    fs::remove_file(folder.path().join("out.gguf")).unwrap();
    tiny.values("model.layers.0.self_attn.o_proj.weight")[5] = 0.9;
    std::thread::sleep(std::time::Duration::from_millis(20));
    tiny.write(&folder.path().join("model"));
    assert_eq!(said(line, folder.path()), (String::new(), 0));
    assert_eq!(said(&line.replace("out.gguf", "fresh.gguf"), folder.path()).1, 0);
    let read = |name: &str| fs::read(folder.path().join(name)).unwrap();
    assert!(read("out.gguf") == read("fresh.gguf"));
}

#[test]
fn a_damaged_stage_is_told() {
    let (how, output) = RUNS[0];
    let (folder, work) = broken_off(how, output);
    let path = work.join("stage-001.weights");
    let whole = fs::read(&path).unwrap();
    let with = |at: usize, bytes: &[u8]| {
        let mut damaged = whole.clone();
        damaged[at..at + bytes.len()].copy_from_slice(bytes);
        damaged
    };
    for (what, damaged) in [
        ("nothing", Vec::new()),
        ("a few bytes", whole[..5].to_vec()),
        ("the header alone", whole[..64].to_vec()),
        ("half", whole[..whole.len() / 2].to_vec()),
        ("a header longer than the file", with(0, &u64::MAX.to_le_bytes())),
        ("no JSON", with(8, b"?")),
        ("another name of a format", with(whole.windows(4).position(|w| w == b"q4_0").unwrap(), b"q9_9")),
    ] {
        fs::write(&path, &damaged).unwrap();
        let (stderr, status) = said(&format!("quantize qwen2-bf16 {how} -o TMP/{output}"), folder.path());
        assert_eq!(status, 3, "{what}: {stderr}");
        assert_eq!(
            stderr,
            "error[bad-header]: a stage of the work is damaged\n  --> TMP/.out.gguf.work-npuc/stage-001.weights\n  = \
             help: remove the folder; the work then begins anew\n",
            "{what}"
        );
        assert!(!folder.path().join(output).exists());
    }
    fs::remove_dir_all(&work).unwrap();
    quantise(&format!("qwen2-bf16 {how} -o TMP/{output}"), folder.path());
}

#[test]
fn one_run_at_a_time_writes_to_a_place() {
    let folder = tempfile::tempdir().unwrap();
    let line = "quantize qwen2-bf16 --recipe w8 -o TMP/out";
    let other = fs::File::create(folder.path().join(".out.work-npuc.lock")).unwrap();
    other.lock().unwrap();
    let (stderr, status) = said(line, folder.path());
    assert!(stderr.contains("error[unwritable]: another build is writing to this place"), "{stderr}");
    assert_eq!(status, 3);
    drop(other);
    assert_eq!(said(line, folder.path()).1, 0);
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["out"], "neither stages nor the lock stay");
}
