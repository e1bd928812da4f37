"""The parts of the probe: checks, products, steps, closed loops, and nn.LSTM beside them."""

import json
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch

from penstock.engine.cells.contract import NO_SLOT, Cell, CellBatch, StepEngine
from penstock.engine.gpu.cells.cell_batches import CellLayout
from penstock.engine.gpu.cells.device_states import DeviceStates
from penstock.engine.gpu.cells.lstm import MAX_CHAIN_ROWS, LstmCell
from penstock.engine.gpu.cells.step_engine import GpuStepEngine, quantum_of
from penstock.engine.gpu.products import MAX_ROWS
from penstock.engine.gpu.row_buckets import row_bucket
from penstock.ops.bench.cellular.steps.cell_checks import check_decoder, check_lstm, decoder
from penstock.ops.bench.cellular.steps.closed_loop import ClosedLoop, Sentences
from penstock.ops.bench.cellular.steps.cudnn_baseline import padded_requests_per_s, sorted_requests_per_s
from penstock.ops.bench.cellular.steps.probe import SEED, Probe
from penstock.ops.bench.cellular.workloads.lstm_models import LstmModel
from penstock.ops.bench.cellular.workloads.request_shapes import wmt_like_lengths


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
        "check_chain": (15, lambda: _check(probe, layers=1, kind="chain")),
        "steps_chain": (10, steps("chain", (*sizes.quanta[1:], 32))),
        "loop_unfolded": (15, loops("unfolded", sizes.quanta[-2:])),
        "steps_torch": (10, steps("torch", sizes.quanta[-1:])),
        "loop_torch": (10, loops("torch", sizes.quanta[-1:])),
    }


def _describe(sentences: Sentences) -> dict[str, Any]:
    lengths = sentences.lengths
    described = {"mean": float(lengths.mean()), "p50": float(np.median(lengths)), "max": int(lengths.max())}
    return {"distribution": wmt_like_lengths.__doc__, "count": len(lengths), **described}


def _cell(model: LstmModel, kind: str, max_rows: int, max_steps: int) -> Cell | LstmCell:
    """kind: two launches a step, "folded" or "unfolded"; one, "short" or "short_unfolded"; one in all, "chain".

    "torch": of torch operations.
    """
    if kind == "torch":
        return model.torch_cell(kind, max_rows, max_steps)
    max_short_rows = MAX_ROWS if "short" in kind else 0
    max_chain_rows = MAX_CHAIN_ROWS if kind == "chain" else 0
    most = {"max_short_rows": max_short_rows, "max_chain_rows": max_chain_rows}
    return model.fused_cell(kind, max_rows, max_steps, folded="unfolded" not in kind, **most)


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
    pool = DeviceStates([spec], sizes.rows[-1] + 1, probe.device)
    launched = quantum_of(cell, pool)
    figures: dict[str, dict[str, float]] = {}
    most = MAX_CHAIN_ROWS if spec.name == "chain" else MAX_ROWS if "short" in spec.name else sizes.rows[-1]
    for rows in (rows for rows in sizes.rows if rows <= most):
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
