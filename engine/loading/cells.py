"""A model made of cells for a worker: its facts, and its step engine on the device that is available."""

import os
from pathlib import Path

import torch
from torch import nn

from penstock.engine.cells.contract import CellSpec, StepEngine
from penstock.engine.cells.cpu import CpuStepEngine
from penstock.engine.cells.emissions import emissions_of
from penstock.engine.cells.errors import InvalidCell
from penstock.engine.cells.graph import GraphLimits
from penstock.engine.cells.models.loading import LoadedCells, import_cells, load_cells
from penstock.engine.cells.models.model import CellModel
from penstock.engine.cpu.ops import cpu_precision
from penstock.engine.device import choose_device, device_name
from penstock.engine.errors import CheckpointError, UnsupportedDevice
from penstock.engine.model.checkpoint import default_name, resolve_model
from penstock.engine.types import ModelInfo

_STATE_BYTES = 256 * 1024 * 1024  # of all slots, where their number is not given
_FEWEST_SLOTS, _MOST_SLOTS = 1024, 16_384
_PREPARE_S = 10.0  # for CUDA graphs, at load
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class ServedCells:
    """Made by `load_served_cells`."""

    def __init__(self, loaded: LoadedCells, name: str, dtype: str, device: str, num_slots: int | None) -> None:
        """num_slots: without NO_SLOT. Raises InvalidCell where a reply could not hold what the cells emit."""
        self.model: CellModel = loaded.model
        emissions = emissions_of(self.model.specs)
        if not emissions:
            raise InvalidCell("no cell emits anything, so that a reply would be empty; give one of them `emits`.")
        self.limits = GraphLimits()
        self.num_slots = num_slots or _num_slots(self.model.specs)
        self.info = ModelInfo(
            name=name,
            revision=loaded.revision,
            dtype=dtype,
            device="cpu" if device == "cpu" else device_name(),
            vocab_size=0,
            max_tokens=self.limits.max_steps,
            tasks=frozenset({"sequence"}),
            dim=0,
            labels=(),
            emissions=emissions,
        )

    def engine(self) -> StepEngine:
        """The step engine, ready to run. Blocks for seconds on a GPU. Raises InvalidCell."""
        num_slots = self.num_slots + 1
        if self.info.device == "cpu":
            return CpuStepEngine(self.model.cells, num_slots, threads=len(os.sched_getaffinity(0)))
        from penstock.engine.gpu.cells.lstm import fused
        from penstock.engine.gpu.cells.step_engine import GpuStepEngine

        for cell in self.model.cells:
            if isinstance(cell.step, nn.Module):
                cell.step.to("cuda")
        engine = GpuStepEngine([fused(cell) for cell in self.model.cells], num_slots)
        engine.prepare(budget_s=_PREPARE_S)
        return engine


def load_served_cells(
    model: str,
    *,
    cells: str | None = None,
    name: str | None = None,
    dtype: str = "auto",
    device: str = "auto",
    max_rows: int | None = None,
    num_slots: int | None = None,
) -> ServedCells:
    """Load a model directory or Hugging Face id, or with `cells` an operator's own model. Blocks for seconds.

    cells: see `import_cells`; `model` is then only a name, and the code decides types and batches.
    name: the model's name in requests; `default_name` when None. max_rows: of a batch. num_slots: state slots.
    Raises CheckpointError, UnsupportedCheckpoint, UnsupportedDevice.
    """
    place = choose_device(device)
    precision = _precision(dtype, place)
    own_name = name or default_name(model)
    try:
        if cells is not None:
            loaded = import_cells(cells)
            own = str(loaded.model.specs[0].states[0].dtype).removeprefix("torch.")
            return ServedCells(loaded, own_name, own, place, num_slots)
        rows = {} if max_rows is None else {"max_rows": max_rows}
        loaded = load_cells(Path(resolve_model(model)), dtype=_DTYPES[precision], **rows)
        return ServedCells(loaded, own_name, precision, place, num_slots)
    except InvalidCell as error:
        raise CheckpointError(f"{cells or model}: {error}") from error


def _precision(dtype: str, device: str) -> str:
    if dtype == "auto":
        return "float32" if device == "cpu" else "float16"
    if device == "cpu":
        return cpu_precision(dtype)
    if dtype not in _DTYPES:
        raise UnsupportedDevice(
            f"dtype {dtype!r} is not available for cells on a GPU; use auto or {', '.join(_DTYPES)}."
        )
    return dtype


def _num_slots(specs: tuple[CellSpec, ...]) -> int:
    states = {state.name: state for spec in specs for state in spec.states}
    slot_bytes = sum([state.width * state.dtype.itemsize for state in states.values()])
    return min(max(_STATE_BYTES // slot_bytes, _FEWEST_SLOTS), _MOST_SLOTS)
