"""Writes the small checkpoints of tests/data/checkpoints with the outputs of an independent reference.

usage: make_test_checkpoints.py FIXTURES OUT     (needs: pip install numpy==2.4.6 gguf==0.19.0)

FIXTURES is the folder that make_fixtures.py wrote (its llama fixtures are read). Beside every
checkpoint lies expected.safetensors with input_ids [1, T] i64, logits [1, T, V] f32 and greedy_ids [1, N] i64,
computed by reference_llama.py in float64 from the weights as they are stored (dequantised by gguf-py).
"""
import json
import pathlib
import shutil
import struct
import sys
import zlib

import numpy as np

import gguf_form
import reference_llama as reference
import tiny_vocab

TOKENS, NEW = 16, 16
# A greedy id must lead by this much, so that float32 computation and small format errors cannot change it.
LEAD = 0.02

BASE = {"hidden_act": "silu", "initializer_range": 0.02, "num_hidden_layers": 2, "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5, "vocab_size": 288, "use_cache": True}
LLAMA = {**BASE, "architectures": ["LlamaForCausalLM"], "model_type": "llama", "bos_token_id": 1, "eos_token_id": 2}
QWEN2 = {**BASE, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "rms_norm_eps": 1e-6}
LFM2 = {"architectures": ["Lfm2ForCausalLM"], "model_type": "lfm2", "hidden_size": 64, "num_key_value_heads": 2,
        "vocab_size": 288, "max_position_embeddings": 2048, "norm_eps": 1e-5, "initializer_range": 0.02, "use_cache": True,
        "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}

# Each folder: its config.json, the type of its tensors, and what is unusual about which tensors are stored.
FOLDERS = {
    # As Qwen2.5 is published: a sliding window that is switched off, biases that the config does not mention.
    "qwen2-bf16": (QWEN2 | {
        "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 320,
        "rope_theta": 1000000.0, "sliding_window": 1024, "use_sliding_window": False, "max_window_layers": 2,
        "tie_word_embeddings": True, "bos_token_id": 317, "eos_token_id": 319, "torch_dtype": "bfloat16",
        "transformers_version": "4.43.1"}, "BF16", None),
    # Qwen3 as today's transformers writes it.
    "qwen3-bf16": (BASE | {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 64, "intermediate_size": 128,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 24, "vocab_size": 320, "attention_bias": False,
        "layer_types": ["full_attention", "full_attention"], "sliding_window": None, "use_sliding_window": False,
        "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"}, "tie_word_embeddings": False,
        "bos_token_id": 317, "eos_token_id": 319, "dtype": "bfloat16", "transformers_version": "5.0.0"}, "BF16", None),
    # Mistral with grouped queries, head_dim written as null.
    "mistral-bf16": (BASE | {
        "architectures": ["MistralForCausalLM"], "model_type": "mistral", "hidden_size": 64, "intermediate_size": 96,
        "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": None, "vocab_size": 384, "rope_theta": 10000.0,
        "sliding_window": None, "attention_dropout": 0.0, "tie_word_embeddings": False, "bos_token_id": 1,
        "eos_token_id": 2, "torch_dtype": "bfloat16", "transformers_version": "4.42.0"}, "BF16", None),
    # Llama of old: linear scaling under `type`, no num_key_value_heads, no head_dim.
    "llama-old-linear-f16": (LLAMA | {
        "hidden_size": 48, "intermediate_size": 128, "num_attention_heads": 4, "rope_theta": 10000.0,
        "rope_scaling": {"type": "linear", "factor": 2.0}, "tie_word_embeddings": False, "torch_dtype": "float16",
        "transformers_version": "4.31.0"}, "F16", None),
    # Llama 3.1's scaling under `rope_scaling`; the old context is so short that every branch of it matters.
    "llama3-old-bf16": (LLAMA | {
        "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2,
        "rope_theta": 10000.0, "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                                "original_max_position_embeddings": 32, "rope_type": "llama3"},
        "tie_word_embeddings": True, "eos_token_id": [2, 0], "attention_bias": False,
        "mlp_bias": False, "pretraining_tp": 1, "torch_dtype": "bfloat16", "transformers_version": "4.43.0"}, "BF16", None),
    # Biases on every projection.
    "llama-biases-f32": (LLAMA | {
        "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
        "attention_bias": True, "mlp_bias": True, "rope_theta": 10000.0, "rope_scaling": None,
        "tie_word_embeddings": True, "torch_dtype": "float32", "transformers_version": "4.45.0"}, "F32", None),
    # The config says tied, but a head of its own is stored, and counts.
    "llama-tied-with-head-f32": (LLAMA | {
        "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_hidden_layers": 1,
        "num_key_value_heads": 2, "rope_theta": 10000.0, "rope_scaling": None, "tie_word_embeddings": True,
        "torch_dtype": "float32", "transformers_version": "4.45.0"}, "F32", "head"),
    # Only the head is stored; it is the embedding table too.
    "llama-reverse-tied-f32": (LLAMA | {
        "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_hidden_layers": 1,
        "num_key_value_heads": 1, "rope_theta": 10000.0, "rope_scaling": None, "tie_word_embeddings": True,
        "torch_dtype": "float32", "transformers_version": "4.45.0"}, "F32", "only head"),
    # LFM2 with the keys of the first checkpoints, an adjusted feed-forward width and four taps.
    "lfm2-old-bf16": (LFM2 | {
        "block_auto_adjust_ff_dim": True, "block_dim": 64, "block_ff_dim": 120, "block_ffn_dim_multiplier": 1.1,
        "block_multiple_of": 32, "conv_L_cache": 4, "conv_bias": False, "conv_dim": 64, "full_attn_idxs": [1, 3],
        "num_attention_heads": 4, "num_hidden_layers": 5, "tie_embedding": True, "theta": 1000000.0,
        "rope_theta": 1000000.0, "torch_dtype": "bfloat16", "transformers_version": "4.54.0"}, "BF16", None),
    # LFM2 as today's transformers writes it, with biases, two taps and a head of its own.
    "lfm2-biases-f32": (LFM2 | {
        "block_auto_adjust_ff_dim": False, "block_ffn_dim_multiplier": 1.0, "block_multiple_of": 256, "conv_L_cache": 2,
        "conv_bias": True, "dtype": "float32", "full_attn_idxs": None, "intermediate_size": 96,
        "layer_types": ["conv", "full_attention", "conv"], "num_attention_heads": 8, "num_hidden_layers": 3,
        "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"}, "tie_word_embeddings": False,
        "transformers_version": "5.0.0"}, "F32", None),
}

SMOLLM = tiny_vocab.byte_level(512, "smollm", before=("<|endoftext|>", "<|im_start|>", "<|im_end|>"), bos=1, eos=2, unknown=0,
                               padding=2)
LLAMA3 = tiny_vocab.byte_level(512, "llama-bpe", before=("<|begin|>", "<|end_of_text|>", "<|eot_id|>", "<|start|>", "<|end|>"),
                               bos=0, eos=1, eot=2) | {"add_bos": True, "template": tiny_vocab.LLAMA3_TEMPLATE}
QWEN = tiny_vocab.byte_level(320, "qwen2", after=("<|endoftext|>", "<|im_start|>", "<|im_end|>"), bos=317, eos=319, padding=317)
PLAIN = tiny_vocab.byte_level(288, "default", before=("<unk>", "<s>", "</s>"), bos=1, eos=2, unknown=0)
SPM = tiny_vocab.sentence_piece(384)

# Each GGUF file: the checkpoint it is made from, its vocabulary, the type of its matrices, other settings.
GGUFS = {
    **{f"llama-gqa3-{kind.lower()}": ("llama-gqa3-f32", SMOLLM, kind, {})
       for kind in ("F16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")},
    **{f"llama3-tied-{kind.lower()}": ("llama3-tied-bf16", LLAMA3, kind, {}) for kind in ("BF16", "Q8_0", "Q4_0")},
    "llama3-tied-q4_1-v2": ("llama3-tied-bf16", LLAMA3, "Q4_1", {"version": 2}),
    "llama3-old-q8_0": ("llama3-old-bf16", PLAIN, "Q8_0", {}),
    "llama-old-linear-f16-v2": ("llama-old-linear-f16", PLAIN, "F16", {"version": 2}),
    "llama-biases-f32": ("llama-biases-f32", PLAIN, "F32", {}),
    "mistral-spm-q8_0": ("mistral-bf16", SPM, "Q8_0", {"alignment": 64}),
    "lfm2-old-q8_0": ("lfm2-old-bf16", PLAIN, "Q8_0", {}),
    "qwen2-q8_0": ("qwen2-bf16", QWEN, "Q8_0", {}),
    "qwen3-q8_0": ("qwen3-bf16", QWEN, "Q8_0", {}),
}
K_QUANTS = LLAMA | {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 1,
                    "rope_theta": 10000.0}

# Fixtures made by `model.to(dtype)`, which rounds the rotary frequencies too; a loaded model keeps them in f32.
ROUNDED_FIXTURES = ["llama3-tied-bf16", "llama-untied-sharded-f16"]

LAYOUTS = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8"}


def save(path, tensors, kind="F32"):
    """Writes a safetensors file: float tensors as `kind`, integer ones as i64."""
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, array in tensors.items():
        dtype = "I64" if array.dtype == np.int64 else kind
        if dtype == "BF16":
            array = reference.rounded(array, "bf16").astype(np.float32).view(np.uint32) >> 16
        begin, data = len(data), data + array.astype(LAYOUTS[dtype]).tobytes()
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def lfm2_shapes(config):
    """Every parameter of an LFM2 by its Hugging Face name."""
    hidden, ffn, heads = config["hidden_size"], gguf_form.lfm2_ffn(config), config["num_attention_heads"]
    head_dim = hidden // heads
    kv_rows = config["num_key_value_heads"] * head_dim
    yield "model.embed_tokens.weight", (config["vocab_size"], hidden)
    for layer, kind in enumerate(gguf_form.layer_kinds(config)):
        prefix = f"model.layers.{layer}"
        if kind == "conv":
            parts = {"in_proj": (3 * hidden, hidden), "conv": (hidden, 1, config["conv_L_cache"]),
                     "out_proj": (hidden, hidden)}
            for name, shape in parts.items():
                yield f"{prefix}.conv.{name}.weight", shape
                if config["conv_bias"]:
                    yield f"{prefix}.conv.{name}.bias", shape[:1]
        else:
            for name, rows in {"q": heads * head_dim, "k": kv_rows, "v": kv_rows}.items():
                yield f"{prefix}.self_attn.{name}_proj.weight", (rows, hidden)
            yield f"{prefix}.self_attn.out_proj.weight", (hidden, heads * head_dim)
            yield f"{prefix}.self_attn.q_layernorm.weight", (head_dim,)
            yield f"{prefix}.self_attn.k_layernorm.weight", (head_dim,)
        for name, shape in {"w1": (ffn, hidden), "w3": (ffn, hidden), "w2": (hidden, ffn)}.items():
            yield f"{prefix}.feed_forward.{name}.weight", shape
        yield f"{prefix}.operator_norm.weight", (hidden,)
        yield f"{prefix}.ffn_norm.weight", (hidden,)
    yield "model.embedding_norm.weight", (hidden,)
    yield "lm_head.weight", (config["vocab_size"], hidden)


def shapes(config):
    """Every parameter of a model by its Hugging Face name."""
    if config["model_type"] == "lfm2":
        yield from lfm2_shapes(config)
        return
    hidden, ffn, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    head_dim = config.get("head_dim") or hidden // heads
    kv_rows = config.get("num_key_value_heads", heads) * head_dim
    yield "model.embed_tokens.weight", (config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        attention, mlp = f"model.layers.{layer}.self_attn", f"model.layers.{layer}.mlp"
        linears = [(f"{attention}.q_proj", heads * head_dim, hidden), (f"{attention}.k_proj", kv_rows, hidden),
                   (f"{attention}.v_proj", kv_rows, hidden), (f"{attention}.o_proj", hidden, heads * head_dim),
                   (f"{mlp}.gate_proj", ffn, hidden), (f"{mlp}.up_proj", ffn, hidden), (f"{mlp}.down_proj", hidden, ffn)]
        for name, rows, columns in linears:
            yield f"{name}.weight", (rows, columns)
            qkv = "self_attn" in name and ".o_proj" not in name
            if config["model_type"] == "qwen2" and qkv or config.get("mlp_bias" if "mlp" in name else "attention_bias"):
                yield f"{name}.bias", (rows,)
        if config["model_type"] == "qwen3":
            yield f"{attention}.q_norm.weight", (head_dim,)
            yield f"{attention}.k_norm.weight", (head_dim,)
        yield f"model.layers.{layer}.input_layernorm.weight", (hidden,)
        yield f"model.layers.{layer}.post_attention_layernorm.weight", (hidden,)
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (config["vocab_size"], hidden)


def spread(config, stored_head, rng):
    """Random weights, so large that the logits are spread: a flat random model hides faults."""
    tensors = {}
    for name, shape in shapes(config):
        values = rng.standard_normal(shape)
        if name.endswith(".bias"):
            tensors[name] = 0.4 * values
        elif len(shape) == 1:
            tensors[name] = 1.0 + 0.2 * values
        else:
            tensors[name] = values * (1.4 / np.prod(shape[1:]) ** 0.5)
    if config.get("tie_embedding", config.get("tie_word_embeddings")) and stored_head is None:
        del tensors["lm_head.weight"]
    if stored_head == "only head":
        del tensors["model.embed_tokens.weight"]
    return tensors


def write_expected(path, checkpoint, seed):
    """Runs the reference and returns (its smallest greedy lead, a line about it)."""
    model = reference.load(checkpoint)
    vocab = len(model.get("embed_tokens.weight"))
    ids = np.random.default_rng(seed).integers(3, vocab, TOKENS)
    logits = reference.logits(model, ids)
    new, lead = reference.greedy(model, ids, NEW)
    save(path, {"input_ids": ids[None], "logits": logits[None], "greedy_ids": np.array([new], np.int64)})
    return lead, f"{checkpoint.name:28} logits' std {logits.std():.2f}, smallest greedy lead {lead:.3f}"


def first_seed(name):
    """A seed that does not change when checkpoints are added or removed."""
    return zlib.crc32(name.encode())


def make_folder(path, seed):
    config, kind, stored_head = FOLDERS[path.name]
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    if config["model_type"] == "qwen2":
        (path / "generation_config.json").write_text(json.dumps({"bos_token_id": 317, "eos_token_id": [319, 317]}) + "\n")
        (path / "tokenizer.json").write_text(json.dumps(tiny_vocab.tokenizer_json(QWEN), ensure_ascii=False) + "\n")
        (path / "tokenizer_config.json").write_text(json.dumps({
            "add_bos_token": False, "bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>",
            "chat_template": tiny_vocab.CHAT_TEMPLATE, "tokenizer_class": "Qwen2Tokenizer"}) + "\n")
    for attempt in range(seed, seed + 100):
        save(path / "model.safetensors", spread(config, stored_head, np.random.default_rng(attempt)), kind)
        lead, line = write_expected(path / "expected.safetensors", path, attempt)
        if lead >= LEAD:
            return print(line)
    sys.exit(f"{path.name}: no seed gives a greedy lead of {LEAD}")


def make_k_quants(path, vocab):
    first = first_seed(path.stem)
    for seed in range(first, first + 100):
        gguf_form.write_k_quants(path, K_QUANTS, vocab, np.random.default_rng(seed), alignment=128)
        lead, line = write_expected(path.with_suffix(".expected.safetensors"), path, seed)
        if lead >= LEAD:
            return print(line)
    sys.exit(f"{path.name}: no seed gives a greedy lead of {LEAD}")


def make_gguf(fixtures, out, name, seed):
    source, vocab, kind, settings = GGUFS[name]
    folder = out / source if source in FOLDERS else fixtures / source
    path = out / f"{name}.gguf"
    gguf_form.write(path, folder, vocab, kind, **settings)
    for attempt in range(seed, seed + 100):
        lead, line = write_expected(path.with_suffix(".expected.safetensors"), path, attempt)
        if lead >= LEAD:
            return print(line)
    sys.exit(f"{name}: no prompt gives a greedy lead of {LEAD}")


def correct_fixtures(fixtures, out):
    """Outputs for the fixtures whose recorded ones come from a model that was cast as a whole."""
    (out / "fixtures").mkdir(exist_ok=True)
    for name in ROUNDED_FIXTURES:
        model = reference.load(fixtures / name)
        ids = reference.read_safetensors(fixtures / name / "expected.safetensors")["input_ids"]
        new, lead = reference.greedy(model, ids[0], NEW)
        save(out / "fixtures" / f"{name}.expected.safetensors",
             {"input_ids": ids, "logits": reference.logits(model, ids[0])[None], "greedy_ids": np.array([new], np.int64)})
        print(f"{name:28} smallest greedy lead {lead:.3f}")


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    fixtures, out = map(pathlib.Path, sys.argv[1:])
    out.mkdir(parents=True, exist_ok=True)
    for old in [*out.glob("*.gguf"), *out.glob("*.safetensors")]:
        old.unlink()
    for name in FOLDERS:
        shutil.rmtree(out / name, ignore_errors=True)
    for name in FOLDERS:
        make_folder(out / name, first_seed(name))
    for name in GGUFS:
        make_gguf(fixtures, out, name, first_seed(name))
    make_k_quants(out / "llama-k-quants.gguf", PLAIN)
    correct_fixtures(fixtures, out)
    # A file of plain floats holds the same numbers as the folder it was made from, only with other row orders.
    model, twin = reference.load(out / "llama-biases-f32"), reference.load(out / "llama-biases-f32.gguf")
    difference = np.abs(reference.logits(model, range(16)) - reference.logits(twin, range(16))).max()
    assert difference < 1e-9, f"the GGUF form changes the model by {difference}"
    print("total", sum(file.stat().st_size for file in out.rglob("*") if file.is_file()) // 1024, "KiB")


if __name__ == "__main__":
    main()
