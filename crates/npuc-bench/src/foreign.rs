//! Reads the results of other tools through a [`Mapping`] of their fields.

use std::fs;

use npuc::{Code, Diagnostic, Error, Result};
use serde_json::Value;

use crate::chain::claimed;
use crate::json::{reason, shortened};
use crate::mapping::{Field, Mapping, Rows, Unit};
use crate::read::{Line, LineFault, Malformed, Scan, scan};
use crate::record::{Class, Status};
use crate::results::{self, Form, Request, Results, Times, Token};

/// Reads results of whatever form, told by the content unless there is a mapping.
///
/// Errors: the file cannot be read or has no form that is known; a mapping of npuc's own file, or one with a path that finds nothing;
/// every field that is not what its mapping says, with its line.
pub fn read(path: &std::path::Path, mapping: Option<&Mapping>) -> Result<Results> {
    let bytes = fs::read(path)
        .map_err(|e| Diagnostic::error(Code::Unreadable, format!("cannot read the results: {e}")).file(path))?;
    let read_as = |form: Form, mapping: &Mapping| requests(path, &bytes, form, mapping).map_err(|e| e.in_file(path));
    match (mapping, is_own(&bytes)) {
        (Some(_), true) => {
            let fault = Diagnostic::error(Code::BadArgument, "the file is of npuc itself and says what its fields are");
            let fault = fault.file(path).subject("--map").need("a file of another tool");
            Err(fault.help("read it without --map").into())
        }
        (None, true) => {
            header(&bytes).map_err(|e| e.in_file(path))?;
            results::read(path)
        }
        (Some(mapping), false) => read_as(Form::Mapped, mapping),
        (None, false) => {
            let (form, mapping) = form(&bytes).map_err(|e| e.in_file(path))?;
            read_as(form, &mapping)
        }
    }
}

/// Whether some line is one of npuc's, be it damaged.
fn is_own(bytes: &[u8]) -> bool {
    let is_claimed = |line: &[u8]| std::str::from_utf8(line).is_ok_and(|line| claimed(line).is_some());
    let is_kind = |line: &[u8]| {
        let value: Option<Value> = line.starts_with(b"{").then(|| serde_json::from_slice(line).ok()).flatten();
        value.is_some_and(|value| {
            let is_kind = ["header", "request", "end"].map(Value::from).contains(&value["kind"]);
            is_kind && (value.get("prev").is_some() || value.get("plan").is_some())
        })
    };
    bytes.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii).any(|line| is_claimed(line) || is_kind(line))
}

/// Errors: no line is a header that can be read; with what is wrong with the first line that could be one.
fn header(bytes: &[u8]) -> Result<()> {
    let Scan { lines, faults, torn, .. } = scan(bytes);
    if lines.iter().any(|(_, line)| matches!(line, Line::Header(_))) {
        return Ok(());
    }
    let fault = Diagnostic::error(Code::BadRun, "the file has no header that can be read");
    let fault = fault.need("a result file of `npuc bench`").help("see docs/workload.md for the forms that are read");
    let malformed = faults.iter().find_map(|(line, fault)| match fault {
        LineFault::Malformed(why) => Some((*line, why.to_string())),
        LineFault::Edited | LineFault::Displaced { .. } | LineFault::Repeated { .. } => None,
    });
    let torn = torn.map(|torn| (torn.line, format!("a torn line of {} bytes", torn.bytes)));
    Err(match malformed.or(torn) {
        Some((line, why)) => fault.line(line).have(why).into(),
        None => fault.into(),
    })
}

/// The form of a file by its content, and its mapping.
fn form(bytes: &[u8]) -> Result<(Form, Mapping)> {
    let mut lines = bytes.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
    let whole: serde_json::Result<Value> = serde_json::from_slice(bytes);
    let first: Option<Value> = lines.next().and_then(|line| serde_json::from_slice(line).ok());
    let has = |value: Option<&Value>, key: &str| value.is_some_and(|value| value.get(key).is_some());
    let object = whole.as_ref().ok();
    if has(object, "ttfts") && has(object, "itls") {
        return Ok((Form::Vllm, Mapping::vllm()));
    }
    if let Some(benchmarks) = object.and_then(|value| value.get("benchmarks")?.as_array()) {
        if benchmarks.len() == 1 {
            return Ok((Form::GuideLlm, Mapping::guidellm()));
        }
        let fault =
            Diagnostic::error(Code::BadRun, "the file has several benchmarks").need("one").have(benchmarks.len());
        let help = "say which and what it has, e.g. --map requests=benchmarks[1].requests.successful[] --map ttft_ms=…";
        return Err(fault.help(help).into());
    }
    if has(first.as_ref(), "token_trace") {
        return Ok((Form::Trace, Mapping::trace()));
    }
    let fault = Diagnostic::error(Code::BadRun, "the form of the file is not known")
        .need("results of `npuc bench`, a line a request with token_trace, or JSON of vLLM or GuideLLM")
        .help("say where its fields are with --map field=path, see docs/workload.md");
    Err(match (whole, first) {
        (Err(error), None) => fault.line(error.line().max(1)).have(reason(&error)).into(),
        (Ok(_), _) | (Err(_), Some(_)) => fault.into(),
    })
}

/// What a request has at the paths of a mapping.
struct Row {
    line: usize,
    /// By field of the mapping, without nulls.
    values: Vec<Vec<Value>>,
    /// By field of the mapping, whether there is something at the path, be it a null.
    is_there: Vec<bool>,
}

fn requests(path: &std::path::Path, bytes: &[u8], form: Form, mapping: &Mapping) -> Result<Results> {
    let rows = rows(bytes, form, mapping)?;
    match form {
        Form::Mapped => all_paths_found(mapping, &rows)?,
        Form::Npuc | Form::Trace | Form::Vllm | Form::GuideLlm => {}
    }
    let (mut faults, mut requests, mut line_faults) = (Vec::new(), Vec::new(), Vec::new());
    let says_status = mapping.fields.iter().any(|(field, _)| matches!(field, Field::Status | Field::Error));
    for row in &rows {
        let line = row.line;
        if row.values.iter().all(Vec::is_empty) {
            line_faults.push((line, LineFault::Malformed(Malformed::Empty)));
            continue;
        }
        let fields = Fields { mapping, row };
        let read = request(line, &fields).and_then(|request| Ok((contradiction(&request, &fields)?, request)));
        match read {
            Ok((contradiction, request)) => {
                let contradiction = contradiction.map(Malformed::Contradictory);
                let no_status = (says_status && !fields.has_status()).then_some(Malformed::NoStatus);
                line_faults.extend(
                    contradiction.into_iter().chain(no_status).map(|fault| (line, LineFault::Malformed(fault))),
                );
                requests.push(request);
            }
            Err(error) => faults.extend(error.diagnostics().iter().cloned().map(|fault| fault.line(line))),
        }
    }
    Error::check(faults)?;
    if requests.is_empty() {
        let fault = Diagnostic::error(Code::BadRun, "the file has no request");
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
        line_faults,
        torn: None,
    })
}

fn rows(bytes: &[u8], form: Form, mapping: &Mapping) -> Result<Vec<Row>> {
    let malformed = |e: serde_json::Error| {
        Diagnostic::error(Code::BadRun, "the file is not JSON").line(e.line().max(1)).have(reason(&e))
    };
    let owned = |values: Vec<&Value>| values.into_iter().cloned().collect::<Vec<Value>>();
    let row = |line: usize, root: &Value| Row {
        line,
        values: mapping.fields.iter().map(|(_, path)| owned(path.values(root))).collect(),
        is_there: mapping.fields.iter().map(|(_, path)| !path.all(root).is_empty()).collect(),
    };
    match &mapping.rows {
        Rows::Lines => {
            let mut rows = Vec::new();
            for (place, line) in bytes.split(|&byte| byte == b'\n').enumerate() {
                if line.iter().all(u8::is_ascii_whitespace) {
                    continue;
                }
                let root: Value = serde_json::from_slice(line).map_err(|e| malformed(e).line(place + 1))?;
                rows.push(row(place + 1, &root));
            }
            Ok(rows)
        }
        Rows::At(path) => {
            let whole: Value = serde_json::from_slice(bytes).map_err(malformed)?;
            let roots = path.values(&whole);
            if form == Form::Mapped && (roots.is_empty() || roots.iter().any(|root| root.is_array())) {
                let fault = Diagnostic::error(Code::BadArgument, "the path of the requests gives no objects");
                let have = if roots.is_empty() { "nothing" } else { "a list" };
                let fault = fault.subject("--map").need("objects: runs[] where runs is a list of them");
                return Err(fault.have(format!("{have} at `{path}`")).into());
            }
            Ok(roots.into_iter().enumerate().map(|(place, root)| row(place + 1, root)).collect())
        }
        Rows::Columns => columns(&serde_json::from_slice(bytes).map_err(malformed)?, mapping),
    }
}

fn columns(whole: &Value, mapping: &Mapping) -> Result<Vec<Row>> {
    let columns: Vec<Vec<&Value>> = mapping.fields.iter().map(|(_, path)| path.all(whole)).collect();
    let rows = columns.iter().map(Vec::len).max().unwrap_or(0);
    if let Some(short) = columns.iter().find(|column| column.len() != rows && !column.is_empty()) {
        let fault = Diagnostic::error(Code::BadRun, "the lists of the file differ in length");
        return Err(fault.need(format!("{rows} elements")).have(short.len()).into());
    }
    let cell = |column: &[&Value], place: usize| match column.get(place) {
        Some(Value::Null) | None => Vec::new(),
        Some(Value::Array(elements)) => elements.clone(),
        Some(value) => vec![(*value).clone()],
    };
    let row = |place: usize| Row {
        line: place + 1,
        values: columns.iter().map(|column| cell(column, place)).collect(),
        is_there: columns.iter().map(|column| !column.is_empty()).collect(),
    };
    Ok((0..rows).map(row).collect())
}

/// A path of a user that finds nothing in the whole file is mistyped.
fn all_paths_found(mapping: &Mapping, rows: &[Row]) -> Result<()> {
    let is_found = |place: usize, field: Field| {
        rows.iter().any(|row| if field.is_time() { !row.values[place].is_empty() } else { row.is_there[place] })
    };
    let missing = mapping.fields.iter().enumerate().filter(|(place, (field, _))| !is_found(*place, *field));
    let faults = missing.map(|(_, (_, path))| {
        let requests = rows.len();
        let message = format!("the path matched nothing in {requests} requests");
        Diagnostic::error(Code::BadArgument, message).subject("--map").have(path)
    });
    Error::check(faults.collect())
}

/// A request's values by field.
struct Fields<'a> {
    mapping: &'a Mapping,
    row: &'a Row,
}

impl Fields<'_> {
    /// The values of the fields that `which` takes and that are there.
    fn lists<T>(&self, which: impl Fn(Field) -> Option<T>) -> impl Iterator<Item = (T, &[Value])> {
        let fields = self.mapping.fields.iter().zip(&self.row.values);
        fields.filter_map(move |((field, _), values)| {
            let kind = which(*field)?;
            (!values.is_empty()).then_some((kind, values.as_slice()))
        })
    }

    /// The values of the first of them.
    fn list<T>(&self, which: impl Fn(Field) -> Option<T>) -> Option<(T, Vec<Value>)> {
        self.lists(which).next().map(|(kind, values)| (kind, values.to_vec()))
    }

    fn maps_commits(&self) -> bool {
        self.mapping.fields.iter().any(|(field, _)| matches!(field, Field::Commit(_)))
    }

    fn has_status(&self) -> bool {
        let fields = self.mapping.fields.iter().zip(self.row.values.iter().zip(&self.row.is_there));
        fields.into_iter().any(|((field, _), (values, is_there))| match field {
            Field::Status => !values.is_empty(),
            // A null is the error of a request that did not fail.
            Field::Error => *is_there,
            Field::Id
            | Field::Dataset
            | Field::PromptTokens
            | Field::CompletionTokens
            | Field::OutputTokens
            | Field::TokenIndex
            | Field::TokenId
            | Field::Commit(_)
            | Field::Start(_)
            | Field::End(_)
            | Field::FirstToken(_)
            | Field::LastToken(_)
            | Field::Ttft(_)
            | Field::Itl(_)
            | Field::Wall(_) => false,
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
        // A list of tokens that is not there is one without tokens: no count of tokens may pass for them.
        (None, _, None) if last.is_none() && fields.maps_commits() => Times::Tokens(Vec::new()),
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
        start_wall_ns: None,
        wall_ns: fields.time("wall", unit_of!(Wall))?,
        times,
        prefill: Vec::new(),
        samples: Vec::new(),
    })
}

/// What in a request cannot be, and the audit cannot see, for it knows of one TTFT only.
fn contradiction(request: &Request, fields: &Fields<'_>) -> Result<Option<String>> {
    const APART_NS: i64 = 1_000_000;
    let has_start = fields.time("start", unit_of!(Start))?.is_some();
    for (unit, values) in fields.lists(unit_of!(Ttft)) {
        let Some(value) = values.first() else { continue };
        let said = ns("ttft", unit, value)?;
        let ms = |ns: i64| ns as f64 / 1e6;
        if said < 0 {
            return Ok(Some(format!("TTFT is negative: {} ms", ms(said))));
        }
        if let Some(ttft) = request.ttft_ns()
            && (said - ttft).abs() > APART_NS
        {
            return Ok(Some(format!("TTFT is given as {} ms, by the other times it is {} ms", ms(said), ms(ttft))));
        }
        if let Some(first) = request.commits_ns().first()
            && !has_start
            && (1..said - APART_NS).contains(first)
        {
            return Ok(Some(format!("TTFT is {} ms, the first token is at {} ms", ms(said), ms(*first))));
        }
    }
    Ok(None)
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
