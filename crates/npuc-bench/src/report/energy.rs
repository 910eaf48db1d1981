//! Energy of requests from the battery's voltage and current, where both were read and nothing charged it.

use serde::Serialize;

use crate::record::{Quantity, Reading, Sample, Sensor};
use crate::results::{Request, Results};

/// Energy of the requests that it is known of.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Energy {
    /// How many requests.
    pub requests: usize,
    /// The sum over requests of mean power × time.
    pub joules: f64,
    /// The same for a token of their answers.
    pub joules_per_token: f64,
    /// The mean power in W over their time.
    pub watts: f64,
}

/// Readings of a request below which its energy is not told.
const FEWEST_SAMPLES: usize = 2;

/// The energy, or why it is not known. The power of a reading is |voltage × current|, because the sign of a current differs from
/// device to device; that of a request is the mean of its readings.
pub(super) fn energy(run: &Results, requests: &[&Request]) -> Result<Energy, String> {
    let sensors = run.headers.first().map(|(_, header)| header.sensors.as_slice()).unwrap_or_default();
    let place = |quantity| sensors.iter().position(|sensor: &Sensor| sensor.quantity == quantity);
    let (Some(volts), Some(amps)) = (place(Quantity::BatteryMicrovolts), place(Quantity::BatteryMicroamps)) else {
        return Err("the system gives no voltage and current of a battery".into());
    };
    let Some(status) = place(Quantity::BatteryStatus) else {
        return Err("the system does not say whether the battery is charged".into());
    };
    let discharging =
        |sample: &Sample| matches!(sample.values.get(status), Some(Reading::Word(word)) if word == "Discharging");
    let number = |sample: &Sample, place: usize| match sample.values.get(place) {
        Some(Reading::Number(number)) => Some(*number as f64 / 1e6),
        Some(Reading::Word(_) | Reading::Absent) | None => None,
    };
    let (mut count, mut joules, mut seconds, mut tokens) = (0, 0.0, 0.0, 0);
    for request in requests {
        let power: Vec<f64> = request
            .samples
            .iter()
            .filter(|sample| discharging(sample))
            .filter_map(|sample| Some((number(sample, volts)? * number(sample, amps)?).abs()))
            .collect();
        let (Some(start), Some(end)) = (request.start_ns, request.end_ns) else { continue };
        if power.len() < FEWEST_SAMPLES || power.len() < request.samples.len() {
            continue;
        }
        let time = (end - start) as f64 / 1e9;
        count += 1;
        seconds += time;
        joules += time * power.iter().sum::<f64>() / power.len() as f64;
        tokens += request.tokens().unwrap_or(0);
    }
    if count == 0 || tokens == 0 {
        return Err("no request has two readings or more that all say the battery is discharging".into());
    }
    Ok(Energy { requests: count, joules, joules_per_token: joules / tokens as f64, watts: joules / seconds })
}
