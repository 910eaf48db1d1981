//! What the library tells of a graph while it prepares it: simulated times for a few chips, and bytes that move for every one.
//!
//! Neither is a measurement. The events and their numbers were seen with QAIRT 2.51; the same numbers in another form are an error.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::ptr;

use npuc::{Code, Diagnostic, Result};
use serde::{Deserialize, Serialize};

use super::abi::{Config, Event, Handle};
use super::library::{Library, text};
use super::replay::accept;
use super::schematic;

/// What the library is asked to tell of each graph.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Profile {
    /// [`Estimate`]: for chips that the library simulates.
    Estimate,
    /// [`Traffic`]: for every chip.
    Trace {
        /// An existing folder of the caller's own, which the library writes to.
        folder: PathBuf,
    },
}

/// What the library told of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Told {
    /// Simulated.
    Estimate(Estimate),
    /// Scheduled.
    Traffic(Traffic),
}

/// An amount with its bounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bounds {
    /// The least.
    pub low: u64,
    /// What is expected.
    pub expected: u64,
    /// The most.
    pub high: u64,
}

/// One execution of a graph as the library simulates it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Estimate {
    /// Cycles of the accelerator.
    pub cycles: Bounds,
    /// The time that these take, in microseconds.
    pub time_us: Bounds,
    /// Weights and inputs from DDR.
    pub input_fill_bytes: u64,
    /// Values between operations that come back from DDR.
    pub intermediate_fill_bytes: u64,
    /// Values between operations that do not fit on the chip and go to DDR.
    pub intermediate_spill_bytes: u64,
    /// What comes from the accelerator's other cores.
    pub between_cores_fill_bytes: u64,
    /// What goes to the accelerator's other cores.
    pub between_cores_spill_bytes: u64,
    /// Outputs to DDR.
    pub output_spill_bytes: u64,
    /// Operations that the library has no cost for, whose time is therefore missing.
    pub operations_without_cost: u64,
}

/// One execution of a graph as the library schedules it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Traffic {
    /// Bytes from DDR.
    pub dram_read_bytes: u64,
    /// Bytes to DDR.
    pub dram_write_bytes: u64,
    /// Bytes from the memory next to the arithmetic.
    pub vtcm_read_bytes: u64,
    /// Bytes to the memory next to the arithmetic.
    pub vtcm_write_bytes: u64,
    /// Scheduled operations.
    pub operations: u64,
    /// Those of them that only move.
    pub moves: u64,
}

impl Bounds {
    fn plus(self, other: Bounds) -> Option<Bounds> {
        Some(Bounds {
            low: self.low.checked_add(other.low)?,
            expected: self.expected.checked_add(other.expected)?,
            high: self.high.checked_add(other.high)?,
        })
    }
}

impl Estimate {
    /// One after the other; `None` beyond 64 bits.
    pub fn plus(self, other: Estimate) -> Option<Estimate> {
        let add = u64::checked_add;
        Some(Estimate {
            cycles: self.cycles.plus(other.cycles)?,
            time_us: self.time_us.plus(other.time_us)?,
            input_fill_bytes: add(self.input_fill_bytes, other.input_fill_bytes)?,
            intermediate_fill_bytes: add(self.intermediate_fill_bytes, other.intermediate_fill_bytes)?,
            intermediate_spill_bytes: add(self.intermediate_spill_bytes, other.intermediate_spill_bytes)?,
            between_cores_fill_bytes: add(self.between_cores_fill_bytes, other.between_cores_fill_bytes)?,
            between_cores_spill_bytes: add(self.between_cores_spill_bytes, other.between_cores_spill_bytes)?,
            output_spill_bytes: add(self.output_spill_bytes, other.output_spill_bytes)?,
            operations_without_cost: add(self.operations_without_cost, other.operations_without_cost)?,
        })
    }

    /// Bytes from DDR.
    pub fn dram_read_bytes(&self) -> u64 {
        self.input_fill_bytes.saturating_add(self.intermediate_fill_bytes)
    }

    /// Bytes to DDR.
    pub fn dram_write_bytes(&self) -> u64 {
        self.output_spill_bytes.saturating_add(self.intermediate_spill_bytes)
    }
}

impl Traffic {
    /// One after the other; `None` beyond 64 bits.
    pub fn plus(self, other: Traffic) -> Option<Traffic> {
        let add = u64::checked_add;
        Some(Traffic {
            dram_read_bytes: add(self.dram_read_bytes, other.dram_read_bytes)?,
            dram_write_bytes: add(self.dram_write_bytes, other.dram_write_bytes)?,
            vtcm_read_bytes: add(self.vtcm_read_bytes, other.vtcm_read_bytes)?,
            vtcm_write_bytes: add(self.vtcm_write_bytes, other.vtcm_write_bytes)?,
            operations: add(self.operations, other.operations)?,
            moves: add(self.moves, other.moves)?,
        })
    }

    /// Bytes from and to DDR.
    pub fn dram_bytes(&self) -> u64 {
        self.dram_read_bytes.saturating_add(self.dram_write_bytes)
    }
}

/// The level of a profile that has the estimates.
const BASIC: u32 = 1;
/// The level of a profile that can trace.
const DETAILED: u32 = 2;
/// The switch of a profile that makes the library write the schedule.
const OPTRACE: u32 = 2;

/// A profile of one graph, which is freed and leaves its folder when it is dropped.
pub(super) struct Profiler<'a> {
    library: &'a Library,
    profile: Option<&'a Profile>,
    handle: Handle,
    /// Where this process was before.
    came_from: Option<PathBuf>,
}

impl<'a> Profiler<'a> {
    /// A profile for the preparation of a graph. For a trace this process moves to its folder, since the library writes to where it is.
    ///
    /// Errors: [`Code::ToolFailed`] if the library makes none; [`Code::Unwritable`] for a folder that is not there.
    pub(super) fn start(library: &'a Library, back_end: Handle, profile: Option<&'a Profile>) -> Result<Profiler<'a>> {
        let fault = || Diagnostic::error(Code::ToolFailed, "QNN makes no profile");
        let mut made = Profiler { library, profile, handle: ptr::null_mut(), came_from: None };
        let level = match profile {
            None => return Ok(made),
            Some(Profile::Estimate) => BASIC,
            Some(Profile::Trace { .. }) => DETAILED,
        };
        // SAFETY: the back end is the library's, and the handle is written.
        let status = unsafe { (library.functions.profile_create)(back_end, level, &raw mut made.handle) };
        accept(library, status, fault)?;
        if let Some(Profile::Trace { folder }) = profile {
            let config = Config::switch(OPTRACE, true);
            let configs = [&raw const config, ptr::null()];
            // SAFETY: the configurations live until the call returns, and the profile is the library's.
            let status = unsafe { (library.functions.profile_configure)(made.handle, configs.as_ptr()) };
            accept(library, status, fault)?;
            made.came_from = Some(enter(folder)?);
        }
        Ok(made)
    }

    /// The profile; null where nothing is asked.
    pub(super) fn handle(&self) -> Handle {
        self.handle
    }

    /// What the library told while it prepared the graph of that name.
    ///
    /// Errors: [`Code::BadArgument`] for a chip without estimates; [`Code::ToolFailed`] for what npuc cannot read.
    pub(super) fn finish(self, graph: &str) -> Result<Option<Told>> {
        match self.profile {
            None => Ok(None),
            Some(Profile::Estimate) => Ok(Some(Told::Estimate(estimate(&self.counts()?, graph)?))),
            Some(Profile::Trace { folder }) => Ok(Some(Told::Traffic(traffic(folder, graph)?))),
        }
    }

    /// Everything that the profile counted.
    fn counts(&self) -> Result<Vec<Count>> {
        let (mut events, mut count) = (ptr::null(), 0);
        // SAFETY: the profile is the library's; it writes a list of its own and the list's length.
        let status = unsafe { (self.library.functions.profile_events)(self.handle, &raw mut events, &raw mut count) };
        self.accept(status)?;
        let mut counts = Vec::new();
        self.gather(events, count, &mut counts)?;
        Ok(counts)
    }

    fn gather(&self, events: *const u64, count: u32, counts: &mut Vec<Count>) -> Result<()> {
        for place in 0..if events.is_null() { 0 } else { count as usize } {
            // SAFETY: the list has `count` entries and stays while the profile does.
            let event = unsafe { *events.add(place) };
            let mut said = Event { kind: 0, unit: 0, value: 0, name: ptr::null() };
            // SAFETY: the event is the library's, and what it says is written.
            self.accept(unsafe { (self.library.functions.profile_event)(event, &raw mut said) })?;
            let (kind, unit, value) = (said.kind, said.unit, said.value);
            counts.push(Count { kind, unit, value, name: text(said.name) });
            let (mut parts, mut count) = (ptr::null(), 0);
            // SAFETY: the event is the library's; it writes a list of its own and the list's length.
            let status = unsafe { (self.library.functions.profile_parts)(event, &raw mut parts, &raw mut count) };
            self.accept(status)?;
            self.gather(parts, count, counts)?;
        }
        Ok(())
    }

    fn accept(&self, status: u64) -> Result<()> {
        accept(self.library, status, || Diagnostic::error(Code::ToolFailed, "QNN does not tell what it profiled"))
    }
}

impl Drop for Profiler<'_> {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            // What the library says to this changes nothing.
            // SAFETY: the profile is the library's and is freed once.
            unsafe { (self.library.functions.profile_free)(self.handle) };
        }
        if let Some(folder) = self.came_from.take() {
            // A folder that is gone meanwhile fails whatever needs it next.
            let _ = std::env::set_current_dir(folder);
        }
    }
}

/// Moves this process into the folder; gives where it was.
fn enter(folder: &Path) -> Result<PathBuf> {
    let fault = |e| Diagnostic::error(Code::Unwritable, format!("cannot enter the folder of a trace: {e}"));
    let from = std::env::current_dir().map_err(|e| fault(e).file(folder))?;
    std::env::set_current_dir(folder).map_err(|e| fault(e).file(folder))?;
    Ok(from)
}

/// What the library counted.
#[derive(Clone, Debug)]
struct Count {
    kind: u32,
    unit: u32,
    value: u64,
    name: String,
}

/// The kinds of counts that are read.
mod kind {
    pub(super) const ESTIMATES: u32 = 2004;
    pub(super) const CYCLES: u32 = 2006;
    pub(super) const CYCLES_LOW: u32 = 2007;
    pub(super) const CYCLES_HIGH: u32 = 2008;
    pub(super) const INPUT_FILL: u32 = 2011;
    pub(super) const INTERMEDIATE_FILL: u32 = 2012;
    pub(super) const INTERMEDIATE_SPILL: u32 = 2013;
    pub(super) const BETWEEN_CORES_FILL: u32 = 2014;
    pub(super) const BETWEEN_CORES_SPILL: u32 = 2015;
    pub(super) const OUTPUT_SPILL: u32 = 2016;
    pub(super) const WITHOUT_COST: u32 = 2017;
    pub(super) const TIME: u32 = 2019;
    pub(super) const TIME_LOW: u32 = 2020;
    pub(super) const TIME_HIGH: u32 = 2021;
}

/// The units of counts. Plain numbers have that of times.
const MICROSECONDS: u32 = 1;
const BYTES: u32 = 2;
const CYCLES: u32 = 3;

/// The estimate among the counts of a graph's preparation.
fn estimate(counts: &[Count], graph: &str) -> Result<Estimate> {
    if counts.iter().all(|count| count.kind != kind::ESTIMATES) {
        let fault =
            Diagnostic::error(Code::BadArgument, "Qualcomm's libraries do not simulate this chip").subject(graph);
        let fault = fault.need("one for which they have performance estimates: SA8797, SA8255, QCS9100 or SA8540");
        return Err(fault.have("\"Performance Estimates unsupported on soc\"").into());
    }
    let of = |kind: u32| counts.iter().filter(move |count| count.kind == kind);
    let fault = |kind: u32| {
        let names: Vec<String> = of(kind).map(|count| format!("{} in unit {}", count.name, count.unit)).collect();
        let have = if names.is_empty() { "none".into() } else { names.join(", ") };
        let fault = Diagnostic::error(Code::ToolFailed, "QNN's estimates have another form than npuc reads");
        fault.subject(graph).need(format!("the count {kind} as QAIRT 2.51 gives it")).have(have)
    };
    let one = |kind: u32, unit: u32| -> Result<u64> {
        match of(kind).collect::<Vec<_>>()[..] {
            [count] if count.unit == unit => Ok(count.value),
            _ => Err(fault(kind).into()),
        }
    };
    // One for each core.
    let bytes = |kind: u32| -> Result<u64> {
        let known = of(kind).count() > 0 && of(kind).all(|count| count.unit == BYTES);
        let sum = of(kind).try_fold(0, |sum: u64, count| sum.checked_add(count.value));
        Ok(sum.filter(|_| known).ok_or_else(|| fault(kind))?)
    };
    let bounds = |[low, expected, high]: [u32; 3], unit| -> Result<Bounds> {
        Ok(Bounds { low: one(low, unit)?, expected: one(expected, unit)?, high: one(high, unit)? })
    };
    Ok(Estimate {
        cycles: bounds([kind::CYCLES_LOW, kind::CYCLES, kind::CYCLES_HIGH], CYCLES)?,
        time_us: bounds([kind::TIME_LOW, kind::TIME, kind::TIME_HIGH], MICROSECONDS)?,
        input_fill_bytes: bytes(kind::INPUT_FILL)?,
        intermediate_fill_bytes: bytes(kind::INTERMEDIATE_FILL)?,
        intermediate_spill_bytes: bytes(kind::INTERMEDIATE_SPILL)?,
        between_cores_fill_bytes: bytes(kind::BETWEEN_CORES_FILL)?,
        between_cores_spill_bytes: bytes(kind::BETWEEN_CORES_SPILL)?,
        output_spill_bytes: bytes(kind::OUTPUT_SPILL)?,
        operations_without_cost: one(kind::WITHOUT_COST, MICROSECONDS)?,
    })
}

/// The traffic in the schedule that the library has written for the graph.
fn traffic(folder: &Path, graph: &str) -> Result<Traffic> {
    let path = folder.join(format!("{graph}_schematic.bin"));
    let absent =
        |e| Diagnostic::error(Code::ToolFailed, format!("QNN wrote no schedule of the graph: {e}")).subject(graph);
    let file = File::open(&path).map_err(absent)?;
    let told = schematic::read(BufReader::new(file)).map_err(|what| {
        let fault = Diagnostic::error(Code::ToolFailed, "the schedule that QNN wrote has another form than npuc reads");
        fault.subject(graph).need("a text as QAIRT 2.51 writes it").have(what)
    })?;
    // Schedules are many times larger than what is read of them; the folder goes in any case.
    let _ = std::fs::remove_file(path);
    Ok(told)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As they came for three products of 1024x1024 in int8 on SA8797.
    const SEEN: [(u32, u32, u64); 17] = [
        (300, 1, 77393),
        (2004, 1, 0),
        (2005, 1, 0),
        (2006, 3, 82966),
        (2007, 3, 82696),
        (2008, 3, 83288),
        (2019, 1, 48),
        (2020, 1, 47),
        (2021, 1, 49),
        (2009, 1, 0),
        (2010, 1, 0),
        (2011, 2, 3_198_976),
        (2012, 2, 1),
        (2013, 2, 2),
        (2014, 2, 0),
        (2015, 2, 0),
        (2016, 2, 65536),
    ];
    const MISSING: (u32, u32, u64) = (2017, 1, 16);

    fn read(counts: &[(u32, u32, u64)]) -> Result<Estimate> {
        let count = |&(kind, unit, value)| Count { kind, unit, value, name: "x".into() };
        estimate(&counts.iter().map(count).collect::<Vec<_>>(), "g")
    }

    fn refused(counts: &[(u32, u32, u64)]) -> Diagnostic {
        read(counts).expect_err("another form").diagnostics()[0].clone()
    }

    #[test]
    fn counts_are_told_apart_by_their_kinds() {
        let told = read(&[&SEEN[..], &[MISSING]].concat()).expect("an estimate");
        assert_eq!(told.cycles, Bounds { low: 82696, expected: 82966, high: 83288 });
        assert_eq!(told.time_us, Bounds { low: 47, expected: 48, high: 49 });
        assert_eq!((told.dram_read_bytes(), told.dram_write_bytes()), (3_198_977, 65538));
        assert_eq!(told.operations_without_cost, 16);
        let cores = read(&[&SEEN[..], &[MISSING, (2010, 1, 1), (2011, 2, 24)]].concat()).expect("two cores");
        assert_eq!(cores.input_fill_bytes, 3_199_000);
        let twice = told.plus(told).expect("a small sum");
        assert_eq!((twice.time_us.high, twice.operations_without_cost, twice.output_spill_bytes), (98, 32, 131_072));
        assert_eq!(told.plus(Estimate { intermediate_spill_bytes: u64::MAX, ..told }), None);
    }

    #[test]
    fn other_counts_are_refused() {
        let without = |kind: u32| {
            let mut counts = [&SEEN[..], &[MISSING]].concat();
            counts.retain(|&(of, ..)| of != kind);
            counts
        };
        let fault = refused(&without(2004));
        assert_eq!(
            (fault.code, fault.message.as_str()),
            (Code::BadArgument, "Qualcomm's libraries do not simulate this chip")
        );
        for kind in [2006, 2007, 2008, 2011, 2012, 2013, 2014, 2015, 2016, 2017, 2019, 2020, 2021] {
            let counts = without(kind);
            let unit = 7;
            for counts in [counts.clone(), [&counts[..], &[(kind, unit, 1)]].concat()] {
                let fault = refused(&counts);
                assert_eq!(fault.code, Code::ToolFailed, "{kind}");
                assert!(fault.need.is_some_and(|need| need.contains(&kind.to_string())), "{kind}");
            }
        }
        for twice in [MISSING, (2006, 3, 1), (2019, 1, 1), (2011, 2, u64::MAX)] {
            let counts = [&SEEN[..], &[MISSING, twice]].concat();
            assert_eq!(refused(&counts).code, Code::ToolFailed, "{twice:?}");
        }
    }
}
