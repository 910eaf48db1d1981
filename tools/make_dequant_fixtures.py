"""Writes crates/npuc-kernels/tests/data/<type>.bin: stored blocks and the values the gguf package reads from them.

Needs `pip install gguf==0.19.0 numpy`. A file is: u32 number of elements, the stored bytes, the elements as f32
(all little endian). Blocks are random bytes; only their f16 scales are drawn so that none is infinite or NaN.
"""

from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as Type
from gguf.quants import dequantize

OUT = Path(__file__).resolve().parent.parent / "crates/npuc-kernels/tests/data"

# File name, type, offsets of the f16 fields in a block, blocks written.
TYPES = [
    ("f32", Type.F32, [], 512),
    ("f16", Type.F16, [0], 1024),
    ("bf16", Type.BF16, [], 1024),
    ("q4_0", Type.Q4_0, [0], 24),
    ("q4_1", Type.Q4_1, [0, 2], 24),
    ("q5_0", Type.Q5_0, [0], 24),
    ("q5_1", Type.Q5_1, [0, 2], 24),
    ("q8_0", Type.Q8_0, [0], 24),
    ("q2_k", Type.Q2_K, [80, 82], 4),
    ("q3_k", Type.Q3_K, [108], 4),
    ("q4_k", Type.Q4_K, [0, 2], 4),
    ("q5_k", Type.Q5_K, [0, 2], 4),
    ("q6_k", Type.Q6_K, [208], 4),
]


def scales(random, count):
    """Halves of many magnitudes, with zeros, subnormals and the largest finite one among them."""
    values = (random.standard_normal(count) * 10.0 ** random.uniform(-8, 2, count)).astype(np.float16)
    for at, bits in enumerate([0x0000, 0x8000, 0x0001, 0x83FF, 0x7BFF]):
        if at * 3 < count:
            values[at * 3] = np.array([bits], np.uint16).view(np.float16)[0]
    return values


def finite(random, name, blocks):
    if name == "f32":
        values = random.standard_normal(blocks.shape[0]).astype(np.float32)
        return values.view(np.uint8).reshape(-1, 4)
    if name == "bf16":
        blocks[(blocks[:, 1] & 0x7F) == 0x7F] = 0
    return blocks


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    for index, (name, kind, halves, count) in enumerate(TYPES):
        random = np.random.default_rng(1000 + index)
        length, size = GGML_QUANT_SIZES[kind]
        blocks = finite(random, name, random.integers(0, 256, (count, size), dtype=np.uint8))
        for offset in halves:
            blocks[:, offset : offset + 2] = scales(random, count).reshape(-1, 1).view(np.uint8)
        values = dequantize(blocks, kind).astype("<f4").reshape(-1)
        assert values.size == count * length and np.isfinite(values).all(), name
        (OUT / f"{name}.bin").write_bytes(np.uint32(values.size).tobytes() + blocks.tobytes() + values.tobytes())


if __name__ == "__main__":
    main()
