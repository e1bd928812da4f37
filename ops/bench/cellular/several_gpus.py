"""`python -m penstock.ops.bench.cellular.several_gpus`: cells on one GPU and on two, in 150 s.

Two ways to use a second GPU are compared: one scheduler over both devices of a process, which pins each request to one
of them (BatchMaker, figure 10), and a process for each, as members of a consumer group are. Loads are closed loops.
`--device cpu` runs the script's logic at small sizes, where devices share the processor; its figures mean nothing.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from penstock.engine.cells.contract import CellBatch, CellOutput, RunningCells, StepEngine
from penstock.ops.bench.cellular.cellular_run import SEED, Sizes, sizes_of
from penstock.ops.bench.cellular.contestants.contestants import max_tasks_of, ours
from penstock.ops.bench.cellular.loads.load import MonotonicClock
from penstock.ops.bench.cellular.loads.tape import RecordingEngine, Tape
from penstock.ops.bench.cellular.measured_load import Figures, measure_peak
from penstock.ops.bench.cellular.report.several_gpus_tables import PARTS, SUITE, WAYS
from penstock.ops.bench.cellular.workloads.workloads import WORKLOADS, Workload
from penstock.ops.bench.common.machine import describe_machine, title
from penstock.ops.bench.common.runs import RESULTS, begin, keep
from penstock.worker.garbage_collection import calm_garbage_collection
from penstock.worker.stepping.cell_runner import CellRunner

_READY = "ready"
_SECONDS = {"cuda": 3.0, "cpu": 0.3}


class OnDevice:
    """Implements StepEngine over another one, with its GPU as CUDA's current device: a process has one at a time."""

    def __init__(self, engine: StepEngine, device: torch.device) -> None:
        self._engine, self._device = engine, device
        self.cells, self.num_slots = engine.cells, engine.num_slots

    def idle(self) -> bool:
        """See `StepEngine.idle`."""
        with torch.cuda.device(self._device):
            return self._engine.idle()

    def start(self, batch: CellBatch) -> "RunningOnDevice":
        """See `StepEngine.start`."""
        with torch.cuda.device(self._device):
            return RunningOnDevice(self._engine.start(batch), self._device)


class RunningOnDevice:
    """A batch that was started."""

    def __init__(self, running: RunningCells, device: torch.device) -> None:
        self._running, self._device = running, device

    def result(self) -> CellOutput:
        """See `RunningCells.result`."""
        with torch.cuda.device(self._device):
            return self._running.result()


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--output", type=Path, help="folder of kept runs; default: ops/bench/results")
    parser.add_argument("--commit", help="commit that is measured, where there is no checkout")
    parser.add_argument("--part", choices=PARTS, help="measure one process alone, when a line comes on stdin")
    chosen = parser.parse_args(arguments)
    if chosen.part is not None:
        print(json.dumps(_measure_on_command(chosen.part, chosen.device)), flush=True)
        return 0
    machine = describe_machine()
    if chosen.device == "cuda":
        from penstock.ops.bench.gpu.gpu_machine import describe_gpu

        gpu = describe_gpu()
        machine = {**machine, **gpu, "versions": {**machine["versions"], **gpu["versions"]}}
    record: dict[str, Any] = {**begin(SUITE, machine, commit=chosen.commit), "seed": SEED, "parts": {}}
    print(title(machine), flush=True)
    for part in PARTS:
        measured = (
            _in_processes(part, chosen.device, 1),
            _in_processes(part, chosen.device, 2),
            [_one_scheduler(part, chosen.device)],
        )
        found = record["parts"][part] = dict(zip(WAYS, measured, strict=True))
        for name, figures in found.items():
            print(f"{part}, {name}: {sum([one['requests_per_s'] for one in figures]):,.0f} req/s", flush=True)
        keep(record, chosen.output or RESULTS)
    return 0


def _in_processes(part: str, device: str, count: int) -> list[Figures]:
    """Figures of processes that are measured at the same time, each on a GPU of its own."""
    command = [sys.executable, "-m", __spec__.name, "--device", device, "--part", part]
    processes = [
        subprocess.Popen(
            command,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": str(number)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(count)
    ]
    for process in processes:
        _wait_until_ready(process)
    for process in processes:
        if process.stdin is not None:
            process.stdin.write("go\n")
            process.stdin.flush()
    lines = [process.communicate()[0] for process in processes]
    return [json.loads(line.splitlines()[-1]) for line in lines]


def _wait_until_ready(process: "subprocess.Popen[str]") -> None:
    if process.stdout is None:
        raise RuntimeError("The process has no pipe. This is a bug.")
    for line in process.stdout:
        if line.strip() == _READY:
            return
    raise RuntimeError(f"A measured process ended with {process.wait()} before it was ready.")


def _measure_on_command(part: str, device: str) -> Figures:
    sizes = sizes_of(torch.device(device))
    workload = WORKLOADS[part](sizes.shape, SEED)
    measured = _Measured(sizes, part, workload, [workload.engine])
    measured.warm_up()
    print(_READY, flush=True)
    sys.stdin.readline()
    return measured.peak(_SECONDS[device])


def _one_scheduler(part: str, device: str) -> Figures:
    sizes = sizes_of(torch.device(device))
    places = [torch.device(device, number) if device == "cuda" else torch.device(device) for number in range(2)]
    workloads = [WORKLOADS[part](replace(sizes.shape, device=place), SEED) for place in places]
    engines = [one.engine for one in workloads]
    if device == "cuda":
        engines = [OnDevice(engine, place) for engine, place in zip(engines, places, strict=True)]
    measured = _Measured(sizes, part, workloads[0], engines)
    measured.warm_up()
    return measured.peak(_SECONDS[device])


class _Measured:
    """The worker's runner of cells over one or more engines, in the settings that a run tries first."""

    def __init__(self, sizes: Sizes, part: str, workload: Workload, engines: Sequence[StepEngine]) -> None:
        tried = sizes.tried[part]
        self._in_flight = sizes.in_flight * len(engines)
        self._contestant = ours(workload, tried.rows[0], tried.quanta[0])
        specs = workload.specs(tried.rows[0], tried.quanta[0])

        def make(tape: Tape) -> CellRunner:
            recording = [RecordingEngine(engine, workload.entry, tape) for engine in engines]
            return CellRunner(specs, recording, max_tasks=max_tasks_of(engines[0]))

        self._contestant = replace(self._contestant, make=make)
        calm_garbage_collection()

    def warm_up(self) -> None:
        """Load what is compiled."""
        self.peak(0.2)

    def peak(self, seconds: float) -> Figures:
        """Figures of a closed loop."""
        return measure_peak(self._contestant, self._in_flight, seconds, MonotonicClock())


if __name__ == "__main__":
    sys.exit(main())
