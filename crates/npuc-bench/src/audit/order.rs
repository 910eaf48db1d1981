//! Lines and their order: the chain, segments, the order of requests, what is missing, and the workload.

use std::collections::{BTreeMap, BTreeSet};

use crate::read::{LineFault, Malformed};
use crate::record::Status;
use crate::results::{Form, Results, State};
use crate::resume::diagnostic;
use crate::runner::prompt_sha256;
use crate::workload::Workload;

use super::{Book, Check};

pub(super) fn chain(results: &Results, book: &mut Book) {
    match results.form {
        Form::Npuc => {}
        Form::Trace | Form::Vllm | Form::GuideLlm | Form::Mapped => {
            book.unchecked(Check::Chain, format!("{} has no chain", results.form.name()));
        }
    }
    for (line, fault) in &results.line_faults {
        let check = match fault {
            LineFault::Malformed(Malformed::Unreadable(_)) | LineFault::Edited | LineFault::Displaced { .. } => {
                Check::Chain
            }
            LineFault::Repeated { .. } => Check::Duplicates,
            LineFault::Malformed(Malformed::Empty) => {
                book.fault(Check::Status, *line, "the line has no field of a request");
                continue;
            }
            LineFault::Malformed(Malformed::Contradictory(what)) => {
                book.fault(Check::Times, *line, format!("the request contradicts itself: {what}"));
                continue;
            }
            LineFault::Malformed(Malformed::NoStatus) => continue,
        };
        let told = diagnostic(*line, fault);
        let have = told.have.map_or(String::new(), |have| format!(": {have}"));
        book.fault(check, *line, format!("{}{have}", told.message));
    }
    if let Some(torn) = &results.torn {
        book.fault(Check::Chain, torn.line, format!("the line is torn: {} bytes that are no whole line", torn.bytes));
    }
}

/// Headers count the segments, all have one plan, and what stands between belongs to the header before.
pub(super) fn structure(results: &Results, book: &mut Book) {
    if results.form != Form::Npuc {
        return book.unchecked(Check::Structure, format!("{} has no headers", results.form.name()));
    }
    let Some((_, first)) = results.headers.first() else { return };
    for (place, (line, header)) in results.headers.iter().enumerate() {
        if header.segment != place {
            book.fault(
                Check::Structure,
                *line,
                format!("the header is of segment {}, here is {place}", header.segment),
            );
        }
        if header.plan != first.plan {
            book.fault(Check::Structure, *line, "the segment has another plan than the first one");
        }
        if let Some(dropped) = &header.dropped {
            let message =
                format!("{} bytes of a torn line {} were cut off before this segment", dropped.bytes, dropped.line);
            book.note(Check::Structure, *line, message);
        }
        if place > 0 {
            let boot = if header.boot_id == first.boot_id {
                "the same start of the system"
            } else {
                "another start of the system"
            };
            book.note(Check::Structure, *line, format!("segment {place} begins, on {boot}"));
        }
    }
    for request in &results.requests {
        let before = results.headers.iter().rev().find(|(line, _)| *line < request.line);
        if before.is_none_or(|(_, header)| header.segment != request.segment) {
            let message =
                format!("{} says segment {}, which is not the one it stands in", request.name(), request.segment);
            book.fault(Check::Structure, request.line, message);
        }
    }
    let last =
        results.requests.iter().map(|request| request.line).chain(results.headers.iter().map(|(line, _)| *line)).max();
    for (place, (line, end)) in results.ends.iter().enumerate() {
        if place > 0 || last.is_some_and(|last| last > *line) {
            book.fault(Check::Structure, *line, "the run goes on after its last line, or has two of them");
        }
        let complete = results.complete().count();
        if end.complete != complete || end.segments != results.headers.len() {
            let need = format!("{complete} complete requests in {} segments", results.headers.len());
            book.fault(
                Check::Structure,
                *line,
                format!("the last line counts {} in {}, there are {need}", end.complete, end.segments),
            );
        }
    }
}

/// Each request once, in the order of the workload.
pub(super) fn order(results: &Results, book: &mut Book) {
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    let mut indices: BTreeMap<usize, usize> = BTreeMap::new();
    let mut last: Option<usize> = None;
    for request in results.complete() {
        let first = request.id.as_deref().and_then(|id| seen.insert(id, request.line));
        let first = first.or(request.index.and_then(|index| indices.insert(index, request.line)));
        if let Some(first) = first {
            book.fault(
                Check::Duplicates,
                request.line,
                format!("{} is there already, in line {first}", request.name()),
            );
            continue;
        }
        let Some(index) = request.index else { continue };
        let need = last.map_or(0, |last| last.wrapping_add(1));
        if index != need {
            book.fault(
                Check::Order,
                request.line,
                format!("{} has place {index} of the workload, here is {need}", request.name()),
            );
        }
        last = Some(index);
    }
    for request in results.requests.iter().filter(|request| request.status == Status::Failed) {
        book.note(Check::Status, request.line, format!("{} failed", request.name()));
    }
    if results.complete().all(|request| request.id.is_none()) {
        book.unchecked(Check::Duplicates, "the file has no ids");
    }
    if results.complete().all(|request| request.index.is_none()) {
        book.unchecked(
            Check::Order,
            "the file does not say places in a workload; --workload compares ids where there are any",
        );
    }
}

pub(super) fn complete(results: &Results, book: &mut Book) {
    match results.state() {
        State::Complete => {}
        State::Segmented { segments } => {
            book.note(
                Check::Complete,
                None,
                format!("the run has {segments} segments: statistics need --allow-incomplete"),
            );
        }
        State::Incomplete { complete, planned } if complete == planned => {
            book.fault(Check::Complete, None, "the run has no last line: it was killed, or the line was removed");
        }
        State::Incomplete { complete, planned } => {
            book.fault(Check::Complete, None, format!("the run is incomplete: {complete} of {planned} requests"));
        }
    }
    if results.planned.is_none() {
        book.unchecked(Check::Complete, "the file does not say how many requests there should be; failed ones count");
    }
}

pub(super) fn workload(results: &Results, workload: Option<&Workload>, book: &mut Book) {
    let Some(workload) = workload else {
        return book.unchecked(Check::Workload, "no workload was given (--workload)");
    };
    if let Some((line, header)) = results.headers.first()
        && header.plan.workload.sha256 != workload.sha256
    {
        let message = format!(
            "the run was of a workload with the hash {}, this one has {}",
            header.plan.workload.sha256, workload.sha256
        );
        book.fault(Check::Workload, *line, message);
    }
    if results.complete().all(|request| request.id.is_none()) {
        return book.unchecked(Check::Workload, "the file has no ids");
    }
    let planned = results.planned.unwrap_or(workload.jobs.len());
    let known: BTreeSet<&str> = results.complete().filter_map(|request| request.id.as_deref()).collect();
    for job in workload.jobs.iter().take(planned).filter(|job| !known.contains(job.id.as_str())) {
        book.fault(
            Check::Workload,
            None,
            format!("request `{}` of line {} of the workload is missing", job.id, job.line),
        );
    }
    let places: BTreeMap<&str, usize> =
        workload.jobs.iter().enumerate().map(|(place, job)| (job.id.as_str(), place)).collect();
    let mut last = None;
    for request in results.complete() {
        let Some(id) = &request.id else { continue };
        let Some(&place) = places.get(id.as_str()) else {
            book.fault(Check::Workload, request.line, format!("{} is not in the workload", request.name()));
            continue;
        };
        if last.is_some_and(|last| place <= last) || request.index.is_some_and(|index| index != place) {
            book.fault(Check::Workload, request.line, format!("{} is out of the workload's order", request.name()));
        }
        last = Some(place);
        let job = &workload.jobs[place];
        let mut differs = |what: &str, need: String, have: Option<String>| {
            if let Some(have) = have.filter(|have| *have != need) {
                book.fault(
                    Check::Workload,
                    request.line,
                    format!("{}: {what} is {have}, in the workload {need}", request.name()),
                );
            }
        };
        differs("the dataset", job.dataset.clone(), request.dataset.clone());
        differs("the prompt's length", job.prompt.len().to_string(), request.prompt_tokens.map(|n| n.to_string()));
        differs("the hash of the prompt", prompt_sha256(&job.prompt), request.prompt_sha256.clone());
        differs("max_new_tokens", job.max_new_tokens.to_string(), request.max_new_tokens.map(|n| n.to_string()));
        differs("ignore_eos", job.ignore_eos.to_string(), request.ignore_eos.map(|ignore| ignore.to_string()));
    }
}
