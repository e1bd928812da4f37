"""Models and the floor, shared by the parts. Each is made on first use."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any

import torch
from torch import nn

from penstock.engine.gpu import GpuEncoder
from penstock.engine.gpu.ops import GpuDense
from penstock.engine.model.weights import Encoder
from penstock.ops.bench.gpu.device_bench import DeviceBench
from penstock.ops.bench.gpu.floor import GemmFloor
from penstock.ops.bench.gpu.models import Model, bert_base
from penstock.ops.bench.gpu.timing import WARM_UPS, Recorder, Work, interleaved_ms

MAX_FLOOR_TOKENS = 32_768


class Bench(DeviceBench):
    """Models of one process."""

    def mode(self) -> AbstractContextManager[object]:
        """All parts are inference."""
        return torch.inference_mode()

    @cached_property
    def recorder(self) -> Recorder:
        return Recorder()

    @cached_property
    def bert(self) -> Model:
        return bert_base(self.seed)

    @cached_property
    def ours(self) -> GpuEncoder:
        return self.bert.encoder()

    @cached_property
    def prepared(self) -> Encoder[GpuDense]:
        return self.bert.prepared()

    @cached_property
    def sdpa(self) -> nn.Module:
        return self.bert.sdpa()

    @cached_property
    def floor(self) -> GemmFloor:
        config: Any = self.bert.reference.config
        sizes = (config.hidden_size, config.intermediate_size, config.num_hidden_layers)
        return GemmFloor(*sizes, max_tokens=MAX_FLOOR_TOKENS, recorder=self.recorder)

    def compare(self, where: str, contestants: Mapping[str, Callable[[], Work]]) -> dict[str, float]:
        """Median milliseconds of each contestant, in turn. The values of `contestants` make the work that is timed."""
        ready: dict[str, Work] = {}
        for name, make in contestants.items():
            with self.guarded(name, where):
                work = make()
                for _ in range(WARM_UPS):
                    work()
                torch.cuda.synchronize()
                ready[name] = work
        return interleaved_ms(ready)
