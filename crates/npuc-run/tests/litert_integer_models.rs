//! Models in 16W16A, 8W16A and 4W16A in the LiteRT interpreter against the host executor, in f32 over the same rounded weights
//! and in the whole numbers of the files. `cargo xtask litert` installs the interpreter and sets `NPUC_LITERT`; without that nothing is run
//! here, and the tests say so.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use half::f16;
use npuc::back::tflite::{Storage, chunks};
use npuc::build::weight_types;
use npuc::exec::{Executor, to_f32};
use npuc::fit::Request;
use npuc::front::{self, ModelConfig};
use npuc::ir::{Def, Graph, Op, ValueId};
use npuc::model::rope::{angle, frequencies};
use npuc::model::{CacheProtocol, Chunks, Part, StepShape, layers, llama};
use npuc::quant::{self, Ranges, Recorder, WeightFormat};
use npuc::target::host;
use npuc::tensor::Tensor;
use npuc_run::device::litert::{LiteRt, Model};
use npuc_run::fidelity::best_id;

mod data;
mod integer;

use data::{checkpoints, shapes, sixteen_layers};
use integer::{litert, load, rounded, tensor};

/// A model as a runtime drives it: caches that shift, padding before the first tokens.
struct Conversation<'a> {
    config: &'a ModelConfig,
    table: Vec<f32>,
    /// The prompt's shape; single tokens have the same capacity.
    prompt: StepShape,
}

/// Computes the results of a step, or of its part of that number, from its inputs.
type Compute<'a, Which> = dyn FnMut(Which, &[Vec<f32>]) -> Vec<Vec<f32>> + 'a;

/// What stands for hidden in the mask: the float graph's constant, and what every int16 mask saturates at.
const HOST_HIDDEN: f32 = npuc::back::tflite::HIDDEN_MASK;
const INT16_HIDDEN: f32 = -1e9;

impl Conversation<'_> {
    /// The inputs of a step after `past` tokens, before the caches: embeddings, mask, rotary table.
    fn inputs(&self, shape: StepShape, past: usize, ids: &[usize], hidden: f32) -> Vec<Vec<f32>> {
        let (config, StepShape { tokens, capacity }) = (self.config, shape);
        let padding = tokens - ids.len();
        let mut embeds = vec![0.0; padding * config.hidden()];
        ids.iter().for_each(|id| embeds.extend_from_slice(&self.table[id * config.hidden()..][..config.hidden()]));
        let visible = |row: usize, column: usize| match column.checked_sub(capacity) {
            None => row >= padding && column >= capacity - past,
            Some(column) => column == row || (padding..row).contains(&column),
        };
        let columns = capacity + tokens;
        let mask = (0..tokens * columns).map(|i| if visible(i / columns, i % columns) { 0.0 } else { hidden });
        let frequencies = frequencies(config.rope().unwrap(), config.head_dim());
        let angles: Vec<f32> = (0..tokens)
            .flat_map(|row| {
                let position = (past + row).saturating_sub(padding);
                let half: Vec<f32> = frequencies.iter().map(|&f| angle(position, f)).collect();
                [half.clone(), half].concat()
            })
            .collect();
        let rotary = angles.iter().map(|x| x.cos()).chain(angles.iter().map(|x| x.sin()));
        vec![embeds, mask.collect(), rotary.collect()]
    }

    /// The logits of every token that is fed in steps of those counts. `step` computes a step from its inputs.
    fn feed(&self, ids: &[usize], counts: &[usize], hidden: f32, step: &mut Compute<'_, StepShape>) -> Vec<Vec<f32>> {
        let config = self.config;
        let mut caches =
            vec![vec![0.0; config.kv_heads() * self.prompt.capacity * config.head_dim()]; 2 * config.layers()];
        let (mut past, mut logits) = (0, Vec::new());
        for &count in counts {
            let shape = StepShape { tokens: if count == 1 { 1 } else { self.prompt.tokens }, ..self.prompt };
            let inputs = [self.inputs(shape, past, &ids[past..past + count], hidden), caches].concat();
            let mut results = step(shape, &inputs);
            caches = results.split_off(1);
            logits.extend(results[0].chunks(config.vocab()).skip(shape.tokens - count).map(<[f32]>::to_vec));
            past += count;
        }
        logits
    }
}

/// Weights rounded as the file rounds them, in f32; gains, biases and the embedding table as they are.
fn dequantised(tensors: &BTreeMap<String, Tensor>, format: WeightFormat) -> BTreeMap<String, Tensor> {
    let hold = |(name, tensor): (&String, &Tensor)| {
        let held = if tensor.shape.len() == 2 { rounded(name, tensor, format) } else { tensor.materialized() };
        (name.clone(), held)
    };
    tensors.iter().map(hold).collect()
}

/// The largest difference of logits relative to the largest logit, the share of equal best ids and the signal-to-noise ratio in dB.
fn fidelity(have: &[Vec<f32>], need: &[Vec<f32>]) -> (f32, f32, f32) {
    let largest = need.iter().flatten().fold(0.0f32, |m, x| m.max(x.abs()));
    let pairs = || have.iter().flatten().zip(need.iter().flatten());
    let off = pairs().map(|(a, b)| (a - b).abs()).fold(0.0f32, f32::max);
    let noise: f32 = pairs().map(|(a, b)| (a - b).powi(2)).sum();
    let signal: f32 = need.iter().flatten().map(|x| x * x).sum();
    let equal = have.iter().zip(need).filter(|(a, b)| best_id(a) == best_id(b)).count();
    (off / largest, equal as f32 / need.len() as f32, 10.0 * (signal / noise).log10())
}

/// A model in one precision, cut into parts: files with the ranges of what prompts take, and the host over the same weights.
struct Both<'a> {
    conversation: Conversation<'a>,
    /// By shape, then by part.
    executors: Vec<Vec<Executor>>,
    /// The same in whole numbers, over the weights of the checkpoint.
    whole: Vec<Vec<Executor>>,
    models: Vec<Vec<Model>>,
}

fn place(shape: StepShape) -> usize {
    usize::from(shape.tokens == 1)
}

fn on_host(executor: &mut Executor, inputs: &[Vec<f32>], observe: &mut dyn FnMut(ValueId, &[f32])) -> Vec<Vec<f32>> {
    executor.run_observed(&[inputs], observe);
    (0..executor.outputs().len()).map(|port| executor.output(port).to_vec()).collect()
}

/// A step part by part: each takes the result of the one before and the caches of its layers, all keys, then all values.
fn in_parts(parts: &[Part], inputs: &[Vec<f32>], run: &mut Compute<'_, usize>) -> Vec<Vec<f32>> {
    let layers = (inputs.len() - 3) / 2;
    let (mut hidden, mut keys, mut values) = (inputs[0].clone(), Vec::new(), Vec::new());
    for (number, part) in parts.iter().enumerate() {
        let caches = |from: usize| inputs[3 + from..][part.layers.clone()].to_vec();
        let given = [vec![hidden, inputs[1].clone(), inputs[2].clone()], caches(0), caches(layers)].concat();
        let mut results = run(number, &given);
        values.extend(results.split_off(1 + part.layers.len()));
        keys.extend(results.split_off(1));
        hidden = results.remove(0);
    }
    [vec![hidden], keys, values].concat()
}

fn ids(seed: usize, counts: &[usize], vocab: usize) -> Vec<usize> {
    (0..counts.iter().sum()).map(|i| (i * 7919 + seed * 31 + 13) % vocab).collect()
}

/// What the files are made for and of.
struct Plan<'a> {
    parts: &'a [Part],
    steps: &'a str,
    format: WeightFormat,
    /// The seeds of the prompts that give the ranges, and the tokens of their steps.
    seen: Range<usize>,
    counts: &'a [usize],
    headroom: f32,
}

/// The matrices of projections that are computed in float are stored in f16, whatever the format of the others.
fn keep_float(graph: &Graph, ranges: &Ranges, tensors: &BTreeMap<String, Tensor>, held: &mut BTreeMap<String, Tensor>) {
    let scales = quant::scales(graph, ranges, tensors).unwrap();
    for (id, value) in graph.ids().zip(&graph.values) {
        let Def::Op { op: Op::Linear {}, args } = &value.def else { continue };
        if scales.float(id) {
            let name = &graph.value(args[1]).name;
            let halves: Vec<f32> = to_f32(&tensors[name]).iter().map(|&x| f16::from_f32(x).to_f32()).collect();
            held.insert(name.clone(), tensor(tensors[name].shape.clone(), &halves));
        }
    }
}

fn both<'a>(litert: &mut LiteRt, checkpoint: &'a front::Checkpoint, plan: &Plan<'_>) -> Both<'a> {
    let Plan { parts, format, headroom, .. } = *plan;
    let config = &checkpoint.config;
    let mut held = dequantised(&checkpoint.tensors, format);
    let table = &checkpoint.tensors[llama::EMBEDDING];
    let steps = shapes(plan.steps);
    let conversation = Conversation { config, table: to_f32(table), prompt: steps[0] };
    let graphs = |weights| -> Vec<Vec<Graph>> {
        let request = Request::plain(host().with_protocol(CacheProtocol::Shift), steps.clone());
        let chunks = chunks(&checkpoint.config, &weight_types(weights), &request, parts).unwrap();
        let graphs: Vec<Graph> = chunks.into_iter().map(|chunk| chunk.graph).collect();
        graphs.chunks(parts.len()).map(<[Graph]>::to_vec).collect()
    };
    let (host_graphs, file_graphs) = (graphs(&held), graphs(&checkpoint.tensors));
    let executor = |graph: &Graph| Executor::new(graph, &held, &[]).unwrap();
    let mut executors: Vec<Vec<Executor>> =
        host_graphs.iter().map(|graphs| graphs.iter().map(executor).collect()).collect();
    let mut recorders: Vec<Vec<Recorder>> =
        host_graphs.iter().map(|graphs| graphs.iter().map(Recorder::new).collect()).collect();
    for seed in plan.seen.clone() {
        conversation.feed(&ids(seed, plan.counts, config.vocab()), plan.counts, HOST_HIDDEN, &mut |shape, inputs| {
            let (executors, recorders) = (&mut executors[place(shape)], &mut recorders[place(shape)]);
            in_parts(parts, inputs, &mut |part, inputs| {
                on_host(&mut executors[part], inputs, &mut |value, elements| recorders[part].see(value, elements))
            })
        });
    }
    let mut ranges = vec![Ranges::default(); parts.len()];
    for recorders in recorders {
        ranges.iter_mut().zip(recorders).for_each(|(ranges, recorder)| ranges.join(&recorder.ranges().unwrap()));
    }
    let mut ranges: Vec<Ranges> = ranges.iter().map(|ranges| ranges.with_headroom(headroom).unwrap()).collect();
    ranges[0].widen("embeds", quant::largest(table));
    for number in 1..parts.len() {
        let (first, second) = ranges.split_at_mut(number);
        let graphs = [&file_graphs[0][number - 1], &file_graphs[0][number]];
        quant::share_boundary((graphs[0], &mut first[number - 1]), (graphs[1], &mut second[0])).unwrap();
    }
    for (graph, ranges) in file_graphs[0].iter().zip(&ranges) {
        keep_float(graph, ranges, &checkpoint.tensors, &mut held);
    }
    let executor = |graph: &Graph| Executor::new(graph, &held, &[]).unwrap();
    let executors = host_graphs.iter().map(|graphs| graphs.iter().map(executor).collect()).collect();
    let mut model = |graph: &Graph, ranges: &Ranges| {
        load(litert, graph, &checkpoint.tensors, Storage::Integer { weights: format, ranges })
    };
    let mut all =
        |graphs: &Vec<Graph>| graphs.iter().zip(&ranges).map(|(graph, ranges)| model(graph, ranges)).collect();
    let models: Vec<Vec<Model>> = file_graphs.iter().map(&mut all).collect();
    let whole = |graph: &Graph, ranges: &Ranges| {
        let scales = quant::scales(graph, ranges, &checkpoint.tensors).unwrap();
        let encodings = quant::tflite(graph, &scales, format);
        Executor::with_encodings(graph, &checkpoint.tensors, &encodings, &[]).unwrap()
    };
    let all = |graphs: &Vec<Graph>| graphs.iter().zip(&ranges).map(|(graph, ranges)| whole(graph, ranges)).collect();
    let whole: Vec<Vec<Executor>> = file_graphs.iter().map(all).collect();
    for pair in models.iter().flat_map(|models| models.windows(2)) {
        assert_eq!(pair[0].outputs[0].format, pair[1].inputs[0].format);
    }
    Both { conversation, executors, whole, models }
}

/// Logits of a prompt that the files, the host in f32 and the host in whole numbers compute.
fn answers(litert: &mut LiteRt, both: &mut Both<'_>, parts: &[Part], counts: &[usize]) -> [Vec<Vec<f32>>; 3] {
    let Both { conversation, executors, whole, models } = both;
    let ids = ids(9, counts, conversation.config.vocab());
    let need = conversation.feed(&ids, counts, HOST_HIDDEN, &mut |shape, inputs| {
        let executors = &mut executors[place(shape)];
        in_parts(parts, inputs, &mut |part, inputs| on_host(&mut executors[part], inputs, &mut |_, _| {}))
    });
    let have = conversation.feed(&ids, counts, INT16_HIDDEN, &mut |shape, inputs| {
        in_parts(parts, inputs, &mut |part, inputs| {
            let inputs: Vec<&[f32]> = inputs.iter().map(Vec::as_slice).collect();
            litert.run(&models[place(shape)][part], &inputs).unwrap()
        })
    });
    let whole = conversation.feed(&ids, counts, INT16_HIDDEN, &mut |shape, inputs| {
        let executors = &mut whole[place(shape)];
        in_parts(parts, inputs, &mut |part, inputs| on_host(&mut executors[part], inputs, &mut |_, _| {}))
    });
    [have, need, whole]
}

/// How close the host in whole numbers is to the files, in dB.
fn predicted(have: &[Vec<f32>], whole: &[Vec<f32>]) -> f32 {
    fidelity(whole, have).2
}

/// Small models in every precision, prompt with and without padding, then single tokens. With ranges that hold all values
/// what is left is rounding, and what hidden rows take from visible ones (32 times two steps of 1/32768 are 0.2 %): some
/// 0.3 % of the largest logit, whatever the weights' format. It is the same with the ranges of other prompts and a
/// headroom of 2.
#[test]
fn small_models() {
    let Some(mut litert) = litert() else { return };
    let mut faults = Vec::new();
    for name in ["qwen3-bf16", "qwen2-bf16", "llama-biases-f32", "llama-gqa3-q4_1.gguf"] {
        let checkpoint = front::open(&checkpoints().join(name)).unwrap();
        let layers = layers(&checkpoint.config);
        for format in WeightFormat::ALL {
            for (seen, headroom, parts) in
                [(1..10, 1.0, vec![Part::whole(layers)]), (1..6, 2.0, Chunks::Equal(layers).parts(layers).unwrap())]
            {
                let plan =
                    Plan { parts: &parts, steps: STEPS, format, seen: seen.clone(), counts: &[8, 1, 1, 1], headroom };
                let mut both = both(&mut litert, &checkpoint, &plan);
                for counts in [&[8, 1, 1, 1][..], &[5, 1, 1], &[1, 1, 1]] {
                    let [have, need, whole] = answers(&mut litert, &mut both, &parts, counts);
                    let (off, equal, db) = fidelity(&have, &need);
                    let of = format!("{name} {format:?} in {} parts, prompts {seen:?}, {counts:?}", parts.len());
                    let (alike, exact) = (predicted(&have, &whole), fidelity(&whole, &need).2);
                    eprintln!(
                        "{of}: off by {off:.5} of the largest logit, {db:.1} dB, best ids equal {equal}; \
                        host in whole numbers {alike:.1} dB from the file, {exact:.1} dB from f32"
                    );
                    if alike.is_nan() || alike < ALIKE_FLOOR_DB {
                        faults.push(format!("{of}: whole numbers {alike} dB from the file"));
                    }
                    if off.is_nan() || off > LOGIT_TOLERANCE || db < NOISE_FLOOR_DB {
                        faults.push(format!("{of}: {off}, {db} dB"));
                    }
                }
            }
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

const STEPS: &str = "8t32c,1t32c";
/// Relative to the largest logit.
const LOGIT_TOLERANCE: f32 = 0.004;
/// Signal to noise of all logits.
const NOISE_FLOOR_DB: f32 = 50.0;
/// The host in whole numbers against the file, whose interpreter has tables and short factors of its own.
const ALIKE_FLOOR_DB: f32 = 50.0;
/// The same beside activations that only a real model has.
const REAL_FLOOR_DB: f32 = 28.0;

/// Sixteen layers of seeded weights in five chunks: rounding adds up along the residual stream, and parts meet in one scale.
#[test]
fn sixteen_layers_in_five_chunks() {
    let Some(mut litert) = litert() else { return };
    let (_folder, checkpoint, parts) = sixteen_layers();
    for format in WeightFormat::ALL {
        let plan = Plan { parts: &parts, steps: STEPS, format, seen: 1..6, counts: &[8, 1, 1, 1], headroom: 2.0 };
        let mut both = both(&mut litert, &checkpoint, &plan);
        let [have, need, whole] = answers(&mut litert, &mut both, &parts, &[8, 1, 1, 1, 1, 1]);
        let (off, equal, db) = fidelity(&have, &need);
        eprintln!(
            "sixteen layers {format:?}: off by {off:.5} of the largest logit, {db:.1} dB, best ids equal {equal}; host in \
             whole numbers {:.1} dB from the file",
            predicted(&have, &whole)
        );
        assert!(predicted(&have, &whole) >= ALIKE_FLOOR_DB);
        assert!(off <= LOGIT_TOLERANCE && db >= NOISE_FLOOR_DB, "{format:?}: {off}, {db} dB");
    }
}

/// Thirty layers with the activations of a real model. Its first token has numbers of 31,000 in the residual stream, from
/// a few down projections on, which are therefore computed in float; `hidden` between the chunks is int16 and cannot
/// hold both them and what other tokens have there.
#[test]
fn a_real_model() {
    let (Some(mut litert), Some(model)) = (litert(), std::env::var_os("NPUC_REAL_MODEL")) else { return };
    let checkpoint = front::open(Path::new(&model)).unwrap();
    let parts = "10,10,10".parse::<Chunks>().unwrap().parts(layers(&checkpoint.config)).unwrap();
    for format in WeightFormat::ALL {
        let counts = &[32, 1, 1, 1, 1];
        let plan = Plan { parts: &parts, steps: "32t64c,1t64c", format, seen: 1..4, counts, headroom: 1.25 };
        let mut both = both(&mut litert, &checkpoint, &plan);
        let [have, need, whole] = answers(&mut litert, &mut both, &parts, counts);
        let (off, equal, db) = fidelity(&have, &need);
        eprintln!(
            "SmolLM2-135M {format:?}: off by {off:.5} of the largest logit, {db:.1} dB, best ids equal {equal}; host in \
             whole numbers {:.1} dB from the file, {:.1} dB from f32",
            predicted(&have, &whole),
            fidelity(&whole, &need).2
        );
        assert!(db >= REAL_FLOOR_DB, "{format:?}: {db} dB");
    }
}
