"""Executes TFLite files with the LiteRT interpreter for a parent process.

Frames on standard input and output: a length of 8 bytes (little-endian), then as many bytes. A request begins
with a letter: L threads(4) path -> M and JSON of the ports; R model(4) and the inputs one after the other, each in
its port's type -> O and the outputs likewise. A failure is answered with E and its text.
"""
import json
import os
import struct
import sys
import traceback

answers = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)  # What native code prints must not mix with the answers.
requests = sys.stdin.buffer

import numpy  # noqa: E402
from ai_edge_litert.interpreter import Interpreter, OpResolverType  # noqa: E402

models = []


def port(detail):
    scale, zero_point = detail["quantization"]
    kind = numpy.dtype(detail["dtype"]).name
    return {
        "name": detail["name"],
        "shape": detail["shape"].tolist(),
        "type": kind,
        "scale": float(scale),
        "zero_point": int(zero_point),
    }


def ports(details):
    return [port(detail) for detail in details]


def load(body):
    threads = struct.unpack("<I", body[:4])[0]
    interpreter = Interpreter(
        model_path=body[4:].decode(), num_threads=threads, experimental_op_resolver_type=OpResolverType.AUTO
    )
    interpreter.allocate_tensors()
    models.append((interpreter, interpreter.get_input_details(), interpreter.get_output_details()))
    _, inputs, outputs = models[-1]
    return b"M" + json.dumps({"inputs": ports(inputs), "outputs": ports(outputs)}).encode()


def run(body):
    interpreter, inputs, outputs = models[struct.unpack("<I", body[:4])[0]]
    at = 4
    for detail in inputs:
        count = int(numpy.prod(detail["shape"]))
        value = numpy.frombuffer(body, detail["dtype"], count, at).reshape(detail["shape"])
        interpreter.set_tensor(detail["index"], value)
        at += value.nbytes
    interpreter.invoke()
    return b"O" + b"".join(interpreter.get_tensor(detail["index"]).tobytes() for detail in outputs)


def read(count):
    data = requests.read(count)
    if len(data) < count:
        sys.exit(0)
    return data


while True:
    size = struct.unpack("<Q", read(8))[0]
    request = read(size)
    try:
        answer = {b"L": load, b"R": run}[request[:1]](request[1:])
    except Exception:
        answer = b"E" + traceback.format_exc().encode()
    answers.write(struct.pack("<Q", len(answer)))
    answers.write(answer)
    answers.flush()
