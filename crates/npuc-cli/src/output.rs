//! What reaches the user: results on standard output, everything about the work on standard error.
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressFinish, ProgressStyle};
use npuc::{Code, Diagnostic, Error, Result};
use serde::Serialize;

/// A number of things, e.g. `1 hop`, `2 hops`.
pub(crate) fn count(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// How results are printed.
#[derive(Clone, Copy)]
pub(crate) struct Output {
    /// As one JSON object instead of text.
    pub(crate) json: bool,
}

#[derive(Serialize)]
struct Failure<'a> {
    errors: &'a [Diagnostic],
}

impl Output {
    /// Prints a result: the object with `--json`, the text otherwise.
    pub(crate) fn result(self, object: &impl Serialize, text: &str) -> Result<()> {
        if self.json {
            let json = serde_json::to_string_pretty(object).expect("results have only text keys");
            return self.text(&format!("{json}\n"));
        }
        self.text(text)
    }

    /// Prints text to standard output at once. A reader that has gone away ends the program: nobody is
    /// there for what would be computed next.
    pub(crate) fn text(self, text: &str) -> Result<()> {
        let mut out = io::stdout().lock();
        match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
            Err(error) => {
                Err(Diagnostic::error(Code::Unwritable, format!("cannot write to standard output: {error}")).into())
            }
        }
    }

    /// Prints a note about the work, unless the output is for a program.
    pub(crate) fn note(self, text: &str) {
        if !self.json {
            complain(text);
        }
    }

    /// Prints the faults that ended the work.
    pub(crate) fn error(self, error: &Error) {
        if self.json {
            let failure = Failure { errors: error.diagnostics() };
            let json = serde_json::to_string_pretty(&failure).expect("diagnostics have only text keys");
            if let Err(other) = self.text(&format!("{json}\n")) {
                complain(&other.to_string());
            }
        }
        complain(&error.to_string());
    }

    /// Prints warnings to standard error, unless the output is for a program, which finds them in its object.
    pub(crate) fn warnings(self, warnings: &[Diagnostic]) {
        for warning in warnings {
            self.note(&warning.to_string());
        }
    }

    /// A bar for bytes, shown only on a terminal.
    pub(crate) fn bytes_bar(self, what: &'static str) -> ProgressBar {
        let style = ProgressStyle::with_template("{msg} [{bar:30}] {bytes}/{total_bytes} {eta}");
        self.progress(what).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
    }

    /// A bar for steps of work, shown only on a terminal.
    pub(crate) fn steps_bar(self, what: &'static str) -> ProgressBar {
        let style = ProgressStyle::with_template("{msg} [{bar:30}] {pos}/{len} {elapsed} left {eta}");
        self.progress(what).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
    }

    /// A sign of life for work whose length is not known, shown only on a terminal, until it is dropped.
    pub(crate) fn spinner(self, what: &'static str) -> ProgressBar {
        let spinner = self.progress(what).with_finish(ProgressFinish::AndClear);
        spinner.enable_steady_tick(Duration::from_millis(100));
        spinner
    }

    fn progress(self, what: &'static str) -> ProgressBar {
        let hidden = self.json || !io::stderr().is_terminal();
        let target = if hidden { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        ProgressBar::with_draw_target(None, target).with_message(what)
    }
}

/// Prints to standard error; where that fails too, there is nobody left to tell.
fn complain(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Bytes for people, in binary units.
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    let mut value = count as f64;
    let mut unit = "B";
    for next in UNITS {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    if unit == "B" { format!("{count} B") } else { format!("{value:.1} {unit}") }
}

/// Bytes for people, with the number where that hides some.
pub(crate) fn exact_bytes(count: u64) -> String {
    if count < 1024 { bytes(count) } else { format!("{} ({count} bytes)", bytes(count)) }
}
