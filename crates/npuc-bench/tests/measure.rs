//! The measurement: own time, clocks that are wrong, back ends that fail, sensors.
#![allow(clippy::unwrap_used)]

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use npuc_bench::audit;
use npuc_bench::clock::{Clock, SystemClock};
use npuc_bench::measure::{Buffers, Measurement, measure};
use npuc_bench::record::{Class, Quantity, Reading};
use npuc_bench::report::{Options, report};
use npuc_bench::results::{self, State};
use npuc_bench::runner::Stop;
use npuc_bench::sensors;
use npuc_bench::workload::Job;
use npuc_run::generate::Finish;
use npuc_run::session::Session;
use npuc_run::text::{Sampler, Sampling, SamplingConfig};

mod runs;

const NOWHERE: &str = "/nowhere";

fn sampler() -> Sampler {
    Sampler::new(Sampling::new(SamplingConfig::default()).unwrap())
}

fn one(
    job: &Job,
    eos: &BTreeSet<u32>,
    fail_after: Option<u64>,
    clock: &impl Clock,
    null: &npuc_run::device::null::Null,
) -> Measurement {
    let null = npuc_run::device::null::Null { fail_after, ..null.clone() };
    let mut session = Session::on_null(&runs::program(), &null).unwrap();
    let mut buffers = Buffers::new(std::slice::from_ref(job));
    measure(&mut session, job, eos, &mut sampler(), clock, &mut buffers, &mut |_| Ok(()))
}

#[test]
fn a_measurement_is_the_virtual_latencies_and_little_more() {
    let null = runs::null(None);
    let clock = SystemClock::start(Some(null.time.clone()));
    // 19 tokens in steps of 8, 8 and 3 of 8; then 63 decode steps.
    let measured = one(&runs::job(0, 19, 64), &BTreeSet::new(), None, &clock, &null);
    assert_eq!(measured.finish, Ok(Finish::MaxNew));
    assert_eq!(measured.completion_tokens, 64);
    let steps: Vec<(usize, usize)> = measured.prefill.iter().map(|step| (step.tokens, step.valid)).collect();
    assert_eq!(steps, [(8, 8), (8, 8), (8, 3)]);
    let times: Vec<u64> = measured.trace.iter().map(|commit| commit.commit_ns).collect();
    let ttft = times[0] - measured.start_ns;
    assert!((9_000_000..9_000_000 + 20_000_000).contains(&ttft), "TTFT {ttft} ns");
    let mut over: Vec<u64> = times.windows(2).map(|pair| (pair[1] - pair[0]).checked_sub(1_000_000).unwrap()).collect();
    over.sort_unstable();
    assert!(over[over.len() / 2] <= 20_000, "the runner takes {} ns for a token", over[over.len() / 2]);
}

/// A clock that says what it is told to, and then always more.
struct Told<'a> {
    times: &'a [u64],
    asked: Cell<usize>,
}

impl Clock for Told<'_> {
    fn now_ns(&self) -> u64 {
        let place = self.asked.replace(self.asked.get() + 1);
        self.times.get(place).copied().unwrap_or(1_000_000 + place as u64)
    }

    fn unix_us(&self) -> u64 {
        0
    }

    fn pause(&self, _: u64) {}
}

#[test]
fn a_clock_that_does_not_rise_fails_the_request() {
    // Asked for at the start, after the one step of the prompt, after each of three tokens, at the end.
    let cases: [(&[u64], Option<&str>); 6] = [
        (&[10, 20, 30, 40, 50, 60], None),
        (&[10, 20, 30, 25, 50, 60], Some("token 1")),
        (&[10, 20, 30, 30, 50, 60], Some("token 1")),
        (&[10, 20, 10, 40, 50, 60], Some("token 0")),
        (&[10, 20, 30, 40, 50, 45], Some("the answer's end")),
        (&[100, 20, 30, 40, 50, 60], Some("token 0")),
    ];
    for (times, fault) in cases {
        let clock = Told { times, asked: Cell::new(0) };
        let measured = one(&runs::job(0, 3, 3), &BTreeSet::new(), None, &clock, &runs::null(None));
        assert_eq!(clock.asked.get(), 6);
        match fault {
            None => assert_eq!(measured.finish, Ok(Finish::MaxNew)),
            Some(subject) => {
                let error = measured.finish.unwrap_err();
                let have = error.diagnostics()[0].subject.as_deref();
                assert_eq!(have, Some(subject), "{times:?}: {error}");
            }
        }
    }
}

#[test]
fn an_answer_may_end_with_its_first_token() {
    let null = runs::null(None);
    let clock = SystemClock::start(Some(null.time.clone()));
    let all: BTreeSet<u32> = (0..runs::VOCAB).collect();
    let job = Job { ignore_eos: false, ..runs::job(0, 5, 9) };
    let measured = one(&job, &all, None, &clock, &null);
    assert_eq!((measured.finish, measured.trace.len(), measured.completion_tokens), (Ok(Finish::Eos), 1, 1));
    let measured = one(&runs::job(0, 5, 9), &all, None, &clock, &null);
    assert_eq!((measured.finish, measured.trace.len(), measured.completion_tokens), (Ok(Finish::MaxNew), 9, 9));
}

#[test]
fn a_back_end_that_fails_leaves_what_was_measured() {
    let null = runs::null(None);
    // A prompt of 19 tokens has 3 steps; tokens after the first need one each.
    for (fail_after, tokens) in [(0, 0), (2, 0), (3, 1), (4, 2), (9, 7)] {
        let clock = SystemClock::start(Some(null.time.clone()));
        let measured = one(&runs::job(0, 19, 64), &BTreeSet::new(), Some(fail_after), &clock, &null);
        let error = measured.finish.unwrap_err();
        assert_eq!(error.exit_status(), 4, "{error}");
        assert_eq!((measured.trace.len(), measured.completion_tokens), (tokens, tokens), "after {fail_after} steps");
    }
}

#[test]
fn a_run_goes_on_behind_a_request_that_failed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.jsonl");
    let jobs = runs::jobs(6);
    let stop = runs::measure(&path, &jobs, Some(20), Path::new(NOWHERE)).unwrap();
    let Stop::Failed(error) = stop else { panic!("{stop:?}") };
    assert!(error.to_string().contains("told to fail"), "{error}");
    let broken = results::read(&path).unwrap();
    let State::Incomplete { complete, planned: 6 } = broken.state() else { panic!("{}", broken.state()) };
    assert!(complete > 0 && complete < 6);
    assert_eq!(broken.requests.len(), complete + 1, "the failed request is there too");
    assert!(report(&[broken], Options { slo: None, allow_incomplete: false }).is_err());
    assert!(matches!(runs::measure(&path, &jobs, None, Path::new(NOWHERE)).unwrap(), Stop::Complete));
    let whole = results::read(&path).unwrap();
    assert_eq!(whole.state(), State::Segmented { segments: 2 });
    let audit = audit(&whole, None);
    assert!(audit.is_clean(), "{:?}", audit.findings);
    let options = |allow_incomplete| Options { slo: None, allow_incomplete };
    assert!(report(std::slice::from_ref(&whole), options(false)).is_err());
    let marked = report(&[whole], options(true)).unwrap();
    assert!(marked.runs[0].is_marked && marked.runs[0].state.contains("2 segments"));
    assert_eq!(marked.runs[0].all.requests, 6);
}

#[test]
fn names_in_files_are_those_in_tables() {
    for quantity in Quantity::ALL {
        assert_eq!(serde_json::to_value(quantity).unwrap(), quantity.name());
    }
    for class in [Class::Host, Class::Emulation, Class::Device, Class::Null, Class::Unstated] {
        assert_eq!(serde_json::to_value(class).unwrap(), class.name());
    }
}

#[test]
fn sensors_are_read_where_there_are_any() {
    let folder = tempfile::tempdir().unwrap();
    let put = |path: &str, text: &str| {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    put("class/power_supply/battery/type", "Battery\n");
    put("class/power_supply/battery/status", "Discharging\n");
    put("class/power_supply/battery/voltage_now", "4000000\n");
    put("class/power_supply/battery/current_now", "-500000\n");
    put("class/power_supply/usb/type", "USB\n");
    put("class/power_supply/usb/current_now", "0\n");
    put("class/thermal/thermal_zone0/type", "cpu-thermal\n");
    put("class/thermal/thermal_zone0/temp", "41000\n");
    put("class/thermal/cooling_device0/type", "fan\n");
    put("devices/system/cpu/cpu0/cpufreq/scaling_cur_freq", "1800000\n");
    put("devices/system/cpu/cpufreq/policy0", "no core\n");
    put("class/devfreq/soc:npu/cur_freq", "not a number\n");
    let (found, absent) = sensors::find(folder.path());
    let names: Vec<(&str, Quantity)> = found.iter().map(|sensor| (sensor.name.as_str(), sensor.quantity)).collect();
    assert_eq!(
        names,
        [
            ("battery", Quantity::BatteryStatus),
            ("battery", Quantity::BatteryMicrovolts),
            ("battery", Quantity::BatteryMicroamps),
            ("usb", Quantity::ChargerMicroamps),
            ("cpu-thermal", Quantity::Millicelsius),
            ("cpu0", Quantity::CpuKilohertz),
        ]
    );
    assert_eq!(absent, [Quantity::BatteryPercent, Quantity::DeviceHertz]);
    let clock = SystemClock::start(None);
    let sampler = sensors::Sampler::start(folder.path(), &found, std::time::Duration::from_millis(1), &clock);
    std::thread::sleep(std::time::Duration::from_millis(30));
    let (from, to) = (clock.now_ns() / 2, clock.now_ns());
    let samples = sampler.take(from, to);
    assert!(samples.len() > 2 && samples.iter().all(|sample| (from..=to).contains(&sample.at_ns)));
    let values = [Reading::Word("Discharging".into()), Reading::Number(4_000_000), Reading::Number(-500_000)];
    assert_eq!(samples[0].values[..3], values);
    let (found, absent) = sensors::find(Path::new(NOWHERE));
    assert_eq!((found.len(), absent.len()), (0, Quantity::ALL.len()));
}
