//! The schedule that QNN writes of a graph where optrace is on: how many bytes each of its operations moves.
//!
//! It is text in the form of Python, of which only the list `bandwidth_information` is read. What stands there in another form than
//! was seen (QAIRT 2.51) is an error, since a sum that misses something looks like any other.

use std::io::{self, BufRead};

use super::profile::Traffic;

/// How the list begins and ends, each on a line of its own.
const START: &str = "bandwidth_information = [";
const END: &str = "]";

/// What the operations of a schedule move in all.
///
/// Errors: what is wrong, in words.
pub(super) fn read(mut from: impl BufRead) -> Result<Traffic, String> {
    let unreadable = |e: io::Error| format!("it cannot be read: {e}");
    let mut line = Vec::new();
    let mut total: Option<Traffic> = None;
    let mut inside = false;
    let mut number = 0usize;
    loop {
        line.clear();
        if from.read_until(b'\n', &mut line).map_err(unreadable)? == 0 {
            break;
        }
        number += 1;
        let text = String::from_utf8_lossy(&line);
        let text = text.trim();
        match (inside, text) {
            (false, START) if total.is_some() => return Err(format!("line {number} begins a second list of traffic")),
            (false, START) => (inside, total) = (true, Some(Traffic::default())),
            (false, _) => {}
            (true, END) => inside = false,
            (true, text) => {
                let row = row(text).ok_or_else(|| format!("line {number} is no row of traffic: {text}"))?;
                let sum = total.unwrap_or_default().plus(row);
                total = Some(sum.ok_or_else(|| format!("the sum at line {number} is too large"))?);
            }
        }
    }
    match (total, inside) {
        (Some(total), false) => Ok(total),
        (Some(_), true) => Err("its list of traffic has no end".into()),
        (None, _) => Err(format!("it has no `{START}`")),
    }
}

/// The keys of a row behind that of its operation.
const KEYS: [&str; 5] = ["dram_read", "dram_write", "vtcm_read", "vtcm_write", "is_dma"];

/// A row: `{"opid" : 0x1 , "dram_read": 2048 , "dram_write": 0 , "vtcm_read": 0 , "vtcm_write": 2048, "is_dma": 1},`
fn row(text: &str) -> Option<Traffic> {
    let fields = text.strip_suffix(',').unwrap_or(text).strip_prefix('{')?.strip_suffix('}')?;
    let mut fields = fields.split(',').map(|field| {
        let (key, value) = field.split_once(':')?;
        Some((key.trim().strip_prefix('"')?.strip_suffix('"')?, value.trim()))
    });
    let (key, operation) = fields.next()??;
    u64::from_str_radix(operation.strip_prefix("0x")?, 16).ok().filter(|_| key == "opid")?;
    let mut counts = [0u64; KEYS.len()];
    for (expected, count) in KEYS.iter().zip(&mut counts) {
        let (key, value) = fields.next()??;
        *count = value.parse().ok().filter(|_| key == *expected)?;
    }
    let [dram_read_bytes, dram_write_bytes, vtcm_read_bytes, vtcm_write_bytes, moves] = counts;
    let whole = fields.next().is_none() && moves <= 1;
    let traffic =
        Traffic { dram_read_bytes, dram_write_bytes, vtcm_read_bytes, vtcm_write_bytes, operations: 1, moves };
    whole.then_some(traffic)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: &str = r#"{"opid" : 0x0000422700000002 , "dram_read": 2048 , "dram_write": 7 , "vtcm_read": 5 , "vtcm_write": 3, "is_dma": 1},"#;

    fn check(text: &str, expected: Result<[u64; 6], &str>) {
        let have = read(text.as_bytes());
        match (&have, expected) {
            (Ok(traffic), Ok(expected)) => {
                let Traffic { dram_read_bytes, dram_write_bytes, vtcm_read_bytes, vtcm_write_bytes, .. } = *traffic;
                let counts = [traffic.operations, traffic.moves];
                let bytes = [dram_read_bytes, dram_write_bytes, vtcm_read_bytes, vtcm_write_bytes];
                assert_eq!([&bytes[..], &counts[..]].concat(), expected, "{text}");
            }
            (Err(fault), Err(part)) => assert!(fault.contains(part), "{fault}"),
            (_, expected) => panic!("{text}: {have:?}, not {expected:?}"),
        }
    }

    #[test]
    fn rows_are_added_and_the_rest_is_passed_over() {
        let still =
            r#"{"opid" : 0x1 , "dram_read": 0 , "dram_write": 1 , "vtcm_read": 2 , "vtcm_write": 4, "is_dma": 0}"#;
        let outside = ROW.replace("2048", "999");
        check(&format!("{START}\n]\n"), Ok([0; 6]));
        check(
            &format!("# x\n{outside}\n{START}\n{ROW}\n{ROW}\n{still}\n]\n{outside}\n]\n"),
            Ok([4096, 15, 12, 10, 3, 2]),
        );
        check(&format!("\u{fffd}\r\n  {START}\r\n\t{ROW}\r\n]"), Ok([2048, 7, 5, 3, 1, 1]));
    }

    #[test]
    fn other_forms_are_refused() {
        for (text, part) in [
            (String::new(), "it has no `bandwidth_information = [`"),
            (format!("{ROW}\n]"), "it has no `bandwidth_information = [`"),
            (format!("{START}\n{ROW}\n"), "its list of traffic has no end"),
            (format!("{START}\n]\n{START}\n]\n"), "line 3 begins a second list"),
            (format!("{START}\n{ROW}\n\n]"), "line 3 is no row of traffic"),
            (format!("{START}\n{}\n]", ROW.replace("2048", "-1")), "line 2 is no row"),
            (format!("{START}\n{}\n]", ROW.replace("2048", "0x800")), "line 2 is no row"),
            (format!("{START}\n{}\n]", ROW.replace("2048", "18446744073709551616")), "line 2 is no row"),
            (format!("{START}\n{}\n]", ROW.replace("dram_read", "ddr_read")), "line 2 is no row"),
            (format!("{START}\n{}\n]", ROW.replace("\"is_dma\": 1", "\"is_dma\": 2")), "line 2 is no row"),
            (
                format!("{START}\n{}\n]", ROW.replace("\"is_dma\": 1", "\"is_dma\": 1, \"ddr2_read\": 4")),
                "line 2 is no row",
            ),
            (format!("{START}\n{}\n]", ROW.replace(", \"is_dma\": 1", "")), "line 2 is no row"),
            (format!("{START}\n{}\n]", ROW.replace("0x0000422700000002", "operation")), "line 2 is no row"),
            (
                format!("{START}\n{ROW}\n{}\n]", ROW.replace("2048", "18446744073709551615")),
                "the sum at line 3 is too large",
            ),
        ] {
            check(&text, Err(part));
        }
    }
}
