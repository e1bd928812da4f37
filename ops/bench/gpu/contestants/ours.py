"""The engine: packed batches, its own kernels, a CUDA graph for each shape."""

from functools import partial

from penstock.engine.device_share import DeviceShare
from penstock.engine.gpu import GpuEncoder
from penstock.engine.types import PackedBatch
from penstock.ops.bench.gpu.bench import Bench
from penstock.ops.bench.gpu.contestants.contestant import Contestant, Requests
from penstock.ops.bench.gpu.gpu_tables import FROM_HOST, OURS
from penstock.ops.bench.gpu.request_batches import pack
from penstock.ops.bench.gpu.timing import Work


def resident(encoder: GpuEncoder, batch: PackedBatch) -> Work:
    """The engine's forward of a batch that is on the device already.

    The encoder has room for one description: an `encoder.run` in between must be of a batch of the same shape.
    """
    encoder.prepare(batch, DeviceShare())
    inputs = encoder.upload(batch)
    return lambda: encoder.forward(inputs)


def _hosted(bench: Bench, requests: Requests) -> Work:
    return partial(bench.ours.run, pack(requests))


CONTESTANTS = (
    Contestant(
        resident=(OURS, lambda bench, requests: resident(bench.ours, pack(requests))),
        hosted=(f"{OURS}{FROM_HOST}", _hosted),
    ),
)
