//! The lines of a result file, version 1: headers of segments, requests, the end. docs/workload.md tells every field.

use std::fmt;

use npuc_run::generate::Finish;
use serde::{Deserialize, Serialize};

use crate::json::Object;
use crate::slo::Slo;

/// The version of the lines.
pub const SCHEMA: u32 = 1;

/// What a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A segment begins.
    Header,
    /// A request.
    Request,
    /// Every request is there.
    End,
}

/// What computed, as far as figures may be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// The CPU of this machine.
    Host,
    /// A program that computes as a chip does, in its own time.
    Emulation,
    /// The chip.
    Device,
    /// Nothing: the time is made up.
    Null,
    /// The file does not say.
    Unstated,
}

impl Class {
    /// The word that stands in every table.
    pub const fn name(self) -> &'static str {
        match self {
            Class::Host => "host",
            Class::Emulation => "emulation",
            Class::Device => "device",
            Class::Null => "null",
            Class::Unstated => "unstated",
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The first line of a segment: what one process measured without a break.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// [`Kind::Header`].
    pub kind: Kind,
    /// The hash of the line before.
    pub prev: String,
    /// [`SCHEMA`].
    pub schema: u32,
    /// The place of the segment, from 0.
    pub segment: usize,
    /// What is measured and how; the same in all segments.
    pub plan: Plan,
    /// The machine.
    pub host: Host,
    /// What changes with every start of the machine; absent where the system does not tell.
    pub boot_id: Option<String>,
    /// The clock of all `_ns`.
    pub clock: ClockRecord,
    /// When the clock was 0, in microseconds since 1970 by the wall clock.
    pub start_unix_us: u64,
    /// What is read from the system while requests run.
    pub sensors: Vec<Sensor>,
    /// Of what could be, what the system does not give.
    pub absent: Vec<Quantity>,
    /// What was cut off behind the last whole line before this segment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dropped: Option<Dropped>,
    /// The hash of this line; the writer adds it.
    #[serde(skip_serializing, default)]
    pub hash: String,
}

/// What all segments of a run have in common.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// npuc and its version.
    pub tool: String,
    /// The back end's tools and their versions.
    pub libraries: Vec<String>,
    /// The word of `--on`.
    pub back_end: String,
    /// Where the figures come from, in npuc's words.
    pub measured_on: String,
    /// The same as one of few.
    pub class: Class,
    /// Threads that the host computes with.
    pub threads: usize,
    /// The model.
    pub model: ModelRecord,
    /// The workload.
    pub workload: WorkloadRecord,
    /// Requests that every segment runs first without recording them.
    pub warmup: usize,
    /// The pause after every request, in ms.
    pub cooldown_ms: f64,
    /// 0 takes the best token always.
    pub temperature: f32,
    /// Where the random numbers of request 0 start; request `i` has this plus `i`.
    pub seed: u64,
    /// The day that chat templates saw, where the workload has messages.
    pub date: Option<String>,
    /// The time between two readings of the sensors, in ms.
    pub sample_ms: f64,
    /// Thresholds that the run is held against.
    pub slo: Option<Slo>,
    /// The virtual latencies of `--on null`.
    pub null: Option<NullRecord>,
}

/// The model of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelRecord {
    /// The name of its folder or file.
    pub name: String,
    /// The hash of a bundle's manifest, which has those of all its files; of a checkpoint, see `hash_of`.
    pub sha256: String,
    /// What `sha256` is of.
    pub hash_of: String,
    /// Number of token ids.
    pub vocab: usize,
    /// Tokens that prompt and answer may have together.
    pub capacity: usize,
    /// Tokens of each step graph, the largest first.
    pub step_tokens: Vec<usize>,
    /// Every id that ends an answer.
    pub eos: Vec<u32>,
}

/// The workload of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkloadRecord {
    /// The file's name.
    pub name: String,
    /// The hash of the file.
    pub sha256: String,
    /// Requests in the file.
    pub requests: usize,
    /// Requests to measure: the first so many (`--limit`).
    pub planned: usize,
}

/// The virtual latencies of `--on null`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NullRecord {
    /// Of a step of several tokens.
    pub prefill_ns: u64,
    /// Of a step of one token.
    pub decode_ns: u64,
}

/// The machine; what the system does not tell is null.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// The operating system.
    pub os: String,
    /// Its kernel's version.
    pub kernel: String,
    /// The processor's architecture.
    pub arch: String,
    /// The processor's name.
    pub cpu: Option<String>,
    /// Logical processors that npuc may use.
    pub cpus: usize,
    /// Memory in bytes.
    pub memory_bytes: Option<u64>,
}

/// The clock of all `_ns`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClockRecord {
    /// Its name.
    pub source: String,
    /// Its resolution in ns.
    pub resolution_ns: u64,
}

/// What a sensor tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Quantity {
    /// Charge of the battery, in percent.
    BatteryPercent,
    /// `Charging`, `Discharging`, `Full`, …
    BatteryStatus,
    /// Voltage of the battery, in µV.
    BatteryMicrovolts,
    /// Current into or out of the battery, in µA; the sign's meaning differs from device to device.
    BatteryMicroamps,
    /// Current from the charger, in µA.
    ChargerMicroamps,
    /// Temperature in thousandths of a degree Celsius.
    Millicelsius,
    /// Frequency of a CPU core, in kHz.
    CpuKilohertz,
    /// Frequency of an accelerator or bus, in Hz.
    DeviceHertz,
}

impl Quantity {
    /// All there are.
    pub const ALL: [Quantity; 8] = [
        Quantity::BatteryPercent,
        Quantity::BatteryStatus,
        Quantity::BatteryMicrovolts,
        Quantity::BatteryMicroamps,
        Quantity::ChargerMicroamps,
        Quantity::Millicelsius,
        Quantity::CpuKilohertz,
        Quantity::DeviceHertz,
    ];

    /// The name in files.
    pub const fn name(self) -> &'static str {
        match self {
            Quantity::BatteryPercent => "battery-percent",
            Quantity::BatteryStatus => "battery-status",
            Quantity::BatteryMicrovolts => "battery-microvolts",
            Quantity::BatteryMicroamps => "battery-microamps",
            Quantity::ChargerMicroamps => "charger-microamps",
            Quantity::Millicelsius => "millicelsius",
            Quantity::CpuKilohertz => "cpu-kilohertz",
            Quantity::DeviceHertz => "device-hertz",
        }
    }
}

/// A file of the system that is read again and again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sensor {
    /// Its path below `/sys`.
    pub path: String,
    /// What the system calls the part, e.g. `cpu-thermal`.
    pub name: String,
    /// What it tells.
    pub quantity: Quantity,
}

/// Bytes that were cut off because they are no whole line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dropped {
    /// The 1-based line they began.
    pub line: usize,
    /// How many.
    pub bytes: u64,
}

/// Whether a request was measured to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// It was.
    Complete,
    /// The back end failed in it; it is measured anew by `--resume`.
    Failed,
}

/// A token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Commit {
    /// Its place in the answer, from 0.
    pub token_index: usize,
    /// Which one.
    pub token_id: u32,
    /// When it was known.
    pub commit_ns: u64,
}

/// A step of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrefillStep {
    /// Tokens that the step has room for.
    pub tokens: usize,
    /// Tokens of the prompt that it took.
    pub valid: usize,
    /// When it was done.
    pub end_ns: u64,
}

/// A reading of a sensor: a number or a word, null where it could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Reading {
    /// A whole number in the unit of the [`Quantity`].
    Number(i64),
    /// A word.
    Word(String),
    /// Nothing could be read.
    Absent,
}

/// A reading of all sensors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sample {
    /// When it began.
    pub at_ns: u64,
    /// In the order of the header's sensors.
    pub values: Vec<Reading>,
}

/// A request.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// [`Kind::Request`].
    pub kind: Kind,
    /// The hash of the line before.
    pub prev: String,
    /// The segment's place.
    pub segment: usize,
    /// The request's place in the workload, from 0.
    pub index: usize,
    /// Its name.
    pub id: String,
    /// Where the prompt is from.
    pub dataset: String,
    /// Whether it was measured to its end.
    pub status: Status,
    /// Why the answer ended; absent where it did not.
    pub finish: Option<Finish>,
    /// What the back end said when it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// The hash of the prompt's ids, four bytes each, the lowest first.
    pub prompt_sha256: String,
    /// The most tokens of the answer.
    pub max_new_tokens: usize,
    /// Whether the answer goes on after an id that ends one.
    pub ignore_eos: bool,
    /// Tokens of the answer by the session's count of rows.
    pub completion_tokens: usize,
    /// Tokens of the answer by the count of ids that were drawn.
    pub output_tokens: usize,
    /// When the prompt's first step began.
    pub start_ns: u64,
    /// When the answer had ended.
    pub end_ns: u64,
    /// The same two by the wall clock, in microseconds since 1970.
    pub start_unix_us: u64,
    /// See `start_unix_us`.
    pub end_unix_us: u64,
    /// The steps of the prompt.
    pub prefill: Vec<PrefillStep>,
    /// The tokens of the answer, one that ends it too.
    pub token_trace: Vec<Commit>,
    /// Readings of sensors from the start to the end.
    pub samples: Vec<Sample>,
    /// The workload's own fields.
    #[serde(default, skip_serializing_if = "Object::is_empty")]
    pub extra: Object,
    /// The hash of this line; the writer adds it.
    #[serde(skip_serializing, default)]
    pub hash: String,
}

/// The last line of a run that is complete.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct End {
    /// [`Kind::End`].
    pub kind: Kind,
    /// The hash of the line before.
    pub prev: String,
    /// Requests that are complete: all.
    pub complete: usize,
    /// Segments that the file has.
    pub segments: usize,
    /// The hash of this line; the writer adds it.
    #[serde(skip_serializing, default)]
    pub hash: String,
}
