//! The verifier: one broken rule after the other, and all at once.

use super::*;
use crate::ir::text::parse;

/// Verifies a graph of these lines and compares the annotated text, leaving out the lines without a fault.
fn check(body: &str, expected: &[&str]) {
    let graph = parse(&format!("graph \"g\" {{\n{body}\n}}\n")).unwrap_or_else(|e| panic!("{body}: {e}"));
    let Err(error) = verify(&graph) else { panic!("no fault in {body}") };
    assert!(error.diagnostics().iter().all(|fault| fault.code == Code::IrInvalid));
    let annotated = annotate(&graph, &error);
    let lines: Vec<&str> = annotated.lines().collect();
    let faults: Vec<String> = (1..lines.len())
        .filter(|&i| lines[i].starts_with("  # ^ error: "))
        .map(|i| {
            let code = lines[..i].iter().rfind(|line| !line.starts_with("  # ^")).unwrap();
            let head = code.trim_start().split(" = ").next().unwrap();
            format!("{head}: {}", lines[i].trim_start_matches("  # ^ error: "))
        })
        .collect();
    assert_eq!(faults, expected, "{body}");
    assert_eq!(faults.len(), error.diagnostics().len());
    assert_eq!(print(&parse(&annotated).unwrap()), print(&graph));
}

#[test]
fn a_good_graph_has_no_faults() {
    let text = r#"graph "g" {
  %0 = input "x" : f32[2, 64]
  %1 = weight "w" : q8_0[3, 64]
  %2 = weight "unused" : q8_0[3, 64]
  %3 = linear(%0, %1) : f32[2, 3] @ "head"
  output "x" = %0
  output "y" = %3
  output "same" = %3
}"#;
    verify(&parse(text).unwrap()).unwrap();
}

#[test]
fn each_rule_has_its_message() {
    let x = "%0 = input \"x\" : f32[2, 3]\n";
    let out = "\noutput \"y\" = %1";
    for (line, expected) in [
        ("%1 = exp(%1) : f32[2, 3]", "%1: operand %1 is not defined before %1"),
        ("%1 = add(%9, %9) : f32[2, 3]", "%1: operand %9 is not defined before %1"),
        ("%1 = add(%0) : f32[2, 3]", "%1: `add` takes 2 operands, and it has 1"),
        ("%1 = exp(%0) : f32[3, 2]", "%1: `exp` gives f32[2, 3] here, and the type is f32[3, 2]"),
        ("%1 = exp(%0) : f16[2, 3]", "%1: `exp` gives f32[2, 3] here, and the type is f16[2, 3]"),
        ("%1 = exp(%1) : f32[2, 0]", "%1: operand %1 is not defined before %1|%1: f32[2, 0] has an extent of zero"),
        ("%1 = sum(%0) {axis = 2} : f32[2, 1]", "%1: `sum` needs an axis below the rank 2, and it is 2"),
        (
            "%1 = affine(%0) {scale = NaN, offset = -inf} : f32[2, 3]",
            "%1: attribute `scale` must be finite, and it is NaN|%1: attribute `offset` must be finite, and it is -inf",
        ),
        ("%1 = input \"x\" : f32[1]", "%1: the name \"x\" is already taken at line 2"),
        ("%1 = weight \"x\" : f32[1]", "%1: the name \"x\" is already taken at line 2"),
        ("%1 = weight \"\" : f32[1]", "%1: the name is empty"),
        ("%1 = input \"i\" : f16[1]", "%1: an input must be f32, and it is f16"),
        ("%1 = weight \"w\" : f32[1, 1, 1, 1, 1]", "%1: f32[1, 1, 1, 1, 1] has rank 5, and ranks go from 1 to 4"),
        (
            "%1 = weight \"w\" : q8_0[2, 33]",
            "%1: rows of q8_0 hold whole blocks of 32 elements, and q8_0[2, 33] has rows of 33",
        ),
        ("%1 = weight \"w\" : q8_0[2, 32]", "output \"y\": an output must be f32, and it is q8_0"),
    ] {
        check(&format!("{x}{line}{out}"), &expected.split('|').collect::<Vec<_>>());
    }
}

#[test]
fn outputs_have_rules_too() {
    let x = "%0 = input \"x\" : f32[2, 3]\n";
    check(x, &["}: the graph has no output"]);
    check(&format!("{x}output \"a\" = %1"), &["output \"a\": output %1 is not defined"]);
    check(&format!("{x}output \"\" = %0"), &["output \"\": the name is empty"]);
    let twice = format!("{x}output \"a\" = %0\noutput \"a\" = %0");
    check(&twice, &["output \"a\": the name \"a\" is already taken at line 3"]);
}

#[test]
fn all_faults_are_told_and_each_once() {
    let body = r#"%0 = input "x" : f32[2, 0]
%1 = exp(%0) : f32[2, 3]
%2 = exp(%1) : f32[3, 3]
%3 = exp(%2) : f32[2, 3]
%4 = affine(%2) {scale = inf, offset = 0.0} : f32[3, 3]
%5 = add(%3, %7) : f32[2, 3]
%6 = mul(%5, %5) : f32[2]"#;
    check(
        body,
        &[
            "%0: f32[2, 0] has an extent of zero",
            "%2: `exp` gives f32[2, 3] here, and the type is f32[3, 3]",
            "%4: attribute `scale` must be finite, and it is inf",
            "%5: operand %7 is not defined before %5",
            "%6: `mul` gives f32[2, 3] here, and the type is f32[2]",
            "}: the graph has no output",
        ],
    );
}

#[test]
fn faults_without_a_line_come_last() {
    let graph = parse("graph \"g\" {\n%0 = input \"x\" : f32[1]\noutput \"y\" = %0\n}").unwrap();
    for line in [None, Some(0), Some(99)] {
        let mut fault = Diagnostic::error(Code::IrInvalid, "of no\nline").need(1).have(2);
        fault.line = line;
        let text = annotate(&graph, &fault.into());
        assert!(text.ends_with("}\n  # ^ error: of no line; need 1; have 2\n"), "{text}");
        assert_eq!(parse(&text).unwrap(), graph);
    }
}
