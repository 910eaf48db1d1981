//! Estimates without a device, of graphs written by hand and of a small bundle. Qualcomm's libraries are fetched with pip on first use.
#![allow(clippy::unwrap_used, clippy::print_stderr, clippy::wildcard_enum_match_arm, missing_docs)]

use std::path::Path;
use std::process::{Command, Output};

use npuc::DType;
use npuc::back::qnn::description::{DataType, Param, Role};
use npuc::bundle;
use npuc_run::device::qnn::{Estimate, Prepare, Profile, Qnn, Told, Traffic};
use serde_json::Value;

#[path = "qnn/net.rs"]
#[allow(dead_code)]
mod net;
mod program;

use net::{Net, libraries, matrix, request, u16_around_0, worker};
use program::{checkpoint, files};

/// A small model's bundle for SM8650 with weights in int8, in `folder`.
fn build(folder: &Path) {
    let shapes = ["--shapes", "8t32c,1t32c", "--quality", "fast", "--samples", "1", "--tokens", "16", "-o"];
    let mut command = npuc();
    command.arg("build").arg(checkpoint("qwen2-bf16")).args(["--target", "sm8650", "--recipe", "w8a16"]).args(shapes);
    let output = command.arg(folder).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
}

/// The program with the user's libraries, which are fetched if they are not there.
fn npuc() -> Command {
    libraries();
    Command::new(env!("CARGO_BIN_EXE_npuc"))
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Matrices of 1024x1024 in int8, one after the other, for one token.
fn chain(length: usize) -> Net {
    let mut net = Net::new("g");
    let shape = [1, 1, 1, 1024];
    let mut x = net.tensor("x", Role::Input, DataType::U16, &shape, u16_around_0(1.0));
    let stride = net.numbers("stride", DataType::U32, &[2], &[1, 1]);
    let pad = net.numbers("pad", DataType::U32, &[2, 2], &[0; 4]);
    for place in 0..length {
        let (name, last) = (format!("w{place}"), place + 1 == length);
        let filter = net.tensor(&name, Role::Filter(name.clone()), DataType::S8, &[1, 1, 1024, 1024], None);
        let role = if last { Role::Output } else { Role::Native };
        let y = net.tensor(&format!("y{place}"), role, DataType::U16, &shape, u16_around_0(4.0));
        net.node(
            "Conv2d",
            &[("stride", Param::Tensor(stride)), ("pad_amount", Param::Tensor(pad))],
            &[x, filter],
            &[y],
        );
        net.weights.insert(name, matrix(DType::Int8, 1024, 1024, place as u64));
        x = y;
    }
    net
}

/// What the library tells of a graph while it prepares it for the chip.
fn told(worker: &mut Qnn, net: &Net, soc: u32, profile: Profile) -> npuc::Result<Option<Told>> {
    let (_folder, request) = request(&[net], soc, false);
    let request = Prepare { profile: Some(profile), ..request };
    Ok(worker.prepare(&request, &mut |_| ())?.graphs[0].told)
}

fn traffic(worker: &mut Qnn, net: &Net, soc: u32) -> Traffic {
    let folder = tempfile::tempdir().unwrap();
    let profile = Profile::Trace { folder: folder.path().to_path_buf() };
    let Some(Told::Traffic(traffic)) = told(worker, net, soc, profile).unwrap() else { panic!("no traffic") };
    assert!(files(folder.path()).is_empty(), "the schedule stays");
    traffic
}

fn estimate(worker: &mut Qnn, net: &Net, soc: u32) -> Estimate {
    let Some(Told::Estimate(estimate)) = told(worker, net, soc, Profile::Estimate).unwrap() else {
        panic!("no estimate")
    };
    estimate
}

/// Three matrices are 3 x 1024 x 1024 bytes, and their scales, biases and the input 53,248 more. The sum was first taken by hand.
#[test]
fn a_chain_of_matrices_reads_its_weights_once() {
    let mut worker = worker();
    let three = traffic(&mut worker, &chain(3), 57);
    assert_eq!((three.dram_read_bytes, three.dram_write_bytes), (3_198_976, 2048));
    assert!(three.moves < three.operations && three.vtcm_read_bytes >= three.dram_read_bytes, "{three:?}");
    let six = traffic(&mut worker, &chain(6), 57);
    let more = six.dram_read_bytes - three.dram_read_bytes;
    assert!((3 << 20..3 << 20 | 1 << 16).contains(&more), "{more} bytes for three matrices more");
    // What a chip schedules is what it is simulated with.
    let (scheduled, simulated) = (traffic(&mut worker, &chain(3), 72), estimate(&mut worker, &chain(3), 72));
    assert_eq!((scheduled.dram_read_bytes, simulated.input_fill_bytes), (3_198_976, 3_198_976));
    assert_eq!((simulated.intermediate_fill_bytes, simulated.operations_without_cost), (0, 0));
}

#[test]
fn some_chips_are_simulated() {
    let mut worker = worker();
    for soc in [52, 62, 72, 77] {
        let [three, six] = [3, 6].map(|length| estimate(&mut worker, &chain(length), soc));
        for told in [three, six] {
            let [cycles, time] = [told.cycles, told.time_us];
            assert!(
                cycles.low > 0 && cycles.low <= cycles.expected && cycles.expected <= cycles.high,
                "{soc}: {told:?}"
            );
            assert!(time.low > 0 && time.low <= time.expected && time.expected <= time.high, "{soc}: {told:?}");
            // From 0.5 to 3 GHz.
            assert!((500..3000).contains(&(cycles.expected / time.expected)), "{soc}: {told:?}");
        }
        assert!(
            six.time_us.expected > three.time_us.expected && six.input_fill_bytes > three.input_fill_bytes,
            "{soc}"
        );
    }
    for soc in [43, 57, 69, 87] {
        let fault = told(&mut worker, &chain(1), soc, Profile::Estimate).unwrap_err();
        assert!(fault.to_string().contains("Performance Estimates unsupported on soc"), "{fault}");
        assert_eq!(fault.exit_status(), 2);
    }
    // The worker goes on, and tells nothing that it is not asked.
    let (_folder, request) = request(&[&chain(1)], 57, false);
    assert_eq!(worker.prepare(&request, &mut |_| ()).unwrap().graphs[0].told, None);
}

#[test]
fn a_trace_needs_its_folder() {
    let folder = tempfile::tempdir().unwrap();
    let profile = Profile::Trace { folder: folder.path().join("absent") };
    let fault = told(&mut worker(), &chain(1), 57, profile).unwrap_err();
    assert!(fault.to_string().starts_with("error[unwritable]: cannot enter the folder of a trace"), "{fault}");
}

/// The bytes of the matrices of a bundle, without the embedding table, which stays outside of the graphs.
fn matrix_bytes(folder: &Path) -> u64 {
    let manifest = bundle::manifest(folder).unwrap();
    let table = |name: &str| name == bundle::EMBEDDING_TABLE || name == "model.embed_tokens.weight";
    let weights = manifest.weights.iter().filter(|weight| weight.shape.len() == 2 && !table(&weight.name));
    weights.map(|weight| weight.shape.iter().product::<usize>() as u64).sum()
}

#[test]
fn a_bundle_is_estimated_from_anywhere_and_nothing_is_left_behind() {
    let folder = tempfile::tempdir().unwrap();
    let [at, temporary] = ["at", "tmp"].map(|name| folder.path().join(name));
    [&at, &temporary].iter().for_each(|folder| std::fs::create_dir(folder).unwrap());
    build(&at.join("b"));
    let before = files(&at);
    let mut command = npuc();
    command.current_dir(&at).env("TMPDIR", &temporary);
    let output = command.args(["estimate", "b", "--json"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(files(&at) == before, "the bundle or the folder around it changed");
    assert!(std::fs::read_dir(&temporary).unwrap().next().is_none(), "something stays in TMPDIR");

    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let (traffic, simulation) = (&report["traffic"], &report["simulation"]);
    assert_eq!((&traffic["origin"], &simulation["origin"]), (&"estimate".into(), &"estimate".into()));
    assert_eq!((&report["target"], &simulation["proxy"]["name"]), (&"sm8650".into(), &"SA8255".into()));
    let least = matrix_bytes(&at.join("b"));
    let bandwidth = traffic["dram"]["bytes_per_s"].as_f64().unwrap();
    for (place, (shape, tokens)) in [("8t32c", 8), ("1t32c", 1)].into_iter().enumerate() {
        let (own, other) = (&traffic["steps"][place], &simulation["steps"][place]);
        assert_eq!((&own["shape"], &other["shape"]), (&shape.into(), &shape.into()));
        let [read, written, token] =
            ["dram_read_bytes", "dram_write_bytes", "dram_bytes_per_token"].map(|key| own[key].as_u64().unwrap());
        assert!(least > 0 && read > least && read < 4 * least, "{shape}: {read} bytes for {least} of weights");
        assert!(written > 0 && token == (read + written).div_ceil(tokens), "{shape}: {own}");
        let ms = own["dram_ms"].as_f64().unwrap();
        assert!((ms - 1e3 * (read + written) as f64 / bandwidth).abs() < 1e-9, "{shape}: {ms}");
        assert!(other["input_fill_bytes"].as_u64().unwrap() > least, "{shape}: {other}");
        assert!(other["time_us"]["expected"].as_u64().unwrap() > 0, "{shape}: {other}");
    }
}

#[test]
fn what_is_told_follows_the_flags() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().join("b");
    build(&at);
    let run = |flags: &[&str]| npuc().arg("estimate").arg(&at).args(flags).output().unwrap();
    let check = |flags: &[&str], status: i32, parts: &[&str], without: &[&str]| {
        let output = run(flags);
        let text = String::from_utf8(output.stdout.clone()).unwrap() + &stderr(&output);
        assert_eq!(output.status.code(), Some(status), "{flags:?}: {text}");
        parts.iter().for_each(|part| assert!(text.contains(part), "{flags:?}: no `{part}` in {text}"));
        without.iter().for_each(|part| assert!(!text.contains(part), "{flags:?}: `{part}` in {text}"));
    };
    let labels = [
        "[estimate] DDR traffic",
        "[estimate] the time of that DDR traffic",
        "[estimate] a step simulated on ANOTHER chip",
    ];
    check(
        &[],
        0,
        &[&labels[..], &["  8t32c ", "  1t32c ", "76.8 GB/s", "SA8255 (HTP v73, made for cars)"]].concat(),
        &["emulation]", "device]"],
    );
    let flags = ["--shapes", "1t32c", "--proxy", "qcs9100", "--dram", "51.2"];
    check(
        &flags,
        0,
        &["  1t32c ", "51.2 GB/s", "--dram", "QCS9100 (HTP v73, made for industry)"],
        &["8t32c", "third-party"],
    );
    check(&["--proxy", "SA8797"], 0, &["SA8797 (HTP v81, made for cars)"], &[]);
    let unsupported =
        ["error[bad-argument]: Qualcomm's libraries do not simulate this chip", "on SoC 57", "SA8797", "with --proxy"];
    check(&["--proxy", "57"], 2, &unsupported, &["help: log:", "[estimate]"]);
    check(
        &["--proxy", "99999"],
        1,
        &["error[vendor-refusal]: QNN makes no device of the chip", "--> SoC 99999\n"],
        &["[estimate]"],
    );
    check(&["--proxy", "moon"], 2, &["error[bad-argument]: npuc does not know this chip"], &["[estimate]"]);
    check(
        &["--shapes", "2t32c"],
        2,
        &["error[bad-shape]: the bundle was not built for this step shape", "have: 2t32c"],
        &[],
    );
    for speed in ["0", "-1", "NaN", "inf", "1e-9", "1e300"] {
        check(&["--dram", speed], 2, &["error[bad-argument]: this is no speed of a memory\n  --> --dram"], &[]);
    }
    // A changed file is told before the libraries see it.
    let emitted = &bundle::manifest(&at).unwrap().graphs[0].emitted.clone().unwrap();
    let text = std::fs::read_to_string(at.join(emitted)).unwrap();
    std::fs::write(at.join(emitted), text.replacen("Conv2d", "Conv3d", 1)).unwrap();
    check(&[], 3, &["error[hash-mismatch]", emitted.as_str()], &["[estimate]"]);
}

#[test]
fn only_bundles_for_qualcomm_are_estimated() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().join("host");
    let output = npuc().arg("build").arg(checkpoint("qwen2-bf16")).args(["--shapes", "1t32c", "-o"]).arg(&at).output();
    assert!(output.unwrap().status.success());
    for (model, message) in [
        (&at, "error[bad-argument]: the target is none of Qualcomm's chips"),
        (&checkpoint("qwen2-bf16"), "error[bad-argument]: estimates are made of bundles"),
        (&folder.path().join("absent"), "error[bad-argument]: estimates are made of bundles"),
    ] {
        let output = npuc().arg("estimate").arg(model).output().unwrap();
        let said = stderr(&output);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{said}");
        assert!(said.starts_with(message) && said.contains("sm8650"), "{said}");
    }
}

#[test]
fn the_memory_of_a_chip_is_told_with_its_source() {
    for (target, expected) in [
        ("sm8550", Some("67.2")),
        ("sm8650", Some("76.8")),
        ("sm8750", Some("84.8")),
        ("sm8850", Some("84.8")),
        ("genio-720", None),
    ] {
        let output = npuc().args(["targets", target]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let line = text.lines().find(|line| line.contains("DDR memory"));
        let told = expected.map(|speed| format!("  DDR memory, {speed} GB/s at most, shared by all units"));
        assert_eq!(line, told.as_deref(), "{target}");
    }
}
