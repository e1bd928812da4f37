"""The engine: packed batches, its own kernels, a CUDA graph for each shape."""

from collections.abc import Mapping
from functools import partial

from penstock.engine import PackedBatch
from penstock.engine.device_share import DeviceShare
from penstock.engine.gpu import GpuEncoder
from penstock.engine.types import Int32Array
from penstock.ops.bench.gpu.bench import Bench, pack
from penstock.ops.bench.gpu.contestants import MakeWork
from penstock.ops.bench.gpu.gpu_tables import FROM_HOST, OURS
from penstock.ops.bench.gpu.timing import Work


def resident(encoder: GpuEncoder, batch: PackedBatch) -> Work:
    """A pass over a batch whose description is on the device.

    The encoder has room for one description: an `encoder.run` in between must be of a batch of the same shape.
    """
    encoder.prepare(batch, DeviceShare())
    inputs = encoder.upload(batch)
    return lambda: encoder.forward(inputs)


def _resident(bench: Bench, request: Int32Array) -> Work:
    return resident(bench.ours, pack([request]))


def _hosted(bench: Bench, request: Int32Array) -> Work:
    return partial(bench.ours.run, pack([request]))


CONTESTANTS: Mapping[str, MakeWork] = {OURS: _resident, f"{OURS}{FROM_HOST}": _hosted}
