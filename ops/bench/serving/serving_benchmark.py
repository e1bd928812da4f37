"""`penstock bench serve`: measure, print the tables, and keep the run."""

import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from penstock.ops.bench.common.machine import describe_machine
from penstock.ops.bench.common.runs import RESULTS, Run, begin, finite, keep
from penstock.ops.bench.serving.harness import BenchHarness
from penstock.ops.bench.serving.parts import saturation, slo
from penstock.ops.bench.serving.parts.kafka import through_kafka
from penstock.ops.bench.serving.parts.saturation import Row, Say
from penstock.ops.bench.serving.run_plan import KAFKA, LOADS, RunPlan
from penstock.ops.bench.serving.serving_tables import PARTS, costs
from penstock.ops.demo.demo_model import SERVED_NAME, model_directory
from penstock.worker.telemetry.logs import configure_logs

RANDOM_BERT = "bert-base"
_NAMES = {None: SERVED_NAME, RANDOM_BERT: "BERT-base with random weights"}
_OBJECTIVES: dict[str, Callable[[BenchHarness, RunPlan, Row, Say], Row]] = {
    "goodput": slo.run_goodput,
    "bursts": slo.run_bursts,
    "classes": slo.run_classes,
}


def run_serving_benchmark(plan: RunPlan, *, model: str | None, device: str, dtype: str, output: Path | None) -> int:
    """Run `plan` on this machine. `output`: the folder of kept runs.

    None: a whole plan is kept in the repository's results, others are shown and not kept.
    """
    configure_logs("console", "warning")
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        bench = BenchHarness.load(_checkpoint(model, Path(folder)), device=device, dtype=dtype)
        header = begin("serving-kafka" if {KAFKA, LOADS} & set(plan.parts) else "serving", _machine(bench))
        parts = measure(bench, plan, lambda line: print(f"[{time.monotonic() - began:4.0f} s] {line}", flush=True))
    record = record_of(bench, plan, parts, _NAMES.get(model, bench.packed.info.name), header)
    print(tables_of(record))
    root = output or (RESULTS if plan.is_whole else None)
    if root is None:
        print("Not kept, because these are not all parts and lengths. --output DIR keeps them.")
    else:
        print(f"Written: {keep(record, root)}")
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


def tables_of(record: Row) -> str:
    """The tables of one run."""
    run = Run(Path(), record)
    shown = [(title, section([run])) for part, (title, section) in PARTS.items() if part in record["parts"]]
    shown.append(("Cost models: predicted seconds beside measured", costs(run)))
    return "\n\n".join(f"{title}\n\n{text}" for title, text in shown if text)


def measure(bench: BenchHarness, plan: RunPlan, say: Say) -> Row:
    """The parts of the plan; what is about objectives uses the first of its workloads."""
    parts: Row = {}
    if "saturation" in plan.parts:
        parts["saturation"] = [saturation.run(bench, plan, lengths, say) for lengths in plan.lengths]
    about_objectives = [part for part in _OBJECTIVES if part in plan.parts]
    if about_objectives:
        (workload, *_) = parts.get("saturation") or [
            saturation.run(bench, plan, plan.lengths[0], say, only_default=True)
        ]
        parts |= {part: _OBJECTIVES[part](bench, plan, workload, say) for part in about_objectives}
    if {KAFKA, LOADS} & set(plan.parts):
        with through_kafka(bench, plan, say) as (broker, runs):
            measured = {KAFKA: runs.points, LOADS: runs.loads}
            about = {"broker": broker, "lengths": runs.lengths, "slo_s": runs.slo_s}
            parts |= {part: {**about, **run(say)} for part, run in measured.items() if part in plan.parts}
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
