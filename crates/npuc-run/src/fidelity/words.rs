//! How many words of what was said are written down wrongly.

/// The words of a text as they are compared: small letters and digits, without punctuation.
pub fn words(text: &str) -> Vec<String> {
    let plain = |c: char| if c.is_alphanumeric() || c == '\'' { c } else { ' ' };
    let plain: String = text.chars().map(plain).collect();
    plain.split_whitespace().map(str::to_lowercase).collect()
}

/// The fewest words that have to be inserted, dropped or exchanged to make what was said of what was written (Levenshtein,
/// 1966): by the number of words that were said it is the word error rate.
pub fn word_errors(said: &[String], written: &[String]) -> usize {
    let mut row: Vec<usize> = (0..=written.len()).collect();
    for (place, word) in said.iter().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], place + 1);
        for (column, other) in written.iter().enumerate() {
            let exchanged = diagonal + usize::from(word != other);
            diagonal = row[column + 1];
            row[column + 1] = exchanged.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[written.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_counted() {
        for (said, written, errors) in [
            ("", "", 0),
            ("Ask not!", " ask, NOT.", 0),
            ("a b c", "", 3),
            ("", "a b", 2),
            ("a b c", "a x c", 1),
            ("a b c", "a c", 1),
            ("a b c", "z a b c", 1),
            ("a b c d", "b a d c", 3),
            ("don't go", "dont go", 1),
        ] {
            assert_eq!(word_errors(&words(said), &words(written)), errors, "{said:?} {written:?}");
        }
    }
}
