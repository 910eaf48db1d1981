//! `npuc toolchain`: the tools that npuc drives, fetched and listed.

use npuc::Result;
use npuc_run::toolchain::{Installed, Tool, find, install};
use serde::Serialize;

use crate::args::ToolchainCommand;
use crate::output::Output;

#[derive(Serialize)]
struct Row {
    name: &'static str,
    summary: &'static str,
    installed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    folder: Option<String>,
    /// Why it cannot be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    missing: Option<String>,
}

/// Runs the command.
pub(crate) fn command(command: &ToolchainCommand, output: Output) -> Result<()> {
    match command {
        ToolchainCommand::Install { tool } => {
            let tool = Tool::parse(tool)?;
            let installed = install(tool, &mut |line| output.note(line))?;
            let row = row(tool, Ok(installed));
            output.result(&row, &render(&row))
        }
        ToolchainCommand::List => {
            let rows: Vec<Row> = Tool::ALL.iter().map(|&tool| row(tool, find(tool))).collect();
            output.result(&rows, &rows.iter().map(render).collect::<String>())
        }
    }
}

fn row(tool: Tool, found: Result<Installed>) -> Row {
    let (folder, missing) = match found {
        Ok(installed) => (installed.folders.first().map(|folder| folder.display().to_string()), None),
        Err(error) => (None, error.diagnostics().first().map(|fault| fault.message.clone())),
    };
    Row { name: tool.name(), summary: tool.summary(), installed: missing.is_none(), folder, missing }
}

fn render(row: &Row) -> String {
    let state = match (&row.folder, &row.missing) {
        (Some(folder), _) => format!("installed in {folder}"),
        (None, Some(why)) => format!("{why}; `npuc toolchain install {}`", row.name),
        (None, None) => String::new(),
    };
    format!("{:<10}{}\n{:<10}{state}\n", row.name, row.summary, "")
}
