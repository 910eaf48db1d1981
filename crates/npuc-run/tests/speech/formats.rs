//! Files of transcripts, against what the writers of openai/whisper's `utils.py` write.

use npuc_run::speech::{Format, Language, Segment, Timing, Transcript, rendered};
use proptest::prelude::*;
use serde_json::{Value, json};

fn segment(start_s: f64, end_s: f64, text: &str) -> Segment {
    Segment {
        start_s,
        end_s,
        text: text.to_owned(),
        ids: vec![1, 2],
        window_frame: 3000,
        temperature: 0.2,
        avg_logprob: -0.5,
        compression_ratio: 1.5,
        no_speech_prob: 0.25,
    }
}

fn transcript(segments: Vec<Segment>) -> Transcript {
    Transcript {
        text: segments.iter().map(|segment| segment.text.as_str()).collect(),
        language: Some(Language::ENGLISH),
        language_probability: None,
        segments,
        timing: Timing::default(),
    }
}

#[test]
fn every_format() {
    let two = transcript(vec![segment(0.0, 2.5, " Hello --> you"), segment(3599.9996, 3725.0045, " Grüße ")]);
    let cases = [
        (Format::Txt { times: false }, "Hello --> you\nGrüße\n"),
        (
            Format::Txt { times: true },
            "[00:00.000 --> 00:02.500] Hello --> you\n[01:00:00.000 --> 01:02:05.004] Grüße\n",
        ),
        (Format::Srt, "1\n00:00:00,000 --> 00:00:02,500\nHello -> you\n\n2\n01:00:00,000 --> 01:02:05,004\nGrüße\n\n"),
        (Format::Vtt, "WEBVTT\n\n00:00.000 --> 00:02.500\nHello -> you\n\n01:00:00.000 --> 01:02:05.004\nGrüße\n\n"),
    ];
    for (format, expected) in cases {
        assert_eq!(rendered(&two, format).unwrap(), expected, "{format:?}");
        let empty = rendered(&transcript(Vec::new()), format).unwrap();
        assert_eq!(empty, format.begin(), "{format:?}");
    }
    let json: Value = serde_json::from_str(&rendered(&two, Format::Json).unwrap()).unwrap();
    assert_eq!(json["language"], "en");
    assert_eq!(json["text"], " Hello --> you Grüße ");
    let first = json!({"id": 0, "seek": 3000, "start": 0.0, "end": 2.5, "text": " Hello --> you", "tokens": [1, 2],
        "temperature": 0.2, "avg_logprob": -0.5, "compression_ratio": 1.5, "no_speech_prob": 0.25});
    assert_eq!(json["segments"][0], first);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(128) })]

    #[test]
    fn nothing_panics(start_s in any::<f64>(), end_s in any::<f64>(), text in any::<String>()) {
        let transcript = transcript(vec![segment(start_s, end_s, &text)]);
        for format in [Format::Txt { times: false }, Format::Txt { times: true }, Format::Srt, Format::Vtt, Format::Json] {
            let text = rendered(&transcript, format);
            prop_assert!(text.is_ok());
        }
        let srt = rendered(&transcript, Format::Srt).unwrap();
        prop_assert_eq!(srt.matches("-->").count(), 1, "{}", srt);
    }
}
