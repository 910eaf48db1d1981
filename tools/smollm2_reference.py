"""Records what the demo model says, computed in float64 by reference_llama.py from its dequantised weights.

usage: smollm2_reference.py SmolLM2-135M-Instruct.Q4_1.gguf OUT.json     (needs: pip install numpy==2.4.6 gguf==0.19.0)

For each prompt: its ids, the 20 largest logits at every position (ids and values, best first), the ids of 32 greedy
tokens (generation does not stop at EOS) and the smallest lead of a greedy id over the next best. About 2.5 GB of memory.
"""
import hashlib
import json
import pathlib
import sys

import numpy as np

import reference_llama as reference

TOP, NEW = 20, 32

PROMPTS = {
    "chat": {
        "text": "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
                "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n",
        "ids": [1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411, 407, 19712, 8182, 2,
                198, 1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198]},
    "plain": {
        "text": "The three largest rivers of Europe, by the amount of water they carry into the sea, are the Volga,",
        "ids": [504, 1296, 3995, 7626, 282, 1910, 28, 411, 260, 1902, 282, 913, 502, 3631, 618, 260, 3426, 28, 359, 260, 5153,
                8662, 28]},
}


def record(model, prompt):
    logits = reference.logits(model, prompt["ids"])
    best = np.argsort(-logits, axis=-1, kind="stable")[:, :TOP]
    values = np.take_along_axis(logits, best, -1)
    new, lead = reference.greedy(model, prompt["ids"], NEW)
    return prompt | {"top_ids": best.tolist(), "top_logits": [[round(float(v), 5) for v in row] for row in values],
                     "greedy_ids": new, "smallest_greedy_lead": round(float(lead), 5)}


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    path, out = map(pathlib.Path, sys.argv[1:])
    model = reference.load(path)
    result = {"command": f"tools/smollm2_reference.py {path.name} {out.name}",
              "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
              "prompts": {name: record(model, prompt) for name, prompt in PROMPTS.items()}}
    lines = json.dumps(result, ensure_ascii=False, separators=(",", ":")).replace('],[', '],\n[').replace('"top_', '\n"top_')
    out.write_text(lines.replace('"greedy_ids"', '\n"greedy_ids"') + "\n")


if __name__ == "__main__":
    main()
