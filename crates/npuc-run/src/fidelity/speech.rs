//! Two forms of Whisper over the same sound: what their encoders make of it, how their decoders score the same ids, and
//! the texts that each writes by itself.

use std::path::Path;

use npuc::tensor::SourceFile;
use npuc::{Code, Diagnostic, Error, Result};
use safetensors::{Dtype, SafeTensors};
use serde::Serialize;

use super::figures::{Fidelity, Sums, cosine};
use super::reference::{Answers, answers, greedy_agreement, int_rows};
use super::trace::Distance;
use super::words::{word_errors, words};
use crate::speech::{Decoder, Kind, Language, Options, Recogniser, SpeechTokens, Task, Whisper, language_heard};

/// The most ids that are written about a window.
pub const MOST_IDS: usize = 48;

/// The figures of a comparison of two forms of Whisper.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SpeechFidelity {
    /// Those of the decoder's scores. Each decoder listens to its own encoder.
    #[serde(flatten)]
    pub fidelity: Fidelity,
    /// Windows of sound.
    pub windows: usize,
    /// What the encoders made of them; absent where the reference says nothing of it or is of another size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heard: Option<HeardFidelity>,
    /// What was written; absent where the reference has no texts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub texts: Option<Texts>,
}

/// How close what an encoder gives is to what the reference's gives: keys and values of the decoder's layers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HeardFidelity {
    /// The least cosine of a port in a window, over its elements.
    pub cosine_min: f64,
    /// The port that has it.
    pub cosine_min_port: String,
    /// The squares of the reference's elements over those of the differences, of all ports and windows, in dB; absent where
    /// none differs or one is no number.
    pub sqnr_db: Option<f64>,
}

/// What both forms write by themselves, at most [`MOST_IDS`] ids a window, the best one each time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Texts {
    /// The model's.
    pub model: String,
    /// The reference's.
    pub reference: String,
    /// Words of the reference's.
    pub words: usize,
    /// Words to replace, leave out or add so that one text becomes the other, by the words of the reference's; absent where that has
    /// none. Upper case and what is neither letter nor digit do not count.
    pub word_error_rate: Option<f64>,
}

impl Texts {
    fn of(model: &[String], reference: &[String]) -> Texts {
        let joined = |windows: &[String]| {
            let texts: Vec<&str> = windows.iter().map(|text| text.trim()).filter(|text| !text.is_empty()).collect();
            texts.join(" ")
        };
        let (model, reference) = (joined(model), joined(reference));
        let (have, expected) = (words(&model), words(&reference));
        let rate = word_errors(&expected, &have) as f64 / expected.len() as f64;
        let word_error_rate = (!expected.is_empty()).then_some(rate);
        Texts { model, reference, words: expected.len(), word_error_rate }
    }
}

/// Compares two forms of Whisper over windows of sound, `[bands, frames]` each. The ids that are scored are those that the reference
/// writes about each window without timestamps; for a model of many languages in the one that it hears first.
///
/// Errors: [`Code::BadReference`] for models that do not hear or write the same; scores that are no numbers where ids are chosen by
/// them; what the devices refuse.
pub fn compare_speech(
    model: &mut Whisper,
    reference: &mut Whisper,
    tokens: &SpeechTokens<'_>,
    windows: &[Vec<f32>],
) -> Result<SpeechFidelity> {
    refuse_others(model, reference)?;
    let options = Options { without_timestamps: true, ..Options::default() };
    let opening = tokens.opening(language(reference, tokens, windows)?, Task::Transcribe)?;
    let most = MOST_IDS.min(model.capacity() / 2).min(reference.capacity() / 2);
    let mut writer = Decoder::new(tokens, &options, opening).at_most(most);
    let (mut sums, mut heard) = (Sums::default(), Heard::default());
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    let (mut agreed, mut compared) = (0, 0);
    for mel in windows {
        reference.listen(mel)?;
        model.listen(mel)?;
        heard.add(model, reference);
        let expected = writer.decode_at(reference, &[], 0.0)?;
        let have = writer.decode_at(model, &[], 0.0)?;
        // The end counts like an id.
        let end = |ids: &[u32]| (ids.len() < most).then_some(tokens.end);
        let greedy = [&expected.ids, &have.ids].map(|ids| ids.iter().copied().chain(end(ids)).collect::<Vec<u32>>());
        compared += greedy[0].len();
        agreed += greedy[0].iter().zip(&greedy[1]).take_while(|(a, b)| a == b).count();
        add_scores(&mut sums, (&mut *model, &mut *reference), writer.opening(), &expected.ids)?;
        ours.push(have.text);
        theirs.push(expected.text);
    }
    let figures = Fidelity { greedy_ids: compared, ..sums.figures() };
    Ok(SpeechFidelity {
        fidelity: figures.with_greedy(agreed, windows.len()),
        windows: windows.len(),
        heard: heard.figures(),
        texts: Some(Texts::of(&ours, &theirs)),
    })
}

/// Adds the scores from the last id of the opening on: what each predicts is an id that was written, or the end.
fn add_scores(
    sums: &mut Sums,
    (model, reference): (&mut Whisper, &mut Whisper),
    opening: &[u32],
    written: &[u32],
) -> Result<()> {
    let fed = [opening, written].concat();
    let mut expected: Vec<Vec<f32>> = Vec::new();
    reference.restart(&fed, &mut |scores| expected.push(scores.to_vec()))?;
    let mut at = 0;
    model.restart(&fed, &mut |scores| {
        if at + 1 >= opening.len() {
            sums.add(scores, &expected[at]);
        }
        at += 1;
    })
}

/// The language of the first window, as the reference hears it.
fn language(reference: &mut Whisper, tokens: &SpeechTokens<'_>, windows: &[Vec<f32>]) -> Result<Language> {
    match (tokens.kind, windows.first()) {
        (Kind::EnglishOnly, _) | (Kind::Multilingual, None) => Ok(Language::ENGLISH),
        (Kind::Multilingual, Some(mel)) => {
            reference.listen(mel)?;
            Ok(language_heard(reference, tokens)?.language)
        }
    }
}

/// Models whose windows or ids differ have nothing to compare.
fn refuse_others(model: &Whisper, reference: &Whisper) -> Result<()> {
    let (ours, theirs) = (model.config(), reference.config());
    let differing = [
        ("the models to compare have different vocabularies", "ids", ours.vocab, theirs.vocab),
        ("the models to compare hear spectrograms of different bands", "bands", ours.mels, theirs.mels),
        ("the models to compare hear windows of different lengths", "frames", ours.frames(), theirs.frames()),
    ];
    let faults = differing.into_iter().filter(|(_, _, ours, theirs)| ours != theirs);
    let fault = |(message, what, ours, theirs): (&str, &str, usize, usize)| {
        let fault = Diagnostic::error(Code::BadReference, message);
        fault.need(format!("{theirs} {what}, as the reference has")).have(format!("{ours} {what}"))
    };
    Error::check(faults.map(fault).collect())
}

/// Sums over ports and windows.
#[derive(Default)]
struct Heard {
    least: Option<(f64, String)>,
    distance: Distance,
}

impl Heard {
    /// Adds what both heard last, where it is of one size.
    fn add(&mut self, model: &Whisper, reference: &Whisper) {
        for ((port, ours), (other, theirs)) in model.heard().zip(reference.heard()) {
            if model.heard().len() != reference.heard().len() || ours.len() != theirs.len() || port != other {
                return;
            }
            let cosine = cosine(ours, theirs);
            if self.least.as_ref().is_none_or(|(least, _)| cosine < *least || cosine.is_nan()) {
                self.least = Some((cosine, port.to_string()));
            }
            self.distance.join(&Distance::of(theirs, ours));
        }
    }

    fn figures(self) -> Option<HeardFidelity> {
        let (cosine_min, cosine_min_port) = self.least?;
        let sqnr_db = Some(self.distance.sqnr_db()).filter(|db| db.is_finite());
        Some(HeardFidelity { cosine_min, cosine_min_port, sqnr_db })
    }
}

/// What something else computed about windows of sound: scores and greedy ids.
///
/// The file is safetensors with `input_features` `[batch, bands, frames]`, `decoder_input_ids` `[batch, tokens]`, and `logits`
/// `[batch, tokens, vocab]` or `greedy_ids` `[batch, new]` or both. Greedy ids follow the first of the decoder's.
#[derive(Clone, Debug)]
pub struct SpeechReference {
    /// Spectrograms `[bands, frames]`, with their extents.
    features: Vec<Vec<f32>>,
    extents: [usize; 2],
    /// For each the ids that the decoder is fed.
    ids: Vec<Vec<u32>>,
    /// For each the scores `[tokens, vocab]`.
    logits: Option<Vec<Vec<f32>>>,
    greedy: Option<Vec<Vec<u32>>>,
    vocab: Option<usize>,
}

impl SpeechReference {
    /// Reads a reference.
    ///
    /// Errors: a file that is not safetensors, tensors that are absent, of another type or shape, ids out of range.
    pub fn read(path: &Path) -> Result<SpeechReference> {
        let file = SourceFile::open(path)?;
        let fault = |message: String| Diagnostic::error(Code::BadReference, message).file(path);
        let tensors = SafeTensors::deserialize(file.bytes())
            .map_err(|e| fault(format!("the reference is not a safetensors file: {e}")))?;
        let (features, extents) =
            features(&tensors).map_err(|fault| Error::from(fault.file(path).subject("input_features")))?;
        let ids = int_rows(&tensors, "decoder_input_ids").map_err(|e| fault(e).subject("decoder_input_ids"))?;
        let ids = ids.ok_or_else(|| {
            let fault = fault("the reference has no ids for the decoder".into()).have("no such tensor");
            fault.need("decoder_input_ids [batch, tokens], i64")
        })?;
        let Answers { logits, greedy, vocab } = answers(&tensors, path, &ids)?;
        let others = [("decoder_input_ids", Some(ids.len())), ("greedy_ids", greedy.as_ref().map(Vec::len))];
        let other = others.into_iter().find_map(|(name, count)| Some((name, count.filter(|n| *n != features.len())?)));
        if let Some((name, count)) = other {
            let fault = fault("the reference has another number of rows than of windows".into()).subject(name);
            return Err(fault.need(features.len()).have(count).into());
        }
        Ok(SpeechReference { features, extents, ids, logits, greedy, vocab })
    }
}

/// Spectrograms `[bands, frames]`, and these extents.
type Features = (Vec<Vec<f32>>, [usize; 2]);

fn features(tensors: &SafeTensors<'_>) -> Result<Features, Box<Diagnostic>> {
    let fault = |have: String| {
        let fault = Diagnostic::error(Code::BadReference, "the reference has no windows of sound");
        Box::new(fault.need("input_features [batch, bands, frames], f32").have(have))
    };
    let tensor = tensors.tensor("input_features").map_err(|_| fault("no such tensor".into()))?;
    match (tensor.dtype(), tensor.shape()) {
        (Dtype::F32, &[batch, bands, frames]) if batch > 0 && bands > 0 && frames > 0 => {
            let numbers: Vec<f32> =
                tensor.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
            let windows = numbers.chunks_exact(bands * frames).map(<[f32]>::to_vec).collect();
            Ok((windows, [bands, frames]))
        }
        (dtype, shape) => Err(fault(format!("{dtype:?}{shape:?}"))),
    }
}

/// Compares a model with a reference: every position of the decoder's ids counts, and greedy ids are the best of all.
///
/// Errors: [`Code::BadReference`] for another vocabulary or windows of another size; ids that do not fit the context.
pub fn compare_speech_reference(model: &mut Whisper, reference: &SpeechReference) -> Result<SpeechFidelity> {
    let (vocab, heard) = (model.config().vocab, [model.config().mels, model.config().frames()]);
    let fault = |message: &str| Diagnostic::error(Code::BadReference, message);
    if let Some(other) = reference.vocab.filter(|&other| other != vocab) {
        let fault = fault("the reference has another vocabulary than the model").need(format!("{vocab} ids"));
        return Err(fault.have(format!("{other} ids")).into());
    }
    if heard != reference.extents {
        let extents = |[bands, frames]: [usize; 2]| format!("{bands} bands and {frames} frames");
        let fault = fault("the reference has other windows than the model hears").subject("input_features");
        return Err(fault.need(extents(heard)).have(extents(reference.extents)).into());
    }
    let mut sums = Sums::default();
    let (mut agreed, mut compared) = (0, 0);
    for (row, (mel, ids)) in reference.features.iter().zip(&reference.ids).enumerate() {
        model.listen(mel)?;
        let mut expected = reference.logits.iter().flat_map(|all| all[row].chunks_exact(vocab));
        model.restart(ids, &mut |scores| {
            if let Some(expected) = expected.next() {
                sums.add(scores, expected);
            }
        })?;
        if let Some(greedy) = &reference.greedy {
            model.restart(&ids[..1], &mut |_| {})?;
            agreed += greedy_agreement(model.decoder(), &greedy[row])?;
            compared += greedy[row].len();
        }
    }
    let rows = reference.greedy.as_ref().map_or(0, Vec::len);
    let fidelity = Fidelity { greedy_ids: compared, ..sums.figures() }.with_greedy(agreed, rows);
    Ok(SpeechFidelity { fidelity, windows: reference.features.len(), ..SpeechFidelity::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn word_errors_are_counted_by_word() {
        for (model, reference, words, rate) in [
            (&["Ask not, what"][..], &["ask NOT what"][..], 3, Some(0.0)),
            (&[" one", "two three "], &["one two", "three"], 3, Some(0.0)),
            (&["one four three"], &["one two three"], 3, Some(1.0 / 3.0)),
            (&["one three"], &["one two three"], 3, Some(1.0 / 3.0)),
            (&["one two and three"], &["one two three"], 3, Some(1.0 / 3.0)),
            (&["(((("], &["one two"], 2, Some(1.0)),
            (&["a b c d"], &["x"], 1, Some(4.0)),
            (&[""], &["", "..."], 0, None),
            (&["said"], &[""], 0, None),
            (&["für Élise"], &["Für élise!"], 2, Some(0.0)),
        ] {
            let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
            let texts = Texts::of(&owned(model), &owned(reference));
            assert_eq!((texts.words, texts.word_error_rate), (words, rate), "{model:?} {reference:?}");
        }
    }
}
