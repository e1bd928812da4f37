"""The command `penstock bench cellular`: run the parts, keep each result at once, and print the tables."""

import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from penstock.ops.bench.cellular.cellular_tables import load_grids, targets_of
from penstock.ops.bench.cellular.contestants import Tried, contestants, ours
from penstock.ops.bench.cellular.evaluation import Effort, Evaluation
from penstock.ops.bench.cellular.load import MonotonicClock
from penstock.ops.bench.cellular.measured_load import Figures, measure_peak
from penstock.ops.bench.cellular.nn_lstm import LstmModel, offline_requests_per_s
from penstock.ops.bench.cellular.null_engine import NullEngine
from penstock.ops.bench.cellular.requests import wmt_like_lengths
from penstock.ops.bench.cellular.workloads import WORKLOADS, Shape, Workload
from penstock.ops.bench.common.console_tables import show_grid
from penstock.ops.bench.common.machine import describe_machine, title, use_cores
from penstock.ops.bench.common.runs import RESULTS, Run, begin, keep
from penstock.worker.garbage_collection import calm_garbage_collection

PARTS = tuple(WORKLOADS)
SEED = 2026
_CORES = 2


@dataclass(frozen=True, slots=True)
class CellularPlan:
    """Options of `penstock bench cellular`."""

    parts: Sequence[str]
    device: str  # cpu or cuda
    seconds: float | None  # of each load; None: of the device
    time_limit_s: float
    output: Path | None
    commit: str | None


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of a run on one kind of device."""

    shape: Shape
    tried: dict[str, Tried]
    seconds: float
    in_flight: int
    offline_sentences: int
    offline_rows: int


def run_cellular_benchmark(plan: CellularPlan) -> int:
    """Exit code: 0; 1 if a part failed, or loads were skipped for lack of time."""
    console = Console(width=max(160, Console().width))
    is_gpu = plan.device == "cuda"
    machine = describe_machine()
    if is_gpu:
        from penstock.ops.bench.gpu.gpu_machine import describe_gpu

        gpu = describe_gpu()
        machine = {**machine, **gpu, "versions": {**machine["versions"], **gpu["versions"]}}
    else:
        use_cores(_CORES)
        torch.set_num_threads(1)  # as the engine of cells has them
    header = begin("cellular", machine, commit=plan.commit)
    sizes = sizes_of(torch.device(plan.device))
    console.print(f"{title(machine)}; at most {plan.time_limit_s:g} s")
    root = plan.output or (RESULTS if set(plan.parts) == set(PARTS) and plan.seconds is None else None)
    record: dict[str, Any] = {**header, "seed": SEED, "device": plan.device, "parts": {}}
    ends = time.monotonic() + plan.time_limit_s
    for number, part in enumerate(plan.parts):
        now = time.monotonic()
        share_ends = now + (ends - now) / (len(plan.parts) - number)
        console.rule(part)
        record["parts"][part] = _run_part(part, sizes, plan.seconds or sizes.seconds, share_ends, record, root)
        for grid in load_grids(part, record["parts"][part]):
            show_grid(console, grid)
        if root is not None:
            keep(record, root)
    console.print(targets_of([Run(Path(), record)]), markup=False)
    console.print("Not kept: --output DIR keeps any run." if root is None else f"Written to {keep(record, root)}")
    skipped = [one for part in record["parts"].values() for one in part["skipped"]]
    if skipped:
        console.print(f"Skipped, as the time was up: {'; '.join(skipped)}", style="red", markup=False)
    failed = {name: part["error"] for name, part in record["parts"].items() if part["error"] is not None}
    for name, error in failed.items():
        console.print(f"Failed: {name}: {error}", style="red", markup=False)
    return 1 if skipped or failed else 0


def sizes_of(device: torch.device) -> Sizes:
    """The paper's sizes on a GPU; on a CPU small ones, which show the policies and not the paper's figures."""
    if device.type == "cpu":
        shape = Shape(64, 2048, 512, 32, 4096, torch.float32, device)
        chains = Tried(rows=(32,), quanta=(4,), widths=(10, 40), trees=())
        trees = Tried(rows=(32,), quanta=(1,), widths=(), trees=(8, 32))
        return Sizes(shape, {"lstm": chains, "seq2seq": chains, "tree": trees}, 0.25, 256, 256, 32)
    shape = Shape(1024, 30_000, 8192, 512, 16_384, torch.float16, device)
    return Sizes(
        shape,
        {
            "lstm": Tried(rows=(512, 256), quanta=(32, 16, 8), widths=(5, 10, 20, 40), trees=()),
            "seq2seq": Tried(rows=(256, 512), quanta=(32, 8), widths=(5, 10, 20), trees=()),
            "tree": Tried(rows=(512, 128, 64), quanta=(1,), widths=(), trees=(64, 128, 256)),
        },
        0.8,
        8192,
        51_200,
        512,
    )


def _run_part(
    part: str, sizes: Sizes, seconds: float, ends: float, record: dict[str, Any], root: Path | None
) -> dict[str, Any]:
    """A part's results, and its error where it has failed: the other parts run then, too."""
    began = time.monotonic()

    def on_figures(results: dict[str, Any]) -> None:
        if root is not None:
            keep({**record, "parts": {**record["parts"], part: results}}, root)

    evaluation = Evaluation(Effort(seconds, sizes.in_flight, ends, SEED), MonotonicClock(), on_figures)
    results = evaluation.results
    try:
        workload = WORKLOADS[part](sizes.shape, SEED)
        calm_garbage_collection()
        results["made_s"] = time.monotonic() - began
        results["host"] = _without_device(workload, sizes.tried[part], sizes.in_flight, seconds)
        if workload.lstm is not None:
            results["offline"] = _offline(workload.lstm, sizes)
        evaluation.run(workload, contestants(workload, sizes.tried[part]))
    except Exception as error:
        traceback.print_exc()
        results["error"] = f"{type(error).__name__}: {error}"[:500]
    return {**results, "seconds": time.monotonic() - began}


def _without_device(workload: Workload, tried: Tried, in_flight: int, seconds: float) -> Figures:
    """The peak of ours over an engine that computes nothing: what the host alone could serve."""
    engine = NullEngine(workload.model.specs, workload.engine.num_slots)
    contestant = ours(replace(workload, engine=engine), tried.rows[0], tried.quanta[0])
    measure_peak(contestant, in_flight, 0.1 * seconds, MonotonicClock())  # loads what is compiled
    return measure_peak(contestant, in_flight, seconds, MonotonicClock())


def _offline(model: LstmModel, sizes: Sizes) -> dict[str, float]:
    """Requests a second of nn.LSTM over sentences that are all known before, sorted by length."""
    lengths = wmt_like_lengths(sizes.offline_sentences, SEED)
    tokens = np.random.default_rng(SEED).integers(0, len(model.words), int(lengths.sum()), dtype=np.int32)
    sentences = np.split(tokens, np.cumsum(lengths)[:-1])
    return {"requests_per_s": offline_requests_per_s(model, sentences, sizes.offline_rows)}
