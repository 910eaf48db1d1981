//! Answers: counts of tokens, their places and ids, and where an answer ends.

use npuc_run::generate::Finish;

use crate::record::{Plan, Status};
use crate::results::{Request, Results, Times, Token};

use super::{Book, Check};

pub(super) fn answers(results: &Results, book: &mut Book) {
    let plan = results.headers.first().map(|(_, header)| &header.plan);
    let (mut counted, mut placed, mut ids) = (false, false, false);
    for request in &results.requests {
        counted |= counts(request, book);
        let Times::Tokens(tokens) = &request.times else { continue };
        placed |= indices(request, tokens, book);
        ids |= tokens.iter().any(|token| token.id.is_some());
        if let Some(plan) = plan {
            known_ids(request, tokens, plan, book);
            ends(request, tokens, plan, book);
        }
    }
    if !counted {
        book.unchecked(Check::Tokens, "the file has no two counts of an answer's tokens");
    }
    if !placed {
        book.unchecked(Check::Indices, "the file has no places of tokens");
    }
    if plan.is_none() || !ids {
        let why = "the file does not say the vocabulary, the ids that end an answer, or its tokens";
        book.unchecked(Check::Ids, why);
        book.unchecked(Check::Eos, why);
    }
}

/// All counts of the answer's tokens; whether there were two to compare.
fn counts(request: &Request, book: &mut Book) -> bool {
    let traced = match &request.times {
        Times::Tokens(tokens) => Some(tokens.len() as u64),
        Times::Pieces(_) | Times::Ends { .. } | Times::Absent => None,
    };
    let named = [
        ("completion_tokens", request.completion_tokens),
        ("output_tokens", request.output_tokens),
        ("tokens in the trace", traced),
    ];
    let have: Vec<(&str, u64)> = named.into_iter().filter_map(|(name, count)| Some((name, count?))).collect();
    if have.windows(2).any(|pair| pair[0].1 != pair[1].1) {
        let all: Vec<String> = have.iter().map(|(name, count)| format!("{name} {count}")).collect();
        book.fault(Check::Tokens, request.line, format!("{}: counts differ: {}", request.name(), all.join(", ")));
    }
    if let (Times::Pieces(pieces), Some(tokens)) = (&request.times, request.tokens())
        && pieces.len() as u64 > tokens
    {
        let message = format!("{}: {} pieces of an answer of {tokens} tokens", request.name(), pieces.len());
        book.fault(Check::Tokens, request.line, message);
    }
    if let (Some(tokens), Some(most)) = (request.tokens(), request.max_new_tokens)
        && tokens > most
    {
        book.fault(
            Check::Tokens,
            request.line,
            format!("{}: {tokens} tokens, at most {most} were asked for", request.name()),
        );
    }
    if request.status == Status::Complete && request.tokens() == Some(0) {
        book.note(
            Check::Tokens,
            request.line,
            format!("{}: the answer has no token and so no latency", request.name()),
        );
    }
    have.len() > 1
}

/// Places 0, 1, 2, …; whether there were any.
fn indices(request: &Request, tokens: &[Token], book: &mut Book) -> bool {
    let wrong =
        tokens.iter().enumerate().find(|(place, token)| token.index.is_some_and(|index| index != *place as i64));
    if let Some((place, token)) = wrong {
        let have = token.index.unwrap_or_default();
        book.fault(Check::Indices, request.line, format!("{}: token {place} is counted as {have}", request.name()));
    }
    tokens.iter().any(|token| token.index.is_some())
}

fn known_ids(request: &Request, tokens: &[Token], plan: &Plan, book: &mut Book) {
    let vocab = plan.model.vocab;
    let wrong = tokens.iter().enumerate().find(|(_, token)| token.id.is_some_and(|id| id as usize >= vocab));
    if let Some((place, token)) = wrong {
        let have = token.id.unwrap_or_default();
        book.fault(
            Check::Ids,
            request.line,
            format!("{}: token {place} has the id {have}, ids are below {vocab}", request.name()),
        );
    }
}

/// An answer ends at the first id that ends one, unless these are ignored, or at the most tokens asked for.
fn ends(request: &Request, tokens: &[Token], plan: &Plan, book: &mut Book) {
    let mut fault = |message: String| book.fault(Check::Eos, request.line, format!("{}: {message}", request.name()));
    let is_end = |token: &Token| token.id.is_some_and(|id| plan.model.eos.contains(&id));
    let ignored = request.ignore_eos == Some(true);
    if let Some(place) = tokens.iter().position(is_end).filter(|place| !ignored && place + 1 < tokens.len()) {
        fault(format!("token {place} ends an answer, and {} follow", tokens.len() - place - 1));
    }
    let ends_so = tokens.last().is_some_and(is_end);
    let full = request.max_new_tokens == Some(tokens.len() as u64);
    match (request.status, request.finish) {
        (Status::Failed, None) => {}
        (Status::Failed, Some(finish)) => fault(format!("it failed, and says how it ended: {}", word(finish))),
        (Status::Complete, None) => fault("it is complete, and does not say how it ended".into()),
        (Status::Complete, Some(Finish::Eos)) if !ends_so || ignored => {
            fault("it says that an id ended it, which the last token does not do".into());
        }
        (Status::Complete, Some(Finish::MaxNew)) if !full => {
            let most = request.max_new_tokens.map_or_else(String::new, |most| format!("{most} "));
            fault(format!("it says that all {most}tokens were there, which are {}", tokens.len()));
        }
        (Status::Complete, Some(Finish::MaxNew)) if ends_so && !ignored => {
            fault("it ends with an id that ends an answer, and says that it does not".into());
        }
        (Status::Complete, Some(Finish::Eos | Finish::MaxNew)) => {}
        (Status::Complete, Some(finish @ (Finish::StopText | Finish::ContextFull))) => {
            fault(format!("a measured answer cannot end so: {}", word(finish)));
        }
    }
}

fn word(finish: Finish) -> &'static str {
    match finish {
        Finish::Eos => "eos",
        Finish::StopText => "stop-text",
        Finish::MaxNew => "max-new",
        Finish::ContextFull => "context-full",
    }
}
