//! Files of other tools: what they are taken for, what is read, what cannot be checked, what is refused.
#![allow(clippy::unwrap_used)]

use std::fs;

use npuc_bench::audit::{Check, Finding, Grade, Unchecked};
use npuc_bench::chain::GENESIS;
use npuc_bench::mapping::Mapping;
use npuc_bench::report::{Options, Report, report};
use npuc_bench::results::{Form, Results};
use npuc_bench::{audit, foreign};
use serde_json::{Value, json};

mod runs;

fn read(content: &str, map: &[&str]) -> npuc::Result<Results> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("foreign.json");
    fs::write(&path, content).unwrap();
    let map: Vec<String> = map.iter().map(|flag| flag.to_string()).collect();
    let mapping = if map.is_empty() { None } else { Some(Mapping::parse(&map)?) };
    foreign::read(&path, mapping.as_ref())
}

fn figures(results: Results) -> Report {
    report(&[results], Options { slo: None, allow_incomplete: true }).unwrap()
}

/// The format of the issue: TTFT is known only where the line says it.
fn trace(status: &str, completion: u64, output: u64, tokens: &[(i64, i64)], ttft_ms: Option<f64>) -> String {
    let tokens: Vec<Value> =
        tokens.iter().map(|(index, ns)| json!({"token_index": index, "device_commit_ns": ns})).collect();
    let mut line =
        json!({"status": status, "completion_tokens": completion, "output_tokens": output, "token_trace": tokens});
    if let Some(ms) = ttft_ms {
        line["ttft_ms"] = json!(ms);
    }
    format!("{line}\n")
}

#[test]
fn traces() {
    const MS: i64 = 1_000_000;
    let good = trace("completed", 3, 3, &[(0, 5 * MS), (1, 7 * MS), (2, 10 * MS)], Some(4.0));
    let results = read(&good.repeat(2), &[]).unwrap();
    assert_eq!((results.form, results.requests.len()), (Form::Trace, 2));
    let made = figures(results);
    let all = &made.runs[0].all;
    let near = |have: Option<f64>, need: f64| assert!((have.unwrap() - need).abs() < 1e-9, "{have:?}, need {need}");
    near(all.ttft_ms.map(|s| s.p50), 4.0);
    near(all.tpot_ms.map(|s| s.p50), 2.5);
    near(all.e2el_ms.map(|s| s.p50), 9.0);
    let cases = [
        ("good", good.clone(), None),
        ("counts", trace("completed", 3, 4, &[(0, 1), (1, 2), (2, 3)], None), Some((Check::Tokens, 2))),
        ("trace too short", trace("completed", 3, 3, &[(0, 1), (1, 2)], None), Some((Check::Tokens, 2))),
        ("a gap", trace("completed", 3, 3, &[(0, 1), (2, 2), (3, 3)], None), Some((Check::Indices, 2))),
        ("times stand", trace("completed", 2, 2, &[(0, 9), (1, 9)], None), Some((Check::Times, 2))),
        ("times fall", trace("completed", 2, 2, &[(0, 9), (1, -9)], None), Some((Check::Times, 2))),
    ];
    for (name, second, need) in cases {
        let results = read(&format!("{good}{second}"), &[]).unwrap();
        let audit = audit(&results, None);
        let faults = audit.findings.iter().filter(|finding| finding.grade == Grade::Fault);
        let have = faults.map(|finding| (finding.check, finding.line.unwrap())).next();
        assert_eq!(have, need, "{name}: {:?}", audit.findings);
        for check in [Check::Chain, Check::Ids, Check::Eos, Check::Serial, Check::Workload] {
            assert!(audit.unchecked.iter().any(|unchecked| unchecked.check == check), "{name}: {check:?} was not made");
        }
    }
    let results = read(&format!("{good}{}", trace("failed", 0, 0, &[], None)), &[]).unwrap();
    assert_eq!(results.complete().count(), 1);
    assert!(!audit(&results, None).is_clean(), "a request failed, so the run is not complete");
    let empty = read(&format!("{good}{}", trace("completed", 0, 0, &[], None)), &[]).unwrap();
    assert!(audit(&empty, None).is_clean());
    let made = figures(empty);
    assert_eq!((made.runs[0].all.requests, made.runs[0].all.empty_answers), (2, 1));
    assert_eq!(made.runs[0].all.ttft_ms.unwrap().count, 1, "an empty answer has no TTFT");
}

/// What the content of a foreign file cannot be: its lines, the flags, the check, the line and words of the fault.
const CONTRADICTIONS: &[(&str, &[&str], Check, usize, &str)] = &[
    (
        "{\"completion_tokens\":3,\"output_tokens\":3,\"token_trace\":[]}",
        &[],
        Check::Tokens,
        1,
        "3, output_tokens 3, tokens in the trace 0",
    ),
    (
        "{\"completion_tokens\":3,\"output_tokens\":3,\"token_trace\":null}",
        &[],
        Check::Tokens,
        1,
        "tokens in the trace 0",
    ),
    ("{\"output_tokens\":3,\"ttft_ms\":4,\"token_trace\":[]}", &[], Check::Tokens, 1, "tokens in the trace 0"),
    ("{\"token_trace\":[{\"device_commit_ns\":5}]}\n{}", &[], Check::Status, 2, "no field of a request"),
    (
        "{\"token_trace\":[{\"device_commit_ns\":5}]}\n{\"ttfts\":[1],\"itls\":[[1]]}",
        &[],
        Check::Status,
        2,
        "no field of a request",
    ),
    (
        "{\"ttfts\":[0.1,0.1],\"itls\":[[0.1],[0.1,0.1]],\"output_lens\":[2,1]}",
        &[],
        Check::Tokens,
        2,
        "3 pieces of an answer of 1 tokens",
    ),
    (
        "{\"start_ns\":1,\"ttft_ms\":9,\"token_trace\":[{\"device_commit_ns\":4000001}]}",
        &[],
        Check::Times,
        1,
        "TTFT is given as 9 ms",
    ),
    (
        "{\"ttft_ns\":4000000,\"ttft_ms\":9,\"token_trace\":[{\"device_commit_ns\":9000000}]}",
        &[],
        Check::Times,
        1,
        "TTFT is given as 9 ms",
    ),
    (
        "{\"start_ns\":1,\"ttft_ms\":-9,\"token_trace\":[{\"device_commit_ns\":4000001}]}",
        &[],
        Check::Times,
        1,
        "TTFT is negative",
    ),
    (
        "{\"ttft_ms\":9,\"token_trace\":[{\"device_commit_ns\":4000000}]}",
        &[],
        Check::Times,
        1,
        "the first token is at 4 ms",
    ),
    (
        "{\"n\":1,\"a\":1,\"b\":2}",
        &["output_tokens=n", "first_token_s=a", "last_token_s=b"],
        Check::Times,
        1,
        "the last at 2000000000 ns",
    ),
    (
        "{\"t\":5,\"a\":1,\"b\":2}",
        &["ttft_s=t", "first_token_s=a", "last_token_s=b"],
        Check::Times,
        1,
        "TTFT is 5000 ms",
    ),
];

#[test]
fn what_cannot_be_is_a_fault_of_its_line() {
    for (content, map, check, line, words) in CONTRADICTIONS {
        let audit = audit(&read(content, map).unwrap(), None);
        let is_it = |finding: &&Finding| finding.grade == Grade::Fault && finding.message.contains(words);
        let found = audit.findings.iter().find(is_it).map(|finding| (finding.check, finding.line));
        assert_eq!(found, Some((*check, Some(*line))), "{content}: {:?}", audit.findings);
    }
}

#[test]
fn what_some_requests_do_not_say_is_told() {
    let whole = json!({"id": "a", "status": "ok", "prompt_tokens": 3, "completion_tokens": 1, "output_tokens": 1, "start_ns": 1,
        "wall_ns": 8, "token_trace": [{"token_index": 0, "token_id": 1, "device_commit_ns": 9}]});
    type Take = fn(&mut Value);
    let without = |key: &'static str| -> Box<dyn Fn(&mut Value)> {
        Box::new(move |line: &mut Value| drop(line.as_object_mut().unwrap().remove(key)))
    };
    let of_token = |take: Take| -> Box<dyn Fn(&mut Value)> { Box::new(take) };
    let cases = [
        (without("id"), Check::Duplicates, "have no id"),
        (without("status"), Check::Status, "have no status"),
        (without("completion_tokens"), Check::Tokens, "have no completion_tokens"),
        (without("output_tokens"), Check::Tokens, "have no output_tokens"),
        (without("start_ns"), Check::Times, "have no start"),
        (without("wall_ns"), Check::WallTime, "have no second clock"),
        (without("prompt_tokens"), Check::Drift, "have no length"),
        (
            of_token(|line| line["token_trace"] = json!([{"token_id": 1, "device_commit_ns": 9}])),
            Check::Indices,
            "no places",
        ),
    ];
    let told = |content: &str, check: Check, words: &str| {
        let audit = audit(&read(content, &[]).unwrap(), None);
        let is_it = |unchecked: &&Unchecked| unchecked.check == check && unchecked.why.contains(words);
        (audit.is_clean(), audit.unchecked.iter().find(is_it).map(|unchecked| unchecked.why.clone()))
    };
    for (take, check, words) in cases {
        let mut line = whole.clone();
        line["id"] = json!("b");
        take(&mut line);
        let (is_clean, why) = told(&format!("{whole}\n{line}\n"), check, words);
        let why = why.unwrap_or_else(|| panic!("{line}: nothing is told of {check:?}"));
        assert!(is_clean && why.starts_with("1 of 2 requests") && why.ends_with("line 2"), "{line}: {why}");
        assert_eq!(told(&format!("{whole}\n"), check, words).1, None, "{check:?}: all requests say it");
    }
    let nulls =
        json!({"ttfts": [0.1, null, null], "itls": [[0.1], [], []], "output_lens": [2, 2, 0], "errors": ["", "", ""]});
    let (_, why) = told(&nulls.to_string(), Check::Times, "times of tokens");
    assert_eq!(why.as_deref(), Some("1 of 3 requests have no times of tokens, line 2"));
    let (_, why) = told(&nulls.to_string(), Check::WallTime, "of 3 requests");
    assert_eq!(why, None, "no request has a second clock");
}

#[test]
fn npucs_own_files_need_no_map() {
    let (_folder, path) = runs::whole(2);
    let lines = runs::lines(&path);
    let map = ["id=id", "start_ns=start_ns", "commit_ns=token_trace[].commit_ns"];
    let damaged = |line: &String| line.replacen(":", ": ", 1);
    for content in [lines.concat(), lines[..2].concat(), lines[1].clone(), lines.iter().map(damaged).collect()] {
        let error = read(&content, &map).unwrap_err().to_string();
        assert!(error.contains("bad-argument") && error.contains("is of npuc itself"), "{error}");
    }
    assert_eq!(read(&lines.concat(), &[]).unwrap().form, Form::Npuc);
}

#[test]
fn a_header_that_cannot_be_read_is_told_with_its_place() {
    let (_folder, path) = runs::whole(2);
    let lines = runs::lines(&path);
    type Change = fn(&mut Value);
    let cases: [(Change, &str); 6] = [
        (|header| header["schema"] = json!(2), "schema 2, this npuc reads 1"),
        (|header| header["segment"] = json!("x"), "`segment`: invalid type: string \"x\""),
        (
            |header| header["plan"]["model"]["vocab"] = json!(-1),
            "`plan.model.vocab`: invalid value: integer `-1`, expected a whole number",
        ),
        (|header| header["plan"]["model"] = json!(1), "`plan.model`: invalid type: integer `1`, expected an object"),
        (
            |header| {
                header["plan"]["back_end"] = json!("a \"b\": {");
                header["plan"]["threads"] = json!([]);
            },
            "`plan.threads`: invalid type",
        ),
        (|header| drop(header["plan"].as_object_mut().unwrap().remove("seed")), "missing field `seed`"),
    ];
    for (change, words) in cases {
        let (header, _) = runs::resealed(&lines[0], GENESIS, change);
        let error = read(&[header, lines[1].clone()].concat(), &[]).unwrap_err().to_string();
        assert!(error.contains("foreign.json:1") && error.contains(words), "{error}, need {words}");
    }
    let error = read(&lines[1..].concat(), &[]).unwrap_err().to_string();
    assert!(error.contains("no header"), "{error}");
}

#[test]
fn vllm() {
    let content = json!({
        "duration": 3.0, "completed": 3, "input_lens": [10, 20, 30, 5], "output_lens": [3, 4, 1, 0],
        "ttfts": [0.1, 0.2, 0.3, 0.0], "itls": [[0.01, 0.03], [0.02, 0.02], [], []], "errors": ["", "", "", "gone"],
    });
    let results = read(&content.to_string(), &[]).unwrap();
    assert_eq!((results.form, results.complete().count()), (Form::Vllm, 3));
    let all = figures(results).runs.remove(0).all;
    assert!((all.ttft_ms.unwrap().p50 - 200.0).abs() < 1e-6);
    // Four tokens in three pieces: the mean over tokens is of 40 ms / 3, the times between pieces are 20 ms.
    assert!((all.tpot_ms.unwrap().max - 20.0).abs() < 1e-6 && all.tpot_interval_ms.is_none());
    assert!((all.itl_ms.unwrap().p50 - 20.0).abs() < 1e-6 && all.itl_ms.unwrap().count == 4);
    assert_eq!(all.output_tokens, 8);
    let uneven = json!({"ttfts": [0.1], "itls": [[0.1], [0.2]]});
    assert!(read(&uneven.to_string(), &[]).unwrap_err().to_string().contains("differ in length"));
}

#[test]
fn guidellm() {
    let old = json!({"request_id": "a", "prompt_tokens": 4, "output_tokens": 3, "start_time": 1000.0, "first_token_time": 1000.5,
        "last_token_time": 1000.9, "end_time": 1001.0});
    let new = json!({"request_id": "b", "prompt_tokens": 4, "output_tokens": 3, "time_to_first_token_ms": 500.0,
        "info": {"timings": {"request_start": 1000.0, "first_token_iteration": 1000.5, "last_token_iteration": 1000.9, "request_end": 1001.0}}});
    for request in [old, new] {
        let content = json!({"benchmarks": [{"requests": {"successful": [request], "errored": [], "incomplete": []}}]});
        let results = read(&content.to_string(), &[]).unwrap();
        assert_eq!(results.form, Form::GuideLlm);
        assert!(audit(&results, None).is_clean());
        let all = figures(results).runs.remove(0).all;
        assert!((all.ttft_ms.unwrap().p50 - 500.0).abs() < 1e-3, "{request}");
        assert!((all.tpot_ms.unwrap().p50 - 200.0).abs() < 1e-3, "{request}");
        assert!(all.itl_ms.is_none(), "only the ends are known");
    }
    let none = json!({"benchmarks": [{"requests": {"successful": []}}]}).to_string();
    let error = read(&none, &[]).unwrap_err().to_string();
    assert!(error.contains("bad-run") && error.contains("has no request"), "{error}");
    let several = json!({"benchmarks": [{}, {}]}).to_string();
    assert!(read(&several, &[]).unwrap_err().to_string().contains("several benchmarks"));
}

#[test]
fn maps() {
    let content =
        json!({"runs": [{"name": "x", "n": 2, "begin": 1.5, "out": [{"t": 2.0, "i": 0}, {"t": 2.25, "i": 1}]}]})
            .to_string();
    let map =
        ["requests=runs[]", "id=name", "output_tokens=n", "start_s=begin", "commit_s=out[].t", "token_index=out[].i"];
    let results = read(&content, &map).unwrap();
    assert_eq!((results.form, results.requests[0].id.as_deref()), (Form::Mapped, Some("x")));
    assert_eq!(
        (results.requests[0].ttft_ns(), results.requests[0].intervals_ns()),
        (Some(500_000_000), vec![250_000_000])
    );
    let columns = json!({"t": [0.5, 0.25], "gaps": [[1, 2], [3]]}).to_string();
    let results = read(&columns, &["requests=columns", "ttft_ms=t[]", "itl_us=gaps[]"]).unwrap();
    assert_eq!((results.requests[1].ttft_ns(), results.requests[1].intervals_ns()), (Some(250_000), vec![3_000]));
    let line = "{\"a\": {\"ttft\": 3}}\n{\"a\": {\"ttft\": 4}}\n";
    let results = read(line, &["ttft_us=a.ttft"]).unwrap();
    assert_eq!(results.requests[1].ttft_ns(), Some(4_000));
}

#[test]
fn what_cannot_be_read_is_refused_with_its_place() {
    let cases: [(&str, &[&str], &[&str]); 23] = [
        ("", &[], &["form of the file is not known", "--map"]),
        ("hello", &[], &["foreign.json:1", "form of the file is not known", "expected value, at column 1"]),
        ("{\n  \"a\": ]\n}", &[], &["foreign.json:2", "expected value"]),
        ("{\"token_trace\": []}\n{\n", &[], &["foreign.json:2", "not JSON", "EOF"]),
        ("{\"a\": [{\"b\": 1}]}\n", &["commit_ns=a[].c"], &["bad-argument", "matched nothing in 1 requests", "a[].c"]),
        ("{\"a\": 1, \"b\": null}\n", &["ttft_ms=b", "id=x[0].y"], &["matched nothing", "have: b", "have: x[0].y"]),
        ("{\"r\": [{\"a\": 1}]}", &["requests=r", "ttft_ms=a"], &["bad-argument", "gives no objects", "a list at `r`"]),
        ("{\"r\": [{\"a\": 1}]}", &["requests=q[]", "ttft_ms=a"], &["bad-argument", "nothing at `q[]`"]),
        ("{\"a\": 1}\n", &["ttft_ms=a", "id=a", "id=b"], &["gives a field twice", "id=a and id=b"]),
        ("{\"a\": 1}\n", &["commit_ns=a", "commit_ms=b"], &["gives a field twice", "commit_ns=a and commit_ms=b"]),
        ("{\"a\": 1}\n", &["requests=a[]", "ttft_ms=a", "requests=columns"], &["gives a field twice"]),
        ("{\"a\": 1}\n", &[], &["form of the file is not known"]),
        ("{\"a\": 1}\n", &["ttft=a"], &["--map", "does not know", "ttft=a"]),
        ("{\"a\": 1}\n", &["ttft_ms"], &["--map", "does not know"]),
        ("{\"a\": 1}\n", &["ttft_ms=a..b"], &["path into JSON", "a..b"]),
        ("{\"a\": 1}\n", &["ttft_ms=a[x]"], &["path into JSON", "a[x]"]),
        ("{\"a\": 1}\n", &["id=a"], &["names no time"]),
        ("{\"a\": 1}\n{\"a\": \"x\"}\n", &["ttft_ms=a"], &[":2", "ttft", "\"x\""]),
        ("{\"a\": 1}\n{\"a\": 1e300}\n", &["ttft_s=a"], &[":2", "ttft"]),
        ("{\"a\": 1}\n{\"a\": [1, 2]}\n", &["ttft_s=a[]"], &[":2", "several values"]),
        (
            "{\"t\": [1, 2], \"i\": [0]}\n",
            &["commit_ns=t[]", "token_index=i[]"],
            &[":1", "token_index", "need: 2", "have: 1"],
        ),
        ("{\"t\": [1], \"i\": [-1]}\n", &["commit_ns=t[]", "token_id=i[]"], &[":1", "token_id", "-1"]),
        ("{\"t\": 9000000000000000000, \"i\": [9000000000000000000]}\n", &["ttft_ns=t", "itl_ns=i[]"], &[":1", "2^61"]),
    ];
    for (content, map, words) in cases {
        let error = read(content, map).unwrap_err().to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{content} {map:?}: {error}, need {words:?}");
    }
}
