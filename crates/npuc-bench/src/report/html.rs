//! The report as one HTML file that needs nothing else: style and plots are in it, and there is no script.

use minijinja::value::{Serde, Value};
use minijinja::{AutoEscape, Environment, context};
use npuc::{Code, Diagnostic, Result};

use crate::results::Results;

use super::svg::{escaped, svg};
use super::{Report, plots, tables};

const TEMPLATE: &str = include_str!("report.html");

/// The page of a report over the runs it is of.
///
/// Errors: the template is at fault, which is npuc's.
pub fn html(report: &Report, runs: &[Results]) -> Result<String> {
    let plots: Vec<_> = plots::plots(report, runs)
        .iter()
        .filter_map(|plot| {
            let drawing = svg(plot);
            let names = plot.series.iter().filter(|series| !series.points.is_empty());
            let legend: Vec<_> =
                names.map(|series| context! { name => series.name.as_str(), colour => series.colour % 6 }).collect();
            (!drawing.is_empty()).then(|| context! { title => escaped(&plot.title), drawing, legend })
        })
        .collect();
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|_| AutoEscape::Html);
    let fault = |e: minijinja::Error| Diagnostic::error(Code::BadTemplate, format!("the report's page fails: {e}"));
    environment.add_template("report", TEMPLATE).map_err(fault)?;
    let page = environment.get_template("report").and_then(|template| {
        let (report, tables) = (Value::from(Serde(report)), Value::from(Serde(tables(report))));
        template.render(context! { report, tables, plots, version => env!("CARGO_PKG_VERSION") })
    });
    Ok(page.map_err(fault)?)
}
