//! Which fields of a foreign file say what: paths into JSON, given by `--map` or known for a form.

use std::fmt;
use std::mem::discriminant;
use std::str::FromStr;

use npuc::{Code, Diagnostic, Error, Result};
use serde_json::Value;

/// A way into JSON: names, `[n]` for an element, `[]` for every element; e.g. `requests[].trace[0].t`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path(Vec<Step>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Key(String),
    At(usize),
    Every,
}

impl Path {
    /// What is there, in order, without nulls.
    pub fn values<'a>(&self, root: &'a Value) -> Vec<&'a Value> {
        let mut found = self.all(root);
        found.retain(|value| !value.is_null());
        found
    }

    /// What is there, in order.
    pub fn all<'a>(&self, root: &'a Value) -> Vec<&'a Value> {
        let mut found = vec![root];
        for step in &self.0 {
            found = found
                .into_iter()
                .flat_map(|value| match step {
                    Step::Key(key) => value.get(key).into_iter().collect::<Vec<_>>(),
                    Step::At(place) => value.get(place).into_iter().collect(),
                    Step::Every => value.as_array().into_iter().flatten().collect(),
                })
                .collect();
        }
        found
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, step) in self.0.iter().enumerate() {
            match step {
                Step::Key(key) if place == 0 => f.write_str(key)?,
                Step::Key(key) => write!(f, ".{key}")?,
                Step::At(at) => write!(f, "[{at}]")?,
                Step::Every => f.write_str("[]")?,
            }
        }
        Ok(())
    }
}

impl FromStr for Path {
    type Err = Error;

    fn from_str(text: &str) -> Result<Path> {
        let bad = || {
            let fault = Diagnostic::error(Code::BadArgument, "a path into JSON is malformed").subject("--map");
            Error::from(fault.need("names with dots between, [] for every element, [n] for one: a.b[].c").have(text))
        };
        let mut steps = Vec::new();
        for part in text.split('.') {
            let (name, mut rest) = part.find('[').map_or((part, ""), |at| part.split_at(at));
            if name.is_empty() && (rest.is_empty() || !steps.is_empty()) {
                return Err(bad());
            }
            if !name.is_empty() {
                steps.push(Step::Key(name.to_string()));
            }
            while !rest.is_empty() {
                let (inside, after) = rest.strip_prefix('[').and_then(|rest| rest.split_once(']')).ok_or_else(bad)?;
                steps.push(match inside {
                    "" => Step::Every,
                    place => Step::At(place.parse().map_err(|_| bad())?),
                });
                rest = after;
            }
        }
        Ok(Path(steps))
    }
}

/// What a field says. Times have a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// The request's name.
    Id,
    /// Where the prompt is from.
    Dataset,
    /// `complete`, `completed`, `success`, `ok` or true; anything else is failed.
    Status,
    /// A text that is empty where the request did not fail.
    Error,
    /// Tokens of the prompt.
    PromptTokens,
    /// Tokens of the answer.
    CompletionTokens,
    /// Tokens of the answer, counted another way.
    OutputTokens,
    /// Places of the tokens.
    TokenIndex,
    /// Ids of the tokens.
    TokenId,
    /// Times of the tokens.
    Commit(Unit),
    /// When the request began.
    Start(Unit),
    /// When it had ended.
    End(Unit),
    /// When the first token was known.
    FirstToken(Unit),
    /// When the last token was known.
    LastToken(Unit),
    /// From the start to the first token.
    Ttft(Unit),
    /// From one piece of the answer to the next.
    Itl(Unit),
    /// How long the request took.
    Wall(Unit),
}

impl Field {
    /// Whether it is a time, or a length of time.
    pub const fn is_time(self) -> bool {
        match self {
            Field::Commit(_)
            | Field::Start(_)
            | Field::End(_)
            | Field::FirstToken(_)
            | Field::LastToken(_)
            | Field::Ttft(_)
            | Field::Itl(_)
            | Field::Wall(_) => true,
            Field::Id
            | Field::Dataset
            | Field::Status
            | Field::Error
            | Field::PromptTokens
            | Field::CompletionTokens
            | Field::OutputTokens
            | Field::TokenIndex
            | Field::TokenId => false,
        }
    }
}

/// A unit of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Nanoseconds.
    Ns,
    /// Microseconds.
    Us,
    /// Milliseconds.
    Ms,
    /// Seconds.
    S,
}

impl Unit {
    /// Nanoseconds of a number in this unit; `None` past 2^61 ns (73 years), where differences could overflow.
    pub fn ns(self, number: &serde_json::Number) -> Option<i64> {
        let factor = match self {
            Unit::Ns => 1,
            Unit::Us => 1_000,
            Unit::Ms => 1_000_000,
            Unit::S => 1_000_000_000,
        };
        const MOST: i64 = 1 << 61;
        let exact = number.as_i64().map(|whole| whole.checked_mul(factor));
        let ns = exact.unwrap_or_else(|| {
            let ns = (number.as_f64()? * factor as f64).round();
            (ns.abs() <= MOST as f64).then_some(ns as i64)
        });
        ns.filter(|ns| (-MOST..=MOST).contains(ns))
    }
}

/// The names of fields, for messages.
pub const FIELDS: &str = "requests, id, dataset, status, error, prompt_tokens, completion_tokens, output_tokens, token_index, \
                          token_id; and with _ns, _us, _ms or _s: commit, start, end, first_token, last_token, ttft, itl, wall";

fn field(name: &str) -> Option<Field> {
    let plain = match name {
        "id" => Some(Field::Id),
        "dataset" => Some(Field::Dataset),
        "status" => Some(Field::Status),
        "error" => Some(Field::Error),
        "prompt_tokens" => Some(Field::PromptTokens),
        "completion_tokens" => Some(Field::CompletionTokens),
        "output_tokens" => Some(Field::OutputTokens),
        "token_index" => Some(Field::TokenIndex),
        "token_id" => Some(Field::TokenId),
        _ => None,
    };
    plain.or_else(|| {
        let (name, unit) = name.rsplit_once('_')?;
        let unit = match unit {
            "ns" => Unit::Ns,
            "us" => Unit::Us,
            "ms" => Unit::Ms,
            "s" => Unit::S,
            _ => return None,
        };
        match name {
            "commit" => Some(Field::Commit(unit)),
            "start" => Some(Field::Start(unit)),
            "end" => Some(Field::End(unit)),
            "first_token" => Some(Field::FirstToken(unit)),
            "last_token" => Some(Field::LastToken(unit)),
            "ttft" => Some(Field::Ttft(unit)),
            "itl" => Some(Field::Itl(unit)),
            "wall" => Some(Field::Wall(unit)),
            _ => None,
        }
    })
}

/// The flag before that says the same field, be it in another unit.
fn given<'a>(name: &str, before: &'a [String]) -> Option<&'a String> {
    before.iter().find(|flag| {
        let other = flag.split_once('=').map_or("", |(other, _)| other.trim());
        match (field(name), field(other)) {
            (Some(new), Some(old)) => discriminant(&new) == discriminant(&old),
            (None, _) | (_, None) => name == "requests" && other == name,
        }
    })
}

/// Where the requests are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rows {
    /// A line each.
    Lines,
    /// The values of this path in one object.
    At(Path),
    /// One object has a list for every field; paths start at it and give an element for each request.
    Columns,
}

/// Where a file says what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Where the requests are.
    pub rows: Rows,
    /// Fields and their paths; of several for one field, which only known forms have, the first that is there counts.
    pub fields: Vec<(Field, Path)>,
}

impl Mapping {
    /// The mapping of `--map` flags, `field=path` each.
    ///
    /// Errors: an unknown field, a field that is given twice (times in two units too), a malformed path, no time at all.
    pub fn parse(flags: &[String]) -> Result<Mapping> {
        let mut mapping = Mapping { rows: Rows::Lines, fields: Vec::new() };
        let mut faults = Vec::new();
        for (place, flag) in flags.iter().enumerate() {
            let parsed = flag.split_once('=').map(|(name, path)| (name.trim(), path.trim()));
            if let Some(first) = parsed.and_then(|(name, _)| given(name, &flags[..place])) {
                let fault = Diagnostic::error(Code::BadArgument, "--map gives a field twice").subject("--map");
                faults.push(fault.need("one path for a field, in one unit").have(format!("{first} and {flag}")));
            }
            match parsed.map(|(name, path)| (name, field(name), path)) {
                Some(("requests", _, "columns")) => mapping.rows = Rows::Columns,
                Some(("requests", _, path)) => match path.parse() {
                    Ok(path) => mapping.rows = Rows::At(path),
                    Err(error) => faults.extend(error.diagnostics().iter().cloned()),
                },
                Some((_, Some(field), path)) => match path.parse() {
                    Ok(path) => mapping.fields.push((field, path)),
                    Err(error) => faults.extend(error.diagnostics().iter().cloned()),
                },
                Some((_, None, _)) | None => {
                    let fault = Diagnostic::error(Code::BadArgument, "--map has a field that npuc does not know");
                    faults.push(fault.subject("--map").need(format!("field=path, with one of {FIELDS}")).have(flag));
                }
            }
        }
        let has_times = mapping.fields.iter().any(|(field, _)| {
            matches!(field, Field::Commit(_) | Field::FirstToken(_) | Field::Ttft(_) | Field::Itl(_))
        });
        if faults.is_empty() && !has_times {
            let fault = Diagnostic::error(Code::BadArgument, "--map names no time of a token").subject("--map");
            faults.push(fault.need("one of commit, first_token, ttft and itl, with _ns, _us, _ms or _s"));
        }
        Error::check(faults)?;
        Ok(mapping)
    }

    fn known(rows: Rows, fields: &[&str]) -> Mapping {
        let split = |text: &&str| {
            let (name, path) = text.split_once('=').expect("a known mapping has fields and paths");
            (field(name).expect("a known field"), path.parse().expect("a known path"))
        };
        Mapping { rows, fields: fields.iter().map(split).collect() }
    }

    /// Lines with `status`, counts and `token_trace[]`.
    pub(crate) fn trace() -> Mapping {
        Mapping::known(
            Rows::Lines,
            &[
                "id=id",
                "id=request_id",
                "dataset=dataset",
                "status=status",
                "prompt_tokens=prompt_tokens",
                "completion_tokens=completion_tokens",
                "output_tokens=output_tokens",
                "token_index=token_trace[].token_index",
                "token_id=token_trace[].token_id",
                "commit_ns=token_trace[].device_commit_ns",
                "start_ns=device_start_ns",
                "start_ns=start_ns",
                "ttft_ns=ttft_ns",
                "ttft_ms=ttft_ms",
                "wall_ns=wall_ns",
                "wall_ms=wall_ms",
            ],
        )
    }

    /// One object whose lists have an element for each request; seconds.
    pub(crate) fn vllm() -> Mapping {
        Mapping::known(
            Rows::Columns,
            &[
                "prompt_tokens=input_lens[]",
                "output_tokens=output_lens[]",
                "ttft_s=ttfts[]",
                "itl_s=itls[]",
                "error=errors[]",
            ],
        )
    }

    /// The requests of the one benchmark of a report, in seconds since 1970. Names differ from version to version.
    pub(crate) fn guidellm() -> Mapping {
        Mapping::known(
            Rows::At("benchmarks[0].requests.successful[]".parse().expect("a known path")),
            &[
                "id=request_id",
                "prompt_tokens=prompt_tokens",
                "output_tokens=output_tokens",
                "start_s=start_time",
                "start_s=request_start_time",
                "start_s=info.timings.request_start",
                "first_token_s=first_token_time",
                "first_token_s=info.timings.first_token_iteration",
                "first_token_s=info.timings.first_iteration",
                "last_token_s=last_token_time",
                "last_token_s=info.timings.last_token_iteration",
                "last_token_s=info.timings.last_iteration",
                "end_s=end_time",
                "end_s=request_end_time",
                "end_s=info.timings.request_end",
                "ttft_ms=time_to_first_token_ms",
            ],
        )
    }
}
