"""A probe: parts that run one after another under a deadline, and the file of their results."""

import json
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from penstock.engine.cells.contract import Cell, StepEngine
from penstock.engine.gpu.cells.lstm import LstmCell
from penstock.engine.gpu.cells.step_engine import GpuStepEngine
from penstock.ops.bench.cellular.steps.host_engine import HostEngine
from penstock.ops.bench.cellular.workloads.lstm_models import LstmModel
from penstock.ops.bench.gpu.timing import Recorder, deadline, once_ms

SEED = 2026


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of a run."""

    hidden: int
    vocabulary: int
    rows: tuple[int, ...]
    quanta: tuple[int, ...]
    steps_timed: int  # in one graph
    replays: int
    check_chains: int
    check_hidden: int
    sentences: int
    loop_s: float


ON_GPU = Sizes(1024, 30_000, (1, 8, 64, 128, 256, 512), (1, 2, 4, 8), 128, 15, 200, 1024, 51_200, 0.7)
ON_CPU = Sizes(16, 50, (1, 8, 64), (1, 2), 2, 2, 12, 16, 256, 0.1)


@dataclass
class Probe:
    """Results so far, and what the parts share."""

    device: torch.device
    sizes: Sizes
    ends: float  # time.monotonic()
    output: Path
    results: dict[str, Any] = field(default_factory=dict)
    recorder: Recorder | None = None

    def part(self, name: str, seconds: float, work: Callable[[], Any]) -> None:
        """Run a part and keep its result, or its error. It is skipped once the time is up."""
        left = min(seconds, self.ends - time.monotonic())
        started = time.monotonic()
        record: dict[str, Any] = {"error": None, "result": None}
        if left < 1:
            record["error"] = "skipped: the time is up"
        else:
            try:
                with deadline(left), torch.no_grad():
                    record["result"] = work()
            except Exception as error:
                record["error"] = f"{type(error).__name__}: {error}"
                traceback.print_exc(file=sys.stdout)
        record["seconds"] = round(time.monotonic() - started, 2)
        self.results[name] = record
        self.output.write_text(json.dumps(self.results, indent=1), encoding="utf-8")
        print(f"[{name}] {record['seconds']} s {record['error'] or ''}", flush=True)

    def is_device_usable(self) -> bool:
        """Whether the device answers: after an illegal access it never does again in this process."""
        try:
            if self.device.type == "cuda":
                torch.cuda.synchronize()
        except RuntimeError:
            return False
        return True

    def engine(self, cells: Sequence[Cell | LstmCell], num_slots: int) -> StepEngine:
        """The engine under test."""
        return HostEngine(cells, num_slots) if self.device.type == "cpu" else GpuStepEngine(cells, num_slots)

    def model(self, hidden: int, layers: int = 1) -> LstmModel:
        """An LSTM of random weights."""
        return LstmModel.random(self.sizes.vocabulary, hidden, layers, self.device, SEED)

    def step_us(self, work: Callable[[], object], count: int) -> float:
        """Median microseconds of one of the `count` steps that `work` queues, in a CUDA graph."""
        if self.device.type == "cpu":
            started = time.perf_counter()
            work()
            return 1e6 * (time.perf_counter() - started) / count
        if self.recorder is None:
            self.recorder = Recorder()
        replay = self.recorder.capture(work)
        for _ in range(2):
            replay()
        return 1e3 * statistics.median(once_ms(replay) for _ in range(self.sizes.replays)) / count
