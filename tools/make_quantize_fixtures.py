"""Writes crates/npuc-kernels/tests/data/quantized_<type>.bin: rows and how the gguf package stores them.

Needs `pip install gguf==0.19.0 numpy`. A file is: u32 number of elements, the elements as f32, the stored bytes
(all little endian). The package's quantisers are ggml's reference ones.
"""

from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf.quants import quantize

OUT = Path(__file__).resolve().parent.parent / "crates/npuc-kernels/tests/data"


def blocks():
    """Blocks of 32: many magnitudes, one sign, constants, zeros, outliers, ties, two of the same magnitude."""
    random = np.random.default_rng(2000)
    normal = random.standard_normal((96, 32)).astype(np.float32)
    scaled = normal[:48] * (10.0 ** random.uniform(-9, 4, (48, 1))).astype(np.float32)
    outliers = normal[48:64].copy()
    outliers[np.arange(16), np.arange(16) * 2] = random.choice([-300.0, 300.0], 16)
    ties = (np.arange(-16, 16, dtype=np.float32) / 2)[None, :] * np.array([[1.0], [-1.0], [0.125]], np.float32)
    pairs = np.clip(normal[80:88], -1, 1)
    special = np.zeros((4, 32), np.float32)
    special[1], special[2, 7], special[3, :16] = 0.1, -3.0, -0.3
    rows = [scaled, outliers, -abs(normal[64:72]), abs(normal[72:80]), ties, pairs, special, normal[88:] * np.float32(0.02)]
    return np.concatenate(rows).astype("<f4")


def main():
    rows = blocks()
    for name, kind in [("q4_0", Type.Q4_0), ("q4_1", Type.Q4_1), ("q8_0", Type.Q8_0)]:
        stored = quantize(rows, kind)
        (OUT / f"quantized_{name}.bin").write_bytes(np.uint32(rows.size).tobytes() + rows.tobytes() + stored.tobytes())


if __name__ == "__main__":
    main()
