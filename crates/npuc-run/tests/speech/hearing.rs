//! Whole transcriptions of scripted windows: segments, seeking, fallbacks, languages, and that nothing runs for ever.

use std::sync::OnceLock;

use npuc::{Code, Result};
use npuc_audio::mel::Spectrogram;
use npuc_run::speech::{Kind, Language, Options, Recogniser, Task, Transcript, transcribe};
use proptest::prelude::*;

use crate::fake::{
    END, ENGLISH, GERMAN, Heard, NO_TIMES, PREVIOUS, START, Scripted, TIME, TRANSCRIBE, TRANSLATE, VOCAB, ids, sound,
    tokens,
};

const SECOND: usize = 16_000;

fn english() -> Options {
    Options { language: Some(Language::ENGLISH), ..Options::default() }
}

fn run(recogniser: &mut dyn Recogniser, kind: Kind, sound: &Spectrogram, options: &Options) -> Result<Transcript> {
    let mut told = Vec::new();
    let transcript = transcribe(recogniser, &tokens(kind), sound, options, &mut |segment| told.push(segment.clone()))?;
    assert_eq!(told, transcript.segments);
    Ok(transcript)
}

/// What a transcript says, e.g. `0.00-2.00 a|2.00-3.00 b`.
fn said(transcript: &Transcript) -> String {
    let said = transcript.segments.iter().map(|s| format!("{:.2}-{:.2} {}", s.start_s, s.end_s, s.text));
    said.collect::<Vec<_>>().join("|")
}

#[test]
fn windows_follow_timestamps() {
    // Seconds of sound, what is heard in each window, the segments.
    let cases: [(usize, &[&str], &str); 12] = [
        (10, &["<0.00>ab<4.00>"], "0.00-4.00 ab"),
        (10, &["<0.00>ab<4.00><4.00>c<9.00>"], "0.00-4.00 ab|4.00-9.00 c"),
        // A pair at the end, or text behind it: heard again from the last end on.
        (10, &["<0.00>ab<4.00><4.00>", "<1.00>c<2.00>"], "0.00-4.00 ab|4.00-6.00 c"),
        (10, &["<0.20>ab<4.00><5.00>c", "<1.00>c<2.00>"], "0.20-4.00 ab|4.00-6.00 c"),
        // No pair: all of it, up to the last timestamp or the end.
        (10, &["<0.00>ab"], "0.00-10.00 ab"),
        (40, &["<0.00>ab<4.00>", "<0.00>c<1.00>"], "0.00-4.00 ab|30.00-31.00 c"),
        (40, &["<0.00>ab<4.00><4.00>c", "<0.00>d", "<0.00>e"], "0.00-4.00 ab|4.00-34.00 d|34.00-40.00 e"),
        // What ends behind the sound is cut to it.
        (10, &["<0.00>ab<29.00>"], "0.00-10.00 ab"),
        (10, &["<0.00>ab<9.00><12.00>c<30.00>"], "0.00-9.00 ab|10.00-10.00 c"),
        // Without text there is no segment; the window is done with.
        (40, &["<0.00>", "<0.00>c<1.00>"], "30.00-31.00 c"),
        (40, &["<1.00>\n<2.00>", "<0.00>c<1.00>"], "30.00-31.00 c"),
        (0, &[], ""),
    ];
    for (seconds, heard, expected) in cases {
        let mut recogniser = Scripted::new(heard.iter().map(|text| vec![Heard::surely(text)]).collect());
        let transcript =
            run(&mut recogniser, Kind::EnglishOnly, &sound(seconds * SECOND), &Options::default()).unwrap();
        assert_eq!(said(&transcript), expected, "{heard:?}");
        assert_eq!((recogniser.windows, transcript.timing.windows), (heard.len(), heard.len()), "{heard:?}");
        let text: String = transcript.segments.iter().map(|segment| segment.text.as_str()).collect();
        assert_eq!(transcript.text, text);
    }
}

#[test]
fn bad_text_is_tried_again() {
    let (good, hard) = (Heard::surely("<0.00>fine<4.00>"), Heard::hardly("<0.00>incomprehensible<4.00>"));
    let again = Heard::surely(&format!("<0.00>{}<4.00>", "ab".repeat(60)));
    let options = english();
    let no = |change: fn(&mut Options)| {
        let mut options = options.clone();
        change(&mut options);
        options
    };
    let no_logprob = no(|o| o.logprob_threshold = None);
    let no_ratio = no(|o| o.compression_ratio_threshold = None);
    let no_silence = no(|o| o.no_speech_threshold = None);
    let one = no(|o| o.temperatures = vec![0.0]);
    // Attempts, options, how many are made, whether a segment comes of it.
    let cases = [
        (vec![good.clone()], &options, 1, true),
        (vec![hard.clone(), good.clone()], &options, 2, true),
        (vec![again.clone(), hard.clone(), good.clone()], &options, 3, true),
        (vec![hard.clone()], &options, 6, true),
        (vec![hard.clone()], &one, 1, true),
        (vec![hard.clone()], &no_logprob, 1, true),
        (vec![again.clone()], &no_ratio, 1, true),
        // Silence is skipped at once, unless its text is probable.
        (vec![hard.clone().silent(0.7)], &options, 1, false),
        (vec![hard.clone().silent(0.5)], &options, 6, true),
        (vec![hard.clone().silent(0.7)], &no_silence, 6, true),
        (vec![good.clone().silent(0.7)], &options, 1, true),
        (vec![good.clone().silent(0.7)], &no_logprob, 1, false),
        (vec![again.clone().silent(0.7), good.clone()], &options, 2, true),
    ];
    for (i, (attempts, options, made, told)) in cases.into_iter().enumerate() {
        let mut recogniser = Scripted::new(vec![attempts]);
        let transcript = run(&mut recogniser, Kind::Multilingual, &sound(5 * SECOND), options).unwrap();
        assert_eq!((recogniser.attempts, !transcript.segments.is_empty()), (made, told), "case {i}");
        let temperature = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0][made - 1];
        assert!(transcript.segments.iter().all(|segment| segment.temperature == temperature), "case {i}");
    }
}

#[test]
fn temperatures_rise_to_one() {
    let cases: [(f32, &[f32]); 5] = [
        (0.0, &[0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (0.5, &[0.5, 0.7, 0.9]),
        (0.8, &[0.8, 1.0]),
        (1.0, &[1.0]),
        (1.5, &[1.5]),
    ];
    for (first, expected) in cases {
        assert_eq!(Options::temperatures_from(first), expected);
    }
    assert_eq!(Options::temperatures_from(f32::NAN).len(), 1);
}

#[test]
fn figures_are_those_of_the_scores() {
    let mut recogniser = Scripted::new(vec![vec![Heard::surely("<0.00>ab<4.00>").silent(0.25)]]);
    let options = Options { no_speech_threshold: None, ..english() };
    let transcript = run(&mut recogniser, Kind::Multilingual, &sound(5 * SECOND), &options).unwrap();
    let segment = &transcript.segments[0];
    assert!((segment.no_speech_prob - 0.25).abs() < 1e-6, "{segment:?}");
    assert!((-0.001..=0.0).contains(&segment.avg_logprob), "{segment:?}");
    // Python: len(b"ab") / len(zlib.compress(b"ab"))
    assert!((segment.compression_ratio - 0.2).abs() < 1e-9, "{segment:?}");
    assert_eq!(segment.ids, ids("<0.00>ab<4.00>"));
    assert_eq!(transcript.timing.sampled_tokens, 5);
}

#[test]
fn prompts_hold_the_text_before() {
    let timed = ["<0.00>ab<4.00>", "<0.00>c<1.00>"];
    let opening = vec![START, GERMAN, TRANSCRIBE];
    let with = |before: &str| [vec![PREVIOUS], ids(before), opening.clone()].concat();
    let german = Options { language: Some(Language::parse("German").unwrap()), ..Options::default() };
    let alone = Options { condition_on_previous_text: false, ..german.clone() };
    let initial = Options { initial_prompt: Some(" Zo ".into()), ..german.clone() };
    let initial_alone = Options { condition_on_previous_text: false, ..initial.clone() };
    let hot = Options { temperatures: vec![0.6], ..german.clone() };
    let warm = Options { temperatures: vec![0.5], ..german.clone() };
    let translate = Options { task: Task::Translate, without_timestamps: true, ..alone.clone() };
    let bare = vec![START, GERMAN, TRANSLATE, NO_TIMES];
    let cases = [
        (&german, vec![opening.clone(), with("<0.00>ab<4.00>")]),
        (&alone, vec![opening.clone(), opening.clone()]),
        (&initial, vec![with(" Zo"), with(" Zo<0.00>ab<4.00>")]),
        (&initial_alone, vec![with(" Zo"), opening.clone()]),
        (&hot, vec![opening.clone(), opening.clone()]),
        (&warm, vec![opening.clone(), with("<0.00>ab<4.00>")]),
        (&translate, vec![bare.clone(), bare]),
    ];
    for (options, prompts) in cases {
        let heard = if options.without_timestamps { ["ab", "c"] } else { timed };
        let mut recogniser = Scripted::new(heard.map(|text| vec![Heard::surely(text)]).into());
        run(&mut recogniser, Kind::Multilingual, &sound(40 * SECOND), options).unwrap();
        assert_eq!(recogniser.prompts, prompts, "{options:?}");
    }
}

#[test]
fn the_context_is_never_left() {
    let long = "a".repeat(600);
    let initial_prompt = Some("b".repeat(600));
    for (capacity, prompt) in [(448, 227), (449, 227), (16, 11), (17, 11), (100, 53)] {
        let options = Options { initial_prompt: initial_prompt.clone(), temperatures: vec![0.0], ..english() };
        let mut recogniser = Scripted::new(vec![vec![Heard::surely(&format!("<0.00>{long}"))]]);
        recogniser.capacity = capacity;
        let transcript = run(&mut recogniser, Kind::Multilingual, &sound(5 * SECOND), &options).unwrap();
        assert_eq!(recogniser.prompts[0].len(), prompt, "{capacity}");
        let sampled = (capacity / 2).min(capacity + 1 - prompt);
        assert_eq!(transcript.segments[0].ids.len(), sampled, "{capacity}");
    }
}

#[test]
fn the_language_is_heard_once() {
    let cases = [([1.0, 3.0], "de", 0.8808), ([3.0, 1.0], "en", 0.8808), ([2.0, 2.0], "en", 0.5)];
    for (languages, code, probability) in cases {
        let mut recogniser = Scripted::new(vec![vec![Heard::surely("<0.00>a")], vec![Heard::surely("<0.00>b")]]);
        recogniser.languages = Some(languages);
        let transcript = run(&mut recogniser, Kind::Multilingual, &sound(40 * SECOND), &Options::default()).unwrap();
        assert_eq!(transcript.language.unwrap().code(), code);
        assert!((transcript.language_probability.unwrap() - probability).abs() < 1e-4, "{transcript:?}");
        // The first window was encoded once for both.
        assert_eq!((recogniser.windows, transcript.segments.len()), (2, 2));
        assert_eq!(recogniser.prompts[0], [START]);
        assert_eq!(recogniser.prompts[1][1], if code == "de" { GERMAN } else { ENGLISH });
    }
}

#[test]
fn sound_without_a_frame_asks_nobody() {
    for (samples, kind) in [(0, Kind::Multilingual), (159, Kind::Multilingual), (0, Kind::EnglishOnly)] {
        let mut recogniser = Scripted::new(Vec::new());
        recogniser.capacity = 0;
        let transcript = run(&mut recogniser, kind, &sound(samples), &Options::default()).unwrap();
        assert_eq!((transcript.text.as_str(), transcript.segments.len(), recogniser.prompts.len()), ("", 0, 0));
        assert_eq!(transcript.language.is_some(), kind == Kind::EnglishOnly);
    }
}

#[test]
fn characters_are_joined_over_tokens_and_segments() {
    let mut heard = Heard::surely("<0.00>Zo");
    heard.ids.extend([0xc3, TIME + 100, TIME + 100, 0xab, 0xff, TIME + 200]);
    let mut recogniser = Scripted::new(vec![vec![heard]]);
    let transcript = run(&mut recogniser, Kind::EnglishOnly, &sound(5 * SECOND), &Options::default()).unwrap();
    assert_eq!(transcript.text, "Zoë\u{fffd}");
    assert_eq!(said(&transcript), "0.00-2.00 Zo\u{fffd}|2.00-4.00 \u{fffd}\u{fffd}");
}

/// Scores that are the same whatever is fed.
struct Fixed(Vec<f32>, usize);

impl Recogniser for Fixed {
    fn listen(&mut self, _: &[f32]) -> Result<()> {
        Ok(())
    }

    fn restart(&mut self, prompt: &[u32], each: &mut dyn FnMut(&[f32])) -> Result<()> {
        prompt.iter().for_each(|_| each(&self.0));
        Ok(())
    }

    fn feed(&mut self, _: u32) -> Result<()> {
        Ok(())
    }

    fn scores(&self) -> &[f32] {
        &self.0
    }

    fn capacity(&self) -> usize {
        self.1
    }
}

#[test]
fn faults_are_told() {
    let one = |at: usize, score: f32| {
        let mut scores = vec![0.0; VOCAB];
        scores[at] = score;
        scores
    };
    let good = vec![0.0; VOCAB];
    let klingon = Options { temperatures: Vec::new(), ..english() };
    let cold = Options { temperatures: vec![-0.1], ..english() };
    let german = Options { language: Some(Language::parse("de").unwrap()), ..english() };
    let french = Options { language: Some(Language::parse("fr").unwrap()), ..english() };
    let translate = Options { task: Task::Translate, ..english() };
    let special = Options { initial_prompt: Some("<|de|>".into()), ..english() };
    let (many, only) = (Kind::Multilingual, Kind::EnglishOnly);
    let cases = [
        (many, one(0, f32::NAN), 448, english(), Code::Unfaithful),
        (many, one(VOCAB - 1, f32::INFINITY), 448, english(), Code::Unfaithful),
        (many, one(0, f32::NAN), 448, Options::default(), Code::Unfaithful),
        (many, vec![f32::NEG_INFINITY; VOCAB], 448, english(), Code::Unfaithful),
        (many, vec![0.0; VOCAB - 1], 448, english(), Code::BadTokenizer),
        (many, Vec::new(), 448, Options::default(), Code::BadTokenizer),
        (many, good.clone(), 15, english(), Code::ContextExceeded),
        (many, good.clone(), 448, klingon, Code::BadArgument),
        (many, good.clone(), 448, cold, Code::BadArgument),
        (many, good.clone(), 448, french, Code::BadArgument),
        (many, good.clone(), 448, special, Code::BadArgument),
        (only, good.clone(), 448, german, Code::BadArgument),
        (only, good, 448, translate, Code::BadArgument),
    ];
    for (i, (kind, scores, capacity, options, code)) in cases.into_iter().enumerate() {
        let error = run(&mut Fixed(scores, capacity), kind, &sound(SECOND), &options).unwrap_err();
        assert_eq!(error.diagnostics()[0].code, code, "case {i}: {error}");
    }
}

/// Scores that follow from a seed and everything fed, timestamps among the best.
struct Noise {
    seed: u64,
    state: u64,
    fed: usize,
    scores: Vec<f32>,
}

impl Noise {
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.state >> 33
    }

    fn score(&mut self) {
        self.scores.clear();
        self.scores.resize(VOCAB, -20.0);
        for _ in 0..4 {
            let (text, time, score) = (self.next(), self.next(), self.next());
            self.scores[text as usize % VOCAB] = (score % 20) as f32;
            self.scores[TIME as usize + time as usize % 1501] = (score % 31) as f32;
        }
        self.scores[END as usize] = (self.next() % 20) as f32;
    }
}

impl Recogniser for Noise {
    fn listen(&mut self, mel: &[f32]) -> Result<()> {
        self.state = self.seed ^ u64::from(mel[0].to_bits());
        Ok(())
    }

    fn restart(&mut self, prompt: &[u32], each: &mut dyn FnMut(&[f32])) -> Result<()> {
        self.fed = 0;
        for id in prompt {
            self.feed(*id)?;
            each(&self.scores);
        }
        Ok(())
    }

    fn feed(&mut self, id: u32) -> Result<()> {
        self.fed += 1;
        assert!(self.fed <= self.capacity());
        self.state ^= u64::from(id);
        self.score();
        Ok(())
    }

    fn scores(&self) -> &[f32] {
        &self.scores
    }

    fn capacity(&self) -> usize {
        32
    }
}

fn sounds() -> &'static [Spectrogram] {
    static SOUNDS: OnceLock<Vec<Spectrogram>> = OnceLock::new();
    SOUNDS.get_or_init(|| [0, 170, 5_000, 3 * SECOND, 480_000, 33 * SECOND].map(sound).into())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn every_recording_ends(
        seed in any::<u64>(),
        at in 0..6usize,
        without_timestamps in any::<bool>(),
        several in any::<bool>(),
        skip in any::<bool>(),
    ) {
        let sound = &sounds()[at];
        let temperatures = if several { vec![0.0, 1.0] } else { vec![0.7] };
        let no_speech_threshold = skip.then_some(0.5);
        let options = Options { without_timestamps, temperatures, no_speech_threshold, seed, ..Options::default() };
        let noise = || Noise { seed, state: 0, fed: 0, scores: Vec::new() };
        let transcript = run(&mut noise(), Kind::Multilingual, sound, &options).unwrap();
        let mut last_s = 0.0;
        for segment in &transcript.segments {
            prop_assert!(last_s <= segment.start_s && segment.start_s <= segment.end_s, "{segment:?} after {last_s}");
            prop_assert!(segment.end_s <= sound.frames() as f64 * 0.01 + 1e-9, "{segment:?}");
            last_s = segment.end_s - 1e-9;
        }
        prop_assert!(transcript.timing.windows <= 1 + sound.frames() / 2);
        // The same seed gives the same.
        let again = run(&mut noise(), Kind::Multilingual, sound, &options).unwrap();
        prop_assert_eq!(transcript.segments, again.segments);
    }
}
