//! The timeline that `torq-compile --torq-enable-profiling --torq-dump-profiling=F.csv` writes: what works how long.
//!
//! It is the compiler's own static model, not a measurement: programs of the control processor always count 8000 cycles. The
//! numbers are cycles, although the file's columns say microseconds. Of a module with several functions it has only one.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use npuc::{Code, Diagnostic, Result};
use serde::Serialize;

/// The file's first line.
const COLUMNS: &str = "taskId, elapsed_time(us), timestamp(us), event, location, bytes";

/// What one unit does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Work {
    /// How many events it has.
    pub events: usize,
    /// The sum of their durations.
    pub busy_cycles: u64,
    /// The bytes that they move.
    pub bytes: u64,
}

/// A timeline, added up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TorqProfile {
    /// The end of the last event.
    pub cycles: u64,
    /// The slices, which compute matrices, by number. One that never works is absent.
    pub slices: BTreeMap<u32, Work>,
    /// From the memory outside into the chip.
    pub dma_in: Work,
    /// From the chip into the memory outside.
    pub dma_out: Work,
    /// To and from the control processor's memories.
    pub cdma: Work,
    /// The control processor, which takes what the slices cannot.
    pub css: Work,
    /// The board's CPU and events of a kind that npuc does not know, by name.
    pub other: BTreeMap<String, Work>,
}

impl TorqProfile {
    /// Reads a file.
    ///
    /// Errors: [`Code::Unreadable`]; [`Code::ToolFailed`] with the line if it is not what the compiler is known to write.
    pub fn read(path: &Path) -> Result<TorqProfile> {
        let text = fs::read_to_string(path).map_err(|error| {
            Diagnostic::error(Code::Unreadable, format!("cannot read the compiler's profile: {error}")).file(path)
        })?;
        TorqProfile::parse(&text).map_err(|error| error.in_file(path))
    }

    /// Reads the file's text; see [`TorqProfile::read`].
    pub fn parse(text: &str) -> Result<TorqProfile> {
        let mut lines = text.lines().enumerate();
        let first = lines.next().map(|(_, line)| line.trim()).unwrap_or_default();
        if first != COLUMNS {
            return Err(fault("the compiler's profile has other columns than npuc knows", 1)
                .need(COLUMNS)
                .have(first)
                .into());
        }
        let mut profile = TorqProfile::default();
        for (index, line) in lines.filter(|(_, line)| !line.trim().is_empty()) {
            let event = Event::parse(line).ok_or_else(|| {
                fault("the compiler's profile has a line that npuc cannot read", index + 1).have(line)
            })?;
            profile.add(&event);
        }
        if profile.cycles == 0 {
            return Err(fault("the compiler's profile has no events", 1).into());
        }
        Ok(profile)
    }

    fn add(&mut self, event: &Event<'_>) {
        self.cycles = self.cycles.max(event.start.saturating_add(event.elapsed));
        let slice = event.name.strip_prefix("Slice ").and_then(|number| number.parse().ok());
        let work = match (event.name, slice) {
            (_, Some(number)) => self.slices.entry(number).or_default(),
            ("DMA In", _) => &mut self.dma_in,
            ("DMA Out", _) => &mut self.dma_out,
            ("CSS", _) => &mut self.css,
            (name, _) if name.starts_with("CDMA ") => &mut self.cdma,
            (name, _) => self.other.entry(name.to_owned()).or_default(),
        };
        work.events += 1;
        work.busy_cycles = work.busy_cycles.saturating_add(event.elapsed);
        work.bytes = work.bytes.saturating_add(event.bytes);
    }

    /// How many events are neither a slice's nor a transfer: programs of the control processor, the board's CPU, and what npuc does
    /// not know.
    pub fn off_slices(&self) -> usize {
        self.css.events + self.other.values().map(|work| work.events).sum::<usize>()
    }

    /// How much longer the busiest of `count` slices works than the least busy one, as a part of the busiest's time: 0 where all
    /// work alike, 1 where one does nothing. 0 as well where no slice works at all.
    pub fn imbalance(&self, count: u32) -> f64 {
        let busy = |number: u32| self.slices.get(&number).map_or(0, |work| work.busy_cycles);
        let least = (0..count).map(busy).min().unwrap_or(0);
        match (0..count).map(busy).max().unwrap_or(0) {
            0 => 0.0,
            most => (most - least) as f64 / most as f64,
        }
    }
}

/// A line of the file.
struct Event<'a> {
    elapsed: u64,
    start: u64,
    name: &'a str,
    bytes: u64,
}

impl Event<'_> {
    /// Reads `task,elapsed,start,name,location,bytes`; a location may have commas, and bytes may be absent.
    fn parse(line: &str) -> Option<Event<'_>> {
        let mut fields = line.trim_end().splitn(5, ',');
        let (_task, elapsed, start, name, rest) =
            (fields.next()?, fields.next()?, fields.next()?, fields.next()?, fields.next()?);
        let bytes = rest.rsplit_once(',')?.1.trim();
        let bytes = if bytes.is_empty() { 0 } else { bytes.parse().ok()? };
        Some(Event {
            elapsed: elapsed.trim().parse().ok()?,
            start: start.trim().parse().ok()?,
            name: name.trim(),
            bytes,
        })
    }
}

fn fault(message: &str, line: usize) -> Diagnostic {
    Diagnostic::error(Code::ToolFailed, message).line(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(events: usize, busy_cycles: u64, bytes: u64) -> Work {
        Work { events, busy_cycles, bytes }
    }

    /// Profiles of torq-compiler 2.3.0: 256 x 128 weights in 4 bits, and operations that the slices do not take. The sums are awk's:
    /// `awk -F, '{n[$4]++; t[$4] += $2; b[$4] += $NF} END {for (k in n) print k, n[k], t[k], b[k]}'`.
    #[test]
    fn real_profiles() {
        let matvec = TorqProfile::parse(include_str!("../../../../tests/data/torq/matvec.csv")).expect("a profile");
        let expected = TorqProfile {
            cycles: 6799,
            slices: BTreeMap::from([(0, work(2, 2368, 0)), (1, work(1, 2112, 0))]),
            dma_in: work(12, 4793, 22760),
            dma_out: work(2, 54, 256),
            ..TorqProfile::default()
        };
        assert_eq!((matvec.off_slices(), &matvec), (0, &expected));
        assert!((matvec.imbalance(2) - 256.0 / 2368.0).abs() < 1e-12);
        assert!((matvec.imbalance(3) - 1.0).abs() < 1e-12);
        let off = TorqProfile::parse(include_str!("../../../../tests/data/torq/off-slices.csv")).expect("a profile");
        assert_eq!((off.cycles, off.css, off.off_slices()), (20287, work(2, 16000, 0), 2));
        assert_eq!((off.cdma, off.slices[&0]), (work(8, 1639, 9430), work(1, 64, 0)));
        assert!((TorqProfile::default().imbalance(2) - 0.0).abs() < 1e-12);
    }

    #[test]
    fn locations_with_commas_and_unknown_events() {
        let lines =
            "0,5,10,DMA In,loc(fused[\"a\":1:2, \"b\":3:4]),7\n\n1,8000,20,Host,loc(unknown),\n2,1,3,Slice x,loc(a),\n";
        let profile = TorqProfile::parse(&format!("{COLUMNS}\n{lines}")).expect("a profile");
        assert_eq!((profile.cycles, profile.dma_in, profile.off_slices()), (8020, work(1, 5, 7), 2));
        assert_eq!(profile.other.keys().collect::<Vec<_>>(), ["Host", "Slice x"]);
    }

    #[test]
    fn what_is_no_profile_is_told() {
        for (text, message, line) in [
            (String::new(), "has other columns", 1),
            ("task,elapsed\n1,2\n".into(), "has other columns", 1),
            (COLUMNS.into(), "has no events", 1),
            (format!("{COLUMNS}\n0,1,2,CSS,loc(a),\n1,x,2,CSS,loc(a),\n"), "has a line that npuc cannot read", 3),
            (format!("{COLUMNS}\n0,1,2,CSS\n"), "has a line that npuc cannot read", 2),
            (format!("{COLUMNS}\n0,1,2,CSS,loc(a),-4\n"), "has a line that npuc cannot read", 2),
        ] {
            let error = TorqProfile::parse(&text).expect_err(&text);
            let fault = &error.diagnostics()[0];
            assert_eq!((fault.code, fault.line), (Code::ToolFailed, Some(line)), "{error}");
            assert!(fault.message.contains(message), "{error}");
        }
    }
}
