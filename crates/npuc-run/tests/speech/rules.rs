//! What may follow what, against a table made of the rules in openai/whisper's `decoding.py`.

use npuc_run::speech::{Kind, Rules};

use crate::fake::{END, ENGLISH, NO_SPEECH, NO_TIMES, START, TIME, VOCAB, ids, tokens};

/// What is left: whether text, whether the end, and the first and last timestamp in steps.
#[derive(Debug, PartialEq)]
struct Left {
    text: bool,
    end: bool,
    times: Option<(u32, u32)>,
}

fn left(scores: &[f32]) -> Left {
    let ok = |id: u32| scores[id as usize] > f32::NEG_INFINITY;
    let times: Vec<u32> = (0..1501).filter(|step| ok(TIME + step)).collect();
    if let (Some(first), Some(last)) = (times.first(), times.last()) {
        assert_eq!(times.len() as u32, last - first + 1, "a gap in the timestamps");
    }
    assert!(!ok(START) && !ok(NO_SPEECH) && !ok(NO_TIMES), "a token that is never sampled");
    let times = times.first().copied().zip(times.last().copied());
    Left { text: ok(u32::from(b'a')), end: ok(END), times }
}

fn text_scores(time: f32) -> Vec<f32> {
    let mut scores = vec![0.0; VOCAB + 3];
    scores[TIME as usize..VOCAB].fill(time);
    // Padding behind the vocabulary must not win.
    scores[VOCAB..].fill(100.0);
    scores
}

#[test]
fn timestamps_come_in_pairs_and_never_go_back() {
    let tokens = tokens(Kind::Multilingual);
    let cases = [
        ("", false, false, Some((0, 50))),
        ("<0.00>", true, true, None),
        ("<1.00>", true, true, None),
        ("<0.00>a", true, true, Some((1, 1500))),
        ("<0.00>ab", true, true, Some((1, 1500))),
        ("<0.40>ab<2.00>", false, true, Some((100, 1500))),
        ("<0.40>ab<2.00><2.00>", true, true, None),
        ("<0.40>ab<2.00><3.00>c", true, true, Some((151, 1500))),
        ("<0.40>ab<2.00><3.00>c<30.00>", false, true, Some((1500, 1500))),
        ("<0.40>ab<30.00><30.00>c", true, true, None),
    ];
    for (sampled, text, end, times) in cases {
        let mut scores = text_scores(-30.0);
        Rules::with_timestamps(&tokens, Some(1.0)).apply(&mut scores, &ids(sampled));
        assert!(scores[VOCAB..].iter().all(|score| *score == f32::NEG_INFINITY));
        assert_eq!(left(&scores), Left { text, end, times }, "{sampled:?}");
    }
}

#[test]
fn the_first_timestamp_has_a_limit() {
    let tokens = tokens(Kind::EnglishOnly);
    for (limit_s, last) in
        [(Some(1.0), 50), (Some(0.02), 1), (Some(0.0), 0), (Some(29.99), 1500), (None, 1500), (Some(f64::MAX), 1500)]
    {
        let mut scores = text_scores(-30.0);
        Rules::with_timestamps(&tokens, limit_s).apply(&mut scores, &[]);
        assert_eq!(left(&scores), Left { text: false, end: false, times: Some((0, last)) }, "{limit_s:?}");
    }
}

#[test]
fn timestamps_win_by_their_sum() {
    let tokens = tokens(Kind::Multilingual);
    // 1500 timestamps of equal scores have the probability of one that is ln 1500 = 7.31 higher.
    for (time, text) in [(-7.4, true), (-7.2, false), (0.0, false), (f32::NEG_INFINITY, true)] {
        let mut scores = text_scores(time);
        Rules::with_timestamps(&tokens, Some(1.0)).apply(&mut scores, &ids("<0.00>a"));
        let left = left(&scores);
        assert_eq!((left.text, left.end), (text, text), "{time}");
    }
}

#[test]
fn text_alone_has_no_timestamps_and_does_not_begin_blank() {
    let tokens = tokens(Kind::Multilingual);
    for (sampled, end, space) in [("", false, false), ("a", true, false), ("a<1.00>", true, false)] {
        let mut scores = text_scores(5.0);
        Rules::without_timestamps(&tokens).apply(&mut scores, &ids(sampled));
        assert_eq!(left(&scores), Left { text: true, end, times: None }, "{sampled:?}");
        assert_eq!(scores[usize::from(b' ')] > f32::NEG_INFINITY, space);
        // The reference leaves languages to the model.
        assert!(scores[ENGLISH as usize] > f32::NEG_INFINITY);
    }
}

#[test]
fn short_scores_do_not_panic() {
    let tokens = tokens(Kind::Multilingual);
    for len in [0, 1, END as usize, TIME as usize, VOCAB - 1] {
        for sampled in ["", "<0.00>a", "<0.00>a<2.00>"] {
            let mut scores = vec![0.0; len];
            Rules::with_timestamps(&tokens, Some(1.0)).apply(&mut scores, &ids(sampled));
        }
    }
}
