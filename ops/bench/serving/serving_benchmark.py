"""`penstock bench serve`: measure, print the tables, and keep the run with its tables and plots."""

import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from penstock.ops.bench.common.console_tables import show_grid
from penstock.ops.bench.common.machine import describe_machine
from penstock.ops.bench.common.runs import RESULTS, begin, finite, keep
from penstock.ops.bench.serving.harness.harness import BenchHarness
from penstock.ops.bench.serving.harness.run_plan import KAFKA, LOADS, RunPlan
from penstock.ops.bench.serving.parts import kafka, paper, saturation, scheduler, simulator_check, slo
from penstock.ops.bench.serving.parts.saturation import Row, Say
from penstock.ops.bench.serving.report.document import render
from penstock.ops.bench.serving.report.report_files import require_plots, write_beside
from penstock.ops.bench.serving.report.run_tables import grids
from penstock.ops.demo.demo_model import SERVED_NAME, model_directory
from penstock.worker.telemetry.logs import configure_logs

RANDOM_BERT = "bert-base"
_NAMES = {None: SERVED_NAME, RANDOM_BERT: "BERT-base with random weights"}
_NEEDS_SATURATION = {"saturation", "paper", "goodput", "bursts", "classes", "validation"}


def run_serving_benchmark(plan: RunPlan, *, model: str | None, device: str, dtype: str, output: Path | None) -> int:
    """Run `plan` on this machine. `output`: the folder of kept runs; tables and plots lie beside the run.
    None: a whole plan is kept in the repository's results, others are shown and not kept.
    """
    require_plots()
    from penstock.ops.bench.serving.report.serving_plots import draw

    console = Console(width=max(150, Console().width))
    configure_logs("console", "warning")
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        bench = BenchHarness.load(_checkpoint(model, Path(folder)), device=device, dtype=dtype)
        header = begin("serving-kafka" if {KAFKA, LOADS} & set(plan.parts) else "serving", _machine(bench))
        parts = measure(bench, plan, lambda line: console.print(f"[{time.monotonic() - began:4.0f} s] {line}"))
    name = _NAMES.get(model, bench.packed.info.name)
    record = record_of(bench, plan, parts, name, header)
    for grid in grids(record):
        show_grid(console, grid)
    root = output or (RESULTS if plan.is_whole else None)
    if root is None:
        console.print("Not kept, because these are not all parts and lengths. --output DIR keeps them.")
        return 0
    path = keep(record, root)
    draw(record, write_beside(path, render(record)))
    console.print(f"Written: {path}, and tables beside it; plots where a part has one")
    return 0


def record_of(bench: BenchHarness, plan: RunPlan, parts: Row, model: str, header: Row) -> Row:
    """Content of a kept run, as JSON holds it."""
    record: Row = finite(
        {
            **header,
            "is_gpu": bench.is_gpu,
            "model": model,
            "dtype": bench.packed.info.dtype,
            "num_lanes": bench.num_lanes,
            "max_batch_sequences": bench.settings.max_batch_sequences,
            "max_batch_tokens": bench.settings.max_batch_tokens,
            "plan": asdict(plan),
            "engines": bench.describe(),
            "parts": parts,
        }
    )
    return record


def measure(bench: BenchHarness, plan: RunPlan, say: Say) -> Row:
    """The parts of the plan; what is about objectives uses the first of its workloads."""
    parts: Row = {}
    workloads = []
    if _NEEDS_SATURATION & set(plan.parts):
        only_default = "saturation" not in plan.parts
        chosen = plan.lengths[:1] if only_default else plan.lengths
        workloads = [saturation.run(bench, plan, lengths, say, only_default=only_default) for lengths in chosen]
    if "saturation" in plan.parts:
        parts["saturation"] = workloads
        if "paper" in plan.parts:
            parts["paper"] = [paper.run(bench, plan, workload, say) for workload in workloads]
    on_first: dict[str, Callable[[BenchHarness, RunPlan, Row, Say], Row]] = {
        "goodput": slo.run_goodput,
        "bursts": slo.run_bursts,
        "classes": slo.run_classes,
        "validation": simulator_check.run,
    }
    for name, run in on_first.items():
        if name in plan.parts:
            parts[name] = run(bench, plan, workloads[0], say)
    if "scheduler" in plan.parts:
        parts["scheduler"] = scheduler.run(bench)
    if KAFKA in plan.parts:
        parts[KAFKA] = kafka.run_points(bench, plan, say)
    if LOADS in plan.parts:
        parts[LOADS] = kafka.run_loads(bench, plan, say)
    return parts


def _checkpoint(model: str | None, folder: Path) -> Path:
    """The directory of the model: the demo's by default, or one of BERT-base's shape with random weights."""
    if model is None:
        return model_directory()
    if model != RANDOM_BERT:
        return Path(model)
    from penstock.ops.bench.gpu.models import bert_base

    bert_base(seed=0).reference.save_pretrained(folder)  # type: ignore[operator]  # a transformers model, typed as Module
    return folder


def _machine(bench: BenchHarness) -> Row:
    machine = describe_machine()
    if bench.is_gpu:
        from penstock.ops.bench.gpu.gpu_machine import describe_gpu

        gpu = describe_gpu()
        machine = {**machine, **gpu, "versions": {**machine["versions"], **gpu["versions"]}}
    return machine
