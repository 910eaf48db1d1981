"""The Llama and LFM2 families in numpy, float64 throughout: an oracle that shares no code with npuc.

usage: reference_llama.py CHECKPOINT EXPECTED.safetensors [bf16|f16]     (needs: pip install numpy==2.4.6 gguf==0.19.0)
prints the largest difference of the logits and whether the greedy ids agree; exit code 1 if they do not.
The third argument rounds the rotary frequencies to that format first. No loaded model does so, but a torch
model that was cast as a whole (`model.to(dtype)`) has, and outputs recorded from one need it to agree.

CHECKPOINT is a Hugging Face folder or a GGUF file. A GGUF file of architecture `llama` keeps its query and
key rows in the order of its own rotary embedding, which turns neighbouring pairs; here that embedding is
computed as it is and no row is moved, so a fault in undoing the permutation elsewhere cannot hide.
"""
import json
import math
import pathlib
import struct
import sys
from dataclasses import dataclass

import numpy as np

# Largest difference of a logit from one computed in float32 with the same weights.
TOLERANCE = 2e-4


@dataclass
class Model:
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    frequencies: np.ndarray  # [head_dim / 2], radians per position
    adjacent: bool  # rotary pairs are (2i, 2i + 1) instead of (i, i + head_dim / 2)
    weights: dict  # Hugging Face names without `model.`, float64

    def get(self, name):
        return self.weights[name]


# What LFM2 calls the parts that both families have; here they go by Llama's names.
LFM2_NAMES = {"embedding_norm": "norm", "operator_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
              "self_attn.q_layernorm": "self_attn.q_norm", "self_attn.k_layernorm": "self_attn.k_norm",
              "self_attn.out_proj": "self_attn.o_proj", "feed_forward.w1": "mlp.gate_proj",
              "feed_forward.w3": "mlp.up_proj", "feed_forward.w2": "mlp.down_proj"}


def llama_name(name):
    """A name without `model.`, of either family, as Llama has it."""
    parts = name.split(".")
    start = 2 if parts[0] == "layers" else 0
    module = ".".join(parts[start:-1])
    return ".".join([*parts[:start], LFM2_NAMES.get(module, module), parts[-1]])


def read_safetensors(path):
    """Every tensor of a file by name; bf16 is widened to float32."""
    data = pathlib.Path(path).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    kinds = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8"}
    tensors = {}
    for name, info in header.items():
        if name == "__metadata__":
            continue
        begin, end = (8 + length + offset for offset in info["data_offsets"])
        array = np.frombuffer(data[begin:end], kinds[info["dtype"]]).reshape(info["shape"])
        if info["dtype"] == "BF16":
            array = (array.astype(np.uint32) << 16).view(np.float32)
        tensors[name] = array
    return tensors


def rope_parameters(config):
    """(theta, parameters) of both ways in which a config.json tells the rotary embedding."""
    if "rope_parameters" in config:
        rope = config["rope_parameters"]
        return rope["rope_theta"], rope
    return config["rope_theta"], config.get("rope_scaling") or {}


def rope_frequencies(config, head_dim):
    theta, rope = rope_parameters(config)
    frequencies = theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return frequencies
    if kind == "linear":
        return frequencies / rope["factor"]
    if kind == "llama3":
        return frequencies / llama3_divisors(frequencies, rope)
    raise ValueError(f"rope type {kind!r} is not in this reference")


def llama3_divisors(frequencies, rope):
    """Llama 3.1's stretching as one divisor per frequency."""
    factor, low, high = rope["factor"], rope["low_freq_factor"], rope["high_freq_factor"]
    waves = rope["original_max_position_embeddings"] * frequencies / (2 * math.pi)  # whole turns in the old context
    kept = np.clip((waves - low) / (high - low), 0.0, 1.0)
    return 1.0 / (kept + (1.0 - kept) / factor)


def load_folder(path):
    config = json.loads((path / "config.json").read_text())
    weights = {}
    for file in sorted(path.glob("model*.safetensors")):
        for name, array in read_safetensors(file).items():
            weights[llama_name(name.removeprefix("model."))] = array.astype(np.float64)
    if "embed_tokens.weight" not in weights:
        weights["embed_tokens.weight"] = weights["lm_head.weight"]
    if "lm_head.weight" not in weights:
        assert config.get("tie_embedding", config.get("tie_word_embeddings")), "an untied model without a head"
        weights["lm_head.weight"] = weights["embed_tokens.weight"]
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    return Model(config["hidden_size"], config["num_hidden_layers"], heads,
                 config.get("num_key_value_heads") or heads, head_dim,
                 config["norm_eps" if config["model_type"] == "lfm2" else "rms_norm_eps"],
                 rope_frequencies(config, head_dim), False, weights)


GGUF_NAMES = {"token_embd": "embed_tokens", "output_norm": "norm", "output": "lm_head", "attn_q": "self_attn.q_proj",
              "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
              "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm", "attn_norm": "input_layernorm",
              "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
              "ffn_down": "mlp.down_proj", "token_embd_norm": "norm", "shortconv.in_proj": "conv.in_proj",
              "shortconv.conv": "conv.conv", "shortconv.out_proj": "conv.out_proj"}


def load_gguf(path):
    import gguf
    reader = gguf.GGUFReader(path)
    arch = reader.fields["general.architecture"].contents()

    def field(key, default=None):
        entry = reader.fields.get(f"{arch}.{key}")
        return default if entry is None else entry.contents()

    weights, divisors = {}, 1.0
    for tensor in reader.tensors:
        array = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float64)
        if tensor.name == "rope_freqs.weight":
            divisors = array
            continue
        parts = tensor.name.split(".")
        prefix = f"layers.{parts[1]}." if parts[0] == "blk" else ""
        module = ".".join(parts[2 if prefix else 0:-1])
        weights[f"{prefix}{GGUF_NAMES[module]}.{parts[-1]}"] = array
    weights.setdefault("lm_head.weight", weights["embed_tokens.weight"])
    hidden, heads = field("embedding_length"), field("attention.head_count")
    head_dim = field("attention.key_length", hidden // heads)
    frequencies = field("rope.freq_base", 10000.0) ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    scaling = field("rope.scaling.type", "none")
    assert scaling in ("none", "linear"), scaling
    if scaling == "linear":
        frequencies = frequencies / field("rope.scaling.factor")
    kv_heads = field("attention.head_count_kv", heads)  # of LFM2 one for each layer, 0 where there is a convolution
    return Model(hidden, field("block_count"), heads, max(kv_heads) if isinstance(kv_heads, list) else kv_heads, head_dim,
                 field("attention.layer_norm_rms_epsilon"), frequencies / divisors, arch == "llama", weights)


def rounded(values, kind):
    """float64 values rounded to bf16 (nearest, ties to even) or f16."""
    if kind == "f16":
        return values.astype(np.float16).astype(np.float64)
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(np.float32).astype(np.float64)


def load(path):
    path = pathlib.Path(path)
    return load_folder(path) if path.is_dir() else load_gguf(path)


def rms_norm(x, gain, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * gain


def linear(model, name, x):
    y = x @ model.get(f"{name}.weight").T
    bias = model.weights.get(f"{name}.bias")
    return y if bias is None else y + bias


def rotate(model, x):
    """Rotates [tokens, heads, head_dim] by position."""
    angles = np.arange(len(x))[:, None, None] * model.frequencies
    cos, sin = np.cos(angles), np.sin(angles)
    half = model.head_dim // 2
    first, second = (x[..., 0::2], x[..., 1::2]) if model.adjacent else (x[..., :half], x[..., half:])
    turned = first * cos - second * sin, second * cos + first * sin
    return np.stack(turned, -1).reshape(x.shape) if model.adjacent else np.concatenate(turned, -1)


def attention(model, prefix, x):
    tokens = len(x)
    q = linear(model, f"{prefix}.q_proj", x).reshape(tokens, model.heads, model.head_dim)
    k = linear(model, f"{prefix}.k_proj", x).reshape(tokens, model.kv_heads, model.head_dim)
    v = linear(model, f"{prefix}.v_proj", x).reshape(tokens, model.kv_heads, model.head_dim)
    if f"{prefix}.q_norm.weight" in model.weights:
        q = rms_norm(q, model.get(f"{prefix}.q_norm.weight"), model.eps)
        k = rms_norm(k, model.get(f"{prefix}.k_norm.weight"), model.eps)
    q, k = rotate(model, q), rotate(model, k)
    out = np.empty_like(q)
    future = np.triu(np.ones((tokens, tokens), bool), 1)
    for head in range(model.heads):
        shared = head // (model.heads // model.kv_heads)
        scores = q[:, head] @ k[:, shared].T / math.sqrt(model.head_dim)
        scores[future] = -np.inf
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        out[:, head] = scores / scores.sum(-1, keepdims=True) @ v[:, shared]
    return linear(model, f"{prefix}.o_proj", out.reshape(tokens, -1))


def short_conv(model, prefix, x):
    """The gated convolution of LFM2, tap by tap over a sequence that zeros come before."""
    before, after, value = np.split(linear(model, f"{prefix}.in_proj", x), 3, -1)
    taps = model.get(f"{prefix}.conv.weight").reshape(model.hidden, -1)
    width = taps.shape[1]
    rows = np.concatenate([np.zeros((width - 1, model.hidden)), before * value])
    mixed = sum(rows[tap:tap + len(x)] * taps[:, tap] for tap in range(width))
    return linear(model, f"{prefix}.out_proj", after * (mixed + model.weights.get(f"{prefix}.conv.bias", 0.0)))


def feed_forward(model, prefix, x):
    gate = linear(model, f"{prefix}.gate_proj", x)
    return linear(model, f"{prefix}.down_proj", gate / (1.0 + np.exp(-gate)) * linear(model, f"{prefix}.up_proj", x))


def logits(model, ids):
    """Logits [tokens, vocab] of a sequence of ids from position 0."""
    x = model.get("embed_tokens.weight")[np.asarray(ids)]
    for layer in range(model.layers):
        prefix = f"layers.{layer}"
        normed = rms_norm(x, model.get(f"{prefix}.input_layernorm.weight"), model.eps)
        if f"{prefix}.conv.conv.weight" in model.weights:
            x = x + short_conv(model, f"{prefix}.conv", normed)
        else:
            x = x + attention(model, f"{prefix}.self_attn", normed)
        normed = rms_norm(x, model.get(f"{prefix}.post_attention_layernorm.weight"), model.eps)
        x = x + feed_forward(model, f"{prefix}.mlp", normed)
    return linear(model, "lm_head", rms_norm(x, model.get("norm.weight"), model.eps))


def greedy(model, ids, count):
    """The `count` ids that follow, and the smallest lead of a chosen logit over the next best."""
    sequence, margin = list(ids), math.inf
    for _ in range(count):
        last = logits(model, sequence)[-1]
        second, best = np.sort(last)[-2:]
        margin = min(margin, best - second)
        sequence.append(int(last.argmax()))
    return sequence[len(ids):], margin


def compare(model, expected):
    """Largest logit difference, whether the greedy ids agree, and the smallest greedy lead."""
    difference, agree, margin = 0.0, True, math.inf
    for ids, want, want_ids in zip(expected["input_ids"], expected["logits"], expected["greedy_ids"]):
        difference = max(difference, np.abs(logits(model, ids) - want).max())
        got_ids, lead = greedy(model, ids, len(want_ids))
        agree, margin = agree and got_ids == want_ids.tolist(), min(margin, lead)
    return difference, agree, margin


def main():
    if len(sys.argv) not in (3, 4) or sys.argv[3:] not in ([], ["bf16"], ["f16"]):
        sys.exit(__doc__)
    model = load(sys.argv[1])
    for kind in sys.argv[3:]:
        model.frequencies = rounded(model.frequencies, kind)
    difference, agree, margin = compare(model, read_safetensors(sys.argv[2]))
    print(f"max |logit difference| {difference:.3g}, greedy ids {'agree' if agree else 'DIFFER'}, "
          f"smallest greedy lead {margin:.3g}")
    sys.exit(0 if agree and difference <= TOLERANCE else 1)


if __name__ == "__main__":
    main()
