//! Whisper's two models against the outputs that transformers recorded.
#![allow(clippy::unwrap_used, clippy::print_stderr, missing_docs)]

use npuc::front::config::Stack;
use npuc::front::{self, Checkpoint};
use npuc::model::StepShape;
use npuc_run::program::Program;
use npuc_run::session::Steps;
use npuc_run::speech::{Recogniser, Whisper};
use safetensors::SafeTensors;

mod data;

use data::fixtures;

/// A checkpoint on the host, its decoder in steps of these shapes.
fn on_host(checkpoint: &Checkpoint, shapes: &str) -> Whisper {
    let program = |stack, shapes| Program::from_checkpoint(checkpoint.stack(stack).unwrap(), shapes).unwrap();
    let shapes: Vec<StepShape> = shapes.split(',').map(|shape| shape.parse().unwrap()).collect();
    let (encoder, decoder) = (program(Stack::Encoder, None), program(Stack::Decoder, Some(shapes)));
    let steps = |program| Steps::on_host(program, 2, &[]).unwrap();
    Whisper::new((&encoder, steps(&encoder)), (&decoder, steps(&decoder))).unwrap()
}

fn numbers<T, const N: usize>(file: &SafeTensors<'_>, name: &str, of: fn([u8; N]) -> T) -> Vec<T> {
    file.tensor(name).unwrap().data().chunks_exact(N).map(|bytes| of(bytes.try_into().unwrap())).collect()
}

/// The scores of every position are those of the reference whatever the steps, and so is what is written greedily.
#[test]
fn scores_are_those_of_the_reference() {
    let Some(path) = fixtures().map(|path| path.join("whisper-f32")) else { return };
    let checkpoint = front::open(&path).unwrap();
    let bytes = std::fs::read(path.join("expected.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let mel = numbers(&file, "input_features", f32::from_le_bytes);
    let logits = numbers(&file, "logits", f32::from_le_bytes);
    let ids: Vec<u32> = numbers(&file, "decoder_input_ids", i64::from_le_bytes).iter().map(|&id| id as u32).collect();
    let greedy: Vec<u32> = numbers(&file, "greedy_ids", i64::from_le_bytes).iter().map(|&id| id as u32).collect();
    for shapes in ["1t64c", "4t64c,1t64c", "16t64c,1t64c", "8t13c,1t13c"] {
        let mut speech = on_host(&checkpoint, shapes);
        speech.listen(&mel).unwrap();
        let mut rows = Vec::new();
        speech.restart(&ids, &mut |scores| rows.extend_from_slice(scores)).unwrap();
        assert_eq!(rows.len(), logits.len(), "{shapes}");
        let largest = rows.iter().zip(&logits).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        eprintln!("{shapes}: largest difference {largest:e}");
        assert!(largest <= 2e-4, "{shapes}: {largest}");

        speech.restart(&ids[..1], &mut |_| {}).unwrap();
        let mut written = Vec::new();
        while written.len() < greedy.len() {
            let best = speech.scores().iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0 as u32;
            written.push(best);
            if written.len() < greedy.len() {
                speech.feed(best).unwrap();
            }
        }
        assert_eq!(written, greedy, "{shapes}");
    }
}

/// What does not fit is refused before anything is computed.
#[test]
fn misuse_is_told() {
    let Some(path) = fixtures().map(|path| path.join("whisper-f32")) else { return };
    let checkpoint = front::open(&path).unwrap();
    let mut speech = on_host(&checkpoint, "4t8c,1t8c");
    let message = |result: npuc::Result<()>| result.unwrap_err().diagnostics()[0].message.clone();
    assert_eq!(message(speech.feed(5)), "the decoder has heard nothing that it could write down");
    assert_eq!(message(speech.listen(&[0.0; 7])), "the spectrogram is not of the encoder's size");
    speech.listen(&vec![0.0; 80 * 300]).unwrap();
    speech.restart(&[4; 8], &mut |_| {}).unwrap();
    assert_eq!(message(speech.feed(5)), "the tokens do not fit the context");
    assert_eq!(message(speech.restart(&[4; 9], &mut |_| {})), "the tokens do not fit the context");
    let both = Program::from_checkpoint(checkpoint, None).unwrap_err();
    assert_eq!(both.diagnostics()[0].message, "Whisper is two models, which do this together");
}
