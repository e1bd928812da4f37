"""Facts of a run before it measures: its command, its model and its machine."""

from pathlib import Path
from typing import Any

from penstock.ops.bench.common.processes import run_once
from penstock.ops.bench.pipeline.pipeline_loads import NULL

Record = dict[str, Any]


def prepared(model: str | None, folder: Path) -> Record:
    """See prepare_process. The null engine needs nothing."""
    if model == NULL:
        return {"model": NULL, "machine": {}, "gpus": 0}
    return run_once("pipeline.prepare_process", {"model": model, "folder": str(folder)}, folder / "prepare.log")


def checkpoint(model: str | None) -> Path | None:
    """The checkpoint: the demo's by default. None for the null engine."""
    if model is None:
        from penstock.ops.demo.demo_model import model_directory

        return model_directory()
    return None if model == NULL else Path(model)


def with_gpu(header: Record, gpu: dict[str, Any], count: int) -> Record:
    """The header with the GPU's description. Several GPUs are a machine of their own."""
    if not gpu:
        return header
    machine = header["machine"]
    name = gpu["gpu"] if count == 1 else f"{count} x {gpu['gpu']}"
    versions = {**machine["versions"], **{key: value for key, value in gpu["versions"].items() if value}}
    return {**header, "machine": {**machine, **gpu, "gpu": name, "versions": versions}}
