//! Reads the results of other tools through a [`Mapping`] of their fields.

use std::fs;

use npuc::{Code, Diagnostic, Error, Result};
use serde_json::Value;

use crate::chain::claimed;
use crate::json::shortened;
use crate::mapping::{Field, Mapping, Path, Rows, Unit};
use crate::record::{Class, Status};
use crate::results::{self, Form, Request, Results, Times, Token};

/// Reads results of whatever form, told by the content unless there is a mapping.
///
/// Errors: the file cannot be read or has no form that is known; every field that is not what its mapping says, with its line.
pub fn read(path: &std::path::Path, mapping: Option<&Mapping>) -> Result<Results> {
    let bytes = fs::read(path)
        .map_err(|e| Diagnostic::error(Code::Unreadable, format!("cannot read the results: {e}")).file(path))?;
    let (form, mapping) = match mapping {
        Some(mapping) => (Form::Mapped, mapping.clone()),
        None => match form(&bytes).map_err(|e| e.in_file(path))? {
            Form::Npuc => return results::read(path),
            Form::Trace => (Form::Trace, Mapping::trace()),
            Form::Vllm => (Form::Vllm, Mapping::vllm()),
            Form::GuideLlm => (Form::GuideLlm, Mapping::guidellm()),
            Form::Mapped => unreachable!("only a mapping makes it"),
        },
    };
    let requests = requests(&bytes, &mapping).map_err(|e| e.in_file(path))?;
    if requests.is_empty() {
        let fault = Diagnostic::error(Code::BadRun, "the file has no request").file(path);
        return Err(fault.need(format!("requests in the form {}", form.name())).into());
    }
    Ok(Results {
        path: path.to_path_buf(),
        form,
        class: Class::Unstated,
        measured_on: "unstated".into(),
        headers: Vec::new(),
        requests,
        ends: Vec::new(),
        planned: None,
        line_faults: Vec::new(),
        torn: None,
    })
}

/// The form of a file by its content.
fn form(bytes: &[u8]) -> Result<Form> {
    let mut lines = bytes.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
    let is_npuc = |line: &[u8]| std::str::from_utf8(line).is_ok_and(|line| claimed(line).is_some());
    if lines.clone().any(is_npuc) {
        return Ok(Form::Npuc);
    }
    let whole: Option<Value> = serde_json::from_slice(bytes).ok();
    let first: Option<Value> = lines.next().and_then(|line| serde_json::from_slice(line).ok());
    let has = |value: &Option<Value>, key: &str| value.as_ref().is_some_and(|value| value.get(key).is_some());
    if has(&whole, "ttfts") && has(&whole, "itls") {
        return Ok(Form::Vllm);
    }
    if let Some(benchmarks) = whole.as_ref().and_then(|value| value.get("benchmarks")?.as_array()) {
        if benchmarks.len() == 1 {
            return Ok(Form::GuideLlm);
        }
        let fault =
            Diagnostic::error(Code::BadRun, "the file has several benchmarks").need("one").have(benchmarks.len());
        let help = "say which and what it has, e.g. --map requests=benchmarks[1].requests.successful[] --map ttft_ms=…";
        return Err(fault.help(help).into());
    }
    if has(&first, "token_trace") {
        return Ok(Form::Trace);
    }
    Err(Diagnostic::error(Code::BadRun, "the form of the file is not known")
        .need("results of `npuc bench`, a line a request with token_trace, or JSON of vLLM or GuideLLM")
        .help("say where its fields are with --map field=path, see docs/workload.md")
        .into())
}

fn requests(bytes: &[u8], mapping: &Mapping) -> Result<Vec<Request>> {
    let malformed = |e: serde_json::Error| {
        Diagnostic::error(Code::BadRun, "the file is not JSON").line(e.line()).have(e.to_string())
    };
    let mut faults = Vec::new();
    let mut found = Vec::new();
    let mut push = |line: usize, get: &dyn Fn(&Path) -> Vec<Value>| match request(line, &Fields { mapping, get }) {
        Ok(request) => found.push(request),
        Err(error) => faults.extend(error.diagnostics().iter().cloned().map(|fault| fault.line(line))),
    };
    let owned = |values: Vec<&Value>| values.into_iter().cloned().collect::<Vec<Value>>();
    match &mapping.rows {
        Rows::Lines => {
            for (place, line) in bytes.split(|&byte| byte == b'\n').enumerate() {
                if line.iter().all(u8::is_ascii_whitespace) {
                    continue;
                }
                let row: Value = serde_json::from_slice(line).map_err(|e| malformed(e).line(place + 1))?;
                push(place + 1, &|path| owned(path.values(&row)));
            }
        }
        Rows::At(rows) => {
            let whole: Value = serde_json::from_slice(bytes).map_err(malformed)?;
            for (place, row) in rows.values(&whole).into_iter().enumerate() {
                push(place + 1, &|path| owned(path.values(row)));
            }
        }
        Rows::Columns => {
            let whole: Value = serde_json::from_slice(bytes).map_err(malformed)?;
            let columns: Vec<(&Path, Vec<&Value>)> =
                mapping.fields.iter().map(|(_, path)| (path, path.all(&whole))).collect();
            let rows = columns.iter().map(|(_, column)| column.len()).max().unwrap_or(0);
            if let Some((_, short)) = columns.iter().find(|(_, column)| column.len() != rows && !column.is_empty()) {
                let fault = Diagnostic::error(Code::BadRun, "the lists of the file differ in length");
                return Err(fault.need(format!("{rows} elements")).have(short.len()).into());
            }
            for place in 0..rows {
                push(place + 1, &|path| {
                    let column = columns.iter().find(|(other, _)| *other == path);
                    match column.and_then(|(_, column)| column.get(place)) {
                        Some(Value::Null) | None => Vec::new(),
                        Some(Value::Array(elements)) => elements.clone(),
                        Some(value) => vec![(*value).clone()],
                    }
                });
            }
        }
    }
    Error::check(faults)?;
    Ok(found)
}

/// A request's values by field.
struct Fields<'a> {
    mapping: &'a Mapping,
    get: &'a dyn Fn(&Path) -> Vec<Value>,
}

impl Fields<'_> {
    /// The values of the first field that `which` takes and that is there.
    fn list<T>(&self, which: impl Fn(Field) -> Option<T>) -> Option<(T, Vec<Value>)> {
        self.mapping.fields.iter().find_map(|(field, path)| {
            let kind = which(*field)?;
            let values = (self.get)(path);
            (!values.is_empty()).then_some((kind, values))
        })
    }

    fn one<T>(&self, name: &str, which: impl Fn(Field) -> Option<T>) -> Result<Option<(T, Value)>> {
        match self.list(which) {
            None => Ok(None),
            Some((kind, mut values)) if values.len() == 1 => Ok(values.pop().map(|value| (kind, value))),
            Some((_, values)) => {
                let fault = Diagnostic::error(Code::BadRun, "a field has several values where one is needed");
                Err(fault.subject(name).have(values.len()).into())
            }
        }
    }

    fn text(&self, name: &str, wanted: Field) -> Result<Option<String>> {
        let value = self.one(name, |field| (field == wanted).then_some(()))?;
        Ok(value.map(|((), value)| value.as_str().map_or_else(|| value.to_string(), str::to_string)))
    }

    fn count(&self, name: &str, wanted: Field) -> Result<Option<u64>> {
        let value = self.one(name, |field| (field == wanted).then_some(()))?;
        let count = |value: Value| value.as_u64().ok_or_else(|| wrong(name, "a whole number", &value).into());
        value.map(|((), value)| count(value)).transpose()
    }

    fn time(&self, name: &str, which: impl Fn(Field) -> Option<Unit>) -> Result<Option<i64>> {
        self.one(name, which)?.map(|(unit, value)| ns(name, unit, &value)).transpose()
    }

    fn times(&self, name: &str, which: impl Fn(Field) -> Option<Unit>) -> Result<Option<Vec<i64>>> {
        let list = self.list(which);
        list.map(|(unit, values)| values.iter().map(|value| ns(name, unit, value)).collect()).transpose()
    }
}

fn wrong(name: &str, need: &str, have: &Value) -> Diagnostic {
    let fault = Diagnostic::error(Code::BadRun, "a field is not what its mapping says").subject(name);
    fault.need(need).have(shortened(&have.to_string()))
}

fn ns(name: &str, unit: Unit, value: &Value) -> Result<i64> {
    let ns = value.as_number().and_then(|number| unit.ns(number));
    ns.ok_or_else(|| wrong(name, "a time as a number, at most 2^61 ns", value).into())
}

macro_rules! unit_of {
    ($kind:ident) => {
        |field| if let Field::$kind(unit) = field { Some(unit) } else { None }
    };
}

fn request(line: usize, fields: &Fields<'_>) -> Result<Request> {
    let ttft = fields.time("ttft", unit_of!(Ttft))?;
    let start = fields.time("start", unit_of!(Start))?;
    let itl = fields.times("itl", unit_of!(Itl))?;
    let commits = fields.times("commit", unit_of!(Commit))?;
    let first = fields.time("first_token", unit_of!(FirstToken))?;
    let last = fields.time("last_token", unit_of!(LastToken))?;
    let output_tokens = fields.count("output_tokens", Field::OutputTokens)?;
    let times = match (commits, ttft, itl) {
        // An answer without tokens has no times, though some tools write a 0 for them.
        (None, _, _) if output_tokens == Some(0) => Times::Absent,
        (Some(commits), _, _) => Times::Tokens(tokens(&commits, fields)?),
        (None, Some(ttft), Some(itl)) => Times::Pieces(added(start.unwrap_or(0), ttft, &itl)?),
        (None, Some(ttft), None) if first.is_none() && last.is_none() => {
            Times::Pieces(added(start.unwrap_or(0), ttft, &[])?)
        }
        (None, _, _) => match (first.or_else(|| Some(start? + ttft?)), last) {
            (Some(first_ns), Some(last_ns)) => Times::Ends { first_ns, last_ns },
            (Some(first_ns), None) => Times::Pieces(vec![first_ns]),
            (None, _) => Times::Absent,
        },
    };
    let first_ns = match &times {
        Times::Tokens(tokens) => tokens.first().map(|token| token.ns),
        Times::Pieces(times) => times.first().copied(),
        Times::Ends { first_ns, .. } => Some(*first_ns),
        Times::Absent => None,
    };
    Ok(Request {
        line,
        segment: 0,
        index: None,
        id: fields.text("id", Field::Id)?,
        dataset: fields.text("dataset", Field::Dataset)?,
        status: status(fields)?,
        finish: None,
        prompt_tokens: fields.count("prompt_tokens", Field::PromptTokens)?,
        prompt_sha256: None,
        max_new_tokens: None,
        ignore_eos: None,
        completion_tokens: fields.count("completion_tokens", Field::CompletionTokens)?,
        output_tokens,
        start_ns: start.or_else(|| Some(first_ns? - ttft?)),
        end_ns: fields.time("end", unit_of!(End))?,
        wall_ns: fields.time("wall", unit_of!(Wall))?,
        times,
        prefill: Vec::new(),
        samples: Vec::new(),
    })
}

/// Times from the first one and what lies between; npuc adds in i64 and refuses what leaves it.
fn added(start: i64, ttft: i64, itl: &[i64]) -> Result<Vec<i64>> {
    let mut times = Vec::with_capacity(1 + itl.len());
    let mut now = Some(start);
    for step in std::iter::once(&ttft).chain(itl) {
        now = now.and_then(|now| now.checked_add(*step)).filter(|now| now.abs() <= 1 << 62);
        let fault =
            || Diagnostic::error(Code::BadRun, "the times of a request add up to more than 2^62 ns").subject("itl");
        times.push(now.ok_or_else(fault)?);
    }
    Ok(times)
}

fn tokens(commits: &[i64], fields: &Fields<'_>) -> Result<Vec<Token>> {
    let whole = |name: &str, wanted: Field| -> Result<Option<Vec<i64>>> {
        let Some(((), values)) = fields.list(|field| (field == wanted).then_some(())) else { return Ok(None) };
        if values.len() != commits.len() {
            let fault = Diagnostic::error(Code::BadRun, "the trace has tokens without the field").subject(name);
            return Err(fault.need(format!("{} values", commits.len())).have(values.len()).into());
        }
        let number = |value: &Value| value.as_i64().ok_or_else(|| wrong(name, "a whole number", value).into());
        values.iter().map(number).collect::<Result<_>>().map(Some)
    };
    let (places, ids) = (whole("token_index", Field::TokenIndex)?, whole("token_id", Field::TokenId)?);
    let id = |id: &i64| u32::try_from(*id).map_err(|_| wrong("token_id", "a token id", &Value::from(*id)).into());
    let ids = ids.map(|ids| ids.iter().map(id).collect::<Result<Vec<u32>>>()).transpose()?;
    let token = |(place, &ns): (usize, &i64)| Token {
        index: places.as_ref().map(|places| places[place]),
        id: ids.as_ref().map(|ids| ids[place]),
        ns,
    };
    Ok(commits.iter().enumerate().map(token).collect())
}

fn status(fields: &Fields<'_>) -> Result<Status> {
    let good = match fields.one("status", |field| (field == Field::Status).then_some(()))? {
        Some(((), Value::Bool(good))) => good,
        Some(((), value)) => {
            let word = value.as_str().map(str::to_ascii_lowercase);
            word.is_some_and(|word| {
                ["complete", "completed", "success", "successful", "succeeded", "ok", "done", "finished"]
                    .contains(&word.as_str())
            })
        }
        None => fields.text("error", Field::Error)?.is_none_or(|error| error.is_empty()),
    };
    Ok(if good { Status::Complete } else { Status::Failed })
}
