//! Plots as inline SVG: axes, ticks and series. Colours come from the page's style, so that they follow its dark mode.

use std::fmt::Write as _;

/// How the points of a series are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// A dot each.
    Dots,
    /// Lines between neighbours.
    Line,
    /// A value holds until the next one.
    Steps,
}

/// Points of one run.
pub(super) struct Series {
    /// What the legend calls it.
    pub(super) name: String,
    /// Which colour and dash, by the run's place.
    pub(super) colour: usize,
    /// How it is drawn.
    pub(super) mark: Mark,
    /// The points.
    pub(super) points: Vec<[f64; 2]>,
}

/// A plot. Both axes begin at 0 unless the points are far from it.
pub(super) struct Plot {
    /// What it shows.
    pub(super) title: String,
    /// What the horizontal axis is, with its unit.
    pub(super) x: String,
    /// What the vertical axis is, with its unit.
    pub(super) y: String,
    /// Vertical lines with names: thresholds, steps.
    pub(super) lines: Vec<(f64, String)>,
    /// The series.
    pub(super) series: Vec<Series>,
}

const WIDTH: f64 = 520.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 28.0;
const TOP: f64 = 24.0;
const BOTTOM: f64 = 52.0;
/// Colours that the page's style has.
const COLOURS: usize = 6;

/// A linear axis.
struct Axis {
    low: f64,
    high: f64,
    step: f64,
}

impl Axis {
    /// An axis over the values, with round ends. It begins at 0 unless the values lie in the upper half of what that would show.
    fn over(values: impl Iterator<Item = f64> + Clone) -> Axis {
        let (low, high) = values
            .filter(|value| value.is_finite())
            .fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)));
        let (low, high) = if low > high { (0.0, 1.0) } else { (low, high) };
        let low = if low >= 0.0 && low < 0.9 * high { 0.0 } else { low };
        let span = if high > low { high - low } else { high.abs().max(1.0) };
        let step = round_step(span / 5.0);
        let low = (low / step).floor() * step;
        let high = ((high.max(low + span) / step).ceil() * step).max(low + step);
        Axis { low, high, step }
    }

    fn part(&self, value: f64) -> f64 {
        (value - self.low) / (self.high - self.low)
    }

    fn ticks(&self) -> impl Iterator<Item = f64> {
        let count = ((self.high - self.low) / self.step).round().clamp(1.0, 20.0) as usize;
        (0..=count).map(|place| self.low + place as f64 * self.step)
    }

    /// A tick with as many digits as its step needs.
    fn label(&self, value: f64) -> String {
        let digits = (-self.step.log10().floor()).clamp(0.0, 6.0) as usize;
        format!("{value:.digits$}")
    }
}

/// 1, 2 or 5 times a power of ten, the next that is not smaller.
fn round_step(rough: f64) -> f64 {
    let power = 10f64.powf(rough.log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|factor| factor * power)
        .find(|&step| step >= rough * (1.0 - 1e-9))
        .unwrap_or(rough)
}

/// The plot; empty if no series has a point.
pub(super) fn svg(plot: &Plot) -> String {
    let points = || plot.series.iter().flat_map(|series| series.points.iter());
    if points().next().is_none() {
        return String::new();
    }
    let x = Axis::over(points().map(|point| point[0]));
    let y = Axis::over(points().map(|point| point[1]));
    let at = |point: &[f64; 2]| {
        (LEFT + x.part(point[0]) * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - y.part(point[1]) * (HEIGHT - TOP - BOTTOM))
    };
    let mut out =
        format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">", escaped(&plot.title));
    grid(&mut out, plot, &x, &y, &at);
    for (value, name) in plot.lines.iter().filter(|(value, _)| (x.low..=x.high).contains(value)) {
        let (px, _) = at(&[*value, y.low]);
        put(
            &mut out,
            &format!("<line class=\"mark\" x1=\"{px:.1}\" x2=\"{px:.1}\" y1=\"{TOP}\" y2=\"{:.1}\"/>", HEIGHT - BOTTOM),
        );
        put(
            &mut out,
            &format!("<text text-anchor=\"middle\" x=\"{:.1}\" y=\"{:.1}\">{}</text>", px, TOP - 6.0, escaped(name)),
        );
    }
    for series in &plot.series {
        draw(&mut out, series, &at);
    }
    out.push_str("</svg>");
    out
}

fn grid(out: &mut String, plot: &Plot, x: &Axis, y: &Axis, at: &impl Fn(&[f64; 2]) -> (f64, f64)) {
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    for tick in y.ticks() {
        let (_, py) = at(&[x.low, tick]);
        put(out, &format!("<line class=\"grid\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{py:.1}\" y2=\"{py:.1}\"/>"));
        put(
            out,
            &format!(
                "<text class=\"tick\" text-anchor=\"end\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                LEFT - 6.0,
                py + 4.0,
                y.label(tick)
            ),
        );
    }
    for tick in x.ticks() {
        let (px, _) = at(&[tick, y.low]);
        put(
            out,
            &format!("<line class=\"grid\" x1=\"{px:.1}\" x2=\"{px:.1}\" y1=\"{bottom}\" y2=\"{:.1}\"/>", bottom + 4.0),
        );
        put(
            out,
            &format!(
                "<text class=\"tick\" text-anchor=\"middle\" x=\"{px:.1}\" y=\"{:.1}\">{}</text>",
                bottom + 18.0,
                x.label(tick)
            ),
        );
    }
    let middle = (LEFT + right) / 2.0;
    put(
        out,
        &format!(
            "<text class=\"axis\" text-anchor=\"middle\" x=\"{middle}\" y=\"{:.1}\">{}</text>",
            HEIGHT - 8.0,
            escaped(&plot.x)
        ),
    );
    let middle = (TOP + bottom) / 2.0;
    put(
        out,
        &format!(
            "<text class=\"axis\" text-anchor=\"middle\" transform=\"translate(16 {middle}) rotate(-90)\">{}</text>",
            escaped(&plot.y)
        ),
    );
}

fn draw(out: &mut String, series: &Series, at: &impl Fn(&[f64; 2]) -> (f64, f64)) {
    let colour = series.colour % COLOURS;
    let name = escaped(&series.name);
    let places: Vec<(f64, f64)> = series.points.iter().map(at).collect();
    match series.mark {
        Mark::Dots => {
            put(out, &format!("<g class=\"dots c{colour}\">"));
            for ((px, py), [x, y]) in places.iter().zip(&series.points) {
                put(
                    out,
                    &format!(
                        "<circle cx=\"{px:.1}\" cy=\"{py:.1}\" r=\"3.2\"><title>{name}: {x:.0}, {y:.3}</title></circle>"
                    ),
                );
            }
            out.push_str("</g>");
        }
        Mark::Line | Mark::Steps => {
            let mut path = String::new();
            for (place, (px, py)) in places.iter().enumerate() {
                let command = if place == 0 { "M" } else { "L" };
                match places.get(place.wrapping_sub(1)) {
                    Some((_, before)) if series.mark == Mark::Steps => {
                        put(&mut path, &format!("L{px:.1} {before:.1}L{px:.1} {py:.1}"))
                    }
                    Some(_) | None => put(&mut path, &format!("{command}{px:.1} {py:.1}")),
                }
            }
            put(out, &format!("<path class=\"line c{colour}\" d=\"{path}\"><title>{name}</title></path>"));
        }
    }
}

/// Appends; writing to a text cannot fail.
fn put(out: &mut String, text: &str) {
    let _ = write!(out, "{text}");
}

/// Text inside of SVG and its attributes.
pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;").replace('\'', "&#39;")
}
