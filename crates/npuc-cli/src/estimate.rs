//! `npuc estimate`: what is known of a bundle's speed on one of Qualcomm's chips without the chip.
//!
//! Every figure here is an estimate and says so; none is put beside figures of a device or of the emulation.

use std::fmt::Write;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};

use clap::Args;
use npuc::bundle::{self, Bundle, Manifest};
use npuc::model::StepShape;
use npuc::target::rule::Text;
use npuc::target::{self, Grade, Target};
use npuc::{Code, Diagnostic, Result};
use npuc_run::contexts;
use npuc_run::device::qnn::{Bounds, Estimate, Traffic};
use npuc_run::estimate::{Known, Proxy, Step, simulated, traffic};
use serde::Serialize;

use crate::args::shapes;
use crate::output::{Output, bytes, count, exact_bytes};
use crate::session::start_qnn;

#[derive(Args)]
pub(crate) struct EstimateArgs {
    /// A bundle for one of Qualcomm's chips
    pub(crate) bundle: PathBuf,
    /// Only these of the bundle's step shapes; without it, all
    #[arg(long, value_delimiter = ',', value_name = "SHAPES")]
    pub(crate) shapes: Option<Vec<String>>,
    /// The chip that the libraries simulate in the place of the bundle's: SA8797, SA8255, QCS9100, SA8540, or Qualcomm's
    /// number of another; without it, the one of the nearest generation
    #[arg(long, value_name = "CHIP")]
    pub(crate) proxy: Option<String>,
    /// What the DDR memory moves at most, in GB/s (10^9 bytes a second); without it, what `npuc targets` says of the chip
    #[arg(long, value_name = "GB/s", allow_negative_numbers = true)]
    pub(crate) dram: Option<f64>,
}

/// Where every figure of this command is from.
const ESTIMATE: &str = "estimate";

/// What the estimates leave out.
const LEFT_OUT: [&str; 5] = [
    "the call to the DSP (RPC) and what the CPU does between steps",
    "the CPU, the GPU and the display, which take their share of the DDR memory",
    "limits by heat and power",
    "devices with slower memory than the chip takes",
    "the chip's last cache, which may spare some of the traffic",
];

#[derive(Serialize)]
struct Report {
    bundle: String,
    target: String,
    soc_model: u32,
    precision: String,
    libraries: String,
    traffic: TrafficReport,
    simulation: Simulation,
    left_out: [&'static str; 5],
}

/// On the bundle's own chip.
#[derive(Serialize)]
struct TrafficReport {
    origin: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    dram: Option<Dram>,
    steps: Vec<TrafficStep>,
}

/// The memory that times are computed with.
#[derive(Clone, Serialize)]
struct Dram {
    bytes_per_s: u64,
    source: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    grade: Option<Grade>,
}

#[derive(Serialize)]
struct TrafficStep {
    shape: StepShape,
    #[serde(flatten)]
    traffic: Traffic,
    dram_bytes_per_token: u64,
    /// The time that the bytes take, where the memory is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    dram_ms: Option<f64>,
}

/// On another chip.
#[derive(Serialize)]
struct Simulation {
    origin: &'static str,
    proxy: Proxy,
    steps: Vec<SimulatedStep>,
}

#[derive(Serialize)]
struct SimulatedStep {
    shape: StepShape,
    #[serde(flatten)]
    estimate: Estimate,
}

/// Runs the command.
pub(crate) fn command(args: &EstimateArgs, output: Output) -> Result<()> {
    let given = args.dram.map(given_dram).transpose()?;
    let named = args.proxy.as_deref().map(Proxy::find).transpose()?;
    let (manifest, target, soc) = open(&args.bundle, args.shapes.as_ref())?;
    let dram = given.or_else(|| own_dram(&target));
    let proxy = named.unwrap_or_else(|| Proxy::nearest(&target));
    let mut qnn = start_qnn(None)?;
    let spinner = output.spinner("preparing the graphs");
    let mut say = |text: &str| spinner.set_message(text.to_owned());
    let simulated = simulated(&args.bundle, &manifest, proxy.soc_model, &mut qnn, &mut say)
        .map_err(|error| on_proxy(error, &proxy))?;
    let traffic = traffic(&args.bundle, &manifest, soc, &mut qnn, &mut say)?;
    drop(spinner);
    let step = |step: Step<Estimate>| SimulatedStep { shape: step.shape, estimate: step.told };
    let report = Report {
        bundle: args.bundle.display().to_string(),
        target: target.name.clone(),
        soc_model: soc,
        precision: manifest.precision,
        libraries: qnn.versions().map_or_else(String::new, |versions| versions.build.clone()),
        traffic: TrafficReport {
            origin: ESTIMATE,
            steps: traffic.into_iter().map(|step| traffic_step(step, dram.as_ref())).collect(),
            dram,
        },
        simulation: Simulation { origin: ESTIMATE, proxy, steps: simulated.into_iter().map(step).collect() },
        left_out: LEFT_OUT,
    };
    output.result(&report, &render(&report))
}

/// The manifest of a whole bundle, with the shapes that are asked for, its target and Qualcomm's number of that.
fn open(folder: &Path, asked: Option<&Vec<String>>) -> Result<(Manifest, Target, u32)> {
    if !bundle::is_bundle(folder) {
        let fault = Diagnostic::error(Code::BadArgument, "estimates are made of bundles").file(folder);
        return Err(fault.help("build one first, e.g. npuc build MODEL --target sm8650 -o DIR").into());
    }
    let asked = shapes(asked)?;
    let mut manifest = bundle::manifest(folder)?;
    let target = target::find(&manifest.target)?;
    let soc = contexts::soc_model(&target).map_err(|error| error.in_file(folder))?;
    let has = |shape: &StepShape| manifest.graphs.iter().any(|graph| graph.shape == *shape);
    if let Some(shape) = asked.iter().flatten().find(|shape| !has(shape)) {
        let mut built: Vec<String> = manifest.graphs.iter().map(|graph| graph.shape.to_string()).collect();
        built.dedup();
        let fault = Diagnostic::error(Code::BadShape, "the bundle was not built for this step shape").file(folder);
        return Err(fault.need(format!("of {}", built.join(", "))).have(shape).into());
    }
    // Whether the files are those that were built.
    manifest = Bundle::open(folder)?.manifest;
    manifest.graphs.retain(|graph| asked.as_ref().is_none_or(|asked| asked.contains(&graph.shape)));
    Ok((manifest, target, soc))
}

fn given_dram(gb_per_s: f64) -> Result<Dram> {
    let bytes_per_s = (gb_per_s * 1e9).round();
    // Past 10^15 it is no memory's, and times lose their digits.
    if !(1e3..=1e15).contains(&bytes_per_s) {
        let fault = Diagnostic::error(Code::BadArgument, "this is no speed of a memory").subject("--dram");
        return Err(fault.need("GB/s, e.g. 76.8").have(gb_per_s).into());
    }
    Ok(Dram { bytes_per_s: bytes_per_s as u64, source: "--dram".into(), grade: None })
}

fn own_dram(target: &Target) -> Option<Dram> {
    let of = |dram: &target::Dram| {
        let target::Dram { bytes_per_s, source: Text(source), grade } = dram;
        Dram { bytes_per_s: NonZeroU64::get(*bytes_per_s), source: source.clone(), grade: Some(*grade) }
    };
    target.dram.as_ref().map(of)
}

fn traffic_step(step: Step<Traffic>, dram: Option<&Dram>) -> TrafficStep {
    let Step { shape, told: traffic } = step;
    let moved = traffic.dram_bytes();
    let dram_ms = dram.map(|dram| 1e3 * moved as f64 / dram.bytes_per_s as f64);
    TrafficStep { shape, traffic, dram_bytes_per_token: moved.div_ceil(shape.tokens as u64), dram_ms }
}

/// The error with the chip that it came up for, which is not the bundle's.
fn on_proxy(error: npuc::Error, proxy: &Proxy) -> npuc::Error {
    let named = |fault: &Diagnostic| {
        let fault = fault.clone();
        let subject = match &fault.subject {
            Some(of) if *of != proxy.name => format!("{of} on {}", proxy.name),
            Some(_) | None => proxy.name.clone(),
        };
        let fault = fault.subject(subject).help("name another chip to simulate with --proxy");
        match proxy.known {
            Some(_) => fault,
            None => fault.help(format!("QNN may not know a chip of number {}", proxy.soc_model)),
        }
    };
    let faults = error.diagnostics().iter().map(named).collect();
    npuc::Error::check(faults).err().unwrap_or(error)
}

fn render(report: &Report) -> String {
    let Report { bundle, target, soc_model, precision, libraries, .. } = report;
    let mut text = format!("{bundle}: {target} (SoC {soc_model}), {precision}; libraries {libraries}\n");
    own_chip(report, &mut text);
    let Simulation { proxy, steps, .. } = &report.simulation;
    let what = match proxy.known {
        Some(Known { htp, made_for }) => format!("HTP v{htp}, made for {made_for}"),
        None => format!("number {}", proxy.soc_model),
    };
    line(&mut text, &format!("\n[{ESTIMATE}] a step simulated on ANOTHER chip: {} ({what})", proxy.name));
    steps.iter().for_each(|step| simulated_lines(step, &mut text));
    line(&mut text, "\nNothing of this was measured, on a device or in the emulation. Left out are");
    report.left_out.iter().for_each(|what| line(&mut text, &format!("  {what}")));
    text
}

/// The bytes on the bundle's own chip and the time that they take.
fn own_chip(report: &Report, text: &mut String) {
    let TrafficReport { dram, steps, .. } = &report.traffic;
    line(text, &format!("\n[{ESTIMATE}] DDR traffic of a step, as the libraries schedule it for {}", report.target));
    for TrafficStep { shape, traffic, dram_bytes_per_token, .. } in steps {
        let (read, written) = (exact_bytes(traffic.dram_read_bytes), exact_bytes(traffic.dram_write_bytes));
        let token =
            if shape.tokens == 1 { String::new() } else { format!(", {} a token", bytes(*dram_bytes_per_token)) };
        line(text, &format!("  {:<12}{read} read, {written} written{token}", shape.to_string()));
    }
    let Some(dram) = dram else {
        let why = "no time follows: how fast the memory of this target is, is not known; --dram GB/s gives it";
        return line(text, &format!("  {why}"));
    };
    let speed = dram.bytes_per_s as f64 / 1e9;
    line(text, &format!("\n[{ESTIMATE}] the time of that DDR traffic alone, at {speed} GB/s"));
    for step in steps {
        let Some(ms) = step.dram_ms else { continue };
        let rate = match step.shape.tokens == 1 && ms > 0.0 {
            true => format!(", {:.1} tokens/s if nothing else took time", 1e3 / ms),
            false => String::new(),
        };
        line(text, &format!("  {:<12}{ms:.3} ms{rate}", step.shape.to_string()));
    }
    let grade = dram.grade.map_or_else(String::new, |grade| format!("[{}] ", grade.name()));
    line(text, &format!("      {grade}{}", dram.source));
}

fn simulated_lines(step: &SimulatedStep, text: &mut String) {
    let SimulatedStep { shape, estimate } = step;
    let ms = |us: u64| us as f64 / 1e3;
    let Bounds { low, expected, high } = estimate.time_us;
    let (from, to, cycles) = (ms(low), ms(high), estimate.cycles.expected);
    line(text, &format!("  {:<12}{:.3} ms ({from:.3} to {to:.3}), {cycles} cycles", shape.to_string(), ms(expected)));
    let (read, written) = (exact_bytes(estimate.dram_read_bytes()), exact_bytes(estimate.dram_write_bytes()));
    line(text, &format!("  {:<12}{read} read, {written} written", ""));
    let without = match usize::try_from(estimate.operations_without_cost) {
        Ok(0) => "every operation has a cost".into(),
        Ok(many) => format!("{} without a cost, whose time is missing", count(many, "operation")),
        Err(_) => "operations without a cost, whose time is missing".into(),
    };
    line(text, &format!("  {:<12}{without}", ""));
}

fn line(text: &mut String, line: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{line}");
}
