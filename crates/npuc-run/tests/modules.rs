//! Small programs written by hand, compiled and executed by IREE and Torq, against formulas in f64; and stand-ins for tools that
//! go wrong. The tools are fetched on first use.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use half::bf16;
use npuc::Code;
use npuc::target::{self, Precision};
use npuc_run::device::module::{Module, ModuleSpec, Runner};
use npuc_run::device::port::{PortFormat, PortInfo};
use npuc_run::modules::{Making, product_cosine};
use npuc_run::toolchain::compile::{Compilation, Compiled, compile};
use npuc_run::toolchain::{Installed, Tool, install};
use tempfile::TempDir;

#[path = "modules/stand_ins.rs"]
mod stand_ins;

/// How long a call may take: the machine may be busy.
const LIMIT: Duration = Duration::from_secs(600);

/// What executes the modules of a target.
const CASES: [(Runner, &str); 3] =
    [(Runner::IreeCpu, "iree-cpu"), (Runner::IreeVulkan, "iree-vulkan"), (Runner::ValhallOnVulkan, "mali-valhall")];

/// The flags of a target's compiler but for those that forbid what is off the slices, which the tests add where they mean it.
fn flags_of(target: &str) -> Vec<String> {
    let target = target::find(target).unwrap();
    let flags = target.flags_for(&Precision::stored(target.float));
    let flags = flags.into_iter().flat_map(str::split_whitespace).filter(|flag| !flag.starts_with("--torq-disable-"));
    flags.map(str::to_owned).collect()
}

/// The tools of a runner, fetched on first use. Without them the tests fail and say why.
fn tools(runner: Runner) -> Vec<Installed> {
    let fetched = |tool: &Tool| {
        let installed = install(*tool, &mut |line| eprintln!("{line}"));
        installed.unwrap_or_else(|error| panic!("these tests need {}:\n{error}", tool.name()))
    };
    runner.tools().iter().map(fetched).collect()
}

fn program(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)).unwrap()
}

/// Compiles a program in a folder.
fn compiled(
    folder: &Path,
    text: &str,
    target: &str,
    flags: &[&str],
    tool: &Installed,
) -> npuc::Result<(Compiled, PathBuf)> {
    let [mlir, vmfb, log] = ["m.mlir", "m.vmfb", "m.log"].map(|name| folder.join(name));
    fs::write(&mlir, text).unwrap();
    let mut all = flags_of(target);
    all.extend(flags.iter().map(|flag| (*flag).to_owned()));
    let compilation = Compilation { tool, flags: &all, mlir: &mlir, vmfb: &vmfb, log: &log, limit: LIMIT };
    let compiled = compile(&compilation, &mut |_| ())?;
    Ok((compiled, vmfb))
}

fn port(name: &str, shape: &[usize], format: PortFormat) -> PortInfo {
    PortInfo { name: name.into(), shape: shape.to_vec(), format }
}

fn spec(runner: Runner, folder: &Path, inputs: Vec<PortInfo>, outputs: Vec<PortInfo>) -> ModuleSpec {
    ModuleSpec {
        runner,
        vmfb: folder.join("m.vmfb"),
        function: "step".into(),
        parameters: None,
        inputs,
        outputs,
        log: folder.join("run.log"),
        limit: LIMIT,
    }
}

/// Numbers in [-1, 1] that look random.
fn noise(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    std::iter::repeat_with(next).take(count).collect()
}

/// Writes one f32 tensor as a safetensors file whose data is aligned to 64 bytes.
fn write_safetensors(path: &Path, name: &str, shape: &[usize], values: &[f32]) {
    let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    let mut header = format!(r#"{{"{name}":{{"dtype":"F32","shape":{shape:?},"data_offsets":[0,{}]}}}}"#, bytes.len());
    header.push_str(&" ".repeat((8 + header.len()).next_multiple_of(64) - 8 - header.len()));
    let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &bytes].concat();
    fs::write(path, file).unwrap();
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

/// The matvec program with its parameters in a folder.
fn matvec(runner: Runner, target: &str) -> (TempDir, ModuleSpec, Vec<f32>, Vec<Installed>) {
    let tools = tools(runner);
    let folder = tempfile::tempdir().unwrap();
    let (figures, vmfb) = compiled(folder.path(), &program("matvec.mlir"), target, &[], &tools[0]).unwrap();
    assert_eq!(fs::metadata(vmfb).unwrap().len(), figures.vmfb_bytes);
    assert!(figures.wall_ms > 0 && figures.peak_rss_bytes > 20 << 20, "{figures:?}");
    let w = noise(128 * 256, 1);
    let parameters = folder.path().join("w.safetensors");
    write_safetensors(&parameters, "layers.0.w", &[128, 256], &w);
    let count = || port("count", &[], PortFormat::I32);
    let inputs = vec![port("x", &[256], PortFormat::F32), port("bias", &[128], PortFormat::Bf16), count()];
    let outputs = vec![port("y", &[128], PortFormat::F32), port("z", &[128], PortFormat::Bf16), count()];
    let mut spec = spec(runner, folder.path(), inputs, outputs);
    spec.parameters = Some(("model".into(), parameters));
    (folder, spec, w, tools)
}

/// External parameters, ports in f32, bf16 and i32, and several steps of one process.
#[test]
fn projections_over_external_parameters() {
    for (runner, target) in CASES {
        let (_folder, spec, w, tools) = matvec(runner, target);
        let mut module = Module::open(spec, &tools).unwrap();
        let mut count = vec![5.0];
        for step in 0..3 {
            let (x, bias) = (noise(256, 10 + step), noise(128, 20 + step));
            module.run(&[&x, &bias, &count]).unwrap();
            let mut largest = 0f64;
            for (n, row) in w.chunks(256).enumerate() {
                let expected = dot(row, &x);
                largest = largest.max((f64::from(module.output(0)[n]) - expected).abs());
                let z = f64::from(module.output(1)[n]) - expected - f64::from(bf16::from_f32(bias[n]).to_f32());
                // Half of a unit in the last of the 8 places of bf16, and the sum's own error.
                assert!(z.abs() <= f64::from(module.output(1)[n].abs()) / 256.0 + 1e-4, "{runner:?}: output {n}: {z}");
            }
            eprintln!("{runner:?}: largest error {largest:e}");
            assert!(largest < 2e-5, "{runner:?}: {largest}");
            count = module.output(2).to_vec();
        }
        assert_eq!(count, [8.0]);
    }
}

#[test]
fn every_type_of_port() {
    let (runner, target) = CASES[0];
    let tools = tools(runner);
    let folder = tempfile::tempdir().unwrap();
    compiled(folder.path(), &program("ports.mlir"), target, &[], &tools[0]).unwrap();
    let int16 = PortFormat::Int16(npuc::quant::Encoding::int16(0.5));
    let ports = || {
        vec![
            port("a", &[2, 3], PortFormat::F16),
            port("b", &[3], PortFormat::I8),
            port("c", &[1, 2], PortFormat::I32),
            port("d", &[2], int16),
        ]
    };
    let mut module = Module::open(spec(runner, folder.path(), ports(), ports()), &tools).unwrap();
    module.run(&[&[0.0, 0.5, -1.0, 2.0, 3.0, 1e-3], &[1.0, -2.0, 300.0], &[-7.0, 1000.0], &[1.5, -2.0]]).unwrap();
    let close = |have: &[f32], expected: &[f32]| have.iter().zip(expected).all(|(a, b)| (a - b).abs() <= 1e-6);
    assert!(close(module.output(0), &[0.0, 1.0, -2.0, 4.0, 6.0, 2e-3]), "{:?}", module.output(0));
    assert_eq!(module.output(1), [-1.0, 2.0, -127.0]);
    assert_eq!(module.output(2), [49.0, 1e6]);
    assert_eq!(module.output(3), [-1.5, 2.0]);
}

/// Weights of 256 inputs and 128 outputs in blocks of 32: the program, and the weights as they are meant, by input.
fn quantised(ty: &str, range: std::ops::RangeInclusive<i32>) -> (String, Vec<f32>) {
    let (low, high) = (*range.start(), *range.end());
    let span = f32::from((high - low + 1) as i16);
    let numbers: Vec<i32> =
        noise(256 * 128, 3).iter().map(|x| (low + ((x + 1.0) / 2.0 * span) as i32).min(high)).collect();
    let scales: Vec<bf16> = noise(8 * 128, 4).iter().map(|x| bf16::from_f32(0.01 + 0.005 * x)).collect();
    let (mut number_text, mut scale_text) = (String::new(), String::new());
    numbers.iter().for_each(|q| write!(number_text, "{:02X}", *q as i8 as u8).unwrap());
    scales.iter().flat_map(|s| s.to_le_bytes()).for_each(|byte| write!(scale_text, "{byte:02X}").unwrap());
    let text = program("quantised_matvec.mlir").replace("TYPE", ty);
    let text = text.replace("NUMBERS", &number_text).replace("SCALES", &scale_text);
    let meant = |(at, q): (usize, &i32)| *q as f32 * scales[at / 128 / 32 * 128 + at % 128].to_f32();
    (text, numbers.iter().enumerate().map(meant).collect())
}

/// Nothing may be off the slices, and the simulator computes what the weights mean.
#[test]
fn quantised_projections_on_torq() {
    let tools = tools(Runner::TorqSim);
    for (ty, range) in [("i4", -8..=7), ("i8", -127..=127)] {
        let (text, w) = quantised(ty, range);
        let folder = tempfile::tempdir().unwrap();
        let flags = ["--torq-disable-css", "--torq-disable-host"];
        let (figures, _) = compiled(folder.path(), &text, "sl2610", &flags, &tools[0]).unwrap();
        let x: Vec<f32> = noise(256, 5).iter().map(|x| bf16::from_f32(*x).to_f32()).collect();
        let (inputs, outputs) = (port("x", &[1, 256], PortFormat::Bf16), port("y", &[1, 128], PortFormat::Bf16));
        let spec = spec(Runner::TorqSim, folder.path(), vec![inputs], vec![outputs]);
        let mut module = Module::open(spec, &tools).unwrap();
        module.run(&[&x]).unwrap();
        let expected: Vec<f64> = (0..128)
            .map(|n| x.iter().enumerate().map(|(k, x)| f64::from(*x) * f64::from(w[k * 128 + n])).sum())
            .collect();
        let y: Vec<f64> = module.output(0).iter().map(|y| f64::from(*y)).collect();
        let product = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let cosine = product(&y, &expected) / (product(&y, &y) * product(&expected, &expected)).sqrt();
        eprintln!("{ty}: cosine {cosine}, {} ms, {} bytes", figures.wall_ms, figures.vmfb_bytes);
        assert!(cosine > 0.99999, "{ty}: {cosine}");
        // 4-bit weights stay packed.
        assert!(figures.vmfb_bytes < if ty == "i4" { 32_000 } else { 48_000 }, "{ty}: {figures:?}");
    }
}

/// A product with a turned square matrix, which torq-compile 2.3.0 computes without turning it and says nothing, is found; one
/// with a matrix stored by columns is as on the host.
#[test]
fn products_that_are_compiled_wrong_are_found() {
    let tools = tools(Runner::TorqSim);
    let target = target::find("sl2610").unwrap();
    for (turned, contracted, least, most) in [(true, 2, -1.0, 0.5), (false, 1, 0.9999, 1.001)] {
        let graph = format!(
            "graph \"product\" {{\n%0 = input \"q\" : f32[8, 2, 64]\n%1 = input \"keys\" : f32[8, 64, 64]\n\
             %2 = matmul(%0, %1) {{transpose_b = {turned}}} : f32[8, 2, 64]\noutput \"scores\" = %2\n}}"
        );
        let text = format!(
            "func.func public @product(%q: tensor<8x2x64xbf16>, %keys: tensor<8x64x64xbf16>) -> tensor<8x2x64xbf16> {{\n  \
             %y = stablehlo.dot_general %q, %keys, batching_dims = [0] x [0], contracting_dims = [2] x [{contracted}] : \
             (tensor<8x2x64xbf16>, tensor<8x64x64xbf16>) -> tensor<8x2x64xbf16>\n  return %y : tensor<8x2x64xbf16>\n}}\n"
        );
        let folder = tempfile::tempdir().unwrap();
        let (mlir, log) = (folder.path().join("product.mlir"), folder.path().join("log"));
        fs::write(&mlir, text).unwrap();
        let (say, tool, target) = (&mut |_: &str| (), &tools[0], &target);
        let mut making = Making { tool, target, changes: &[], profile: false, log: &log, limit: LIMIT, say };
        let graph = npuc::ir::text::parse(&graph).unwrap();
        let cosine = product_cosine(&graph, &BTreeMap::new(), &mlir, &mut making).unwrap();
        eprintln!("turned {turned}: cosine {cosine}");
        assert!((least..most).contains(&cosine), "{turned}: {cosine}");
    }
}

/// What runtimes refuse has a reason, and the log that is named keeps it.
#[test]
fn refusals_have_reasons() {
    let (_folder, spec, _, tools) = matvec(CASES[0].0, CASES[0].1);
    let (x, bias, count) = (noise(256, 1), noise(128, 2), [0.0]);
    let mut cases = Vec::new();
    let parameters = "IREE's runtime: the module's parameters are not given";
    cases.push((Code::VendorRefusal, parameters, ModuleSpec { parameters: None, ..spec.clone() }));
    let scope = spec.parameters.clone().map(|(_, path)| ("other".to_owned(), path));
    cases.push((Code::VendorRefusal, parameters, ModuleSpec { parameters: scope, ..spec.clone() }));
    let other = spec.log.with_file_name("other.safetensors");
    write_safetensors(&other, "layers.1.w", &[128, 256], &noise(128 * 256, 1));
    let other = Some(("model".into(), other));
    let name = "IREE's runtime: a parameter is not in the file";
    cases.push((Code::VendorRefusal, name, ModuleSpec { parameters: other, ..spec.clone() }));
    let function = "IREE's runtime failed while loading a module";
    cases.push((Code::ToolFailed, function, ModuleSpec { function: "nothing".into(), ..spec.clone() }));
    let mut inputs = spec.inputs.clone();
    inputs[1].format = PortFormat::F16;
    let arguments = "IREE's runtime: the arguments are not those of the function";
    cases.push((Code::VendorRefusal, arguments, ModuleSpec { inputs, ..spec.clone() }));
    let mut outputs = spec.outputs.clone();
    outputs[1].format = PortFormat::F16;
    let result = "IREE's runtime failed while computing a step";
    cases.push((Code::ToolFailed, result, ModuleSpec { outputs, ..spec.clone() }));
    for (code, message, spec) in cases {
        let log = spec.log.clone();
        let run = |mut module: Module| module.run(&[&x, &bias, &count]);
        let error = Module::open(spec, &tools).and_then(run).expect_err(message);
        let fault = &error.diagnostics()[0];
        assert_eq!((fault.code, fault.message.as_str()), (code, message), "{error}");
        // What npuc does not know is told in the runtime's own words.
        let told = fault.have.as_deref().is_some_and(|have| have.starts_with("ValueError: "));
        assert!(code == Code::VendorRefusal || told, "{error}");
        assert!(!fs::read_to_string(log).unwrap().is_empty(), "{message}");
    }
}

/// What compilers refuse has a reason too.
#[test]
fn forms_that_do_not_compile() {
    let pattern = quantised("i4", -8..=7).0;
    // A product of rank 2 over the same weights; and rows of an odd number of outputs.
    let (head, _) = pattern.split_once("  %w = tensor.expand_shape").unwrap();
    let rank2 = format!(
        "{head}  %zero = arith.constant 0.0 : bf16\n  %empty = tensor.empty() : tensor<1x128xbf16>\n  \
         %zeros = linalg.fill ins(%zero : bf16) outs(%empty : tensor<1x128xbf16>) -> tensor<1x128xbf16>\n  \
         %y = linalg.matmul ins(%x, %w2 : tensor<1x256xbf16>, tensor<256x128xbf16>) outs(%zeros : tensor<1x128xbf16>) \
         -> tensor<1x128xbf16>\n  return %y : tensor<1x128xbf16>\n}}\n"
    );
    let exponential = "func.func @step(%x: tensor<8x64xbf16>) -> tensor<8x64xbf16> {\n  \
                       %y = stablehlo.exponential %x : tensor<8x64xbf16>\n  return %y : tensor<8x64xbf16>\n}\n";
    let gate = ["--torq-disable-css", "--torq-disable-host"];
    let tools = tools(Runner::TorqSim);
    for (text, flags, message) in [
        (rank2.as_str(), &[][..], "torq-compile: a matrix product is of a form that the compiler does not index"),
        (exponential, &gate, "torq-compile: an operation is off the slices"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let error = compiled(folder.path(), text, "sl2610", flags, &tools[0]).unwrap_err();
        let fault = &error.diagnostics()[0];
        assert_eq!((fault.code, fault.message.as_str()), (Code::VendorRefusal, message), "{error}");
        assert!(!folder.path().join("m.vmfb").exists() && folder.path().join("m.log").exists());
    }
}
