"""The host's work for cells, without a device: its time for a request, and latencies over a simulated H200.

python -m penstock.ops.bench.cellular.host [lstm] [tree] [seq2seq]
"""

import sys
from dataclasses import replace
from functools import cache

import numpy as np
import torch

from penstock.engine.cells.contract import StepEngine
from penstock.ops.bench.cellular.contestants.contestants import Contestant, ours
from penstock.ops.bench.cellular.loads.load import Clock, HostClock
from penstock.ops.bench.cellular.loads.null_engine import NullEngine
from penstock.ops.bench.cellular.loads.simulated_engine import SimulatedEngine
from penstock.ops.bench.cellular.measured_load import measure_peak, measure_rate, num_firsts
from penstock.ops.bench.cellular.workloads.workloads import WORKLOADS, Shape, Workload
from penstock.worker.garbage_collection import calm_garbage_collection

_SHAPE = Shape(8, 30_000, 8192, 512, 16_384, torch.float32, torch.device("cpu"))  # requests of the H200's runs
_ROWS, _QUANTUM, _IN_FLIGHT = 512, 32, 8192
_RATES = {"lstm": (10_000, 53_759, 107_517, 150_000), "tree": (4_000, 7_962, 16_000), "seq2seq": (5_468, 20_000)}
# Of kept runs on an H200: a step of folded LSTM chains; a batch of tree cells; and the host's part of a start.
_STEP_ROWS, _STEP_US = (8, 16, 32, 64, 65, 128, 256, 512), (2.88, 3.07, 3.83, 5.27, 6.71, 7.37, 9.19, 13.60)
_BATCH_US, _TREE_US, _TREE_ROW_US = 12.0, 68.0, 0.08
_LAUNCH_S = 60e-6
_SEED = 2026


@cache
def device_seconds(cell: str, rows: int, quantum: int) -> float:
    """Of a batch on an H200, about."""
    if cell in ("read", "encode", "decode"):
        return 1e-6 * (_BATCH_US + quantum * float(np.interp(rows, _STEP_ROWS, _STEP_US)))
    return 1e-6 * (_TREE_US + _TREE_ROW_US * rows)


def main() -> None:
    """Print the figures of some workloads."""
    clock = HostClock()
    for name in sys.argv[1:] or ("lstm", "tree"):
        workload = WORKLOADS[name](_SHAPE, _SEED)
        specs, num_slots = workload.model.specs, _SHAPE.max_slots + 1
        calm_garbage_collection()
        for title, engine in (
            ("no device", NullEngine(specs, num_slots)),
            ("simulated", SimulatedEngine(specs, num_slots, device_seconds, _LAUNCH_S, clock)),
        ):
            _print_peak(name, title, _served(workload, engine), clock)
        contestant = _served(workload, engine)
        for rate in _RATES[name]:
            figures = measure_rate(contestant, rate, 0.5, clock, _SEED, num_firsts(workload))
            latency = ", ".join(f"{share} {ms:.2f}" for share, ms in figures["latency_ms"].items())
            print(
                f"{name}, simulated, {rate}/s: latency {latency} ms; {figures['p99_queueing_quanta']:.1f} quanta of "
                f"queueing at p99; {figures['rows']:.0f} rows, quantum {figures['quantum']:.1f}, "
                f"{figures['device_us']:.0f} us every {figures['interval_us']:.0f} us"
            )


def _served(workload: Workload, engine: StepEngine) -> Contestant:
    return ours(replace(workload, engine=engine), _ROWS, _QUANTUM)


def _print_peak(name: str, title: str, contestant: Contestant, clock: Clock) -> None:
    measure_peak(contestant, _IN_FLIGHT, 0.2, clock)  # loads what is compiled
    figures = measure_peak(contestant, _IN_FLIGHT, 0.8, clock)
    print(
        f"{name}, {title}: {figures['requests_per_s']:.0f} requests/s, {1e6 / figures['requests_per_s']:.2f} us each; "
        f"{figures['rows']:.0f} rows, quantum {figures['quantum']:.1f}, {figures['interval_us']:.0f} us a task"
    )


if __name__ == "__main__":
    main()
