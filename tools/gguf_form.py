"""Writes a checkpoint as GGUF, the way llama.cpp's converter lays it out."""
import json
import pathlib
import struct

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

import reference_llama as reference

# general.file_type of files whose matrices are mostly of one type.
FILE_TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "BF16": 32, "Q4_K": 15}
GGUF_NAMES = {hf: ours for ours, hf in reference.GGUF_NAMES.items() if ours != "token_embd_norm"}


def interleave(rows, heads):
    """Rows [heads * dim, ...] from pairs (i, i + dim / 2) to neighbouring pairs, head by head."""
    halves = rows.reshape(heads, 2, -1, *rows.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)


def gguf_name(name):
    if name == "model.embedding_norm.weight":
        return "token_embd_norm.weight"
    parts = reference.llama_name(name.removeprefix("model.")).split(".")
    if parts[0] == "layers":
        return f"blk.{parts[1]}.{GGUF_NAMES['.'.join(parts[2:-1])]}.{parts[-1]}"
    return f"{GGUF_NAMES[parts[0]]}.{parts[-1]}"


def stored(array, kind, is_filter):
    """The bytes and the type of a tensor: vectors and filters stay f32, rows that blocks do not divide become f16."""
    if array.ndim == 1 or is_filter:
        kind = Type.F32
    elif array.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0]:
        kind = Type.F16
    return gguf.quants.quantize(array.astype(np.float32), kind), kind


def add_vocab(writer, vocab):
    writer.add_tokenizer_model(vocab["model"])
    if "pre" in vocab:
        writer.add_tokenizer_pre(vocab["pre"])
    writer.add_token_list(vocab["tokens"])
    if "scores" in vocab:
        writer.add_token_scores(vocab["scores"])
    writer.add_token_types(vocab["types"])
    if "merges" in vocab:
        writer.add_token_merges(vocab["merges"])
    for key, token in vocab["special"].items():
        writer.add_uint32(f"tokenizer.ggml.{key}_token_id", token)
    writer.add_add_bos_token(vocab["add_bos"])
    writer.add_chat_template(vocab["template"])


def layer_kinds(config):
    """What each layer of LFM2 is, by either of the keys that say it."""
    attention = config.get("full_attn_idxs") or ()
    return config.get("layer_types") or [
        "full_attention" if layer in attention else "conv" for layer in range(config["num_hidden_layers"])]


def lfm2_ffn(config):
    """The feed-forward width of LFM2, adjusted where the config asks for it."""
    width = config.get("block_ff_dim") or config["intermediate_size"]
    if not config["block_auto_adjust_ff_dim"]:
        return width
    multiple = config["block_multiple_of"]
    return -(-int(config["block_ffn_dim_multiplier"] * int(2 * width / 3)) // multiple) * multiple


def add_config(writer, config, file_type):
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    head_dim = config.get("head_dim") or hidden // heads
    theta, rope = reference.rope_parameters(config)
    writer.add_type("model")
    writer.add_file_type(FILE_TYPES[file_type])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(hidden)
    writer.add_block_count(config["num_hidden_layers"])
    is_lfm2 = config["model_type"] == "lfm2"
    writer.add_feed_forward_length(lfm2_ffn(config) if is_lfm2 else config["intermediate_size"])
    writer.add_head_count(heads)
    kv_heads = config.get("num_key_value_heads") or heads
    if is_lfm2:
        writer.add_head_count_kv([kv_heads if kind == "full_attention" else 0 for kind in layer_kinds(config)])
        writer.add_shortconv_l_cache(config["conv_L_cache"])
    else:
        writer.add_head_count_kv(kv_heads)
    if config.get("head_dim"):
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config["norm_eps" if is_lfm2 else "rms_norm_eps"])
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(theta)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if kind == "llama3":
        plain = theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
        writer.add_tensor("rope_freqs.weight", reference.llama3_divisors(plain, rope).astype(np.float32))


def write(path, folder, vocab, file_type, version=3, alignment=None):
    """Writes the checkpoint in `folder`; `file_type` names the type of all matrices."""
    config = json.loads((folder / "config.json").read_text())
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    arch = {"mistral": "llama"}.get(config["model_type"], config["model_type"])
    writer = gguf.GGUFWriter(path, arch)
    writer.add_name(path.stem)
    if alignment:
        writer.add_custom_alignment(alignment)
    add_config(writer, config, file_type)
    add_vocab(writer, vocab)
    for file in sorted(folder.glob("model*.safetensors")):
        for name, array in reference.read_safetensors(file).items():
            if arch == "llama" and ".q_proj." in name:
                array = interleave(array, heads)
            if arch == "llama" and ".k_proj." in name:
                array = interleave(array, kv_heads)
            is_filter = ".conv.conv.weight" in name
            array = array.squeeze(1) if is_filter else array
            data, kind = stored(array, Type[file_type], is_filter)
            writer.add_tensor(gguf_name(name), data, raw_dtype=kind)
    finish(writer, path, version)


def write_k_quants(path, config, vocab, rng, alignment):
    """A llama whose matrices are random blocks of Q2_K to Q6_K, one type after the other."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(path.stem)
    writer.add_custom_alignment(alignment)
    add_config(writer, config, "Q4_K")
    add_vocab(writer, vocab)
    hidden, ffn, vocab_size = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    kv_rows = config["num_key_value_heads"] * hidden // config["num_attention_heads"]
    shapes = {"token_embd": (vocab_size, hidden), "output": (vocab_size, hidden), "output_norm": (hidden,)}
    for layer in range(config["num_hidden_layers"]):
        per_layer = {"attn_norm": (hidden,), "attn_q": (hidden, hidden), "attn_k": (kv_rows, hidden),
                     "attn_v": (kv_rows, hidden), "attn_output": (hidden, hidden), "ffn_norm": (hidden,),
                     "ffn_gate": (ffn, hidden), "ffn_up": (ffn, hidden), "ffn_down": (hidden, ffn)}
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in per_layer.items()}
    kinds = [Type.Q2_K, Type.Q3_K, Type.Q4_K, Type.Q5_K, Type.Q6_K]
    matrices = 0
    for name, shape in shapes.items():
        if len(shape) == 1:
            writer.add_tensor(f"{name}.weight", (1 + 0.2 * rng.standard_normal(shape)).astype(np.float32))
            continue
        kind = kinds[matrices % len(kinds)]
        matrices += 1
        writer.add_tensor(f"{name}.weight", random_blocks(kind, shape, rng, 1.4 / shape[1] ** 0.5), raw_dtype=kind)
    finish(writer, path, 3)


# Where a block keeps its f16 scale and, if it has one, its f16 minimum; and how much larger the minimum is
# so that the values are centred.
SCALE_AT = {Type.Q2_K: (80, 82, 1.5), Type.Q3_K: (108, None, 0), Type.Q4_K: (0, 2, 7.5), Type.Q5_K: (0, 2, 15.5),
            Type.Q6_K: (208, None, 0)}


def random_blocks(kind, shape, rng, deviation):
    """Blocks of random bits, [rows, bytes], whose values have about that standard deviation."""
    scale_at, minimum_at, centre = SCALE_AT[kind]
    length, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (shape[0] * shape[1] // length, size), dtype=np.uint8)

    def set_scales(scale):
        blocks[:, scale_at:scale_at + 2] = scale.astype("<f2").view(np.uint8).reshape(-1, 2)
        if minimum_at is not None:
            blocks[:, minimum_at:minimum_at + 2] = (centre * scale).astype("<f2").view(np.uint8).reshape(-1, 2)

    relative = rng.uniform(0.7, 1.3, len(blocks))
    set_scales(relative)
    set_scales(relative * deviation / gguf.quants.dequantize(blocks, kind).std())
    return blocks.reshape(shape[0], -1)


def finish(writer, path, version):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    if version != 3:  # version 2 has the same layout
        data = bytearray(pathlib.Path(path).read_bytes())
        data[4:8] = struct.pack("<I", version)
        pathlib.Path(path).write_bytes(data)
