//! Tests of malformed target files: what is wrong is told with the place it stands at.

use super::*;
use crate::target::tests::{PLAIN, rule};

/// The small chip with one rule.
fn good() -> String {
    format!("{PLAIN}\n{}", rule("dimension", "limit.dimension.max = 8"))
}

/// The good file with one text in the place of another.
fn at(from: &str, to: &str) -> String {
    let good = good();
    assert!(good.contains(from), "{from}");
    good.replacen(from, to, 1)
}

/// Holds the beginning of what is said of each file.
fn check(cases: &[(String, &str)]) {
    let mut wrong = Vec::new();
    for (text, expected) in cases {
        let error = parse(text, Path::new("my.toml")).unwrap_err();
        let fault = &error.diagnostics()[0];
        let said = fault.message.strip_prefix("the target file is malformed at ").unwrap();
        if !said.starts_with(expected) {
            wrong.push(format!("said {said}, expected {expected}"));
        }
        assert_eq!((fault.code, fault.file.as_deref()), (Code::BadTarget, Some(Path::new("my.toml"))));
        assert!(said.starts_with(&format!("line {},", fault.line.unwrap())));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn malformed_values_say_where() {
    check(&[
        (at("max = 8", "max = 0"), "line 47, column 23: invalid value: integer `0`, expected a nonzero usize"),
        (at("max = 8", "max = -8"), "line 47, column 23: invalid value: integer `-8`, expected a nonzero usize"),
        (at("max = 8", "max = \"8\""), "line 47, column 23: invalid type: string \"8\", expected a nonzero usize"),
        (at("limit.dimension", "limit.dimensions"), "line 47, column 7: unknown variant `dimensions`, expected one of"),
        (
            at("limit.dimension.max", "limit.dimension.least"),
            "line 47, column 17: unexpected keys in table: least, available keys: max",
        ),
        (at("float = \"f16\"", "float = \"f17\""), "line 6, column 9: `f17` is no number format; f32, f16, bf16"),
        (at("float = \"f16\"", "float = \"int8\""), "line 6, column 1: `int8` is no float format"),
        (at("float = \"f16\"", "float = \"f16\"\nhidden-mask = -29"), "line 7, column 1: a mask of -29 hides nothing"),
        (at("float = \"f16\"", "float = \"f16\"\nhidden-mask = 100"), "line 7, column 1: a mask of 100 hides nothing"),
        (
            at(
                "float = \"f16\"",
                "float = \"f16\"\ndram = { bytes-per-s = 0, source = \"a sheet\", grade = \"vendor\" }",
            ),
            "line 7, column 24: invalid value: integer `0`, expected a nonzero u64",
        ),
        (
            at(
                "float = \"f16\"",
                "float = \"f16\"\ndram = { bytes-per-s = 76.8, source = \"a sheet\", grade = \"vendor\" }",
            ),
            "line 7, column 24: invalid type: floating point `76.8`, expected a nonzero u64",
        ),
        (
            at("float = \"f16\"", "float = \"f16\"\ndram = { bytes-per-s = 1, grade = \"vendor\" }"),
            "line 7, column 8: missing field `source`",
        ),
        (at("limit.dimension.max = 8", "limit.batch.allowed = []"), "line 47, column 23: a rule that allows nothing"),
        (
            at("grade = \"third-party\"", "grade = \"hearsay\""),
            "line 31, column 9: unknown variant `hearsay`, expected one of `vendor`, `third-party`, `tried`, `inferred`",
        ),
        (at("source = \"the tests refuse it\"\n", ""), "line 27, column 1: missing field `source`"),
        (at("source = \"the tests refuse it\"", "source = \" \""), "line 30, column 10: the text is empty"),
    ]);
}

#[test]
fn malformed_tables_say_where() {
    check(&[
        (
            at("linear = \"FC\"", "lineal = \"FC\""),
            "line 13, column 11: unknown operation `lineal`; known are rms_norm, layer_norm, linear",
        ),
        (
            at("activations = [\"int16\"]\n", "activation = [\"int16\"]\n"),
            "line 18, column 1: unknown field `activation`",
        ),
        (at("unit = \"CPU\"", "unit = \"GPU\""), "line 23, column 1: `GPU` is no unit of the target"),
        (at("name = \"small\"", "name = \"Small!\""), "line 2, column 8: `Small!` is no target's name"),
        (at("name = \"small\"", "name = "), "line 2, column 8: "),
        (at("protocol = \"append\"\n", ""), "line 1, column 1: missing field `protocol`"),
        (
            at("protocol = \"append\"", "protocol = \"append\"\nback-end = \"moon\""),
            "line 6, column 12: unknown variant `moon`",
        ),
        (at("name = \"small\"", "name = \"small\"\nname = \"small\""), "line 3, column 1: duplicate key"),
        ("name".into(), "line 1, column 5: "),
        (String::new(), "line 1, column 1: missing field `name`"),
    ]);
}

/// A cut or thinned file is refused with a place in it, or still a whole target.
#[test]
fn damaged_files_are_refused_with_a_place() {
    let text = include_str!("../../../../targets/sl2610.toml");
    let lines: Vec<&str> = text.lines().collect();
    let cuts = (0..text.len()).step_by(7).filter_map(|end| text.get(..end).map(str::to_owned));
    let thinned = (0..lines.len()).map(|without| {
        let kept = lines.iter().enumerate().filter(|(line, _)| *line != without).map(|(_, line)| *line);
        kept.collect::<Vec<_>>().join("\n")
    });
    let mut refused = 0;
    for text in cuts.chain(thinned) {
        let Err(error) = parse(&text, Path::new("my.toml")) else { continue };
        refused += 1;
        for fault in error.diagnostics() {
            assert_eq!(fault.code, Code::BadTarget);
            assert!(fault.line.is_some_and(|line| line <= text.lines().count().max(1) + 1), "{fault}");
        }
    }
    assert!(refused > lines.len() / 2, "{refused}");
}
