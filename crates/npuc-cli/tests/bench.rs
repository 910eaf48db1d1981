//! `npuc bench`, `audit`, `report` and `serve-jsonl` from the command line: killed, out of disk, out of time, and embedded.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

mod program;

use program::{checkpoint, npuc};

/// A folder with a workload of so many requests of `tokens` tokens.
struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new(requests: usize, tokens: usize) -> Place {
        let folder = tempfile::tempdir().unwrap();
        let line = |place: usize| {
            let ids: Vec<usize> = (0..5 + place % 11).map(|i| (i * 131 + place * 7) % 300).collect();
            let dataset = ["gsm8k", "humaneval", "math500", "mt_bench"][place % 4];
            let id = format!("{dataset}-{place}");
            format!(
                "{}\n",
                json!({"id": id, "dataset": dataset, "input_ids": ids, "max_new_tokens": tokens, "ignore_eos": true})
            )
        };
        fs::write(folder.path().join("w.jsonl"), (0..requests).map(line).collect::<String>()).unwrap();
        Place { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// `npuc bench` on the null back end.
    fn bench(&self, more: &[&str]) -> Command {
        self.bench_to(&self.path("r.jsonl"), more)
    }

    fn bench_to(&self, results: &Path, more: &[&str]) -> Command {
        let mut command = npuc();
        command.arg("bench").arg(checkpoint("qwen2-bf16")).args([
            "--shapes",
            "8t128c,1t128c",
            "--on",
            "null",
            "--json",
        ]);
        command.arg("--workload").arg(self.path("w.jsonl")).arg("-o").arg(results).args(more);
        command
    }

    fn audit(&self) -> Output {
        npuc()
            .arg("audit")
            .arg(self.path("r.jsonl"))
            .arg("--workload")
            .arg(self.path("w.jsonl"))
            .arg("--json")
            .output()
            .unwrap()
    }
}

fn stdout(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&output.stderr)))
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The lines of a file that are whole.
fn whole_lines(path: &Path) -> Vec<String> {
    let text = fs::read(path).unwrap_or_default();
    let lines = text.split_inclusive(|&byte| byte == b'\n').filter(|line| line.ends_with(b"\n"));
    lines.map(|line| String::from_utf8(line.to_vec()).unwrap()).collect()
}

/// Ids of the complete requests among lines, in order.
fn complete_ids(lines: &[String]) -> Vec<String> {
    let rows = lines.iter().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let complete = rows.filter(|row| row["kind"] == "request" && row["status"] == "complete");
    complete.map(|row| row["id"].as_str().unwrap().to_string()).collect()
}

/// Random numbers that are the same in every run (Knuth's MMIX).
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}

/// Runs a bench, kills it a random moment after its file has `lines` lines, and tells whether it was still at work.
fn kill_at(place: &Place, lines: usize, random: &mut Random) -> bool {
    let mut child = place.bench(&["--resume"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    while child.try_wait().unwrap().is_none() && whole_lines(&place.path("r.jsonl")).len() < lines {
        std::thread::sleep(Duration::from_micros(200));
    }
    std::thread::sleep(Duration::from_micros(random.below(3000) as u64));
    child.kill().unwrap();
    child.wait().unwrap().code().is_none()
}

#[test]
fn fifty_kills_lose_nothing() {
    const REQUESTS: usize = 60;
    let whole = Place::new(REQUESTS, 8);
    let output = whole.bench(&[]).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let expected = complete_ids(&whole_lines(&whole.path("r.jsonl")));
    assert_eq!(expected.len(), REQUESTS);
    let mut random = Random(20_260_101);
    let (mut killed, mut within, mut torn, mut segments) = (0, 0, 0, 0);
    for run in 0..50 {
        let place = Place::new(REQUESTS, 8);
        let results = place.path("r.jsonl");
        let mut before = Vec::new();
        // Killed twice: in the first run and in the first resumption.
        for _ in 0..2 {
            let lines = before.len() + random.below(REQUESTS - before.len().min(REQUESTS - 1));
            let was_killed = kill_at(&place, lines, &mut random);
            killed += usize::from(was_killed);
            let now = whole_lines(&results);
            assert!(now.starts_with(&before), "run {run}: whole lines were lost");
            let complete = complete_ids(&now).len();
            within += usize::from(was_killed && complete > 0 && complete < REQUESTS);
            torn += usize::from(fs::read(&results).unwrap_or_default().last().is_some_and(|&byte| byte != b'\n'));
            before = now;
        }
        let output = place.bench(&["--resume"]).output().unwrap();
        assert!(output.status.success(), "run {run}: {}", said(&output));
        let after = whole_lines(&results);
        assert!(after.starts_with(&before), "run {run}: whole lines were lost");
        assert_eq!(complete_ids(&after), expected, "run {run}: every request once, in order");
        let audit = place.audit();
        assert_eq!(audit.status.code(), Some(0), "run {run}: {}", String::from_utf8_lossy(&audit.stdout));
        segments += after.iter().filter(|line| line.starts_with("{\"kind\":\"header\"")).count();
    }
    println!(
        "50 runs, {killed} kills, {within} of them between the first and the last request, {torn} torn lines, {segments} segments"
    );
    assert!(killed >= 60 && within >= 40, "the kills came too early or too late: {killed}, {within}");
}

#[test]
fn a_full_disk_leaves_whole_lines() {
    let place = Place::new(40, 30);
    let whole = place.bench(&[]).output().unwrap();
    assert!(whole.status.success(), "{}", said(&whole));
    let bytes = fs::metadata(place.path("r.jsonl")).unwrap().len();
    let expected = complete_ids(&whole_lines(&place.path("r.jsonl")));
    fs::remove_file(place.path("r.jsonl")).unwrap();
    // A limit on file sizes, in KiB, stands in for a disk that is full after half of the lines.
    let limited = format!("ulimit -f {}; exec \"$0\" \"$@\"", bytes / 2 / 1024);
    let command = place.bench(&[]);
    let output = Command::new("bash")
        .args(["-c", &limited])
        .arg(command.get_program())
        .args(command.get_args())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    for part in ["error[unwritable]", "r.jsonl", "--resume"] {
        assert!(said(&output).contains(part), "no `{part}` in {}", said(&output));
    }
    let text = fs::read_to_string(place.path("r.jsonl")).unwrap();
    assert!(text.ends_with("}\n"), "the file ends with a whole line");
    let left = complete_ids(&whole_lines(&place.path("r.jsonl")));
    assert!(left.len() > 5 && left.len() < 40 && expected.starts_with(&left));
    let report = npuc().arg("report").arg(place.path("r.jsonl")).output().unwrap();
    assert_eq!(report.status.code(), Some(1));
    assert!(said(&report).contains("incomplete-run"), "{}", said(&report));
    assert!(place.bench(&["--resume"]).output().unwrap().status.success());
    assert_eq!(complete_ids(&whole_lines(&place.path("r.jsonl"))), expected);
    assert_eq!(place.audit().status.code(), Some(0));
}

#[test]
fn a_disk_that_is_really_full_too() {
    let place = Place::new(40, 30);
    let disk = tempfile::tempdir().unwrap();
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=32k", "npuc"]).arg(disk.path()).output();
    if !mounted.is_ok_and(|output| output.status.success()) {
        eprintln!(
            "NOT RUN: a full disk needs the right to mount a small tmpfs; a limit on file sizes stands in for it"
        );
        return;
    }
    let results = disk.path().join("r.jsonl");
    let output = place.bench_to(&results, &["--resume"]).output();
    let moved = place.path("r.jsonl");
    fs::copy(&results, &moved).unwrap();
    assert!(Command::new("umount").arg(disk.path()).status().unwrap().success());
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    assert!(said(&output).contains("No space left on device"), "{}", said(&output));
    let left = complete_ids(&whole_lines(&moved)).len();
    assert!(left > 0 && left < 40, "{left} requests fit");
    assert!(place.bench(&["--resume"]).output().unwrap().status.success());
    assert_eq!(place.audit().status.code(), Some(0));
}

#[test]
fn a_back_end_that_fails_and_a_time_that_is_up_can_be_resumed() {
    let place = Place::new(20, 6);
    let failing = place.bench(&["--null", "prefill=3ms,decode=1ms,fail-after=60"]).output().unwrap();
    assert_eq!(failing.status.code(), Some(4), "{}", said(&failing));
    assert_eq!(stdout(&failing)["stopped"][0]["code"], "tool-failed");
    let lines = whole_lines(&place.path("r.jsonl"));
    let last: Value = serde_json::from_str(lines.last().unwrap()).unwrap();
    assert_eq!(last["status"], "failed");
    assert!(last["error"].as_str().unwrap().contains("told to fail here"));
    assert_eq!(last["output_tokens"], json!(last["token_trace"].as_array().unwrap().len()));
    // The second segment may begin requests for 40 ms, by virtual time.
    let late = place.bench(&["--resume", "--null", "prefill=3ms,decode=1ms", "--max-time", "40ms"]).output().unwrap();
    assert_eq!(late.status.code(), Some(1), "{}", said(&late));
    assert_eq!(stdout(&late)["stopped"][0]["code"], "incomplete-run");
    let other = place.bench(&["--resume", "--null", "prefill=4ms,decode=1ms"]).output().unwrap();
    assert_eq!(other.status.code(), Some(3));
    assert!(said(&other).contains("plan.null.prefill_ns"), "{}", said(&other));
    let rest = place.bench(&["--resume", "--null", "prefill=3ms,decode=1ms"]).output().unwrap();
    assert!(rest.status.success(), "{}", said(&rest));
    assert_eq!(stdout(&rest)["state"], "segmented (3 segments)");
    assert_eq!(complete_ids(&whole_lines(&place.path("r.jsonl"))).len(), 20);
    let audit = place.audit();
    assert_eq!(audit.status.code(), Some(0), "{}", String::from_utf8_lossy(&audit.stdout));
    let notes = stdout(&audit)["findings"].as_array().unwrap().clone();
    assert!(notes.iter().all(|note| note["grade"] == "note") && notes.iter().any(|note| note["check"] == "status"));
    let before = fs::read(place.path("r.jsonl")).unwrap();
    assert!(place.bench(&["--resume", "--null", "prefill=3ms,decode=1ms"]).output().unwrap().status.success());
    assert_eq!(fs::read(place.path("r.jsonl")).unwrap(), before, "there is nothing to go on with");
    let again = place.bench(&["--null", "prefill=3ms,decode=1ms"]).output().unwrap();
    assert_eq!(again.status.code(), Some(3), "results are never overwritten");
    assert!(said(&again).contains("--resume"), "{}", said(&again));
}

#[test]
fn two_writers_do_not_mix() {
    let place = Place::new(30, 8);
    let file = fs::OpenOptions::new().append(true).create(true).open(place.path("r.jsonl")).unwrap();
    file.lock().unwrap();
    let output = place.bench(&["--resume"]).output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    assert!(said(&output).contains("another npuc writes"), "{}", said(&output));
    drop(file);
    assert!(place.bench(&["--resume"]).output().unwrap().status.success());
}

#[test]
fn the_runner_takes_at_most_twenty_microseconds_for_a_token() {
    let place = Place::new(20, 64);
    let output = place.bench(&["--slo", "ttft=25ms,tpot=3ms", "--warmup", "2"]).output().unwrap();
    let outcome = stdout(&output);
    let p50 = outcome["overhead"]["us"]["p50"].as_f64().unwrap();
    assert_eq!(outcome["overhead"]["us"]["count"], 20 * 63);
    assert!(p50 > 0.0 && p50 <= 20.0, "{p50} µs for a token");
    println!("own time for a token: {}", outcome["overhead"]["us"]);
    // The virtual latencies of the null back end are what is reported, and little more.
    let report = npuc().arg("report").arg(place.path("r.jsonl")).arg("--json").output().unwrap();
    let run = &stdout(&report)["runs"][0];
    assert_eq!((run["class"].as_str(), run["state"].as_str()), (Some("null"), Some("complete")));
    let tpot = run["all"]["tpot_ms"]["p50"].as_f64().unwrap();
    assert!((2.0..2.2).contains(&tpot), "{tpot} ms");
    assert_eq!(run["slo"]["slo"], json!({"ttft_ms": 25.0, "tpot_ms": 3.0}));
    let rows = run["by_prompt"].as_array().unwrap();
    assert!(rows.iter().all(|row| row["recorded_steps"] == json!([row["steps"], row["steps"]])), "{rows:?}");
}

#[test]
fn reports_are_written_in_every_form() {
    let place = Place::new(24, 12);
    assert!(place.bench(&[]).output().unwrap().status.success());
    fs::rename(place.path("r.jsonl"), place.path("first.jsonl")).unwrap();
    assert!(place.bench(&["--null", "prefill=10ms,decode=3ms"]).output().unwrap().status.success());
    let report = |more: &[&str]| {
        let mut command = npuc();
        command.arg("report").arg(place.path("first.jsonl")).arg(place.path("r.jsonl")).args(more);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    let html = place.path("out.html");
    let text = report(&["--html", html.to_str().unwrap()]);
    for part in [
        "ttft_ms",
        "tpot_ms, per interval",
        "mt_bench",
        "ceil(n/t)",
        "type 7",
        "the difference is real",
        "paired over 24 requests",
    ] {
        assert!(text.contains(part), "no `{part}` in {text}");
    }
    let json: Value = serde_json::from_str(&report(&["--json"])).unwrap();
    let tpot =
        json["comparisons"].as_array().unwrap().iter().find(|c| c["figure"] == "tpot_ms P50, per request").unwrap();
    assert!((tpot["difference"].as_f64().unwrap() - 1.0).abs() < 0.05 && tpot["is_real"] == true, "{tpot}");
    let ttft = json["comparisons"].as_array().unwrap().iter().find(|c| c["figure"] == "ttft_ms P50").unwrap();
    // A prompt that leaves one token over ends with a decode step.
    assert!((-0.2..1.2).contains(&ttft["difference"].as_f64().unwrap()), "{ttft}");
    assert!(report(&["--md"]).contains("| run | measured on | state |"));
    let csv = report(&["--csv"]);
    let columns = csv.lines().next().unwrap().split(',').count();
    assert!(csv.lines().count() > 20 && columns == 12);
    // Every row that has a figure says what it was measured on.
    for row in csv.lines().skip(1) {
        assert_eq!(row.split(',').nth(1), Some("null"), "{row}");
    }
    let page = fs::read_to_string(html).unwrap();
    for part in ["<!DOCTYPE html>", "prefers-color-scheme: dark", "viewport", "<svg", "measured on null"] {
        assert!(page.contains(part), "no `{part}` in the page");
    }
    for part in ["http:", "https:", "<script", "<link", "@import", "url(", "src="] {
        assert!(!page.contains(part), "the page has `{part}`");
    }
    let open = page.matches("<svg").count();
    assert!(open == page.matches("</svg>").count() && open >= 5, "{open} plots");
    assert!(!page.contains("NaN") && !page.contains("inf"), "a plot has a number that is none");
}

#[test]
fn names_from_files_cannot_become_markup() {
    let place = Place::new(1, 3);
    let line = json!({"id": "a", "dataset": "<script>alert(1)</script>|\",\u{1b}[31m", "input_ids": [1], "max_new_tokens": 3, "ignore_eos": true});
    fs::write(place.path("w.jsonl"), format!("{line}\n")).unwrap();
    assert!(place.bench(&[]).output().unwrap().status.success());
    let html = place.path("out.html");
    let mut command = npuc();
    assert!(
        command
            .arg("report")
            .arg(place.path("r.jsonl"))
            .arg("--csv")
            .arg("--html")
            .arg(&html)
            .output()
            .unwrap()
            .status
            .success()
    );
    assert!(!fs::read_to_string(&html).unwrap().contains("<script"));
    let text = npuc().arg("report").arg(place.path("r.jsonl")).output().unwrap();
    assert!(!String::from_utf8(text.stdout).unwrap().contains('\u{1b}'), "a name drives the terminal");
}

/// What `npuc serve-jsonl` says to these lines.
fn serve(input: &[u8], more: &[&str]) -> (Vec<Value>, Output) {
    let mut command = npuc();
    command.arg("serve-jsonl").arg(checkpoint("qwen2-bf16")).args(["--shapes", "8t64c,1t64c"]).args(more);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    let events = output.stdout.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
    (events.map(|line| serde_json::from_slice(line).unwrap()).collect(), output)
}

#[test]
fn bad_lines_do_not_end_the_server() {
    let good = |id: &str| {
        format!(
            "{{\"id\":\"{id}\",\"dataset\":\"d\",\"input_ids\":[5,6,7],\"max_new_tokens\":4,\"ignore_eos\":true,\"tag\":[1]}}\n"
        )
    };
    let mut input = good("a").into_bytes();
    input.extend_from_slice(
        b"not json\n\n\xff\xfe\n{\"id\":\"b\",\"dataset\":\"d\",\"input_ids\":[999999],\"max_new_tokens\":4}\n",
    );
    input.extend(good("c").bytes());
    let (events, output) = serve(&input, &[]);
    assert!(output.status.success(), "{}", said(&output));
    let of = |name: &str| events.iter().filter(|event| event["event"] == name).collect::<Vec<_>>();
    assert_eq!((of("ready").len(), of("token").len(), of("end").len(), of("error").len()), (1, 8, 2, 3));
    assert_eq!(events[0]["class"], "host");
    let lines: Vec<u64> = of("error").iter().map(|event| event["line"].as_u64().unwrap()).collect();
    assert_eq!(lines, [2, 4, 5]);
    assert_eq!(of("error")[2]["id"], "b");
    assert!(of("error")[2]["errors"][0]["message"].as_str().unwrap().contains("outside the vocabulary"));
    let tokens = |id: &str| {
        of("token").iter().filter(|event| event["id"] == id).map(|event| event["token_id"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(tokens("a"), tokens("c"), "a request does not see the one before");
    let end = of("end")[1];
    assert_eq!(
        (&end["finish"], &end["output_tokens"], &end["extra"]),
        (&json!("max-new"), &json!(4), &json!({"tag": [1]}))
    );
    // The same ids as `npuc run` gives.
    let ids = tempfile::NamedTempFile::new().unwrap();
    fs::write(ids.path(), "5 6 7").unwrap();
    let run = npuc()
        .arg("run")
        .arg(checkpoint("qwen2-bf16"))
        .args(["--shapes", "8t64c,1t64c", "-n", "4", "--ignore-eos", "--json", "--ids"])
        .arg(ids.path())
        .output()
        .unwrap();
    let expected: Vec<Value> = stdout(&run)["ids"].as_array().unwrap().clone();
    assert_eq!(tokens("a"), expected);
    let (events, output) = serve(good("x").as_bytes(), &["--on", "null", "--null", "fail-after=2"]);
    assert_eq!(output.status.code(), Some(4));
    assert_eq!(events.last().unwrap()["event"], "error");
}

#[test]
fn host_and_null_agree_on_what_they_are() {
    let place = Place::new(4, 5);
    let mut command = npuc();
    command.arg("bench").arg(checkpoint("qwen2-bf16")).args(["--shapes", "8t128c,1t128c"]);
    let output =
        command.arg("--workload").arg(place.path("w.jsonl")).arg("-o").arg(place.path("host.jsonl")).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    assert!(place.bench(&[]).output().unwrap().status.success());
    let report = npuc().arg("report").arg(place.path("host.jsonl")).arg(place.path("r.jsonl")).output().unwrap();
    let text = String::from_utf8(report.stdout).unwrap();
    assert!(text.contains("A is of the class host and B of null, which are different things"), "{text}");
    let header: Value = serde_json::from_str(&whole_lines(&place.path("host.jsonl"))[0]).unwrap();
    for key in ["bundle", "model", "host", "clock", "boot_id", "sensors", "absent", "plan"] {
        assert!(
            key == "bundle" || header.get(key).is_some() || header["plan"].get(key).is_some(),
            "no {key} in {header}"
        );
    }
    let known: BTreeSet<&str> =
        header["sensors"].as_array().unwrap().iter().map(|s| s["quantity"].as_str().unwrap()).collect();
    let absent: BTreeSet<&str> = header["absent"].as_array().unwrap().iter().map(|q| q.as_str().unwrap()).collect();
    assert!(known.is_disjoint(&absent) && known.len() + absent.len() == 8, "what is missing is stated");
    let run = npuc().arg("run").arg(checkpoint("qwen2-bf16")).args(["--on", "null", "-p", "x"]).output().unwrap();
    assert_eq!(run.status.code(), Some(2), "{}", said(&run));
}

#[test]
fn pauses_and_limits() {
    let place = Place::new(6, 4);
    let check = |more: &[&str], status: i32, words: &[&str]| {
        let output = place.bench(more).output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{more:?}: {}", said(&output));
        assert!(words.iter().all(|word| said(&output).contains(word)), "{more:?}: {}", said(&output));
        assert_eq!(place.path("r.jsonl").exists(), status == 0, "{more:?}");
    };
    check(&["--limit", "0"], 2, &["--limit", "1 to 6"]);
    check(&["--limit", "7"], 2, &["--limit", "1 to 6", "7"]);
    check(&["--warmup", "7"], 2, &["--warmup", "at most 6"]);
    check(&["--cooldown", "soon"], 2, &["--cooldown"]);
    check(&["--sample-every", "1us"], 2, &["--sample-every"]);
    check(&["--slo", "ttft=fast"], 2, &["--slo"]);
    check(&["--null", "decode=2"], 2, &["--null"]);
    let start = Instant::now();
    // An hour of virtual pauses passes at once, and counts for nobody.
    check(&["--limit", "3", "--cooldown", "3600"], 0, &[]);
    assert!(start.elapsed() < Duration::from_secs(60));
    let report = npuc().arg("report").arg(place.path("r.jsonl")).arg("--json").output().unwrap();
    assert_eq!(stdout(&report)["runs"][0]["all"]["requests"], 3);
    assert!(stdout(&report)["runs"][0]["all"]["e2el_ms"]["max"].as_f64().unwrap() < 1000.0);
    assert_eq!(place.audit().status.code(), Some(0));
}

/// Neither results nor pages take the place of files of others.
#[test]
fn files_of_others_stay() {
    let place = Place::new(3, 3);
    for (content, message) in [
        (&b"{\"a page of JSON\": \"without a line end\"}"[..], "the file is no result file of npuc bench"),
        (b"notes", "the file is no result file of npuc bench"),
        (b"one line\nand one without an end", "the line is none of a result file"),
    ] {
        fs::write(place.path("r.jsonl"), content).unwrap();
        let output = place.bench(&["--resume"]).output().unwrap();
        assert!(!output.status.success() && said(&output).contains(message), "{}", said(&output));
        assert_eq!(fs::read(place.path("r.jsonl")).unwrap(), content);
    }
    // What is left of a first line is npuc's own.
    fs::write(place.path("r.jsonl"), b"{\"kind\":\"header\",\"prev\":\"00").unwrap();
    assert!(place.bench(&["--resume"]).output().unwrap().status.success());
    for path in [Path::new("/dev/null"), place.folder.path()] {
        let output = place.bench_to(path, &["--resume"]).output().unwrap();
        assert!(said(&output).contains("the results have to be a plain file"), "{}", said(&output));
    }
    let results = place.path("r.jsonl");
    let (before, workload) = (fs::read(&results).unwrap(), place.path("w.jsonl"));
    let report = |page: &Path| npuc().arg("report").arg(&results).arg("--html").arg(page).output().unwrap();
    for (page, message) in [
        (&results, "the page would take the place of the results"),
        (&workload, "the file exists and is no page of npuc's"),
        (&PathBuf::from("/dev/null"), "the file exists and is no page of npuc's"),
    ] {
        let output = report(page);
        assert!(!output.status.success() && said(&output).contains(message), "{page:?}: {}", said(&output));
    }
    assert_eq!(fs::read(&results).unwrap(), before);
    let page = place.path("page.html");
    assert!(report(&page).status.success() && report(&page).status.success(), "an earlier page is replaced");
    let link = place.path("link.html");
    std::os::unix::fs::symlink(&page, &link).unwrap();
    assert!(report(&link).status.success() && link.is_symlink());
}

/// A difference is called real only over the same requests, and marks stand in the sentence.
#[test]
fn comparisons_say_what_they_compare() {
    let sentences = |a: &Place, b: &Path| -> Vec<String> {
        let mut command = npuc();
        command.arg("report").arg(a.path("r.jsonl")).arg(b).args(["--allow-incomplete", "--json"]);
        let report = stdout(&command.output().unwrap());
        let all = report["comparisons"].as_array().unwrap();
        all.iter().map(|comparison| comparison["sentence"].as_str().unwrap().to_owned()).collect()
    };
    let place = Place::new(12, 6);
    assert!(place.bench(&[]).output().unwrap().status.success());
    // The first four requests of the same run.
    let part = place.path("part.jsonl");
    fs::write(&part, whole_lines(&place.path("r.jsonl"))[..5].concat()).unwrap();
    let same = sentences(&place, &part);
    assert!(!same.is_empty());
    for sentence in &same {
        assert!(
            sentence.contains("paired over 4 requests") && sentence.contains("no difference is shown"),
            "{sentence}"
        );
        assert!(sentence.contains("B is incomplete (4 of 12)"), "{sentence}");
    }
    // The same names over other prompts.
    let other = Place::new(12, 6);
    let longer = fs::read_to_string(place.path("w.jsonl"))
        .unwrap()
        .replace("\"input_ids\":[", "\"input_ids\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,");
    fs::write(other.path("w.jsonl"), longer).unwrap();
    assert!(other.bench(&[]).output().unwrap().status.success());
    for sentence in sentences(&place, &other.path("r.jsonl")) {
        assert!(sentence.contains("not paired") && !sentence.contains("is real"), "{sentence}");
    }
    // A limit and attempts that failed are told.
    let few = Place::new(12, 6);
    assert!(!few.bench(&["--limit", "5", "--null", "fail-after=9"]).output().unwrap().status.success());
    let outcome = stdout(&few.bench(&["--limit", "5", "--resume"]).output().unwrap());
    let state = outcome["state"].as_str().unwrap();
    assert!(state.contains("5 of 12 requests by --limit"), "{state}");
    let report = npuc().arg("report").arg(few.path("r.jsonl")).arg("--allow-incomplete").output().unwrap();
    let text = String::from_utf8_lossy(&report.stdout).into_owned();
    assert!(text.contains("begun 2 times, 1 attempts failed"), "{text}");
    let said_on = npuc().arg("report").arg(few.path("r.jsonl")).args(["--measured-on", "device"]).output().unwrap();
    assert!(said(&said_on).contains("the files say themselves what they were measured on"), "{}", said(&said_on));
    let twice = few.bench(&["--null", "prefill=1ms,prefill=2ms"]).output().unwrap();
    assert!(said(&twice).contains("`prefill` twice"), "{}", said(&twice));
}
