//! Devices: what executes step graphs. Each gives the same interface over the same ports.

pub mod host;
