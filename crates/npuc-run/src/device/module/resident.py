"""Executes a module that IREE compiled, for a parent process.

Frames on standard input and output: a length of 8 bytes (little-endian), then as many bytes. A request begins
with a letter: L and JSON (driver, module, function, scope and parameters or null, inputs and outputs as [shape, type]) -> M;
R and the inputs one after the other -> O and the outputs likewise. A failure is answered with E and its text.
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

# The package around it asks for more modules than are pinned.
from iree._runtime_libs import _runtime as iree  # noqa: E402

# Of each type: what numpy takes its bits for, and what IREE calls it.
TYPES = {
    "f32": (numpy.float32, iree.HalElementType.FLOAT_32),
    "f16": (numpy.float16, iree.HalElementType.FLOAT_16),
    "bf16": (numpy.uint16, iree.HalElementType.BFLOAT_16),
    "i8": (numpy.int8, iree.HalElementType.INT_8),
    "i16": (numpy.int16, iree.HalElementType.INT_16),
    "i32": (numpy.int32, iree.HalElementType.INT_32),
}
STORAGE = int(iree.BufferUsage.DEFAULT)
MAPPED = int(iree.BufferUsage.TRANSFER_TARGET | iree.BufferUsage.MAPPING_SCOPED)
HOST = int(iree.MemoryType.HOST_LOCAL | iree.MemoryType.DEVICE_VISIBLE)

loaded = {}


def load(body):
    spec = json.loads(body)
    instance = iree.VmInstance()
    device = iree.create_hal_driver(spec["driver"]).create_default_device()
    modules = [iree.create_hal_module(instance, device)]
    if spec["parameters"] is not None:
        index = iree.ParameterIndex()
        index.load(spec["parameters"], format="safetensors")
        modules.append(iree.create_io_parameters_module(instance, index.create_provider(scope=spec["scope"])))
    module = iree.VmModule.mmap(instance, spec["module"])
    modules.append(module)
    function = module.lookup_function(spec["function"])
    if function is None:
        raise ValueError(f"the module has no function {spec['function']}")
    context = iree.VmContext(instance, modules=modules)
    loaded.update(spec=spec, instance=instance, device=device, modules=modules, context=context, function=function)
    return b"M"


def placed(body, at, shape, kind):
    numpy_type, element = TYPES[kind]
    value = numpy.frombuffer(body, numpy_type, int(numpy.prod(shape, dtype=numpy.int64)), at).reshape(shape)
    device = loaded["device"]
    view = device.allocator.allocate_buffer_copy(
        memory_type=int(iree.MemoryType.DEVICE_LOCAL),
        allowed_usage=STORAGE,
        device=device,
        buffer=value,
        element_type=int(element),
    )
    return view, at + value.nbytes


def taken(view, shape, kind):
    """The bytes of a result, which is copied to where the host can read it."""
    numpy_type, element = TYPES[kind]
    have = (list(view.shape), view.element_type)
    if have != (shape, int(element)):
        raise ValueError(f"a result is {have[0]} of type {have[1]:#x}, and {shape} of {kind} ({int(element):#x}) was expected")
    device, source = loaded["device"], view.get_buffer()
    target = device.allocator.allocate_buffer(HOST, MAPPED, source.byte_length())
    done = device.create_semaphore(0)
    device.queue_copy(
        source,
        target,
        wait_semaphores=iree.HalFence.create_at(done, 0),
        signal_semaphores=iree.HalFence.create_at(done, 1),
    )
    iree.HalFence.create_at(done, 1).wait()
    return target.map().asarray(shape, numpy.dtype(numpy_type)).tobytes()


def run(body):
    spec = loaded["spec"]
    inputs, outputs = iree.VmVariantList(len(spec["inputs"])), iree.VmVariantList(len(spec["outputs"]))
    at = 0
    for shape, kind in spec["inputs"]:
        view, at = placed(body, at, shape, kind)
        inputs.push_ref(view)
    loaded["context"].invoke(loaded["function"], inputs, outputs)
    if len(outputs) != len(spec["outputs"]):
        raise ValueError(f"the function has {len(outputs)} results, and {len(spec['outputs'])} were expected")
    views = [outputs.get_as_object(index, iree.HalBufferView) for index in range(len(outputs))]
    return b"O" + b"".join(taken(view, shape, kind) for view, (shape, kind) in zip(views, spec["outputs"]))


def read(count):
    data = requests.read(count)
    if len(data) < count:
        # The runtime's own clean-up may crash when modules go before their instance.
        os._exit(0)
    return data


while True:
    size = struct.unpack("<Q", read(8))[0]
    request = read(size)
    try:
        answer = {b"L": load, b"R": run}[request[:1]](request[1:])
    except Exception:
        text = traceback.format_exc()
        print(text, file=sys.stderr, flush=True)
        answer = b"E" + text.encode()
    answers.write(struct.pack("<Q", len(answer)))
    answers.write(answer)
    answers.flush()
