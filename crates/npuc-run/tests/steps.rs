//! The same tokens give the same scores however they are cut into steps and by whichever protocol the caches
//! travel, at every position up to the capacity.
#![allow(clippy::unwrap_used)]

use npuc::build::Plan;
use npuc::front;
use npuc::model::CacheProtocol;
use npuc::pass::Pass;
use npuc::target;
use npuc_run::program::Program;
use npuc_run::session::Session;

mod data;

use data::{checkpoints, shapes};

/// Checkpoints that between them have grouped heads of every kind, norms, biases and blocks.
const MODELS: [&str; 4] = ["qwen3-bf16", "qwen2-q8_0.gguf", "mistral-bf16", "llama-gqa3-q4_1.gguf"];
/// Checkpoints with short convolutions: over four tokens, and over two with biases.
const HYBRIDS: [&str; 3] = ["lfm2-old-bf16", "lfm2-old-q8_0.gguf", "lfm2-biases-f32"];

fn session(model: &str, steps: &str, protocol: CacheProtocol, passes: &[Pass], threads: usize) -> Session {
    let checkpoint = front::open(&checkpoints().join(model)).unwrap();
    let mut plan = Plan::new(target::host().with_protocol(protocol), &checkpoint.config, shapes(steps)).unwrap();
    plan.passes = passes.to_vec();
    Session::new(&Program::build(checkpoint, &plan).unwrap(), threads, &[]).unwrap()
}

fn ids(count: usize, vocab: usize) -> Vec<u32> {
    (0..count).map(|i| ((i * 7919 + 13) % vocab) as u32).collect()
}

/// The scores after every token, fed in parts of the given sizes.
fn scores(session: &mut Session, parts: &[usize]) -> Vec<Vec<f32>> {
    let ids = ids(parts.iter().sum(), session.vocab());
    let mut rest = &ids[..];
    let mut scores = Vec::new();
    for &part in parts {
        let (now, later) = rest.split_at(part);
        session.feed(now, |logits| scores.push(logits.to_vec())).unwrap();
        rest = later;
    }
    scores
}

fn check(what: &str, have: &[Vec<f32>], need: &[Vec<f32>], tolerance: f32) {
    assert_eq!(have.len(), need.len(), "{what}");
    for (position, (have, need)) in have.iter().zip(need).enumerate() {
        let off = have.iter().zip(need).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(off <= tolerance, "{what}: position {position} is off by {off}");
    }
}

#[test]
fn prefill_in_steps_of_any_size() {
    for model in MODELS.into_iter().chain(HYBRIDS) {
        let one = scores(&mut session(model, "1t144c", CacheProtocol::Append, &[Pass::Simplify], 2), &[144]);
        for tokens in [2, 16, 31, 32, 33, 128, 144] {
            let steps = format!("{tokens}t144c,1t144c");
            let mut session = session(model, &steps, CacheProtocol::Append, &[Pass::Simplify], 2);
            check(&format!("{model} {steps}"), &scores(&mut session, &[144]), &one, 1e-4);
        }
    }
}

#[test]
fn caches_by_every_protocol() {
    let parts: [&[usize]; 5] = [&[24], &[1, 1, 1, 21], &[5, 7, 12], &[3, 1, 8, 8, 4], &[1; 24]];
    for model in MODELS.into_iter().chain(HYBRIDS) {
        let reference = scores(&mut session(model, "1t24c", CacheProtocol::Append, &[], 1), &[24]);
        for protocol in CacheProtocol::ALL {
            for steps in ["1t24c", "4t24c,1t24c", "8t24c,3t24c,1t24c", "16t24c,2t24c,1t24c", "24t24c,1t24c"] {
                let mut session = session(model, steps, protocol, &[Pass::Simplify], 2);
                for parts in parts {
                    session.reset();
                    let what = format!("{model} {protocol:?} {steps} {parts:?}");
                    check(&what, &scores(&mut session, parts), &reference, 1e-4);
                }
            }
        }
    }
}

#[test]
fn graphs_after_every_pass() {
    for model in MODELS.into_iter().chain(HYBRIDS) {
        let reference = scores(&mut session(model, "1t24c", CacheProtocol::Append, &[], 1), &[24]);
        for &pass in Pass::ALL {
            for protocol in CacheProtocol::ALL {
                let mut session = session(model, "8t24c,1t24c", protocol, &[pass, Pass::Simplify], 2);
                let what = format!("{model} {protocol:?} {}", pass.name());
                check(&what, &scores(&mut session, &[19, 1, 1, 3]), &reference, 1e-4);
            }
        }
    }
}

/// Keys by columns after both forms of attention, as graphs for chips have them: the same scores at every position up to
/// the capacity, with the whole caches going round.
#[test]
fn keys_as_columns_go_round() {
    for model in ["qwen3-bf16", "llama-gqa3-q4_1.gguf"].into_iter().chain(HYBRIDS) {
        let reference = scores(&mut session(model, "1t24c", CacheProtocol::Append, &[], 1), &[24]);
        for attention in [Pass::DecomposeAttention, Pass::SplitAttention] {
            let passes = [attention, Pass::DecomposeShortConv, Pass::Simplify, Pass::KeysAsColumns, Pass::Simplify];
            for steps in ["1t24c", "3t24c,1t24c", "4t24c,1t24c", "16t24c,1t24c"] {
                let mut session = session(model, steps, CacheProtocol::OneHot, &passes, 2);
                for parts in [&[24][..], &[7, 1, 1, 15], &[1; 24]] {
                    session.reset();
                    let what = format!("{model} {} {steps} {parts:?}", attention.name());
                    check(&what, &scores(&mut session, parts), &reference, 1e-4);
                }
            }
        }
    }
}

#[test]
fn threads_change_nothing() {
    for model in MODELS.into_iter().chain(HYBRIDS) {
        let one = scores(&mut session(model, "16t32c,1t32c", CacheProtocol::Append, &[], 1), &[32]);
        for threads in [2, 3, 7] {
            let mut session = session(model, "16t32c,1t32c", CacheProtocol::Append, &[], threads);
            check(&format!("{model} {threads} threads"), &scores(&mut session, &[32]), &one, 0.0);
        }
    }
}

#[test]
fn what_does_not_fit_is_refused_before_any_computation() {
    let mut session = session(MODELS[0], "8t24c,1t24c", CacheProtocol::Append, &[], 1);
    let vocab = session.vocab() as u32;
    session.feed(&[1, 2, 3], |_| {}).unwrap();
    let before = session.logits().unwrap().to_vec();
    for (ids, message) in [
        (
            vec![0; 22],
            "error[context-exceeded]: the tokens do not fit the context\n  = need: 25 rows: 3 there and 22 new\n  \
             = have: a capacity of 24\n  = help: shorten the prompt or build with a larger capacity (--shapes)"
                .to_string(),
        ),
        (
            vec![1, vocab],
            format!(
                "error[bad-token-id]: a token id is outside the vocabulary\n  = need: ids below {vocab}\n  \
                 = have: {vocab}"
            ),
        ),
    ] {
        assert_eq!(session.feed(&ids, |_| panic!("a step was computed")).unwrap_err().to_string(), message);
        assert_eq!((session.position(), session.logits().unwrap()), (3, &before[..]));
    }
}

#[test]
fn a_program_whose_parts_do_not_fit_is_refused() {
    let open = |model: &str, steps: &str| Program::open(&checkpoints().join(model), Some(shapes(steps))).unwrap();
    let check = |change: fn(&mut Program, Program), message: &str| {
        let mut program = open("qwen3-bf16", "4t16c,1t16c");
        change(&mut program, open("mistral-bf16", "4t16c,1t16c"));
        let error = Session::new(&program, 1, &[]).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(error.starts_with(message), "{error}");
    };
    check(
        |program, other| program.steps = other.steps,
        "error[wrong-shape]: a weight has another type than the graph says",
    );
    check(
        |program, other| (program.steps, program.weights) = (other.steps, other.weights),
        "error[bad-bundle]: the graph has other input ports than its model and protocol call for",
    );
    check(
        |program, _| program.protocol = CacheProtocol::Shift,
        "error[bad-bundle]: the graph lacks an output port that its model and protocol call for",
    );
    check(|program, _| program.steps.truncate(1), "error[bad-bundle]: the program has no graph that takes one token");
    check(|program, _| program.steps.clear(), "error[bad-bundle]: the program has no graph that takes one token");
    check(
        |program, _| program.weights.retain(|name, _| name != "norm.weight"),
        "error[missing-tensor]: the graph uses a weight that is not there",
    );
}

#[test]
fn a_prompt_that_begins_as_before_is_not_computed_again() {
    for protocol in CacheProtocol::ALL {
        let mut session = session(MODELS[0], "8t24c,1t24c", protocol, &[], 1);
        let whole = ids(20, session.vocab());
        session.feed(&whole, |_| {}).unwrap();
        let mut other = whole[..14].to_vec();
        other.push(whole[14] + 1);
        let need = scores_of(&mut fresh(protocol), &other);
        let reused = session.rewind_to(&other);
        assert_eq!(reused, if protocol == CacheProtocol::Shift { 0 } else { 14 }, "{protocol:?}");
        assert_eq!(session.logits(), None, "the scores of a token that was taken back are gone");
        session.feed(&other[reused..], |_| {}).unwrap();
        check(&format!("{protocol:?}"), &[session.logits().unwrap().to_vec()], &[need], 1e-4);
        assert!(session.rewind_to(&other) < other.len(), "the last token's scores are computed");
        assert_eq!(session.rewind_to(&[]), 0);
        assert_eq!((session.position(), session.logits()), (0, None));
    }
}

/// A reset clears only what was written, rows that were taken back among it.
#[test]
fn nothing_is_left_after_a_reset() {
    let long = ids(16, 64);
    for (model, protocol) in MODELS.into_iter().chain(HYBRIDS).flat_map(|m| CacheProtocol::ALL.map(|p| (m, p))) {
        let mut used = session(model, "8t24c,1t24c", protocol, &[Pass::Simplify], 1);
        for fed in [&long[..], &long[..1], &[], &long[..9]] {
            used.feed(fed, |_| {}).unwrap();
            used.rewind_to(&long[..fed.len() / 2]);
            used.reset();
            let mut fresh = session(model, "8t24c,1t24c", protocol, &[Pass::Simplify], 1);
            assert_eq!(used.recorded(long[2]).unwrap(), fresh.recorded(long[2]).unwrap(), "{model} {protocol:?}");
            used.reset();
        }
    }
}

/// What a convolution keeps cannot be taken back, so only a prompt that goes on where the session is reuses it.
#[test]
fn what_convolutions_keep_is_not_taken_back() {
    for protocol in CacheProtocol::ALL {
        let mut session = session(HYBRIDS[0], "8t24c,1t24c", protocol, &[], 1);
        let whole = ids(20, session.vocab());
        session.feed(&whole[..12], |_| {}).unwrap();
        let reused = session.rewind_to(&whole);
        assert_eq!(reused, if protocol == CacheProtocol::Shift { 0 } else { 12 }, "{protocol:?}");
        session.feed(&whole[reused..], |_| {}).unwrap();
        let need = scores_of(&mut self::session(HYBRIDS[0], "8t24c,1t24c", protocol, &[], 1), &whole);
        check(&format!("{protocol:?} goes on"), &[session.logits().unwrap().to_vec()], &[need], 1e-4);
        assert_eq!(session.rewind_to(&whole[..14]), 0, "{protocol:?}");
        session.feed(&whole[..14], |_| {}).unwrap();
        let need = scores_of(&mut self::session(HYBRIDS[0], "8t24c,1t24c", protocol, &[], 1), &whole[..14]);
        check(&format!("{protocol:?} starts anew"), &[session.logits().unwrap().to_vec()], &[need], 1e-4);
    }
}

fn fresh(protocol: CacheProtocol) -> Session {
    session(MODELS[0], "8t24c,1t24c", protocol, &[], 1)
}

fn scores_of(session: &mut Session, ids: &[u32]) -> Vec<f32> {
    session.feed(ids, |_| {}).unwrap();
    session.logits().unwrap().to_vec()
}
