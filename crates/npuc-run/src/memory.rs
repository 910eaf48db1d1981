//! How much memory there is for buffers, and how much has been used.

/// What the system says is available, in bytes; `None` where it does not tell.
pub fn available_bytes() -> Option<u64> {
    kib_line("/proc/meminfo", "MemAvailable:")
}

/// The most memory this process has held, in bytes, where the system tells.
pub fn peak_rss_bytes() -> Option<u64> {
    kib_line("/proc/self/status", "VmHWM:")
}

/// Whether the process may have this much more memory; nothing of it is touched.
pub fn can_reserve(bytes: u64) -> bool {
    usize::try_from(bytes).is_ok_and(|bytes| Vec::<u8>::new().try_reserve_exact(bytes).is_ok())
}

fn kib_line(file: &str, key: &str) -> Option<u64> {
    let text = std::fs::read_to_string(file).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok().map(|kib| kib * 1024)
}
