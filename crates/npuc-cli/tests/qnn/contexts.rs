//! Contexts: two graphs over the same weights, files that are written, read and loaded again, and what is refused.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use npuc::Code;
use npuc::back::qnn::description::{DataType, Param, Role};
use npuc_run::device::qnn::info::{ContextInfo, EncodingInfo};
use npuc_run::device::qnn::{Prepare, Qnn, SYSTEM, Start};

use super::net::{LIMIT, Net, how, libraries, matrix, noise, request, sqnr_db, start, u16_around_0, worker};
use super::{format, in_u16, projected, projection};

const INPUTS: usize = 256;
const OUTPUTS: usize = 512;

/// Prefill of 32 rows and decode of one over the same weight.
fn two_graphs() -> [Net; 2] {
    let weight = matrix(format("lpbq4-g32"), OUTPUTS, INPUTS, 5);
    [("prefill", 32), ("decode", 1)].map(|(name, rows)| projection(name, weight.clone(), rows, DataType::U16, 4.0))
}

fn run_both(worker: &mut Qnn, context: &npuc_run::device::qnn::Context, nets: &[Net; 2]) {
    for net in nets {
        let at = context.graphs.iter().position(|graph| graph.name == net.description.name).unwrap();
        let x = noise(context.graphs[at].inputs[0].elements(), 3);
        let y = worker.run(context, at, &[&x]).unwrap();
        let db = sqnr_db(&y[0], &projected(&net.weights["w"], &x, in_u16));
        assert!(db > 70.0, "{}: {db:.1} dB", net.description.name);
    }
}

#[test]
fn graphs_share_weights_and_binaries_load_again() {
    let mut worker = worker();
    let nets = two_graphs();
    let mut infos = Vec::new();
    for shared in [false, true] {
        let (folder, mut request) = request(&[&nets[0], &nets[1]], 57, shared);
        let binary = folder.path().join("context.bin");
        request.binary = Some(binary.clone());
        let mut said = Vec::new();
        let context = worker.prepare(&request, &mut |text| said.push(text.to_owned())).unwrap();
        let stages = [
            "composing the graph prefill",
            "preparing the graph prefill",
            "composing the graph decode",
            "preparing the graph decode",
            "writing the context binary",
        ];
        assert_eq!(said, stages);
        assert_eq!(context.binary_bytes, Some(fs::metadata(&binary).unwrap().len()));
        assert!(context.peak_bytes.is_some_and(|peak| peak > 1 << 20));
        // As readable as any file of the user's, and nothing else is left.
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode(&binary), mode(&request.descriptions[0]));
        let files = fs::read_dir(folder.path()).unwrap();
        let mut names: Vec<_> = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        assert_eq!(names, ["context.bin", "decode.bin", "decode.json", "prefill.bin", "prefill.json"]);
        run_both(&mut worker, &context, &nets);
        worker.free(context).unwrap();
        let info = worker.info(&binary).unwrap();
        check_info(&info, &binary, shared);
        infos.push(info);
        match (worker.load(&binary), shared) {
            (Ok(loaded), false) => run_both(&mut worker, &loaded, &nets),
            (Err(error), true) => {
                let fault = &error.diagnostics()[0];
                assert_eq!(fault.code, Code::VendorRefusal, "{error}");
                let text = error.to_string();
                assert!(text.contains("a context binary of graphs with shared weights does not load on x86"), "{text}");
                assert!(text.contains("test on the host with a twin that does not share weights"), "{text}");
            }
            (Ok(_), true) => panic!("a binary with shared weights is loaded on x86"),
            (Err(error), false) => panic!("{error}"),
        }
    }
    let bytes = |info: &ContextInfo| info.blob_bytes;
    let (apart, together) = (bytes(&infos[0]), bytes(&infos[1]));
    assert!(together + (OUTPUTS * INPUTS / 2) as u64 / 2 < apart, "{together} bytes with sharing, {apart} without");
}

fn check_info(info: &ContextInfo, binary: &Path, shared: bool) {
    assert_eq!(info.bytes, fs::metadata(binary).unwrap().len());
    assert_eq!((info.soc, info.dsp_arch, info.form), (57, Some(75), [4, 0, 6]));
    assert!(info.build.starts_with("v2.51.0"), "{}", info.build);
    assert_eq!((info.core, info.back_end), ([2, 40, 0], [5, 51, 0]));
    let names: Vec<&str> = info.graphs.iter().map(|graph| graph.name.as_str()).collect();
    assert!(names.len() == 2 && names.contains(&"prefill") && names.contains(&"decode"), "{names:?}");
    let weight_bytes = (OUTPUTS * INPUTS / 2) as u64;
    for graph in &info.graphs {
        let rows = if graph.name == "prefill" { 32 } else { 1 };
        let [x, y] = [&graph.inputs[0], &graph.outputs[0]];
        assert_eq!((x.name.as_str(), x.dtype.as_str(), &x.shape[..]), ("x", "u16", &[1, 1, rows, INPUTS as u32][..]));
        assert_eq!((y.name.as_str(), y.shape[3]), ("y", OUTPUTS as u32));
        let expected = EncodingInfo::ScaleOffset { scale: 1.0 / 32768.0, offset: -32768, bits: None };
        assert_eq!((&x.encoding, graph.inputs.len(), graph.outputs.len()), (&expected, 1, 1));
        let sizes = graph.sizes.unwrap();
        assert_eq!((sizes.optimisation, sizes.vtcm_bytes), (3, 4 << 20));
        let (alone, common) = if shared { (0, weight_bytes) } else { (weight_bytes, 0) };
        assert!(sizes.shared_weight_bytes >= common && sizes.const_bytes >= alone, "{shared}: {sizes:?}");
        assert!(shared || sizes.shared_weight_bytes == 0, "{sizes:?}");
        assert!(sizes.io_bytes >= u64::from(rows) * 2 * (OUTPUTS + INPUTS) as u64, "{sizes:?}");
    }
}

#[test]
fn what_is_no_context_binary_is_told() {
    let libraries = libraries();
    let mut reader = Qnn::start_reader(&how(&libraries, LIMIT)).unwrap();
    let (folder, mut request) = request(&[&two_graphs()[0]], 69, false);
    let binary = folder.path().join("context.bin");
    request.binary = Some(binary.clone());
    worker().prepare(&request, &mut |_| ()).unwrap();
    let whole = fs::read(&binary).unwrap();
    let form: Vec<u8> = [4u32, 0, 6].iter().flat_map(|part| part.to_le_bytes()).collect();
    let at = whole.windows(12).position(|window| window == form).unwrap();
    let with_form = |form: [u32; 3]| {
        let mut bytes = whole.clone();
        bytes[at..at + 12].copy_from_slice(&form.iter().flat_map(|part| part.to_le_bytes()).collect::<Vec<u8>>());
        bytes
    };
    assert_eq!(reader.info(&binary).unwrap().soc, 69);
    let mut damaged = whole.clone();
    damaged[40..44].fill(0xff);
    for (bytes, expected) in [
        (Vec::new(), "the file is empty"),
        (b"no binary at all".to_vec(), "the file is no context binary of QNN"),
        (vec![0xa5; 1 << 20], "the file is no context binary of QNN"),
        (whole[..20].to_vec(), "the context binary is cut short"),
        (whole[..whole.len() / 2].to_vec(), "the context binary is cut short"),
        (whole[..whole.len() - 1].to_vec(), "the context binary is cut short"),
        ([&whole[..], b"more"].concat(), "the file goes on behind the end of its context binary"),
        (damaged, "the context binary is damaged, or of a newer QNN"),
        (with_form([5, 0, 0]), "the context binary is of a newer form than npuc knows"),
        (with_form([4, 1, 0]), "the context binary is of a newer form than npuc knows"),
    ] {
        let path = folder.path().join("bad.bin");
        fs::write(&path, &bytes).unwrap();
        let error = reader.info(&path).expect_err(expected);
        let fault = &error.diagnostics()[0];
        assert_eq!((fault.code, fault.message.as_str(), error.exit_status()), (Code::UnknownFormat, expected, 3));
        assert_eq!(fault.file.as_deref(), Some(&*path));
    }
    let absent = reader.info(Path::new("/no/such/file.bin")).expect_err("there is none");
    assert_eq!(absent.diagnostics()[0].code, Code::Unreadable);
    let older = with_form([4, 0, 1]);
    fs::write(&binary, older).unwrap();
    assert_eq!(reader.info(&binary).unwrap().form, [4, 0, 1]);
}

#[test]
fn libraries_that_do_not_load_are_told() {
    let empty = tempfile::tempdir().unwrap();
    let no_library = tempfile::tempdir().unwrap();
    fs::write(no_library.path().join("libQnnHtp.so"), "no library").unwrap();
    let another = tempfile::tempdir().unwrap();
    // A library that loads, and has none of the functions.
    fs::copy(
        libraries().join("../onnxruntime_qnn.libs/libunwind-6b740a46.so.1.0"),
        another.path().join("libQnnHtp.so"),
    )
    .unwrap();
    for (folder, code, expected) in [
        (&empty, Code::MissingTool, "QNN's library is not there"),
        (&no_library, Code::ToolFailed, "QNN's library does not load"),
        (&another, Code::ToolFailed, "the file is no library of QNN"),
    ] {
        let error = start(folder.path(), LIMIT).expect_err(expected);
        let fault = &error.diagnostics()[0];
        assert_eq!((fault.code, error.exit_status()), (code, 4), "{error}");
        assert!(fault.message.starts_with(expected), "{error}");
        assert_eq!(fault.file.as_deref(), Some(&*folder.path().join("libQnnHtp.so")));
    }
    // The reader of binaries is a library of its own; what is wrong with it is not told of the file that it was to read.
    fs::write(no_library.path().join(SYSTEM), "no library").unwrap();
    for (folder, code) in [(&empty, Code::MissingTool), (&no_library, Code::ToolFailed)] {
        let error = Qnn::start_reader(&how(folder.path(), LIMIT)).expect_err("there is no library");
        let fault = &error.diagnostics()[0];
        assert_eq!((fault.code, fault.file.as_deref()), (code, Some(&*folder.path().join(SYSTEM))));
        assert!(!fault.help.is_empty(), "{error}");
    }
}

#[test]
fn a_worker_that_ends_or_hangs_is_told() {
    let mut net = Net::new("large");
    let mut x = net.tensor("x", Role::Input, DataType::U16, &[1, 1, 32, 1024], u16_around_0(1.0));
    let stride = net.numbers("stride", DataType::U32, &[2], &[1, 1]);
    let pad = net.numbers("pad", DataType::U32, &[2, 2], &[0; 4]);
    for layer in 0..40 {
        let filter = Role::Filter("w".into());
        let w = net.tensor(&format!("w{layer}"), filter, DataType::S8, &[1, 1, 1024, 1024], None);
        let role = if layer == 39 { Role::Output } else { Role::Native };
        let y = net.tensor(&format!("y{layer}"), role, DataType::U16, &[1, 1, 32, 1024], u16_around_0(1.0));
        net.node("Conv2d", &[("stride", Param::Tensor(stride)), ("pad_amount", Param::Tensor(pad))], &[x, w], &[y]);
        x = y;
    }
    net.weights.insert("w".into(), matrix(format("int8"), 1024, 1024, 1));
    let (_folder, request) = request(&[&net], 57, false);

    let mut worker = worker();
    let pid = worker.id().to_string();
    let mut kill = |stage: &str| {
        if stage == "preparing the graph large" {
            assert!(Command::new("kill").args(["-9", &pid]).status().unwrap().success());
        }
    };
    let error = worker.prepare(&request, &mut kill).expect_err("the worker was killed");
    let fault = &error.diagnostics()[0];
    let expected =
        "the QNN worker ended (signal: 9 (SIGKILL)) while preparing a context, at the end of the graph large";
    assert_eq!((fault.code, error.exit_status(), fault.message.as_str()), (Code::ToolFailed, 4, expected));
    let again = worker.prepare(&request, &mut |_| ()).expect_err("there is no worker");
    assert!(again.diagnostics()[0].message.contains("the QNN worker ended"), "{again}");

    // A worker that opens and then answers nothing.
    let opened = r#"A{"core":[2,40,0],"back_end":[5,51,0],"build":""}"#;
    let script = format!("printf '\\{:o}\\0\\0\\0\\0\\0\\0\\0%s' '{opened}'; exec sleep 60", opened.len());
    let args = ["-c".into(), script.into()];
    let how =
        Start { program: Path::new("sh"), args: &args, limit: Duration::from_secs(1), ..how(Path::new("."), LIMIT) };
    let mut hung = Qnn::start(&how).unwrap();
    let error = hung.prepare(&request, &mut |_| ()).expect_err("there is no answer");
    let fault = &error.diagnostics()[0];
    assert_eq!(fault.message, "the QNN worker did not answer in time while preparing a context");
    assert_eq!((fault.code, fault.need.as_deref()), (Code::ToolFailed, Some("an answer within 1 s")));
}

type Change = fn(&mut Net, &mut Prepare);

/// What is refused, by whom, and that the worker goes on.
#[test]
fn what_cannot_be_prepared_is_told() {
    let mut worker = worker();
    let cases: [(&str, &[&str], Change); 12] = [
        ("bad-range: numbers of a fixed point have no encoding: decode: x", &[], |net, _| {
            net.description.tensors[0].encoding = None;
        }),
        ("unsupported-format: a filter is where none is taken: decode: node.y (FullyConnected)", &[], |net, _| {
            net.description.nodes[0].op = "FullyConnected".into();
        }),
        (
            "vendor-refusal: QNN's validation refuses a node: decode: node.y (Conv2d)",
            &["error 3110", "log: Found incorrect number of found Parameters. Found 2 expected 3."],
            |net, _| net.description.nodes[0].params.push(("nonsense".into(), Param::U32(1))),
        ),
        ("vendor-refusal: QNN's validation refuses a node: decode: node.y (Conv2d)", &["error 3110"], |net, _| {
            net.description.tensors[2].shape[3] = OUTPUTS as u32 / 2
        }),
        (
            "vendor-refusal: QNN's validation refuses a node: decode: again (Nonsense)",
            &["error 4005", "an operation is not known"],
            |net, _| {
                let mut again = net.description.nodes[0].clone();
                (again.name, again.op, again.inputs) = ("again".into(), "Nonsense".into(), vec![2]);
                again.outputs = vec![net.tensor("z", Role::Output, DataType::U16, &[1], u16_around_0(1.0))];
                net.description.nodes.push(again);
            },
        ),
        ("vendor-refusal: QNN makes no device of the chip: SoC 9999", &["error 14001", "newer libraries"], |_, of| {
            of.soc = 9999;
        }),
        ("unreadable: cannot read the file: No such file or directory (os error 2): ", &["/no/such.json"], |_, of| {
            of.descriptions = vec!["/no/such.json".into()];
        }),
        ("duplicate-name: two graphs have one name: decode", &[], |_, of| {
            of.descriptions = vec![of.descriptions[0].clone(); 2];
        }),
        ("bad-bundle: a context has no graphs: ", &[], |_, of| of.descriptions.clear()),
        ("missing-tensor: a weight is not there: decode: w", &[], |_, of| of.weights.clear()),
        ("bad-offsets: a weight does not lie in its file: w", &[], |_, of| of.weights[0].offset = 64),
        (
            "unwritable: cannot write the file: No such file or directory (os error 2)",
            &["/no/such/folder/c.bin"],
            |_, of| {
                of.binary = Some("/no/such/folder/c.bin".into());
            },
        ),
    ];
    for (expected, more, change) in cases {
        let [_, mut net] = two_graphs();
        let (folder, mut of) = request(&[&net], 57, false);
        change(&mut net, &mut of);
        fs::write(folder.path().join("decode.json"), net.description.to_text()).unwrap();
        let error = worker.prepare(&of, &mut |_| ()).expect_err(expected);
        let fault = &error.diagnostics()[0];
        let subject = fault.subject.as_deref().unwrap_or_default();
        assert!(format!("{}: {}: {subject}", fault.code, fault.message).starts_with(expected), "{expected}\n{error}");
        let text = error.to_string();
        assert!(more.iter().all(|more| text.contains(more)), "{more:?}\n{text}");
    }
    let [_, net] = two_graphs();
    let (folder, request) = request(&[&net], 57, false);
    worker.prepare(&request, &mut |_| ()).unwrap();
    fs::write(folder.path().join("decode.json"), "{").unwrap();
    let error = worker.prepare(&request, &mut |_| ()).expect_err("it does not parse");
    assert_eq!(error.diagnostics()[0].code, Code::BadBundle, "{error}");
}
