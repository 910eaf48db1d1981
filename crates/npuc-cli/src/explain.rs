//! `npuc explain`: the page of a diagnostic code.

use npuc::{Code, Diagnostic, Result};
use serde::Serialize;

use crate::args::ExplainArgs;
use crate::output::Output;

#[derive(Serialize)]
struct Page {
    code: Code,
    text: &'static str,
}

/// Runs the command.
pub(crate) fn command(args: &ExplainArgs, output: Output) -> Result<()> {
    let Some(name) = &args.code else {
        let title = |code: &Code| code.page().lines().nth(2).unwrap_or_default();
        let list: String = Code::ALL.iter().map(|code| format!("{:<26}{}\n", code.name(), title(code))).collect();
        return output.result(&Code::ALL, &list);
    };
    let code = Code::from_name(name).ok_or_else(|| {
        Diagnostic::error(Code::BadArgument, "there is no such code").have(name).help("list them with `npuc explain`")
    })?;
    output.result(&Page { code, text: code.page() }, code.page())
}
