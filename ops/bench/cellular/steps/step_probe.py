"""`python -m penstock.ops.bench.cellular.steps.step_probe`: checks and times LSTM cells on a GPU, within two minutes.

Parts: checks against torch; a step beside its product; a closed loop of sentences; nn.LSTM on the same sentences. A
part that fails loses only its own figures: after an error that the device keeps, a new process runs the other parts.
`--device cpu` runs the script's logic at tiny sizes; its times mean nothing.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from penstock.engine.cells.contract import NO_SLOT, Cell, CellBatch, StepEngine
from penstock.engine.gpu.cell_batches import CellLayout, row_bucket
from penstock.engine.gpu.lstm import LstmCell
from penstock.engine.gpu.products import MAX_ROWS
from penstock.engine.gpu.state_pool import StatePool
from penstock.engine.gpu.step_engine import GpuStepEngine, quantum_of
from penstock.ops.bench.cellular.steps.cell_checks import check_decoder, check_lstm, decoder
from penstock.ops.bench.cellular.steps.closed_loop import ClosedLoop, Sentences
from penstock.ops.bench.cellular.steps.cudnn_baseline import padded_requests_per_s, sorted_requests_per_s
from penstock.ops.bench.cellular.steps.host_engine import HostEngine
from penstock.ops.bench.cellular.workloads.lstm_models import LstmModel
from penstock.ops.bench.cellular.workloads.request_shapes import wmt_like_lengths
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0; 1 if a part failed or a check did not pass."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--output", type=Path, default=Path(os.environ.get("OUT", ".")), help="folder of the JSON file")
    parser.add_argument("--time-limit-s", type=float, default=120.0)
    parser.add_argument("--resumed", action="store_true", help="keep the parts that the output file has")
    chosen = parser.parse_args(arguments)
    is_gpu = chosen.device == "cuda"
    output = chosen.output / "step_probe.json"
    ends = time.monotonic() + chosen.time_limit_s
    probe = Probe(torch.device(chosen.device), ON_GPU if is_gpu else ON_CPU, ends, output)
    if chosen.resumed:
        probe.results = json.loads(output.read_text(encoding="utf-8"))
    else:
        probe.results["machine"] = _machine(is_gpu)
    for name, (seconds, work) in parts_of(probe).items():
        if name not in probe.results:
            probe.part(name, seconds, work)
            if not probe.is_device_usable():
                return _resume(chosen.output, ends)
    return _summary(probe)


def _resume(output: Path, ends: float) -> int:
    """Run the parts that are left in a new process, whose exit code this is."""
    left_s = ends - time.monotonic()
    command = [sys.executable, "-m", "penstock.ops.bench.cellular.steps.step_probe", "--resumed"]
    print("The device has failed: a new process runs the other parts.", flush=True)
    return subprocess.run([*command, "--output", output, "--time-limit-s", str(left_s)]).returncode


def parts_of(probe: Probe) -> dict[str, tuple[float, Callable[[], Any]]]:
    """Seconds at most and work of each part, the most important first."""
    sizes = probe.sizes
    model = cache(lambda: probe.model(sizes.hidden))
    sentences = cache(lambda: Sentences.random(wmt_like_lengths(sizes.sentences, SEED), sizes.vocabulary, SEED))

    def steps(kind: str, quanta: Sequence[int]) -> Callable[[], Any]:
        return lambda: _steps(probe, _cell(model(), kind, sizes.rows[-1], sizes.quanta[-1]), quanta)

    def loops(kind: str, quanta: Sequence[int]) -> Callable[[], Any]:
        return lambda: _loops(probe, _cell(model(), kind, sizes.rows[-1], sizes.quanta[-1]), sentences(), quanta)

    return {
        "lengths": (10, lambda: _describe(sentences())),
        "check_folded": (15, lambda: _check(probe, layers=1, kind="folded")),
        "check_unfolded": (15, lambda: _check(probe, layers=2, kind="unfolded")),
        "products": (10, lambda: _products(probe, model())),
        "steps_unfolded": (15, steps("unfolded", sizes.quanta)),
        "steps_folded": (15, steps("folded", sizes.quanta)),
        "loop_folded": (15, loops("folded", sizes.quanta)),
        "nn_lstm_sorted": (15, lambda: sorted_requests_per_s(model(), sentences(), sizes.rows[-1])),
        "nn_lstm_padded": (15, lambda: padded_requests_per_s(model(), sentences(), sizes.rows[-1])),
        "check_torch": (15, lambda: _check(probe, layers=1, kind="torch")),
        "check_decoder": (15, lambda: _check_decoder(probe)),
        "check_short": (15, lambda: _check(probe, layers=2, kind="short")),
        "steps_short": (10, steps("short", sizes.quanta[-1:])),
        "steps_short_unfolded": (10, steps("short_unfolded", sizes.quanta[-1:])),
        "loop_unfolded": (15, loops("unfolded", sizes.quanta[-2:])),
        "steps_torch": (10, steps("torch", sizes.quanta[-1:])),
        "loop_torch": (10, loops("torch", sizes.quanta[-1:])),
    }


def _describe(sentences: Sentences) -> dict[str, Any]:
    lengths = sentences.lengths
    described = {"mean": float(lengths.mean()), "p50": float(np.median(lengths)), "max": int(lengths.max())}
    return {"distribution": wmt_like_lengths.__doc__, "count": len(lengths), **described}


def _cell(model: LstmModel, kind: str, max_rows: int, max_steps: int) -> Cell | LstmCell:
    """kind: two launches a step, "folded" or "unfolded"; one, "short" or "short_unfolded"; or "torch"."""
    if kind == "torch":
        return model.torch_cell(kind, max_rows, max_steps)
    max_short_rows = MAX_ROWS if "short" in kind else 0
    return model.fused_cell(kind, max_rows, max_steps, folded="unfolded" not in kind, max_short_rows=max_short_rows)


def _check(probe: Probe, *, layers: int, kind: str) -> dict[str, Any]:
    sizes = probe.sizes
    model = probe.model(sizes.check_hidden, layers)
    lengths = np.random.default_rng(SEED).integers(1, 41, sizes.check_chains)
    sentences = Sentences.random(lengths, sizes.vocabulary, SEED + 1)
    max_rows, max_quantum = (96, 5) if probe.device.type == "cuda" else (7, 3)
    cell = _cell(model, kind, max_rows, max_quantum)
    engine = _prepared(probe.engine([cell, model.reader(max_rows)], 3 * sizes.check_chains))
    found = check_lstm(engine, kind, model, sentences, max_rows, max_quantum, SEED)
    return _passed(found)


def _check_decoder(probe: Probe) -> dict[str, Any]:
    return _passed(check_decoder(_prepared(probe.engine([decoder()], 65)), 64, 40, SEED))


def _prepared(engine: StepEngine) -> StepEngine:
    """The engine with the graphs of quanta that are powers of two. The checks run others too, launch by launch."""
    if isinstance(engine, GpuStepEngine):
        engine.prepare(budget_s=8)
        print(f"{engine.num_graphs} graphs", flush=True)
    return engine


def _passed(found: dict[str, Any]) -> dict[str, Any]:
    print(json.dumps(found), flush=True)
    return found


def _products(probe: Probe, model: LstmModel) -> dict[str, dict[str, float]]:
    """Microseconds of cuBLAS's product at each number of rows: with the inputs (of a step unfolded) and without."""
    sizes, like = probe.sizes, model.words
    figures: dict[str, dict[str, float]] = {}
    for name, depth in {"unfolded": 2 * sizes.hidden, "folded": sizes.hidden}.items():
        weight = torch.randn(4 * sizes.hidden, depth, device=like.device).to(like.dtype)
        for rows in sizes.rows:
            x = torch.randn(rows, depth, device=like.device).to(like.dtype)
            out = torch.empty(rows, 4 * sizes.hidden, device=like.device, dtype=like.dtype)

            def work(x: torch.Tensor = x, weight: torch.Tensor = weight, out: torch.Tensor = out) -> None:
                for _ in range(sizes.steps_timed):
                    torch.mm(x, weight.t(), out=out)

            figures.setdefault(name, {})[str(rows)] = probe.step_us(work, sizes.steps_timed)
    return figures


def _steps(probe: Probe, cell: Cell | LstmCell, quanta: Sequence[int]) -> dict[str, dict[str, float]]:
    """Microseconds of a step, by rows and quantum: graphs of quanta one after another, all rows with all steps."""
    sizes, spec = probe.sizes, cell.spec
    pool = StatePool([spec], sizes.rows[-1] + 1, probe.device)
    launched = quantum_of(cell, pool)
    figures: dict[str, dict[str, float]] = {}
    for rows in (rows for rows in sizes.rows if "short" not in spec.name or rows <= MAX_ROWS):
        for quantum in quanta:
            layout = CellLayout(spec, row_bucket(rows), quantum)
            described = np.zeros(layout.num_described, np.int32)
            layout.describe(_full_batch(spec.name, rows, quantum, sizes.vocabulary), pool.scratch, described)
            results = torch.zeros(layout.num_results, dtype=torch.int32, device=probe.device)
            views = layout.views(torch.from_numpy(described).to(probe.device), results)
            count = max(1, sizes.steps_timed // quantum)

            def work(views: Any = views, count: int = count) -> None:
                for _ in range(count):
                    launched.launch(views)

            figures.setdefault(str(rows), {})[str(quantum)] = probe.step_us(work, count * quantum)
    return figures


def _full_batch(cell: str, rows: int, quantum: int, vocabulary: int) -> CellBatch:
    """Rows in the middle of their chains, with steps for the whole quantum."""
    slots = np.arange(1, rows + 1, dtype=np.int32)
    tokens = np.random.default_rng(SEED).integers(0, vocabulary, (rows, quantum), dtype=np.int32)
    steps = np.full(rows, quantum, np.int32)
    return CellBatch(cell, slots[:, None], slots, {"token": tokens}, steps, slots == NO_SLOT, quantum)


def _loops(
    probe: Probe, cell: Cell | LstmCell, sentences: Sentences, quanta: Sequence[int]
) -> dict[str, dict[str, float]]:
    rows = probe.sizes.rows[-1]
    engine = probe.engine([cell], rows + 1)
    figures = {}
    for quantum in quanta:
        loop = ClosedLoop(engine, cell.spec.name, sentences, rows, quantum)
        for _ in range(2):  # a shape of two batches is due for a graph
            loop.start().result()
        if isinstance(engine, GpuStepEngine) and not engine.capture_next():
            raise RuntimeError(f"no graph was captured for quantum {quantum}")
        figures[str(quantum)] = loop.run(probe.sizes.loop_s, probe.sizes.loop_s / 4).as_json()
    return figures


def _machine(is_gpu: bool) -> dict[str, Any]:
    described: dict[str, Any] = {"python": platform.python_version(), "torch": torch.__version__}
    if is_gpu:
        described |= {"gpu": torch.cuda.get_device_name(), "cudnn": torch.backends.cudnn.version()}  # type: ignore[no-untyped-call]  # torch
    return described


def _summary(probe: Probe) -> int:
    """Print the tables. Exit code as `main`."""
    records = {name: part for name, part in probe.results.items() if isinstance(part, dict) and "error" in part}
    products = (records.get("products") or {}).get("result") or {}
    print("\nMicroseconds of a step by quantum, the product alone, and the ratio at the largest quantum")
    for kind in ("unfolded", "folded", "short_unfolded", "short", "torch"):
        alone = products.get("folded" if kind in ("folded", "short") else "unfolded", {})
        for rows, by_quantum in (records[f"steps_{kind}"]["result"] or {}).items():
            times = " ".join(f"{quantum}:{us:7.2f}" for quantum, us in by_quantum.items())
            product = alone.get(rows, float("nan"))
            ratio = list(by_quantum.values())[-1] / product
            print(f"{kind:14} rows {rows:>4}  {times}  product {product:7.2f}  ratio {ratio:5.2f}")
    print("\nClosed loop: requests a second, fill, microseconds of a batch on the host, on the device, and waiting")
    for kind in ("folded", "unfolded", "torch"):
        for quantum, f in (records[f"loop_{kind}"]["result"] or {}).items():
            figures = " ".join(f"{f[name]:8.1f}" for name in ("host_us", "device_us", "wait_us"))
            print(f"{kind:9} quantum {quantum}  {f['requests_per_s']:10.0f} req/s  fill {f['fill']:.2f}  {figures}")
    print()
    for name in ("lengths", "nn_lstm_sorted", "nn_lstm_padded"):
        print(f"{name}: {records[name]['result']}")
    checks = {name: part["result"] for name, part in records.items() if name.startswith("check_")}
    print("\nchecks: " + ", ".join(f"{name} {bool(found and found['passed'])}" for name, found in checks.items()))
    failed = {name: part["error"] for name, part in records.items() if part["error"]}
    print(f"failed parts: {failed or 'none'}\nwritten to {probe.output}", flush=True)
    return 1 if failed or not all(found and found["passed"] for found in checks.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
