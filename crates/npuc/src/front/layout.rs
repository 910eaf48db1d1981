//! Where tensor data lies in a file: the check that safetensors and GGUF share.
//!
//! A file whose tensors follow each other but end too late was cut short; any other layout that leaves
//! the file, overlaps or has forbidden holes was written wrong. The two get different codes.

use crate::diag::{Code, Diagnostic};

/// The bytes of one tensor, as offsets in the file.
pub(super) struct Span<'a> {
    pub(super) name: &'a str,
    pub(super) start: usize,
    pub(super) end: usize,
}

/// How a format places tensor data.
#[derive(Clone, Copy)]
pub(super) enum Packing {
    /// Back to back up to the end of the file, as safetensors demands.
    Exact,
    /// Each start is a multiple of this, counted from the start of the data; gaps are allowed (GGUF).
    Aligned(usize),
}

/// The faults of a layout: `spans` lie in the data that begins at `data_start` of a file of `file_bytes`.
/// Every span begins at or after `data_start` and ends at or after its start.
pub(super) fn faults(spans: &mut [Span], data_start: usize, file_bytes: usize, packing: Packing) -> Vec<Diagnostic> {
    spans.sort_by_key(|span| (span.start, span.end));
    let mut faults = Vec::new();
    let mut end = data_start;
    let mut previous = "the header";
    let mut packed = true;
    for span in spans.iter() {
        let bytes = format!("bytes {} to {} of the file", span.start, span.end);
        let fault = |message| Diagnostic::error(Code::BadOffsets, message).subject(span.name).have(&bytes);
        let next = match packing {
            Packing::Exact => end,
            Packing::Aligned(alignment) => match (end - data_start).checked_next_multiple_of(alignment) {
                Some(offset) => data_start.saturating_add(offset),
                None => usize::MAX,
            },
        };
        packed &= span.start == next;
        if span.start < end {
            faults.push(
                fault("the data of two tensors overlap")
                    .need(format!("a start at {end}, where {previous} ends, or later")),
            );
        } else if let Packing::Exact = packing
            && span.start > end
        {
            faults.push(
                fault("there is a hole before the data of a tensor")
                    .need(format!("a start at {end}, where {previous} ends")),
            );
        } else if let Packing::Aligned(alignment) = packing
            && !(span.start - data_start).is_multiple_of(alignment)
        {
            faults.push(
                fault("the data of a tensor is not aligned")
                    .need(format!("a start at {data_start} plus a multiple of {alignment} bytes")),
            );
        }
        if span.end >= end {
            (end, previous) = (span.end, span.name);
        }
    }
    faults.extend(past_the_end(spans, data_start, file_bytes, packed));
    if let Packing::Exact = packing
        && faults.is_empty()
        && end < file_bytes
    {
        faults.push(
            Diagnostic::error(Code::BadOffsets, "there are bytes after the data of the last tensor")
                .need(format!("{end} bytes"))
                .have(format!("{file_bytes} bytes")),
        );
    }
    faults
}

/// The faults of the spans that end after the file does; `packed` says that all follow each other.
fn past_the_end(spans: &[Span], data_start: usize, file_bytes: usize, packed: bool) -> Vec<Diagnostic> {
    let beyond = spans.iter().filter(|span| span.end > file_bytes);
    if !packed {
        return beyond
            .map(|span| {
                Diagnostic::error(Code::BadOffsets, "the data of a tensor leaves the file")
                    .subject(span.name)
                    .need(format!("an end within the data, bytes {data_start} to {file_bytes} of the file"))
                    .have(format!("bytes {} to {} of the file", span.start, span.end))
            })
            .collect();
    }
    let names: Vec<&str> = beyond.map(|span| span.name).collect();
    let Some(last) = spans.last().filter(|_| !names.is_empty()) else {
        return Vec::new();
    };
    vec![
        Diagnostic::error(Code::TruncatedFile, "the file ends before the data of its tensors does")
            .subject(super::name_list(&names))
            .need(format!("{} bytes", last.end))
            .have(format!("{file_bytes} bytes"))
            .help("copy or download the file again"),
    ]
}
