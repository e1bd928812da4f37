"""An emulated device: batches take the seconds of a result file's cost table, and the host works as for a real device.

It shows how a fast device loads the host, on a machine without one. It prints goodput and the two classes:

    python -m penstock.ops.bench.serving.emulated_device ops/bench/results/serving/nvidia-h200/RUN.json
"""

import argparse
import hashlib
import json
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from penstock.engine.gpu.buckets import GRAPH_ROWS  # above it every kernel is launched by the host
from penstock.engine.types import BatchOutput, Float32Array, ModelInfo, PackedBatch
from penstock.ops.bench.serving.harness.harness import BenchHarness, Load
from penstock.ops.bench.serving.loads.systems import default
from penstock.scheduler import CostTable
from penstock.worker.garbage_collection import calm_garbage_collection
from penstock.worker.settings import WorkerSettings

_LAUNCHES, _GRAPH_LAUNCHES = 95, 12
_HELD_STEPS = 800  # of a Python loop, for each launch: some 20 us, with the interpreter held
_RELEASED_BYTES = 16_384  # hashed for each launch: some 10 us, with the interpreter free
_STALL_S = 0.012
_DIM = 768


@dataclass(frozen=True, slots=True)
class _Running:
    started: float
    ended: float
    rows: Float32Array

    def result(self) -> BatchOutput:
        while (left_s := self.ended - time.perf_counter()) > 0:
            time.sleep(left_s)
        return BatchOutput(rows=list(self.rows.copy()), device_s=self.ended - self.started)


class EmulatedEngine:
    """Implements `PipelinedEngine`. Every `stall_every`-th batch stalls, as by the capture of a graph; 0: none."""

    def __init__(self, table: CostTable, stall_every: int) -> None:
        self._table = table
        self._stall_every = stall_every
        self._num_batches = 0
        self._free_at = 0.0
        tasks = frozenset({"embed"})
        self.info = ModelInfo("emulated", "0", "float16", "an emulated device", 30_522, 512, tasks, _DIM, ())

    def run(self, batch: PackedBatch) -> BatchOutput:
        return self.start(batch).result()

    def idle(self) -> None:
        """See `PipelinedEngine.idle`: nothing is deferred."""

    def start(self, batch: PackedBatch) -> _Running:
        began = time.perf_counter()
        self._num_batches += 1
        if self._stall_every and self._num_batches % self._stall_every == 0:
            time.sleep(_STALL_S)
        tokens, lengths = len(batch.token_ids), np.diff(batch.cu_seqlens).astype(np.int64)
        for _ in range(_LAUNCHES if tokens > GRAPH_ROWS else _GRAPH_LAUNCHES):
            _launch()
        squares = float((lengths * lengths).sum())
        device_s = float(self._table.seconds(float(tokens), squares, float(batch.max_seqlen), float(len(lengths))))
        started = max(self._free_at, began)
        self._free_at = max(started + device_s, time.perf_counter())
        return _Running(started, self._free_at, np.zeros((len(lengths), _DIM), np.float32))


def _launch() -> None:
    total = 0
    for step in range(_HELD_STEPS):
        total += step
    hashlib.sha256(bytes(_RELEASED_BYTES))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("result", type=Path)
    parser.add_argument("--stall-every", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=1.2)
    chosen = parser.parse_args()
    table = CostTable.from_dict(json.loads(chosen.result.read_text(encoding="utf-8"))["engines"]["packed"]["table"])
    settings = WorkerSettings.model_validate({"model": "null"})
    bench = BenchHarness(settings, EmulatedEngine(table, chosen.stall_every))
    calm_garbage_collection()
    sys.setswitchinterval(0.0005)  # as a worker does
    slo_s, rate = 0.05, 48_600.0
    for load in (1.0, 1.5, 2.0):
        for objective_s in (slo_s / 2, slo_s):
            _show(bench, Load("2-100", load * rate, chosen.seconds), objective_s)
    online = Load("2-100", rate / 2, chosen.seconds)
    _show(bench, online, slo_s)
    _show(bench, replace(online, num_bulk=round(rate * online.seconds)), slo_s)


def _show(bench: BenchHarness, load: Load, slo_s: float) -> None:
    outcome = bench.real(default(bench.limits(slo_s), slo_s), load, grace_s=2 * slo_s)
    print(
        f"{load.rate_per_s:7,.0f} req/s, SLO {slo_s * 1e3:3.0f} ms: goodput {outcome.goodput_per_s(slo_s, 0.3):7,.0f}, "
        f"in time {outcome.in_time_of_accepted(slo_s):7.2%}, refused {dict(outcome.refused)}, "
        f"p50 and p99 {outcome.percentile_s(50) * 1e3:.1f} and {outcome.percentile_s(99) * 1e3:.1f} ms, "
        f"bulk {outcome.bulk_per_s():,.0f}"
    )


if __name__ == "__main__":
    main()
