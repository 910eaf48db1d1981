"""Writes crates/npuc-run/tests/data/spm.json: a small SentencePiece BPE vocabulary as GGUF metadata, and the ids and
texts that the `sentencepiece` package gives. Texts with control and user-defined tokens, which SentencePiece does not
read as programs that run models do, have llama.cpp's ids (with BOS).

    pip install sentencepiece==0.2.* gguf && python tools/text/spm.py PATH/TO/llama-tokenize
"""

import io
import json
import pathlib
import sys
import tempfile

import llama
import sentencepiece as spm
from corpus import ENGLISH, TEXTS, random_texts

DATA = pathlib.Path(__file__).parents[2] / "crates/npuc-run/tests/data/spm.json"

MARKED = ("<tool>", "<s>", "<unk>", "▁")
SPECIAL = ["<s>the", "the<s>the</s> the", "a<tool>b", " <tool> x <tool>", "<tool>", "</s>", "<s> the", "<unk>a", "▁ ▁a"]


def train(prefix):
    sink = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter([line for text in TEXTS + ENGLISH * 4 for line in text.splitlines()]),
        model_writer=sink,
        model_type="bpe",
        vocab_size=700,
        byte_fallback=True,
        character_coverage=0.98,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=prefix,
        allow_whitespace_only_pieces=True,
        split_digits=True,
        user_defined_symbols=["<tool>"],
        minloglevel=2,
    )
    return spm.SentencePieceProcessor(model_proto=sink.getvalue())


def kind(model, i):
    if model.is_unknown(i):
        return 2
    if model.is_control(i):
        return 3
    if model.is_unused(i):
        return 5
    if model.is_byte(i):
        return 6
    return 4 if model.id_to_piece(i) == "<tool>" else 1


def vocabulary(program, prefix):
    model = train(prefix)
    ids = range(model.get_piece_size())
    special = [text for text in TEXTS if any(token in text for token in MARKED)] + SPECIAL
    texts = [text for text in TEXTS + random_texts(2, 300) if not any(token in text for token in MARKED)]
    encoded = [model.encode(text) for text in texts]
    data = {
        "add_space_prefix": prefix,
        "tokens": [model.id_to_piece(i) for i in ids],
        "scores": [model.get_score(i) for i in ids],
        "types": [kind(model, i) for i in ids],
        "texts": texts,
        "ids": encoded,
        "decoded": [model.decode(ids) for ids in encoded],
        "special_texts": special,
    }
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "vocab.gguf"
        names = {"bos": 1, "eos": 2, "unk": 0}
        llama.vocabulary(path, "llama", data, names, token_scores=data["scores"], add_space_prefix=prefix)
        data["special_ids"] = list(llama.ids(program, path, special))
    return data


vocabularies = [vocabulary(sys.argv[1], prefix) for prefix in (True, False)]
DATA.write_text(json.dumps(vocabularies, ensure_ascii=False) + "\n")
