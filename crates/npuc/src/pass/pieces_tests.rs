//! Products with joined operands: how the rewrite reads, and what it leaves alone.

use crate::pass::Pass;
use crate::pass::tests::check;

/// Weights of attention over two past rows and a new one.
const ROWS: &str = r#"%0 = input "weights" : f32[2, 1, 3]
%1 = input "past" : f32[2, 2, 4]
%2 = input "new" : f32[2, 1, 4]
%3 = concat(%1, %2) {axis = 1} : f32[2, 3, 4]
%4 = matmul(%0, %3) {transpose_b = false} : f32[2, 1, 4]
output "mixed" = %4"#;

#[test]
fn rows_become_a_sum() {
    let after = r#"%0 = input "weights" : f32[2, 1, 3]
%1 = input "past" : f32[2, 2, 4]
%2 = input "new" : f32[2, 1, 4]
%3 = slice(%0) {axis = 2, start = 0, len = 2} : f32[2, 1, 2]
%4 = matmul(%3, %1) {transpose_b = false} : f32[2, 1, 4]
%5 = slice(%0) {axis = 2, start = 2, len = 1} : f32[2, 1, 1]
%6 = matmul(%5, %2) {transpose_b = false} : f32[2, 1, 4]
%7 = add(%4, %6) : f32[2, 1, 4]
output "mixed" = %7"#;
    check(Pass::SplitJoinedProducts, ROWS, after);
}

#[test]
fn columns_become_a_join() {
    let before = r#"%0 = input "q" : f32[2, 1, 4]
%1 = input "past" : f32[2, 4, 2]
%2 = input "new" : f32[2, 4, 1]
%3 = concat(%1, %2) {axis = 2} : f32[2, 4, 3]
%4 = matmul(%0, %3) {transpose_b = false} : f32[2, 1, 3]
output "scores" = %4"#;
    let after = r#"%0 = input "q" : f32[2, 1, 4]
%1 = input "past" : f32[2, 4, 2]
%2 = input "new" : f32[2, 4, 1]
%3 = matmul(%0, %1) {transpose_b = false} : f32[2, 1, 2]
%4 = matmul(%0, %2) {transpose_b = false} : f32[2, 1, 1]
%5 = concat(%3, %4) {axis = 2} : f32[2, 1, 3]
output "scores" = %5"#;
    check(Pass::SplitJoinedProducts, before, after);
}

/// A joined value that leaves, that something else reads, that is turned or joined along the batch stays whole.
#[test]
fn others_stay() {
    for (from, to) in [
        ("output \"mixed\" = %4", "output \"mixed\" = %4\noutput \"joined\" = %3"),
        ("output \"mixed\" = %4", "%5 = exp(%3) : f32[2, 3, 4]\noutput \"mixed\" = %4\noutput \"other\" = %5"),
        (
            "%4 = matmul(%0, %3) {transpose_b = false} : f32[2, 1, 4]",
            "%4 = matmul(%3, %3) {transpose_b = true} : f32[2, 3, 3]",
        ),
        (
            "f32[2, 2, 4]\n%2 = input \"new\" : f32[2, 1, 4]\n%3 = concat(%1, %2) {axis = 1}",
            "f32[1, 3, 4]\n%2 = input \"new\" : f32[1, 3, 4]\n%3 = concat(%1, %2) {axis = 0}",
        ),
    ] {
        let text = ROWS.replace(from, to);
        assert_ne!(text, ROWS);
        check(Pass::SplitJoinedProducts, &text, &text);
    }
}
