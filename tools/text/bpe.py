"""Writes crates/npuc-run/tests/data/bpe.json: a small byte-level vocabulary as GGUF metadata, and the ids that the
`tokenizers` package (with its Oniguruma regular expressions) gives for each pre-tokenizer.

    pip install tokenizers==0.23.* && python tools/text/bpe.py

The regular expressions here are those of the models' published tokenizer.json files. With `--llama-tokenize PROGRAM`
(llama.cpp's llama-tokenize; `pip install gguf` too) nothing is written: the ids are compared with llama.cpp's. It
differs, and is not followed, where a model's normal form or its combining marks are left out there: decomposed letters
under command-r, olmo and qwen2, marks under tekken and gpt-4o, and U+0085 under deepseek-coder.
"""

import argparse
import json
import pathlib
import tempfile

import llama
from corpus import ENGLISH, TEXTS, random_texts
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

DATA = pathlib.Path(__file__).parents[2] / "crates/npuc-run/tests/data/bpe.json"

CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SLASH_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
HEAD = r"[^\r\n\p{L}\p{N}]?"
LLAMA3 = CONTRACTION + "|" + HEAD + r"\p{L}+|\p{N}{1,3}|" + TAIL
QWEN2 = CONTRACTION + "|" + HEAD + r"\p{L}+|\p{N}|" + TAIL
TEKKEN = f"{HEAD}{UPPER}*{LOWER}+|{HEAD}{UPPER}+{LOWER}*" + r"|\p{N}|" + SLASH_TAIL
GPT4O = f"{HEAD}{UPPER}*{LOWER}+{CONTRACTION}?|{HEAD}{UPPER}+{LOWER}*{CONTRACTION}?" + r"|\p{N}{1,3}|" + SLASH_TAIL
DEEPSEEK3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
)

GPT2_REGEX = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
DIGITS = pre_tokenizers.Digits(individual_digits=True)


def split(regex):
    return pre_tokenizers.Split(Regex(regex), "isolated")


# pre: (steps, NFC, ignore merges, adds BOS)
PRE = {
    "gpt-2": ([GPT2], False, False, False),
    "smollm": ([DIGITS, GPT2], False, False, False),
    "starcoder": ([DIGITS, GPT2], False, False, False),
    "command-r": ([DIGITS, GPT2], True, False, False),
    "olmo": ([GPT2], True, False, False),
    "llama-bpe": ([split(LLAMA3), BYTES], False, True, True),
    "dbrx": ([split(LLAMA3), BYTES], False, False, False),
    "qwen2": ([split(QWEN2), BYTES], True, False, False),
    "deepseek-r1-qwen": ([split(QWEN2), BYTES], False, False, False),
    "tekken": ([split(TEKKEN), BYTES], False, True, True),
    "gpt-4o": ([split(GPT4O), BYTES], False, False, False),
    "deepseek-coder": (
        [split(r"[\r\n]"), split(r"\s?\p{L}+"), split(r"\s?\p{P}+"), split("[一-龥ࠀ-一가-퟿]+"), DIGITS, BYTES],
        False,
        False,
        False,
    ),
    "deepseek-v3": ([split(r"\p{N}{1,3}"), split("[一-龥぀-ゟ゠-ヿ]+"), split(DEEPSEEK3), BYTES], False, False, False),
    "default": (
        [split(r"[\p{P}$+<=>^~|]+"), split(GPT2_REGEX), split(r"\p{N}+"), split("[0-9][0-9][0-9]"), BYTES],
        False,
        False,
        False,
    ),
}

CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
USER_DEFINED = ["<tool>", "größe  x"]


def train():
    """A vocabulary whose merges cross every boundary that a pre-tokenizer can draw, so that a wrong split shows."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = BYTES
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=1000, initial_alphabet=alphabet, special_tokens=CONTROL, show_progress=False)
    texts = [text for text in TEXTS if "<|" not in text]
    chunks = [text[i : i + 24] for text in texts + ENGLISH * 4 for i in range(0, len(text), 12)]
    tokenizer.train_from_iterator(chunks, trainer)
    return json.loads(tokenizer.to_str())["model"]


def build(model, pre):
    steps, nfc, ignore_merges, _ = PRE[pre]
    merges = [tuple(merge) for merge in model["merges"]]
    tokenizer = Tokenizer(models.BPE(model["vocab"], merges, ignore_merges=ignore_merges))
    if nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in CONTROL])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in USER_DEFINED])
    return tokenizer


def metadata(model):
    tokens = sorted(model["vocab"], key=model["vocab"].get) + USER_DEFINED
    kinds = [3 if text in CONTROL else 4 if text in USER_DEFINED else 1 for text in tokens]
    return {"tokens": tokens, "types": kinds, "merges": [" ".join(merge) for merge in model["merges"]]}


def llama_ids(program, data, pre, texts):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "vocab.gguf"
        special = {"bos": 0, "eos": 0}
        llama.vocabulary(path, "gpt2", data, special, tokenizer_pre=pre, token_merges=data["merges"])
        yield from llama.ids(program, path, texts, "--no-bos")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--llama-tokenize")
    program = parser.parse_args().llama_tokenize
    model = train()
    data = metadata(model)
    texts = TEXTS + random_texts(1, 20)
    cases = {pre: [build(model, pre).encode(text).ids for text in texts] for pre in PRE}
    if program is None:
        rows = {pre: {"adds_bos": PRE[pre][3], "ids": ids} for pre, ids in cases.items()}
        DATA.write_text(json.dumps({"vocab": data, "texts": texts, "cases": rows}, ensure_ascii=False) + "\n")
        return
    for pre, expected in cases.items():
        for text, ours, theirs in zip(texts, expected, llama_ids(program, data, pre, texts)):
            if ours != theirs:
                print(f"{pre}: {text!r}\n  tokenizers {ours}\n  llama.cpp  {theirs}")


main()
