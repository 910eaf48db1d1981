//! Fields that some requests have and others do not: what was not looked at in these.

use crate::read::{LineFault, Malformed};
use crate::results::{Request, Results, Times, Token};

use super::{Book, Check};

/// A field's check, its name and whether a request has it.
type Looked = (Check, &'static str, fn(&Request) -> bool);

const LOOKED: &[Looked] = &[
    (Check::Duplicates, "id", |request| request.id.is_some()),
    (Check::Tokens, "completion_tokens", |request| request.completion_tokens.is_some()),
    (Check::Tokens, "output_tokens", |request| request.output_tokens.is_some()),
    (Check::Indices, "places of tokens", |request| all_tokens(request, |token| token.index.is_some())),
    (Check::Times, "start and no TTFT", |request| is_empty(request) || request.start_ns.is_some()),
    (Check::Times, "times of tokens", |request| is_empty(request) || !request.commits_ns().is_empty()),
    (Check::WallTime, "second clock", |request| is_empty(request) || request.wall_ns.is_some()),
    (Check::Drift, "length of the prompt", |request| request.prompt_tokens.is_some()),
];

pub(super) fn gaps(results: &Results, book: &mut Book) {
    let mut told = |check: Check, name: &str, without: &[usize], of: usize| {
        if let Some(first) = without.first() {
            let count = without.len();
            let place = if count == 1 { format!("line {first}") } else { format!("the first in line {first}") };
            book.unchecked(check, format!("{count} of {of} requests have no {name}, {place}"));
        }
    };
    let of = results.complete().count();
    for (check, name, has) in LOOKED {
        let without: Vec<usize> = results.complete().filter(|request| !has(request)).map(|r| r.line).collect();
        // What no request has is told by the check itself.
        if results.complete().any(|request| !is_empty(request) && has(request)) {
            told(*check, name, &without, of);
        }
    }
    let is_silent = |fault: &LineFault| match fault {
        LineFault::Malformed(Malformed::NoStatus) => true,
        LineFault::Malformed(Malformed::Unreadable(_) | Malformed::Empty | Malformed::Contradictory(_))
        | LineFault::Edited
        | LineFault::Displaced { .. }
        | LineFault::Repeated { .. } => false,
    };
    let silent = results.line_faults.iter().filter(|(_, fault)| is_silent(fault));
    let silent: Vec<usize> = silent.map(|(line, _)| *line).collect();
    told(Check::Status, "status and count as complete", &silent, results.requests.len());
}

/// An answer without tokens has nothing to look at.
fn is_empty(request: &Request) -> bool {
    request.tokens() == Some(0)
}

fn all_tokens(request: &Request, has: fn(&Token) -> bool) -> bool {
    match &request.times {
        Times::Tokens(tokens) => tokens.iter().all(has),
        Times::Pieces(_) | Times::Ends { .. } | Times::Absent => is_empty(request),
    }
}
