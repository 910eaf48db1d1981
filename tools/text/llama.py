"""Asks llama.cpp's llama-tokenize for ids."""

import json
import pathlib
import subprocess
import tempfile


def ids(program, model, texts, *options):
    """The ids of each text under the tokenizer of the GGUF file `model`."""
    with tempfile.TemporaryDirectory() as folder:
        for text in texts:
            source = pathlib.Path(folder) / "text"
            source.write_bytes(text.encode())
            command = [program, "-m", str(model), "-f", str(source), "--ids", "--no-escape", "--log-disable", *options]
            yield json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


def vocabulary(path, kind, data, special, **metadata):
    """Writes a GGUF file that holds a tokenizer and nothing else; `metadata` names writer methods without `add_`."""
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    for name in ("block_count", "context_length", "embedding_length", "feed_forward_length", "head_count"):
        getattr(writer, f"add_{name}")(32)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model(kind)
    writer.add_token_list(data["tokens"])
    writer.add_token_types(data["types"])
    for name, value in metadata.items():
        getattr(writer, f"add_{name}")(value)
    for name, value in special.items():
        getattr(writer, f"add_{name}_token_id")(value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
