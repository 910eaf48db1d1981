//! The clocks of a measurement: a monotonic one in ns for latencies, the wall clock to hold it against.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use npuc_run::device::null::VirtualTime;
use rustix::time::{ClockId, clock_getres};

/// What tells the time.
pub trait Clock {
    /// Nanoseconds since the segment began; never falls.
    fn now_ns(&self) -> u64;
    /// Microseconds since 1970 by the wall clock, which people and networks set.
    fn unix_us(&self) -> u64;
    /// Lets time pass.
    fn pause(&self, ns: u64);
}

/// The system's clocks. With the null device its virtual time is added to both.
#[derive(Clone, Debug)]
pub struct SystemClock {
    zero: Instant,
    virtual_time: Option<VirtualTime>,
}

impl SystemClock {
    /// Clocks whose monotonic one starts now.
    pub fn start(virtual_time: Option<VirtualTime>) -> SystemClock {
        SystemClock { zero: Instant::now(), virtual_time }
    }

    fn virtual_ns(&self) -> u64 {
        self.virtual_time.as_ref().map_or(0, VirtualTime::ns)
    }
}

impl Clock for SystemClock {
    fn now_ns(&self) -> u64 {
        self.zero.elapsed().as_nanos() as u64 + self.virtual_ns()
    }

    fn unix_us(&self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        since.as_micros() as u64 + self.virtual_ns() / 1000
    }

    fn pause(&self, ns: u64) {
        match &self.virtual_time {
            Some(time) => time.pass(ns),
            None => std::thread::sleep(std::time::Duration::from_nanos(ns)),
        }
    }
}

/// The resolution of the monotonic clock, in ns.
pub fn resolution_ns() -> u64 {
    let resolution = clock_getres(ClockId::Monotonic);
    resolution.tv_sec as u64 * 1_000_000_000 + resolution.tv_nsec as u64
}

/// What changes with every start of the system, where the system tells.
pub fn boot_id() -> Option<String> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(id.trim().to_string())
}
