//! Times: rising within a request, one request after the other, and the same by two clocks.

use crate::record::Status;
use crate::results::{Form, Request, Results, Times};

use super::{Book, Check};

/// How far two clocks may differ over a request: the wall clock is slewed by up to 500 ppm and read beside the other one.
const WALL_RELATIVE: f64 = 0.01;
const WALL_NS: f64 = 20e6;
/// A wall clock that is further from the other one than this between two requests was set.
const SET_NS: u64 = 1_000_000_000;
/// An answer that ends later than this after its last token is noted.
const LATE_NS: i64 = 1_000_000_000;

pub(super) fn times(results: &Results, book: &mut Book) {
    let (mut timed, mut walled) = (false, false);
    for request in &results.requests {
        timed |= rising(request, book);
        ends(request, book);
        walled |= wall(request, book);
    }
    if !timed {
        book.unchecked(Check::Times, "the file has no times of tokens");
    }
    if !walled {
        book.unchecked(Check::WallTime, "the file has no second clock");
    }
    match results.form {
        Form::Npuc => {
            serial(results, book);
            steps(results, book);
        }
        Form::Trace | Form::Vllm | Form::GuideLlm | Form::Mapped => {
            book.unchecked(Check::Serial, "the file does not say that requests ran one after the other");
        }
    }
}

fn rising(request: &Request, book: &mut Book) -> bool {
    let mut fault = |message: String| book.fault(Check::Times, request.line, format!("{}: {message}", request.name()));
    let commits = request.commits_ns();
    let strictly = match &request.times {
        Times::Tokens(_) => true,
        Times::Pieces(_) | Times::Ends { .. } | Times::Absent => false,
    };
    let is_wrong = |pair: &[i64]| if strictly { pair[1] <= pair[0] } else { pair[1] < pair[0] };
    if let Some(place) = commits.windows(2).position(is_wrong) {
        let (before, after) = (commits[place], commits[place + 1]);
        fault(format!("token {} is at {after} ns, the one before at {before} ns", place + 1));
    }
    if let (Some(first), Some(start)) = (commits.first(), request.start_ns)
        && *first <= start
    {
        fault(format!("the first token is at {first} ns, the start at {start} ns"));
    }
    if let (Some(last), Some(end)) = (commits.last(), request.end_ns)
        && end < *last
    {
        fault(format!("the end is at {end} ns, the last token at {last} ns"));
    }
    prefill(request, &commits, &mut fault);
    !commits.is_empty()
}

/// First and last token of an answer of one are the same.
fn ends(request: &Request, book: &mut Book) {
    match (&request.times, request.tokens()) {
        (Times::Ends { first_ns, last_ns }, Some(tokens)) if tokens < 2 && first_ns != last_ns => {
            let message = format!("the first token is at {first_ns} ns, the last at {last_ns} ns, of {tokens} in all");
            book.fault(Check::Times, request.line, format!("{}: {message}", request.name()));
        }
        (Times::Tokens(_) | Times::Pieces(_) | Times::Ends { .. } | Times::Absent, _) => {}
    }
}

/// What only npuc records: every complete request has steps of its prompt, which have room for what they take, and ends soon after its
/// last token.
fn steps(results: &Results, book: &mut Book) {
    for request in results.complete() {
        let mut fault =
            |message: String| book.fault(Check::Times, request.line, format!("{}: {message}", request.name()));
        if request.prefill.is_empty() {
            fault("the prompt has no steps".into());
        }
        if let Some(step) = request.prefill.iter().find(|step| step.valid > step.tokens) {
            fault(format!("a step of the prompt took {} tokens and has room for {}", step.valid, step.tokens));
        }
        if let (Some(last), Some(end)) = (request.commits_ns().last().copied(), request.end_ns)
            && end.saturating_sub(last) > LATE_NS
        {
            let late = (end - last) as f64 / 1e9;
            let message = format!("{}: the end is {late:.1} s after the last token", request.name());
            book.note(Check::Times, request.line, message);
        }
    }
}

/// Steps of the prompt take all its tokens, between the start and the first token.
fn prefill(request: &Request, commits: &[i64], fault: &mut impl FnMut(String)) {
    let ends: Vec<i64> = request.prefill.iter().map(|step| i64::try_from(step.end_ns).unwrap_or(i64::MAX)).collect();
    if ends.windows(2).any(|pair| pair[1] <= pair[0]) {
        fault("the prompt's steps do not end one after the other".into());
    }
    if let (Some(first), Some(start)) = (ends.first(), request.start_ns)
        && *first <= start
    {
        fault(format!("the first step of the prompt ends at {first} ns, the start is at {start} ns"));
    }
    if let (Some(last), Some(first)) = (ends.last(), commits.first())
        && last > first
    {
        fault(format!("the last step of the prompt ends at {last} ns, the first token is at {first} ns"));
    }
    let taken: u64 = request.prefill.iter().map(|step| step.valid as u64).fold(0, u64::saturating_add);
    if let Some(prompt) = request.prompt_tokens
        && request.status == Status::Complete
        && !ends.is_empty()
        && taken != prompt
    {
        fault(format!("the prompt's steps took {taken} tokens, the prompt has {prompt}"));
    }
}

/// TTFT and all intervals, which add up to the time of the last token, against the wall clock.
fn wall(request: &Request, book: &mut Book) -> bool {
    let (Some(wall), Some(start), Some(last)) =
        (request.wall_ns, request.start_ns, request.commits_ns().last().copied())
    else {
        return false;
    };
    let own = (last - start) as f64;
    let most = WALL_NS + WALL_RELATIVE * own.abs();
    if (wall as f64 - own).abs() > most {
        let [own, wall, most] = [own, wall as f64, most].map(|ns| ns / 1e6);
        let message = format!(
            "TTFT and intervals add up to {own:.1} ms, the wall clock says {wall:.1} ms, more than {most:.1} ms apart"
        );
        book.fault(Check::WallTime, request.line, format!("{}: {message}", request.name()));
    }
    true
}

fn serial(results: &Results, book: &mut Book) {
    for pair in results.requests.windows(2) {
        let (before, after) = (&pair[0], &pair[1]);
        if before.segment == after.segment
            && let (Some(end), Some(start)) = (before.end_ns, after.start_ns)
            && start < end
        {
            let message = format!("{} begins at {start} ns, the one before ends at {end} ns", after.name());
            book.fault(Check::Serial, after.line, message);
        }
        wall_between(before, after, book);
    }
}

/// Whether somebody set the wall clock between two requests of a segment; no figure is made of it.
fn wall_between(before: &Request, after: &Request, book: &mut Book) {
    let passed = |from: Option<i64>, to: Option<i64>| to?.checked_sub(from?);
    let wall = passed(before.start_wall_ns, after.start_wall_ns);
    let own = passed(before.start_ns, after.start_ns);
    if let (true, Some(wall), Some(own)) = (before.segment == after.segment, wall, own)
        && wall.abs_diff(own) > SET_NS
    {
        let by = (wall as f64 - own as f64) / 1e9;
        let message = format!("{}: the wall clock was set by {by:+.1} s since the request before", after.name());
        book.note(Check::WallTime, after.line, message);
    }
}
