"""What the parts of the suite of cells share: the sizes of a run."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from penstock.ops.bench.cellular.contestants import Tried
from penstock.ops.bench.cellular.workloads import Shape
from penstock.ops.bench.gpu.device_bench import DeviceBench


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of a run on one kind of device."""

    shape: Shape
    tried: Mapping[str, Tried]
    seconds: float  # of each load
    in_flight: int  # at the peak: enough to fill the batches of all buckets
    offline_sentences: int
    offline_rows: int


class CellularBench(DeviceBench):
    """The paper's sizes on a GPU; on a CPU small ones, which show that everything works and not the paper's figures."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        device = self.device
        if device.type == "cpu":
            torch.set_num_threads(1)  # as the engine of cells has them
            shape = Shape(64, 2048, 512, 32, 4096, torch.float32, device)
            chains = Tried(rows=(32,), quanta=(4,), widths=(10, 40), trees=())
            trees = Tried(rows=(32,), quanta=(1,), widths=(), trees=(8, 32))
            self.sizes = Sizes(shape, {"lstm": chains, "tree": trees}, 0.25, 256, 256, 32)
        else:
            shape = Shape(1024, 30_000, 8192, 512, 16_384, torch.float16, device)
            chains = Tried(rows=(512, 256), quanta=(32, 16, 8), widths=(5, 10, 20, 40), trees=())
            trees = Tried(rows=(512, 128, 64), quanta=(1,), widths=(), trees=(64, 128, 256))
            self.sizes = Sizes(shape, {"lstm": chains, "tree": trees}, 0.8, 8192, 51_200, 512)
