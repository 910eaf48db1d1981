//! Misfits as SARIF 2.1.0 (OASIS), for editors and code hosts. Lines are those of the graphs that `--ir` writes.

use npuc::Code;
use npuc::diag::Severity;
use npuc::target::{Misfit, Place};
use serde_json::{Value, json};

/// The log of one run: one result for each misfit, at all its places.
pub(crate) fn log(misfits: &[Misfit]) -> Value {
    let mut codes: Vec<Code> = misfits.iter().map(|misfit| misfit.code).collect();
    codes.sort_unstable();
    codes.dedup();
    let rules: Vec<Value> = codes.iter().map(|code| rule(*code)).collect();
    let results: Vec<Value> = misfits.iter().map(|misfit| result(misfit, &codes)).collect();
    json!({
        "$schema": "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": { "driver": { "name": "npuc", "version": env!("CARGO_PKG_VERSION"), "rules": rules } },
            "columnKind": "unicodeCodePoints",
            "results": results,
        }],
    })
}

fn rule(code: Code) -> Value {
    let title = code.page().lines().nth(2).unwrap_or_default();
    json!({ "id": code.name(), "shortDescription": { "text": title }, "help": { "text": code.page(), "markdown": code.page() } })
}

fn result(misfit: &Misfit, codes: &[Code]) -> Value {
    let level = match misfit.severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
    };
    let remedies: String = misfit.remedies.iter().map(|remedy| format!("\nhelp: {remedy}")).collect();
    let text = format!(
        "{}\nunit: {}\nlimit: {}\nactual: {}\nsource: {} ({}){remedies}",
        misfit.message,
        misfit.unit,
        misfit.limit,
        misfit.actual,
        misfit.source,
        misfit.grade.name()
    );
    json!({
        "ruleId": misfit.code.name(),
        "ruleIndex": codes.iter().position(|code| *code == misfit.code),
        "level": level,
        "message": { "text": text },
        "locations": misfit.places.first().map(location).into_iter().collect::<Vec<_>>(),
        "relatedLocations": misfit.places.iter().skip(1).map(location).collect::<Vec<_>>(),
        "properties": misfit,
    })
}

fn location(place: &Place) -> Value {
    json!({
        "physicalLocation": {
            "artifactLocation": { "uri": format!("{}.ir", place.graph) },
            "region": { "startLine": place.line, "snippet": { "text": place.text } },
        },
        "logicalLocations": [{ "fullyQualifiedName": place.path }],
    })
}
