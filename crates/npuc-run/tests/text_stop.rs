//! Stop texts: cut exactly, however the text is cut into pieces.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use npuc::diag::Code;
use npuc_run::text::{Held, StopTexts};
use proptest::prelude::*;

fn run<'a>(stops: &[&str], pieces: impl IntoIterator<Item = &'a str>) -> (Vec<String>, bool) {
    let mut stop = StopTexts::new(stops.iter().map(|&s| s.to_owned()).collect()).unwrap();
    let mut texts: Vec<String> = pieces.into_iter().map(|piece| stop.push(piece).text.to_owned()).collect();
    let Held { text, stopped } = stop.finish();
    texts.push(text.to_owned());
    (texts, stopped)
}

/// Stop texts, pieces pushed, texts returned (the last by `finish`), whether it stopped.
type Case = (&'static [&'static str], &'static [&'static str], &'static [&'static str], bool);

#[test]
fn text_is_held_back_and_cut() {
    let cases: [Case; 10] = [
        (&[], &["a", "b"], &["a", "b", ""], false),
        (&["END"], &["hello", " EN", "D tail"], &["hello", " ", "", ""], true),
        (&["END"], &["hello E", "N", "x"], &["hello ", "", "ENx", ""], false),
        (&["END"], &["hello EN"], &["hello ", "EN"], false),
        (&["END"], &["END"], &["", ""], true),
        (&["aab"], &["a", "a", "a", "b", "c"], &["", "", "a", "", "", ""], true),
        (&["\n\n"], &["a\n", "b\n", "\nc"], &["a", "\nb", "", ""], true),
        (&["abc", "b"], &["xabc"], &["xa", ""], true),
        (&["bc", "abc"], &["xabc"], &["x", ""], true),
        (&["😀é"], &["a😀", "e", "😀", "é"], &["a", "😀e", "", "", ""], true),
    ];
    for (stops, pieces, texts, stopped) in cases {
        let expected = (texts.iter().map(|&s| s.to_owned()).collect(), stopped);
        assert_eq!(run(stops, pieces.iter().copied()), expected, "{stops:?} {pieces:?}");
    }
}

#[test]
fn nothing_comes_after_a_stop() {
    let mut stop = StopTexts::new(vec!["|".to_owned()]).unwrap();
    assert_eq!(stop.push("a|b"), Held { text: "a", stopped: true });
    assert_eq!(stop.push("c"), Held { text: "", stopped: true });
    assert_eq!(stop.finish(), Held { text: "", stopped: true });
}

#[test]
fn empty_stop_texts_are_refused() {
    let error = StopTexts::new(vec!["a".to_owned(), String::new()]).unwrap_err();
    assert_eq!(error.diagnostics()[0].code, Code::BadArgument);
}

/// The text before the stop that is complete first; of those that end together, the longest.
fn cut<'a>(text: &'a str, stops: &[String]) -> (&'a str, bool) {
    for end in text.char_indices().map(|(at, c)| at + c.len_utf8()) {
        let starts = stops.iter().filter(|stop| text[..end].ends_with(stop.as_str())).map(|stop| end - stop.len());
        if let Some(start) = starts.min() {
            return (&text[..start], true);
        }
    }
    (text, false)
}

proptest! {
    #[test]
    fn pieces_do_not_matter(
        text in "[abé😀]{0,24}",
        stops in prop::collection::vec("[abé😀]{1,5}", 0..4),
        lengths in prop::collection::vec(0usize..5, 0..24),
    ) {
        let chars: Vec<char> = text.chars().collect();
        let mut rest = chars.as_slice();
        let mut pieces: Vec<String> = Vec::new();
        for len in lengths {
            let (head, tail) = rest.split_at(len.min(rest.len()));
            pieces.push(head.iter().collect());
            rest = tail;
        }
        pieces.push(rest.iter().collect());
        let stops_ref: Vec<&str> = stops.iter().map(String::as_str).collect();
        let (texts, stopped) = run(&stops_ref, pieces.iter().map(String::as_str));
        let (expected, expected_stopped) = cut(&text, &stops);
        prop_assert_eq!((texts.concat(), stopped), (expected.to_owned(), expected_stopped));
    }
}
