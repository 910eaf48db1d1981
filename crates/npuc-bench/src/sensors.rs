//! What the system tells of battery, charger, temperatures and frequencies, read by a thread of its own while requests run.
//!
//! The files are those of Linux and Android below `/sys`; which there are differs from device to device.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::clock::{Clock, SystemClock};
use crate::record::{Quantity, Reading, Sample, Sensor};

/// The sensors below `root`, which is `/sys`, and the quantities that none of them tells.
pub fn find(root: &Path) -> (Vec<Sensor>, Vec<Quantity>) {
    let mut found = Vec::new();
    for supply in entries(root, "class/power_supply") {
        power_supply(root, &supply, &mut found);
    }
    for zone in entries(root, "class/thermal").filter(|path| name_of(path).starts_with("thermal_zone")) {
        let name = word(&root.join(&zone).join("type")).unwrap_or_else(|| name_of(&zone));
        push(root, &zone.join("temp"), name, Quantity::Millicelsius, &mut found);
    }
    for cpu in entries(root, "devices/system/cpu").filter(|path| is_cpu(&name_of(path))) {
        let file = cpu.join("cpufreq/scaling_cur_freq");
        push(root, &file, name_of(&cpu), Quantity::CpuKilohertz, &mut found);
    }
    for device in entries(root, "class/devfreq") {
        push(root, &device.join("cur_freq"), name_of(&device), Quantity::DeviceHertz, &mut found);
    }
    let has = |quantity: &Quantity| found.iter().any(|sensor| sensor.quantity == *quantity);
    let absent = Quantity::ALL.into_iter().filter(|quantity| !has(quantity)).collect();
    (found, absent)
}

fn power_supply(root: &Path, supply: &Path, found: &mut Vec<Sensor>) {
    let is_battery = word(&root.join(supply).join("type")).as_deref() == Some("Battery");
    let files: &[(&str, Quantity)] = if is_battery {
        &[
            ("capacity", Quantity::BatteryPercent),
            ("status", Quantity::BatteryStatus),
            ("voltage_now", Quantity::BatteryMicrovolts),
            ("current_now", Quantity::BatteryMicroamps),
        ]
    } else {
        &[("current_now", Quantity::ChargerMicroamps)]
    };
    for (file, quantity) in files {
        push(root, &supply.join(file), name_of(supply), *quantity, found);
    }
}

/// A sensor, if it can be read now.
fn push(root: &Path, path: &Path, name: String, quantity: Quantity, found: &mut Vec<Sensor>) {
    let sensor = Sensor { path: path.to_string_lossy().into_owned(), name, quantity };
    if read(root, &sensor) != Reading::Absent {
        found.push(sensor);
    }
}

/// The entries of a folder by name, as paths below `root`; none where it cannot be read.
fn entries(root: &Path, folder: &str) -> impl Iterator<Item = PathBuf> {
    let listed = fs::read_dir(root.join(folder)).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = listed.map(|entry| Path::new(folder).join(entry.file_name())).collect();
    paths.sort();
    paths.into_iter()
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn is_cpu(name: &str) -> bool {
    name.strip_prefix("cpu").is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
}

fn word(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_string()).filter(|text| !text.is_empty())
}

fn read(root: &Path, sensor: &Sensor) -> Reading {
    let Some(text) = word(&root.join(&sensor.path)) else { return Reading::Absent };
    match sensor.quantity {
        Quantity::BatteryStatus => Reading::Word(text),
        Quantity::BatteryPercent
        | Quantity::BatteryMicrovolts
        | Quantity::BatteryMicroamps
        | Quantity::ChargerMicroamps
        | Quantity::Millicelsius
        | Quantity::CpuKilohertz
        | Quantity::DeviceHertz => text.parse().map_or(Reading::Absent, Reading::Number),
    }
}

/// The thread that reads; it ends when this is dropped.
pub struct Sampler {
    samples: Arc<Mutex<Vec<Sample>>>,
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Sampler {
    /// Reads all sensors below `root` now and every `interval` from now on. Without sensors there is no thread.
    pub fn start(root: &Path, sensors: &[Sensor], interval: Duration, clock: &SystemClock) -> Sampler {
        let samples = Arc::new(Mutex::new(Vec::new()));
        if sensors.is_empty() {
            return Sampler { samples, stop: None, thread: None };
        }
        let (stop, stopped) = mpsc::channel();
        let (root, sensors) = (root.to_path_buf(), sensors.to_vec());
        let (shared, clock) = (Arc::clone(&samples), clock.clone());
        let thread = std::thread::spawn(move || {
            loop {
                let at_ns = clock.now_ns();
                let values = sensors.iter().map(|sensor| read(&root, sensor)).collect();
                shared.lock().unwrap_or_else(PoisonError::into_inner).push(Sample { at_ns, values });
                match stopped.recv_timeout(interval) {
                    Err(mpsc::RecvTimeoutError::Timeout) => {}
                    Ok(()) | Err(mpsc::RecvTimeoutError::Disconnected) => break,
                }
            }
        });
        Sampler { samples, stop: Some(stop), thread: Some(thread) }
    }

    /// Takes what was read since the last call, without what is not within the time given.
    pub fn take(&self, start_ns: u64, end_ns: u64) -> Vec<Sample> {
        let all = std::mem::take(&mut *self.samples.lock().unwrap_or_else(PoisonError::into_inner));
        all.into_iter().filter(|sample| (start_ns..=end_ns).contains(&sample.at_ns)).collect()
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It can only have panicked, and then there is nothing to add to what it said.
            let _ = thread.join();
        }
    }
}
