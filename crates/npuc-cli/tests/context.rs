//! What `npuc context` tells of binaries that are made here, of two of them, and of files that are none. Qualcomm's libraries are
//! fetched with pip on first use.
#![allow(clippy::unwrap_used, clippy::print_stderr, clippy::wildcard_enum_match_arm, missing_docs)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use npuc::back::qnn::description::{DataType, Param, Role};
use npuc_run::device::qnn::{Options, Prepare, Qnn};
use serde_json::{Value, json};
use tempfile::TempDir;

#[path = "qnn/net.rs"]
#[allow(dead_code)]
mod net;

use net::{Net, libraries, matrix, request, u16_around_0, worker};

/// How a binary is made, of two graphs over one matrix.
#[derive(Clone)]
struct Made {
    soc: u32,
    optimisation: u8,
    names: [&'static str; 2],
    rows: [u32; 2],
    dtype: DataType,
    largest: f32,
    output: &'static str,
}

const MADE: Made = Made {
    soc: 57,
    optimisation: 3,
    names: ["s32", "s1"],
    rows: [32, 1],
    dtype: DataType::U16,
    largest: 4.0,
    output: "y",
};

impl Made {
    fn net(&self, graph: usize) -> Net {
        let mut net = Net::new(self.names[graph]);
        let (rows, float) = (self.rows[graph], self.dtype == DataType::F16);
        let encoding = |largest| if float { None } else { u16_around_0(largest) };
        let x = net.tensor("x", Role::Input, self.dtype, &[1, 1, rows, 64], encoding(1.0));
        let y = net.tensor(self.output, Role::Output, self.dtype, &[1, 1, rows, 96], encoding(self.largest));
        let filter = net.tensor("w", Role::Filter("w".into()), DataType::S8, &[1, 1, 64, 96], None);
        let stride = net.numbers("stride", DataType::U32, &[2], &[1, 1]);
        let pad = net.numbers("pad", DataType::U32, &[2, 2], &[0; 4]);
        net.node(
            "Conv2d",
            &[("stride", Param::Tensor(stride)), ("pad_amount", Param::Tensor(pad))],
            &[x, filter],
            &[y],
        );
        net.weights.insert("w".into(), matrix(npuc::DType::Int8, 96, 64, 3));
        net
    }

    /// Writes the binary of the first `graphs` graphs.
    fn write(&self, worker: &mut Qnn, graphs: usize, path: &Path) {
        let nets: Vec<Net> = (0..graphs).map(|graph| self.net(graph)).collect();
        let (_folder, request) = request(&nets.iter().collect::<Vec<_>>(), self.soc, graphs > 1);
        let options = Options { optimisation: self.optimisation };
        let request = Prepare { options, binary: Some(path.to_path_buf()), keep: false, ..request };
        worker.prepare(&request, &mut |_| ()).unwrap();
    }
}

/// A binary of both graphs in a folder of its own.
fn made() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.bin");
    MADE.write(&mut worker(), 2, &path);
    (folder, path)
}

fn context(args: &[&Path], flags: &[&str]) -> Output {
    libraries();
    Command::new(env!("CARGO_BIN_EXE_npuc")).arg("context").args(flags).args(args).output().unwrap()
}

fn texts(output: &Output) -> [String; 2] {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8(bytes.clone()).unwrap())
}

#[test]
fn everything_in_a_binary_is_told() {
    let (_folder, path) = made();
    let output = context(&[&path], &[]);
    let [text, errors] = texts(&output);
    assert_eq!((output.status.code(), errors.as_str()), (Some(0), ""));
    let size = fs::metadata(&path).unwrap().len();
    for part in [
        &format!("({size} bytes), form 4."),
        "made by   v2.",
        ": QNN 2.",
        ", HTP 5.",
        "chip      sm8650, SoC 57, DSP v75\n",
        "content   2 graphs, ",
        "\ngraph s32: 1 input, 1 output\n",
        "\ngraph s1: 1 input, 1 output\n",
        "\n  VTCM            4.0 MiB (4194304 bytes)\n",
        "\n  optimisation    3\n",
        "\n  in  x               u16  [1, 1, 32, 64]    4096 bytes, (q - 32768) * 0.000030517578, id ",
        "\n  out y               u16  [1, 1, 32, 96]    6144 bytes, (q - 32768) * 0.00012207031, id ",
        "\n  in  x               u16  [1, 1, 1, 64]     128 bytes, ",
        "\n  out y               u16  [1, 1, 1, 96]     192 bytes, ",
    ] {
        assert!(text.contains(part), "no `{part}` in\n{text}");
    }
    let report: Value = serde_json::from_slice(&context(&[&path], &["--json"]).stdout).unwrap();
    assert_eq!((&report["soc"], &report["dsp_arch"], &report["target"]), (&json!(57), &json!(75), &json!("sm8650")));
    assert_eq!((&report["bytes"], report["graphs"].as_array().unwrap().len()), (&json!(size), 2));
    for graph in report["graphs"].as_array().unwrap() {
        let rows = if graph["name"] == "s32" { 32 } else { 1 };
        let input = &graph["inputs"][0];
        assert_eq!((&input["dtype"], &input["shape"]), (&json!("u16"), &json!([1, 1, rows, 64])));
        assert_eq!(input["encoding"]["scale_offset"]["offset"], json!(-32768));
        let sizes = &graph["sizes"];
        assert!(sizes["io_bytes"].as_u64().unwrap() >= rows * 2 * (64 + 96), "{sizes}");
        assert!(sizes["shared_weight_bytes"].as_u64().unwrap() >= 64 * 96, "{sizes}");
    }
}

/// Compares the binary of both graphs with another one each: how it is made, its graphs, and what is said.
fn check(status: i32, cases: &[(Made, usize, &[&str])]) {
    let (folder, first) = made();
    let mut worker = worker();
    let second = folder.path().join("second.bin");
    for (change, graphs, parts) in cases {
        change.write(&mut worker, *graphs, &second);
        let output = context(&[&first, &second], &["--compare"]);
        let [text, errors] = texts(&output);
        assert_eq!((output.status.code(), errors.as_str()), (Some(status), ""), "{text}");
        parts.iter().for_each(|part| assert!(text.contains(part), "no `{part}` in\n{text}"));
        assert_eq!(text.contains("differences that a runner depends on\n"), status == 1, "{text}");
        let report = context(&[&first, &second], &["--json", "--compare"]).stdout;
        let report: Value = serde_json::from_slice(&report).unwrap();
        assert_eq!(report["compatible"], json!(status == 0));
        let depends = |difference: &Value| difference["depends"] == json!(true);
        assert_eq!(report["differences"].as_array().unwrap().iter().any(depends), status == 1, "{report}");
    }
}

#[test]
fn binaries_of_the_same_graphs_and_ports() {
    let runs = "one runner drives both, each on the chip that it was made for: graphs and ports are the same";
    check(
        0,
        &[
            (MADE, 2, &["nothing that is told of them differs"]),
            (Made { optimisation: 2, ..MADE }, 2, &["other differences\n", ": optimisation 3 | 2\n", runs]),
            (Made { soc: 69, ..MADE }, 2, &["  context: SoC 57 | 69\n", "  context: DSP v75 | v79\n", runs]),
        ],
    );
}

#[test]
fn binaries_of_other_graphs_or_ports() {
    let none = "a runner of one is none of the other";
    let [renamed, shorter, float, wider, other] = [
        Made { names: ["s32", "s2"], ..MADE },
        Made { rows: [16, 1], ..MADE },
        Made { dtype: DataType::F16, ..MADE },
        Made { largest: 8.0, ..MADE },
        Made { output: "z", ..MADE },
    ];
    check(
        1,
        &[
            (MADE, 1, &["  graph s1: graph present | absent\n", none]),
            (renamed, 2, &["  graph s1: graph present | absent\n", "  graph s2: graph absent | present\n", none]),
            (shorter, 2, &["  graph s32, input x: shape [1, 1, 32, 64] | [1, 1, 16, 64]\n", "output y: shape ", none]),
            (float, 2, &["  graph s1, input x: type u16 | f16\n", "encoding (q - 32768) * 0.00012207031 | none\n"]),
            (wider, 2, &["output y: encoding (q - 32768) * 0.00012207031 | (q - 32768) * 0.00024414063\n", none]),
            (other, 2, &["s1, output y: port present | absent\n", "s1, output z: port absent | present\n", none]),
        ],
    );
}

/// The place of the binary's form, 4.0.x, in its metadata.
fn form_at(bytes: &[u8]) -> usize {
    let start = [4, 0, 0, 0, 0, 0, 0, 0];
    let is = |at: &usize| bytes[*at..].starts_with(&start) && (1..100).contains(&bytes[at + 8]) && bytes[at + 9] == 0;
    (100..200).find(is).unwrap()
}

#[test]
fn files_that_are_none_are_explained() {
    let (folder, whole) = made();
    let bytes = fs::read(&whole).unwrap();
    let form = form_at(&bytes);
    let changed = |at: usize, to: u8| {
        let mut bytes = bytes.clone();
        bytes[at] = to;
        bytes
    };
    let none = "error[unknown-format]: the file is no context binary of QNN";
    let short = "error[unknown-format]: the context binary is cut short";
    let newer = "error[unknown-format]: the context binary is of a newer form than npuc knows";
    let cut = |len: usize| (format!("cut to {len}"), bytes[..len].to_vec(), if len < 8 { none } else { short });
    let mut cases = vec![
        ("empty".to_owned(), Vec::new(), "error[unknown-format]: the file is empty"),
        ("a text".into(), b"graph s32: 1 input".to_vec(), none),
        ("zeros".into(), vec![0; 65536], none),
        ("ones".into(), vec![0xff; 65536], none),
        (
            "longer".into(),
            [&bytes[..], &[0; 100]].concat(),
            "error[unknown-format]: the file goes on behind the end of its context binary",
        ),
        ("form 5".into(), changed(form, 5), newer),
        ("form 4.1".into(), changed(form + 4, 1), newer),
        ("form 251".into(), changed(form, 251), newer),
    ];
    cases.extend([1, 7, 8, 47, 48, 64, 500, 4095, 4096, 8192, bytes.len() / 2, bytes.len() - 1].map(cut));
    for (name, bytes, message) in cases {
        let file = folder.path().join("bad.bin");
        fs::write(&file, bytes).unwrap();
        for (files, flags) in [(vec![&*file], &[][..]), (vec![&*whole, &*file], &["--compare"][..])] {
            let output = context(&files, flags);
            let [text, errors] = texts(&output);
            assert_eq!((output.status.code(), text.as_str()), (Some(3), ""), "{name}: {errors}");
            assert!(errors.starts_with(&format!("{message}\n  --> {}", file.display())), "{name}: {errors}");
        }
    }
}

#[test]
fn other_kinds_and_places_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("other.bin");
    for (start, kind) in [
        (&b"GGUF\x03\0\0\0"[..], "a GGUF file"),
        (b"PK\x03\x04", "a zip archive"),
        (b"\x7fELF\x02\x01", "a library"),
        (b"\x1c\0\0\0TFL3", "a TFLite file"),
    ] {
        fs::write(&file, [start, &[0; 5000]].concat()).unwrap();
        let [_, errors] = texts(&context(&[&file], &[]));
        assert!(
            errors.starts_with("error[unknown-format]") && errors.contains(&format!("it begins like {kind}")),
            "{errors}"
        );
    }
    for (path, message) in [
        (folder.path().to_path_buf(), "error[unknown-format]: the path is not a regular file"),
        (folder.path().join("absent.bin"), "error[unreadable]: cannot read the file"),
    ] {
        let output = context(&[&path], &[]);
        let [_, errors] = texts(&output);
        assert!(output.status.code() == Some(3) && errors.starts_with(message), "{errors}");
    }
}

/// Any byte of the metadata may be wrong: the file is refused, or told as far as it can be read.
#[test]
fn changed_metadata_ends_in_words() {
    let (folder, whole) = made();
    let bytes = fs::read(&whole).unwrap();
    let file = folder.path().join("changed.bin");
    let mut refused = 0;
    for at in (0..300).step_by(3).chain((300..4000).step_by(97)) {
        for flip in [0xff, 0x80] {
            let mut changed = bytes.clone();
            changed[at] ^= flip;
            fs::write(&file, &changed).unwrap();
            let output = context(&[&file], &["--json"]);
            let [text, errors] = texts(&output);
            let status = output.status.code();
            let told: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("byte {at}: {e}: {text}{errors}"));
            match status {
                Some(0) => assert!(told["graphs"].is_array() && errors.is_empty(), "byte {at}: {errors}"),
                Some(3) => assert_eq!(told["errors"][0]["code"], json!("unknown-format"), "byte {at}"),
                other => panic!("byte {at}: {other:?}: {errors}"),
            }
            refused += usize::from(status == Some(3));
        }
    }
    assert!(refused > 50, "{refused}");
}
