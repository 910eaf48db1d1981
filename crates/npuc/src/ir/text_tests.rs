//! The text form: good graphs come back the same, bad text is refused with its line.

use super::*;

const EXAMPLE: &str = r#"graph "128t1024c" {
  %0 = input "embeds" : f32[128, 576]
  %1 = weight "layers.0.input_layernorm.weight" : f32[576]
  %2 = rms_norm(%0, %1) {eps = 1e-5} : f32[128, 576] @ "layers.0.input_layernorm"
  %3 = slice(%2) {axis = 1, start = 0, len = 64} : f32[128, 64] @ "a \"b\"\\\n\u{7}é"
  %4 = matmul(%3, %3) {transpose_b = true} : f32[128, 128]
  %5 = reshape(%4) {shape = [16, 8, 128]} : f32[16, 8, 128] @ "r"
  output "logits" = %5
  output "" = %2
}
"#;

#[test]
fn a_graph_prints_as_it_was_read() {
    assert_eq!(print(&parse(EXAMPLE).unwrap()), EXAMPLE);
}

#[test]
fn layout_and_comments_are_free() {
    let loose = "# head\n\n graph\"g\"{# c\r\n%0=input\"a # b\":f32[2,3]\n\t%1 = exp( %0 ) : f32 [ 2 , 3 ] # tail\noutput\"o\"=%1\n}\n# end";
    let plain =
        "graph \"g\" {\n  %0 = input \"a # b\" : f32[2, 3]\n  %1 = exp(%0) : f32[2, 3]\n  output \"o\" = %1\n}\n";
    assert_eq!(print(&parse(loose).unwrap()), plain);
}

#[test]
fn real_numbers_round_trip_bit_by_bit() {
    for x in [0.0, -0.0, 1.0, -1.5, 1e-5, f32::MIN_POSITIVE, f32::from_bits(1), f32::MAX, f32::MIN, 0.1, 16_777_217.0] {
        let text = format!("graph \"\" {{\n  %0 = rms_norm() {{eps = {x:?}}} : f32[1]\n}}\n");
        let graph = parse(&text).unwrap();
        let Def::Op { op: Op::RmsNorm { eps }, .. } = graph.values[0].def else { panic!("{text}") };
        assert_eq!(eps.to_bits(), x.to_bits(), "{text}");
        assert_eq!(print(&graph), text);
    }
}

#[test]
fn infinite_numbers_have_a_form_for_messages() {
    for x in ["NaN", "inf", "-inf"] {
        let text = format!("graph \"\" {{\n  %0 = rms_norm() {{eps = {x}}} : f32[1]\n}}\n");
        assert_eq!(print(&parse(&text).unwrap()), text);
    }
}

#[test]
fn lines_of_faults_are_lines_of_the_text() {
    let graph = parse(EXAMPLE).unwrap();
    let line = |n: usize| EXAMPLE.lines().nth(n - 1).unwrap().trim_start();
    for id in graph.ids() {
        assert!(line(value_line(id)).starts_with(&format!("{id} = ")));
    }
    for (i, output) in graph.outputs.iter().enumerate() {
        assert!(line(output_line(&graph, i)).starts_with(&format!("output \"{}\"", output.name)));
    }
}

/// Parses `body` as the inside of a graph and compares the message.
fn check(body: &str, expected: &str) {
    let text = format!("graph \"g\" {{\n{body}\n}}\n");
    let error = parse(&text).expect_err(body);
    let [fault] = error.diagnostics() else { panic!("{error}") };
    assert_eq!(fault.code, Code::IrSyntax);
    let have = fault.have.as_deref().map(|have| format!(" | {have}")).unwrap_or_default();
    let told = format!("{}: {}{have}", fault.line.unwrap(), fault.message);
    assert_eq!(told, expected, "{body}");
}

/// Lines of a graph, and the line, message and place of their fault.
const MALFORMED: &[(&str, &str)] = &[
    ("x", "2: expected a value (`%…`), `output` or `}` | `x` at column 1"),
    (
        "  %1 = input \"a\" : f32[1]",
        "2: expected `%0`, for values are numbered in order | `%1 = input \"a\" : f32[1]` at column 3",
    ),
    (
        "%4294967296 = input \"a\" : f32[1]",
        "2: expected a number up to 4294967295 | `4294967296 = input \"a\" :…` at column 2",
    ),
    ("%0 input", "2: expected `=` | `input` at column 4"),
    ("%0 =", "2: expected `input`, `weight` or an operation | the end of the line at column 5"),
    ("%0 = input a", "2: expected a name in double quotes | `a` at column 12"),
    ("%0 = input \"a", "2: expected `\"` at the end of the name | the end of the line at column 14"),
    (
        "%0 = input \"a\\q\"",
        "2: expected one of the escapes `\\\"`, `\\\\`, `\\n`, `\\r`, `\\t`, `\\u{hex}` | `\\q\"` at column 14",
    ),
    (
        "%0 = input \"\\u{d800}\"",
        "2: expected one of the escapes `\\\"`, `\\\\`, `\\n`, `\\r`, `\\t`, `\\u{hex}` | `\\u{d800}\"` at column 13",
    ),
    (
        "%0 = input \"a\" : f31[1]",
        "2: expected a number format (f32, f16, bf16, q4_0, q4_1, q5_0, q5_1, q8_0, q2_k, q3_k, q4_k, q5_k, q6_k, int8, int4, lpbq4-g16, lpbq4-g32, lpbq4-g64, lpbq4-g128, lpbq4-g256, lpbq4-g512, bw4-g16, bw4-g32, bw4-g64, bw4-g128, bw4-g256, bw4-g512) | `f31[1]` at column 18",
    ),
    ("%0 = input \"a\" : f32[1", "2: expected `,` or `]` | the end of the line at column 23"),
    ("%0 = input \"a\" : f32[1,]", "2: expected a whole number | `]` at column 24"),
    ("%0 = input \"a\" : f32[-1]", "2: expected a whole number | `-1]` at column 22"),
    (
        "%0 = input \"a\" : f32[18446744073709551616]",
        "2: expected a whole number up to 18446744073709551615 | `18446744073709551616]` at column 22",
    ),
    ("%0 = input \"a\" : f32[1] @ \"b\"", "2: expected the end of the line | `@ \"b\"` at column 25"),
    ("%0 = exp(0) : f32[1]", "2: expected `%` | `0) : f32[1]` at column 10"),
    ("%0 = exp(%0 %1) : f32[1]", "2: expected `,` or `)` | `%1) : f32[1]` at column 13"),
    ("%0 = exp(%0) {x = 1} : f32[1]", "2: `exp` has no attribute `x`"),
    ("%0 = sum(%0) : f32[1]", "2: `sum` needs the attribute `axis`"),
    ("%0 = sum(%0) {axis = 1.0} : f32[1]", "2: attribute `axis` of `sum` needs a whole number"),
    ("%0 = sum(%0) {axis = 1, axis = 1} : f32[1]", "2: attribute `axis` is given twice"),
    (
        "%0 = rms_norm(%0) {eps = 1} : f32[1]",
        "2: attribute `eps` of `rms_norm` needs a real number with a point or exponent",
    ),
    (
        "%0 = rms_norm(%0) {eps = 1e99} : f32[1]",
        "2: expected a number, `true`, `false` or a list in `[…]` | `1e99} : f32[1]` at column 26",
    ),
    (
        "%0 = rms_norm(%0) {eps = infinity}",
        "2: expected a number, `true`, `false` or a list in `[…]` | `infinity}` at column 26",
    ),
    ("%0 = rms_norm(%0) {= 1}", "2: expected an attribute's name | `= 1}` at column 20"),
    ("%0 = exp(%0) f32[1]", "2: expected `:` | `f32[1]` at column 14"),
    ("output \"o\" = 0", "2: expected `%` | `0` at column 14"),
    (
        "output \"o\" = %0\n# note\n%0 = input \"a\" : f32[1]",
        "4: expected `output` or `}` after an output | `%0 = input \"a\" : f32[1]` at column 1",
    ),
    ("}\nmore", "3: expected the end of the text after `}` | `more` at column 1"),
];

#[test]
fn malformed_lines_are_told() {
    for (body, expected) in MALFORMED {
        check(body, expected);
    }
    let Err(error) = parse("graph \"\" {\n %0 = tanh(%0) : f32[1]") else { panic!() };
    assert!(error.diagnostics()[0].message.starts_with("unknown operation `tanh`; known are rms_norm, layer_norm,"));
}

#[test]
fn text_that_ends_early_is_told() {
    for (text, line, expected) in [
        ("", 1, "expected `graph \"name\" {`"),
        ("# only\n\n", 2, "expected `graph \"name\" {`"),
        ("graph \"g\" {\n  %0 = input \"a\" : f32[1]\n", 2, "expected `}`"),
    ] {
        let error = parse(text).unwrap_err();
        let fault = &error.diagnostics()[0];
        assert_eq!((fault.line, fault.message.as_str()), (Some(line), expected));
    }
}
