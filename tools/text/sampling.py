"""Writes crates/npuc-run/tests/data/sampling.json: logits, settings and the probabilities that follow from the
formulas of repetition penalty, temperature, top-k, top-p and min-p, applied in this order.

    pip install numpy && python tools/text/sampling.py
"""

import itertools
import json
import pathlib

import numpy as np

DATA = pathlib.Path(__file__).parents[2] / "crates/npuc-run/tests/data/sampling.json"
DEFAULTS = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}


def softmax(scores):
    e = np.exp(scores - scores.max())
    return e / e.sum()


def distribution(logits, seen, temperature, top_k, top_p, min_p, repetition_penalty):
    scores = np.array(logits, dtype=np.float32)
    for i in set(seen):
        scores[i] = scores[i] * np.float32(repetition_penalty) if scores[i] < 0 else scores[i] / np.float32(repetition_penalty)
    scores = scores.astype(np.float64) / np.float64(np.float32(temperature))
    if 0 < top_k < len(scores):
        scores[scores < np.sort(scores)[-top_k]] = -np.inf
    if top_p < 1.0:
        order = np.lexsort((np.arange(len(scores)), -scores))
        p = softmax(scores)[order]
        before = np.cumsum(p) - p
        drop = order[before >= np.float64(np.float32(top_p))]
        scores[[i for i in drop if i != order[0]]] = -np.inf
    p = softmax(scores)
    scores[p < np.float64(np.float32(min_p)) * p.max()] = -np.inf
    return softmax(scores)


def main():
    rng = np.random.default_rng(7)
    vectors = {
        "small": [float(x) for x in rng.normal(0, 3, 12).astype(np.float32)],
        "ties": [1.0, 2.0, 2.0, -1.0, 2.0, 0.0, -1.0, 0.5],
        "masked": [0.25, None, 1.5, None, -2.0, 3.0],
        "flat": [0.0] * 1499,
        "large": [float(x) for x in rng.normal(0, 2, 3000).astype(np.float16)],
    }
    settings = [
        {},
        {"temperature": 0.25},
        {"temperature": 3.0},
        {"top_k": 1},
        {"top_k": 2},
        {"top_k": 5},
        {"top_p": 0.5},
        {"top_p": 0.99},
        {"top_p": 1e-6},
        {"min_p": 0.1},
        {"min_p": 1.0},
        {"repetition_penalty": 1.3},
        {"repetition_penalty": 0.7},
        {"temperature": 0.7, "top_k": 4, "top_p": 0.8, "min_p": 0.15, "repetition_penalty": 1.2},
        {"temperature": 1.7, "top_k": 700, "top_p": 0.95, "min_p": 0.01, "repetition_penalty": 1.1},
    ]
    cases = []
    for (name, vector), setting in itertools.product(vectors.items(), settings):
        logits = [-np.inf if x is None else x for x in vector]
        seen = [0, 2, 2, 5]
        full = DEFAULTS | setting
        p = distribution(logits, seen, **full)
        kept = [[i, float(f"{p[i]:.9g}")] for i in np.flatnonzero(p > 0).tolist()]
        cases.append({"logits": name, "seen": seen, "settings": full, "kept": len(kept), "best": sorted(kept, key=lambda x: (-x[1], x[0]))[:20]})
    DATA.write_text(json.dumps({"logits": vectors, "cases": cases}) + "\n")


main()
