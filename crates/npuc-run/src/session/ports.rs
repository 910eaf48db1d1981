//! The ports of a step on the runner's side: which there are, and what goes into them and comes out.

use npuc::front::ModelConfig;
use npuc::front::config::LayerKind;
use npuc::model::rope::angle;
use npuc::model::{CacheProtocol, Port, StateKind, StepShape};
use npuc::{Result, Tensor};
use npuc_kernels::dequant::dequantize_row;
use npuc_kernels::lines::{Lines, store_rows};

use crate::device::chain::{Chain, Segment};
use crate::program::Program;

/// What the ports of a model's steps follow from.
pub(crate) struct Layout<'a> {
    pub(crate) config: &'a ModelConfig,
    pub(crate) protocol: CacheProtocol,
}

impl<'a> Layout<'a> {
    /// That of a program.
    pub(crate) fn of(program: &'a Program) -> Layout<'a> {
        Layout { config: &program.config, protocol: program.protocol }
    }
}

impl Layout<'_> {
    /// The input ports of a step, in order; what is heard and the states come last. Ports that no layer of the model reads are not there.
    pub(super) fn inputs(&self, shape: StepShape) -> Vec<Port> {
        let is_one_hot = match self.protocol {
            CacheProtocol::Append | CacheProtocol::Shift => false,
            CacheProtocol::OneHot => true,
        };
        if !self.config.reads_tokens() {
            return vec![Port::Mel];
        }
        let mut ports = vec![Port::Embeds];
        if self.config.has(LayerKind::Attention) {
            ports.extend(self.config.rope().map(|_| [Port::RopeCos, Port::RopeSin]).into_iter().flatten());
            ports.push(Port::Mask);
            ports.extend(is_one_hot.then_some(Port::WriteMask));
        }
        if self.config.has(LayerKind::Convolution) && is_one_hot && shape.tokens > 1 {
            ports.push(Port::History);
        }
        ports.extend(self.heard());
        ports.extend(self.states(Port::Past));
        ports
    }

    /// The ports of what a decoder listens to, which an encoder gives, in order.
    pub(crate) fn heard(&self) -> impl Iterator<Item = Port> + use<> {
        let layers = match self.config {
            ModelConfig::Llama(_) | ModelConfig::Lfm2(_) => 0,
            ModelConfig::Whisper(config) => config.decoder.layers,
        };
        (0..layers).flat_map(|layer| [StateKind::Key, StateKind::Value].map(|kind| Port::Heard(kind, layer)))
    }

    /// The output ports: the logits, then the states in the order of the inputs; of an encoder what it heard.
    pub(super) fn outputs(&self) -> Vec<Port> {
        if !self.config.reads_tokens() {
            return self.heard().collect();
        }
        let make = match self.protocol {
            CacheProtocol::Append => Port::New,
            CacheProtocol::Shift | CacheProtocol::OneHot => Port::Next,
        };
        [Port::Logits].into_iter().chain(self.states(make)).collect()
    }

    /// A step of these ports that `segments` compute.
    pub(super) fn chain(&self, shape: StepShape, segments: Vec<Segment>) -> Result<Chain> {
        let sized = |ports: Vec<Port>| ports.into_iter().map(|port| (port, self.elements(port, shape))).collect();
        Chain::new(shape.tokens, sized(self.inputs(shape)), sized(self.outputs()), segments)
    }

    /// The ports of all states, in order.
    pub(super) fn states(&self, make: fn(StateKind, usize) -> Port) -> impl Iterator<Item = Port> {
        (0..self.config.layers())
            .flat_map(move |layer| StateKind::of(self.config.kind(layer)).iter().map(move |&kind| make(kind, layer)))
    }

    /// The elements of a port.
    pub(super) fn elements(&self, port: Port, shape: StepShape) -> usize {
        let StepShape { tokens, capacity } = shape;
        let (hidden, history) = (self.config.hidden(), self.config.history());
        let (kv_heads, head_dim) = (self.config.kv_heads(), self.config.head_dim());
        let extents = match port {
            Port::Embeds | Port::Hidden => [tokens, hidden, 1],
            Port::Mel | Port::Heard(..) => self.sound(port),
            Port::RopeCos | Port::RopeSin => [tokens, head_dim / 2, 1],
            Port::Mask => [tokens, capacity + tokens, 1],
            Port::WriteMask => [capacity, tokens, 1],
            Port::History => [history, history + tokens, 1],
            Port::Past(StateKind::Conv, _) | Port::Next(StateKind::Conv, _) => [history, hidden, 1],
            Port::New(StateKind::Conv, _) => [tokens, hidden, 1],
            Port::Past(StateKind::Key | StateKind::Value, _) | Port::Next(StateKind::Key | StateKind::Value, _) => {
                [kv_heads, capacity, head_dim]
            }
            Port::New(StateKind::Key | StateKind::Value, _) => [kv_heads, tokens, head_dim],
            Port::Logits => [tokens, self.config.vocab(), 1],
            Port::LogitsPart(_) | Port::Cross(_) => {
                unreachable!("a session runs whole steps, whose ports are those listed above")
            }
        };
        // A product past the largest number is refused as too much memory like any other large one.
        extents.into_iter().fold(1, usize::saturating_mul)
    }

    /// The extents of a port about sound.
    fn sound(&self, port: Port) -> [usize; 3] {
        match self.config {
            ModelConfig::Llama(_) | ModelConfig::Lfm2(_) => unreachable!("only Whisper has ports about sound"),
            ModelConfig::Whisper(config) if port == Port::Mel => [config.mels, config.frames(), 1],
            // The heads of all layers side by side are as wide as the model.
            ModelConfig::Whisper(config) => [config.source_positions, config.hidden, 1],
        }
    }

    /// Bytes of the caches, which all steps of one capacity share.
    pub(crate) fn cache_bytes(&self, shape: StepShape) -> u64 {
        self.bytes(shape, |port| matches!(port, Port::Past(..)))
    }

    /// Bytes of the other inputs of a step.
    pub(crate) fn input_bytes(&self, shape: StepShape) -> u64 {
        self.bytes(shape, |port| !matches!(port, Port::Past(..)))
    }

    fn bytes(&self, shape: StepShape, which: fn(&Port) -> bool) -> u64 {
        let elements = self.inputs(shape).into_iter().filter(which).map(|port| self.elements(port, shape) as u64);
        elements.fold(0, u64::saturating_add).saturating_mul(size_of::<f32>() as u64)
    }
}

/// The extents that the rows of states are placed by.
#[derive(Clone, Copy)]
pub(super) struct StateSize {
    pub(super) capacity: usize,
    pub(super) head_dim: usize,
    pub(super) hidden: usize,
}

/// Where the tokens of a step are.
#[derive(Clone, Copy)]
pub(crate) struct Context {
    /// The row of the first token; rows before it and after the last are padding.
    pub(crate) first: usize,
    /// How many tokens.
    pub(crate) valid: usize,
    /// Tokens in the caches before the step.
    pub(crate) position: usize,
    /// How the caches travel.
    pub(crate) protocol: CacheProtocol,
    /// What the mask holds where a position is hidden.
    pub(crate) hidden_mask: f32,
}

/// Rows of the embedding table; padding is zero.
pub(crate) fn fill_embeds(buffer: &mut [f32], ids: &[u32], first: usize, embedding: &Tensor) {
    let hidden = embedding.shape[1];
    let bytes = embedding.bytes();
    let row_bytes = bytes.len() / embedding.shape[0];
    buffer.fill(0.0);
    for (row, &id) in buffer.chunks_exact_mut(hidden).skip(first).zip(ids) {
        dequantize_row(embedding.dtype, &bytes[id as usize * row_bytes..][..row_bytes], row);
    }
}

/// Adds the row of each token's position in a table `[positions, hidden]`; padding stays zero.
pub(crate) fn add_positions(buffer: &mut [f32], table: &[f32], hidden: usize, context: Context) {
    let rows = buffer.chunks_exact_mut(hidden).skip(context.first).take(context.valid);
    for (row, position) in rows.zip(table.chunks_exact(hidden).skip(context.position)) {
        row.iter_mut().zip(position).for_each(|(x, add)| *x += add);
    }
}

/// A token sees the valid past and the step's tokens up to itself; a padding row sees itself, so that no
/// row is fully hidden.
pub(crate) fn fill_mask(buffer: &mut [f32], shape: StepShape, context: Context) {
    let past = match context.protocol {
        CacheProtocol::Append | CacheProtocol::OneHot => 0..context.position,
        CacheProtocol::Shift => shape.capacity - context.position..shape.capacity,
    };
    for (row, mask) in buffer.chunks_exact_mut(shape.capacity + shape.tokens).enumerate() {
        mask.fill(context.hidden_mask);
        let (past_mask, new_mask) = mask.split_at_mut(shape.capacity);
        let is_token = (context.first..context.first + context.valid).contains(&row);
        if is_token {
            past_mask[past.clone()].fill(0.0);
            new_mask[context.first..=row].fill(0.0);
        } else {
            new_mask[row] = 0.0;
        }
    }
}

/// A 1 where token j enters the cache: row `position + j`, column j.
pub(super) fn fill_write_mask(buffer: &mut [f32], shape: StepShape, context: Context) {
    buffer.fill(0.0);
    for token in 0..context.valid {
        buffer[(context.position + token) * shape.tokens + context.first + token] = 1.0;
    }
}

/// A 1 for each row that a convolution keeps: the last ones of the past rows and the step's tokens. Padding follows these.
pub(super) fn fill_history(buffer: &mut [f32], rows: usize, shape: StepShape, context: Context) {
    buffer.fill(0.0);
    for (row, kept) in buffer.chunks_exact_mut(rows + shape.tokens).enumerate() {
        kept[context.valid + row] = 1.0;
    }
}

/// Takes the valid new rows of a step into the states: behind those in a cache `[kv_heads, tokens, head_dim]`, or into the last
/// rows that a convolution keeps, `[tokens, hidden]`.
pub(super) fn place_rows<'a>(
    states: &mut [Lines],
    results: impl Iterator<Item = &'a [f32]> + Clone,
    kinds: &[StateKind],
    size: StateSize,
    tokens: usize,
    context: Context,
) {
    let StateSize { capacity, head_dim, hidden } = size;
    let (start, len) = (context.position * head_dim, context.valid * head_dim);
    for ((state, rows), kind) in states.iter_mut().zip(results.clone()).zip(kinds) {
        match kind {
            StateKind::Key | StateKind::Value => {}
            StateKind::Conv => keep_last(state, &rows[..context.valid * hidden]),
        }
    }
    let caches = states.iter_mut().zip(results).zip(kinds).filter(|(_, kind)| match kind {
        StateKind::Key | StateKind::Value => true,
        StateKind::Conv => false,
    });
    store_rows(caches.flat_map(|((state, rows), _)| {
        let heads = state.chunks_exact_mut(capacity * head_dim).zip(rows.chunks_exact(tokens * head_dim));
        heads.map(|(state, rows)| (&mut state[start..][..len], &rows[..len]))
    }));
}

/// Moves `state` up and puts the last of `new` at its end.
fn keep_last(state: &mut [f32], new: &[f32]) {
    let len = state.len();
    if new.len() >= len {
        state.copy_from_slice(&new[new.len() - len..]);
    } else {
        state.copy_within(new.len().., 0);
        state[len - new.len()..].copy_from_slice(new);
    }
}

/// Makes the first `rows` rows of every head of a cache zero, or all that a convolution keeps.
pub(super) fn clear_rows(state: &mut [f32], kind: StateKind, size: StateSize, rows: usize) {
    match kind {
        StateKind::Key | StateKind::Value => {
            let heads = state.chunks_exact_mut(size.capacity * size.head_dim);
            heads.for_each(|head| head[..rows * size.head_dim].fill(0.0));
        }
        StateKind::Conv => state.fill(0.0),
    }
}

/// The cosine or sine of every token's rotary angles, a row of `head_dim / 2` per token.
pub(crate) fn fill_angles(buffer: &mut [f32], frequencies: &[f32], context: Context, of: fn(f32) -> f32) {
    for (row, angles) in buffer.chunks_exact_mut(frequencies.len()).enumerate() {
        let position = context.position + row.saturating_sub(context.first);
        for (out, &frequency) in angles.iter_mut().zip(frequencies) {
            *out = of(angle(position, frequency));
        }
    }
}
