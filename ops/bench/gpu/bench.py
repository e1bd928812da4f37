"""Models, the floor and the list of failures, shared by the parts. Each is made on first use."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
from torch import nn

from penstock.engine.gpu import GpuEncoder
from penstock.engine.gpu.ops import GpuDense
from penstock.engine.model.weights import Encoder
from penstock.ops.bench.gpu.floor import GemmFloor
from penstock.ops.bench.gpu.models import Model, NestedEncoder, bert_base
from penstock.ops.bench.gpu.timing import REPEATS, WARM_UPS, DeadlinePassed, Recorder, Work, interleaved_ms

MAX_FLOOR_TOKENS = 32_768


class Bench:
    """Models and failures of one process. All parts run in inference mode, one after another."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.failures: dict[str, dict[str, Any]] = {}  # contestant -> first error, where, how often
        self.recorder = Recorder()

    @cached_property
    def bert(self) -> Model:
        return bert_base(self.seed)

    @cached_property
    def ours(self) -> GpuEncoder:
        return self.bert.encoder()

    @cached_property
    def ours_eager(self) -> GpuEncoder:
        return self.bert.encoder(graphs=False)

    @cached_property
    def prepared(self) -> Encoder[GpuDense]:
        return self.bert.prepared()

    @cached_property
    def eager(self) -> nn.Module:
        return self.bert.on_device("eager")

    @cached_property
    def sdpa(self) -> nn.Module:
        return self.bert.on_device("sdpa")

    @cached_property
    def nested(self) -> NestedEncoder:
        return NestedEncoder()

    @cached_property
    def floor(self) -> GemmFloor:
        return self.floor_of(self.bert)

    def floor_of(self, model: Model) -> GemmFloor:
        weights = model.weights
        layers = len(weights.layers)
        return GemmFloor(weights.hidden_size, model.intermediate_size, layers, MAX_FLOOR_TOKENS, self.recorder)

    @contextmanager
    def guarded(self, name: str, where: str) -> Iterator[None]:
        """Record the failure of one contestant; the others go on."""
        try:
            yield
        except DeadlinePassed:
            raise
        except Exception as error:
            known = self.failures.setdefault(name, {"error": _first_lines(error), "where": where, "count": 0})
            known["count"] += 1

    def compare(
        self, where: str, contestants: Mapping[str, Callable[[], Work]], repeats: int = REPEATS
    ) -> dict[str, float]:
        """Median milliseconds of each contestant, in turn. The values of `contestants` make the work that is timed."""
        ready: dict[str, Work] = {}
        for name, make in contestants.items():
            with self.guarded(name, where):
                work = make()
                for _ in range(WARM_UPS):
                    work()
                torch.cuda.synchronize()
                ready[name] = work
        return interleaved_ms(ready, repeats)


def _first_lines(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:600]
