//! What the library said when it refused something, as part of the fault: which rule, what helps, the lines themselves.
//!
//! The library warns of much that goes well, so warnings are left out.

use std::path::Path;

use npuc::{Code, Diagnostic};

use crate::vendor_log::{Weight, decode};

/// How many lines of a log a fault gives.
const LOG_LINES: usize = 12;

/// The line by which a worker puts an error into its log.
pub(super) fn error_line(status: u64) -> String {
    format!("QNN error {}", status & 0xffff)
}

/// The fault with what is known of the lines that the library said meanwhile. `log` is the file that keeps them, if one does.
pub(super) fn explain(fault: Diagnostic, said: &str, log: Option<&Path>) -> Diagnostic {
    let of_vendor = fault.code == Code::VendorRefusal || fault.code == Code::ToolFailed;
    if !of_vendor || said.trim().is_empty() {
        return fault;
    }
    let findings = decode(said);
    let weight = findings.iter().map(|finding| finding.weight).min().filter(|weight| *weight != Weight::Note);
    let mut fault = fault;
    let mut helps: Vec<String> = Vec::new();
    for finding in findings.iter().filter(|finding| Some(finding.weight) == weight) {
        if let Some(limit) = &finding.limit {
            fault.need.get_or_insert_with(|| limit.clone());
        }
        let actual = finding.actual.as_ref().map(|actual| format!(" ({actual})")).unwrap_or_default();
        helps.push(format!("QNN: {}{actual}: {}", finding.message, finding.meaning));
        helps.extend(finding.remedies.iter().map(ToString::to_string));
    }
    let mut complaints: Vec<&str> = Vec::new();
    for line in said.lines().filter(|line| is_complaint(line)).map(str::trim) {
        if !complaints.contains(&line) {
            complaints.push(line);
        }
    }
    let shown = &complaints[complaints.len().saturating_sub(LOG_LINES)..];
    helps.extend(shown.iter().map(|line| format!("log: {line}")));
    helps.extend(log.map(|log| format!("`npuc explain {}` tells the whole answer", log.display())));
    for help in helps {
        if !fault.help.contains(&help) {
            fault = fault.help(help);
        }
    }
    fault
}

/// Whether a line is more than a warning. The reasons of a validation have no mark.
fn is_complaint(line: &str) -> bool {
    // The library says these of everything that goes well.
    let noise = line.contains("unexpected GraphHtpSettings option") || line.contains("# LIBNATIVE");
    !(noise || line.contains("<W>") || line.contains("WARNING") || line.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines of QNN 2.51.
    #[test]
    fn only_errors_explain_a_refusal() {
        for (said, need, helps) in [
            (
                " <W> Sanitizing the value for hvx_threads and setting to default\n # LIBNATIVE: none\n <E> unexpected GraphHtpSettings option 66\n",
                None,
                &[][..],
            ),
            (
                "WARNING:No registered op found for 0x1 'q::QNN_Cast'\n[4294967295] has incorrect Value 8, expected equal to \
                 4.\nOp specific validation failed.\nOp specific validation failed.\nQNN error 3110\n",
                Some("equal to 4"),
                &[
                    "QNN: the validation refuses a value of an operation (3110) (8): ",
                    "log: [4294967295] has incorrect Value 8, expected equal to 4.",
                    "log: Op specific validation failed.",
                    "log: QNN error 3110",
                ][..],
            ),
            (
                "graph_prepare.cc:211::ERROR:could not create op: q::QNN_CastInt4ToInt8_cp\nQNN error 1002\n",
                None,
                &[
                    "QNN: an operation cannot be created (q::QNN_CastInt4ToInt8_cp): ",
                    "block-wise 4-bit projections are taken as Conv2d of one pixel, not as FullyConnected",
                    "log: QNN error 1002",
                ][..],
            ),
            (
                " <E> Shared weights buffer isn't supported on this platform\nQNN error 1000\n",
                None,
                &[
                    "QNN: a context binary of graphs with shared weights does not load on x86: ",
                    "test on the host with a twin that does not share weights",
                ][..],
            ),
        ] {
            let fault = explain(Diagnostic::error(Code::VendorRefusal, "QNN refuses a node"), said, None);
            assert_eq!(fault.need.as_deref(), need, "{fault}");
            for help in helps {
                assert!(fault.help.iter().any(|line| line.starts_with(help)), "{help}\n{fault}");
            }
            let lines = fault.help.iter().filter(|line| line.contains("validation failed")).count();
            assert!(lines <= 1, "{fault}");
            assert!(!helps.is_empty() || fault.help.is_empty(), "{fault}");
            let ours = explain(Diagnostic::error(Code::MissingTensor, "a weight is not there"), said, None);
            assert!(ours.help.is_empty(), "{ours}");
        }
    }
}
