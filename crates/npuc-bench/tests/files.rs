//! Result files that were cut, damaged or edited: what a resumed run makes of them, and what an audit finds.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use npuc_bench::audit::{Audit, Check, Grade};
use npuc_bench::chain::{GENESIS, claimed, sha256};
use npuc_bench::read::Line;
use npuc_bench::record::{Class, Status};
use npuc_bench::runner::Stop;
use npuc_bench::workload::Workload;
use npuc_bench::{audit, read, results};
use proptest::prelude::*;
use serde_json::{Value, json};

mod runs;

use runs::Times;

const NOWHERE: &str = "/nowhere";

/// The audit of lines as a file; `None` if they are no result file at all, which is a refusal.
fn audited(lines: &[String]) -> Option<Audit> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.jsonl");
    fs::write(&path, lines.concat()).unwrap();
    results::read(&path).ok().map(|results| audit(&results, None))
}

fn faults(audit: &Audit) -> Vec<(Check, Option<usize>)> {
    let faults = audit.findings.iter().filter(|finding| finding.grade == Grade::Fault);
    faults.map(|finding| (finding.check, finding.line)).collect()
}

#[test]
fn a_whole_run_is_clean() {
    let (_folder, path) = runs::whole(7);
    let lines = runs::lines(&path);
    assert_eq!(lines.len(), 9);
    let audit = audited(&lines).unwrap();
    assert!(audit.is_clean() && audit.findings.is_empty(), "{:?}", audit.findings);
    // The chain as anyone can check it: the hash of a line is of what is before its last comma.
    let mut last = GENESIS.to_string();
    for line in &lines {
        let (body, end) = line.rsplit_once(",\"hash\":\"").unwrap();
        assert_eq!(end, format!("{}\"}}\n", npuc_bench::chain::sha256(body.as_bytes())));
        let value: Value = serde_json::from_str(line).unwrap();
        assert_eq!(value["prev"], json!(last));
        last = value["hash"].as_str().unwrap().to_string();
    }
    // The workload's own fields come back as they were.
    let third: Value = serde_json::from_str(&lines[3]).unwrap();
    assert_eq!((third["id"].as_str(), &third["extra"]), (Some("r2"), &json!({"origin": {"line": 2}})));
}

#[test]
fn every_damage_is_found_in_its_line() {
    let (_folder, path) = runs::whole(6);
    let good = runs::lines(&path);
    let check = |name: &str, lines: &[String], need: &[(Check, Option<usize>)]| {
        let audit = audited(lines).unwrap_or_else(|| panic!("{name}: no result file"));
        let have = faults(&audit);
        assert!(!need.is_empty() && need.iter().all(|need| have.contains(need)), "{name}: {have:?}, need {need:?}");
    };
    for at in 1..good.len() {
        let mut lines = good.clone();
        lines.remove(at);
        let told = if at + 1 == good.len() { (Check::Complete, None) } else { (Check::Chain, Some(at + 1)) };
        check(&format!("line {} deleted", at + 1), &lines, &[told]);
        let mut lines = good.clone();
        lines.insert(at, good[at].clone());
        check(&format!("line {} doubled", at + 1), &lines, &[(Check::Duplicates, Some(at + 2))]);
        if at + 1 < good.len() {
            let mut lines = good.clone();
            lines.swap(at, at + 1);
            check(&format!("lines {} and {} swapped", at + 1, at + 2), &lines, &[(Check::Chain, Some(at + 1))]);
        }
        let mut lines = good.clone();
        lines[at] = lines[at].replacen(":", ": ", 1);
        check(&format!("line {} edited", at + 1), &lines, &[(Check::Chain, Some(at + 1))]);
    }
    let mut lines = good.clone();
    lines.last_mut().unwrap().truncate(20);
    check("the last line torn", &lines, &[(Check::Chain, Some(good.len())), (Check::Complete, None)]);
    check("the last two lines deleted", &good[..good.len() - 2], &[(Check::Complete, None)]);
}

#[test]
fn every_flipped_bit_is_found() {
    let (_folder, path) = runs::whole(3);
    let bytes = fs::read(&path).unwrap();
    let target = path.with_extension("flipped");
    let mut refused = 0;
    for at in 0..bytes.len() {
        // A bit of every byte, not always the same.
        let mut flipped = bytes.clone();
        flipped[at] ^= 1 << (at % 8);
        fs::write(&target, &flipped).unwrap();
        match results::read(&target) {
            Ok(results) => assert!(!audit(&results, None).is_clean(), "a flipped bit of byte {at} is not found"),
            Err(_) => refused += 1,
        }
    }
    // Only without any header that can be read is there nothing to audit.
    let header = runs::lines(&path)[0].len();
    assert!(refused <= header, "{refused} files were refused, the header has {header} bytes");
}

/// Edits by someone who writes all hashes anew: the name, the line from 0, a JSON pointer and what becomes of it, and the check that finds it.
/// `=` and a pointer is the value from there, `+` a sum, `-` removes it, anything else is JSON.
const EDITS: &[(&str, usize, &str, &str, Check)] = &[
    ("another count", 3, "/completion_tokens", "99", Check::Tokens),
    ("another count of ids", 3, "/output_tokens", "0", Check::Tokens),
    ("a token taken out", 3, "/token_trace/1", "-", Check::Indices),
    ("a token counted twice", 3, "/token_trace/1/token_index", "0", Check::Indices),
    ("a time that falls", 3, "/token_trace/1/commit_ns", "1", Check::Times),
    ("a time that stands", 3, "/token_trace/1/commit_ns", "=/token_trace/0/commit_ns", Check::Times),
    ("a first token at the start", 3, "/start_ns", "=/token_trace/0/commit_ns", Check::Times),
    ("an end before the last token", 3, "/end_ns", "=/start_ns", Check::Times),
    ("a prompt step that takes fewer", 3, "/prefill/0/valid", "0", Check::Times),
    ("a prompt step after the first token", 3, "/prefill/0/end_ns", "=/end_ns", Check::Times),
    ("an id past the vocabulary", 3, "/token_trace/0/token_id", "320", Check::Ids),
    ("another end", 3, "/finish", "\"eos\"", Check::Eos),
    ("no end", 3, "/finish", "null", Check::Eos),
    ("an end that bench does not know", 3, "/finish", "\"stop-text\"", Check::Eos),
    ("fewer tokens than all", 3, "/max_new_tokens", "200", Check::Eos),
    ("more tokens than were asked for", 3, "/max_new_tokens", "1", Check::Tokens),
    ("another wall time", 3, "/end_unix_us", "+90000", Check::WallTime),
    ("a request before its predecessor", 4, "/start_ns", "0", Check::Serial),
    ("another place", 3, "/index", "5", Check::Order),
    ("the largest place", 3, "/index", "18446744073709551615", Check::Order),
    ("an id of another request", 3, "/id", "\"r0\"", Check::Duplicates),
    ("another segment", 3, "/segment", "4", Check::Structure),
    ("a count of the end", 7, "/complete", "5", Check::Structure),
    ("a header of another segment", 0, "/segment", "2", Check::Structure),
    ("more requests than there are", 0, "/plan/workload/planned", "9", Check::Complete),
    ("a time that is too large", 3, "/end_ns", "18446744073709551615", Check::Chain),
    ("a key that is not known", 3, "/token_trace/0", "{\"token_index\":0,\"other\":1}", Check::Chain),
    ("no steps of the prompt", 3, "/prefill", "[]", Check::Times),
    ("a step that takes more than it has room for", 3, "/prefill/0/tokens", "0", Check::Times),
    ("a device that computes nothing", 0, "/plan/class", "\"device\"", Check::Structure),
    ("a class that is not stated", 0, "/plan/class", "\"unstated\"", Check::Structure),
    ("another back end", 0, "/plan/back_end", "\"host\"", Check::Structure),
    ("other words for the class", 0, "/plan/measured_on", "\"host\"", Check::Structure),
    ("no latencies of nothing", 0, "/plan/null", "null", Check::Structure),
    ("another status", 3, "/status", "\"failed\"", Check::Eos),
];

fn edit(value: &mut Value, pointer: &str, to: &str) {
    if to == "-" {
        let (parent, place) = pointer.rsplit_once('/').unwrap();
        value.pointer_mut(parent).unwrap().as_array_mut().unwrap().remove(place.parse().unwrap());
        return;
    }
    let new = match (to.strip_prefix('='), to.strip_prefix('+')) {
        (Some(from), _) => value.pointer(from).unwrap().clone(),
        (_, Some(more)) => json!(value.pointer(pointer).unwrap().as_u64().unwrap() + more.parse::<u64>().unwrap()),
        (None, None) => serde_json::from_str(to).unwrap(),
    };
    *value.pointer_mut(pointer).unwrap() = new;
}

#[test]
fn what_hashes_cannot_show_the_content_does() {
    let (_folder, path) = runs::whole(6);
    let good = runs::lines(&path);
    let anew = |edited: usize, pointer: &str, to: &str| {
        let mut last = GENESIS.to_string();
        let mut lines = Vec::new();
        for (place, line) in good.iter().enumerate() {
            let change = |value: &mut Value| {
                if place == edited {
                    edit(value, pointer, to)
                }
            };
            let (line, hash) = runs::resealed(line, &last, change);
            lines.push(line);
            last = hash;
        }
        audited(&lines).unwrap()
    };
    for (name, line, pointer, to, need) in EDITS {
        let found = faults(&anew(*line, pointer, to));
        let chain = found.iter().any(|(check, _)| *check == Check::Chain);
        assert!(!chain || *need == Check::Chain, "{name}: the chain was written anew: {found:?}");
        let fault = found.iter().find(|(check, _)| check == need);
        let (_, at) = fault.unwrap_or_else(|| panic!("{name}: {found:?}, need {need:?}"));
        assert!(*need == Check::Complete || at.is_some(), "{name}: no line");
    }
    let late = anew(7 - 1, "/end_ns", "+1500000000");
    let note = late.findings.iter().find(|finding| finding.message.contains("s after the last token"));
    assert!(note.is_some_and(|note| note.grade == Grade::Note && note.line == Some(7)), "{:?}", late.findings);
    let set = anew(7 - 1, "/start_unix_us", "+7200000000");
    let note = set.findings.iter().find(|finding| finding.message.contains("the wall clock was set by +7200.0 s"));
    assert!(note.is_some_and(|note| note.grade == Grade::Note && note.line == Some(7)), "{:?}", set.findings);
    let same = anew(0, "/segment", "=/segment");
    assert!(same.is_clean(), "written anew without a change it is clean: {:?}", same.findings);
}

#[test]
fn an_end_id_in_the_middle_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.jsonl");
    runs::written(&path, Class::Host, &[Times { prompt: 3, start: 10, tokens: vec![20, 30, 40] }]);
    let good = runs::lines(&path);
    let (header, hash) = runs::resealed(&good[0], GENESIS, |_| {});
    for (place, ignore, finish, is_clean) in [
        (0, true, "max-new", true),
        (0, false, "max-new", false),
        (2, false, "eos", true),
        (2, false, "max-new", false),
    ] {
        let change = |value: &mut Value| {
            value["token_trace"][place]["token_id"] = json!(runs::EOS);
            value["ignore_eos"] = json!(ignore);
            value["finish"] = json!(finish);
        };
        let (line, hash) = runs::resealed(&good[1], &hash, change);
        let (end, _) = runs::resealed(&good[2], &hash, |_| {});
        let audit = audited(&[header.clone(), line, end]).unwrap();
        assert_eq!(audit.is_clean(), is_clean, "{place} {ignore} {finish}: {:?}", audit.findings);
    }
}

#[test]
fn a_run_of_another_workload_is_found() {
    let (_folder, path) = runs::whole(5);
    let results = results::read(&path).unwrap();
    let good =
        Workload { path: "w.jsonl".into(), sha256: sha256(b"workload"), jobs: runs::jobs(5), has_messages: false };
    type Change = fn(&mut Workload);
    let cases: [(&str, Change, &[Option<usize>]); 9] = [
        ("the same", |_| {}, &[]),
        ("another file", |w| w.sha256 = sha256(b"other"), &[Some(1)]),
        ("another dataset", |w| w.jobs[1].dataset = "d".into(), &[Some(3)]),
        ("another prompt", |w| w.jobs[1].prompt[0] += 1, &[Some(3)]),
        ("a longer prompt", |w| w.jobs[4].prompt.push(1), &[Some(6)]),
        ("another limit", |w| w.jobs[0].max_new_tokens += 1, &[Some(2)]),
        ("another rule", |w| w.jobs[0].ignore_eos = false, &[Some(2)]),
        ("another name", |w| w.jobs[2].id = "x".into(), &[Some(4), None]),
        ("another order", |w| w.jobs.swap(0, 1), &[Some(2), Some(3)]),
    ];
    for (name, change, need) in cases {
        let mut workload = good.clone();
        change(&mut workload);
        let audit = audit(&results, Some(&workload));
        let have = faults(&audit);
        let lines: BTreeSet<Option<usize>> = have.iter().map(|(_, line)| *line).collect();
        assert_eq!(lines, need.iter().copied().collect(), "{name}: {have:?}");
        assert!(have.iter().all(|(check, _)| *check == Check::Workload), "{name}: {have:?}");
    }
}

#[test]
fn drift_and_outliers_are_noted() {
    const MS: u64 = 1_000_000;
    // Intervals in ms by place of the request and of the token; prompts have 10 tokens, answers 20.
    type Interval = fn(u64, u64) -> u64;
    let cases: [(&str, Interval, bool, bool, usize); 5] = [
        ("steady", |_, _| 100, false, false, 0),
        ("throttled", |request, _| 100 + 10 * request, true, false, 0),
        ("longer contexts", |_, token| 100 + 5 * token, false, true, 0),
        ("both", |request, token| 100 + 10 * request + 5 * token, true, true, 0),
        ("one pause", |request, token| if (request, token) == (2, 7) { 900 } else { 100 }, false, false, 1),
    ];
    for (name, interval, over_run, over_position, outliers) in cases {
        let mut now = 0;
        let times = (0..8).map(|request| {
            let start = now + MS;
            now = start + 50 * MS;
            let token = |token| {
                now += if token == 0 { 0 } else { interval(request, token) * MS };
                now
            };
            let tokens = (0..20).map(token).collect();
            now += MS;
            Times { prompt: 10, start, tokens }
        });
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r.jsonl");
        runs::written(&path, Class::Host, &times.collect::<Vec<_>>());
        let audit = audit(&results::read(&path).unwrap(), None);
        assert!(audit.is_clean(), "{name}: {:?}", audit.findings);
        let drift = audit.drift.unwrap();
        let large = |change: f64| change.abs() > 0.1;
        let have = (large(drift.over_run), large(drift.over_position.unwrap()), drift.outliers);
        assert_eq!(have, (over_run, over_position, outliers), "{name}: {drift:?}");
        let notes = audit.findings.iter().filter(|finding| finding.grade == Grade::Note).count();
        assert_eq!(notes, usize::from(over_run) + usize::from(over_position) + outliers, "{name}");
    }
}

#[test]
fn a_cut_anywhere_can_be_resumed() {
    let (_folder, path) = runs::whole(5);
    let bytes = fs::read(&path).unwrap();
    let jobs = runs::jobs(5);
    let cut = path.with_extension("cut");
    let last_lines = bytes.len() - runs::lines(&path)[4..].concat().len();
    // Every 61st byte, and every byte of the last three lines' last 70 and first few.
    let cuts = (0..bytes.len()).step_by(61).chain(last_lines..last_lines + 3).chain(bytes.len() - 70..=bytes.len());
    for at in cuts {
        fs::write(&cut, &bytes[..at]).unwrap();
        let whole = bytes[..at].iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
        let stop = runs::measure(&cut, &jobs, None, Path::new(NOWHERE)).unwrap();
        assert!(matches!(stop, Stop::Complete), "cut at {at}");
        let resumed = fs::read(&cut).unwrap();
        assert!(resumed.starts_with(&bytes[..whole]), "cut at {at}: whole lines stay as they are");
        let results = results::read(&cut).unwrap();
        let audit = audit(&results, None);
        assert!(audit.is_clean(), "cut at {at}: {:?}", audit.findings);
        let mut ids: BTreeMap<&str, usize> = BTreeMap::new();
        results.requests.iter().for_each(|request| *ids.entry(request.id.as_deref().unwrap()).or_default() += 1);
        assert!(ids.len() == 5 && ids.values().all(|&count| count == 1), "cut at {at}: {ids:?}");
        if whole < at && results.headers.len() > 1 {
            let dropped = results.headers[1].1.dropped.as_ref().unwrap();
            assert_eq!(
                (dropped.line, dropped.bytes),
                (read::scan(&bytes[..whole]).lines.len() + 1, (at - whole) as u64)
            );
        }
    }
}

#[test]
fn zeros_behind_the_last_line_are_torn() {
    let (_folder, path) = runs::whole(3);
    let lines = runs::lines(&path);
    fs::write(&path, [lines[..3].concat().as_bytes(), &[0; 300], b"\n"].concat()).unwrap();
    assert!(matches!(runs::measure(&path, &runs::jobs(3), None, Path::new(NOWHERE)).unwrap(), Stop::Complete));
    let results = results::read(&path).unwrap();
    assert_eq!(results.headers[1].1.dropped.as_ref().map(|dropped| (dropped.line, dropped.bytes)), Some((4, 301)));
    assert!(audit(&results, None).is_clean());
}

#[test]
fn a_resume_refuses_what_is_damaged_or_of_another_plan() {
    let (_folder, path) = runs::whole(4);
    let good = runs::lines(&path);
    let jobs = runs::jobs(4);
    let check = |name: &str, content: String, jobs: &[npuc_bench::workload::Job], words: &[&str]| {
        fs::write(&path, &content).unwrap();
        let error = runs::measure(&path, jobs, None, Path::new(NOWHERE)).unwrap_err().to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{name}: {error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), content, "{name}: the file stays as it is");
    };
    let edited = [&good[0], &good[1].replacen("gsm8k", "gsm8K", 1), &good[2]].map(String::as_str).concat();
    check("edited", edited, &jobs, &["bad-run", "r.jsonl:2", "changed"]);
    check("a line is missing", [good[0].as_str(), &good[2]].concat(), &jobs, &["r.jsonl:2", "does not follow"]);
    check("twice", [good[0].as_str(), &good[1], &good[1]].concat(), &jobs, &["r.jsonl:3", "twice"]);
    check("other requests", good[..3].concat(), &runs::jobs(5), &["plan.workload.planned", "need: 4", "have: 5"]);
    let other = format!("{}\n", json!({"hello": 1}));
    check("no result file", [other.as_str(), "{}\n"].concat(), &jobs, &["r.jsonl:1", "none of a result file"]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever the bytes, reading neither panics nor takes a damaged line for a good one.
    #[test]
    fn any_bytes_can_be_read(bytes in prop::collection::vec(any::<u8>(), 0..300), at in 0usize..2000) {
        let (_folder, path) = runs::whole(2);
        let mut content = fs::read(&path).unwrap();
        let at = at.min(content.len());
        content.splice(at..at, bytes.iter().copied());
        fs::write(&path, &content).unwrap();
        let scan = read::scan(&content);
        let intact = scan.lines.iter().filter(|(number, _)| scan.faults.iter().all(|(line, _)| line != number)).count();
        let claimed = content.split(|&b| b == b'\n').filter(|line| std::str::from_utf8(line).is_ok_and(|line| claimed(line).is_some_and(|(_, good)| good))).count();
        prop_assert!(intact <= claimed, "{intact} lines without a fault, {claimed} whose hash is right");
        if let Ok(results) = results::read(&path) {
            let audit = audit(&results, None);
            prop_assert!(bytes.is_empty() || !audit.is_clean() || scan.torn.is_some());
        }
        for (_, line) in &scan.lines {
            if let Line::Request(record) = line {
                prop_assert_eq!(record.status, Status::Complete);
            }
        }
    }
}
