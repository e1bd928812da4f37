"""Inference on CPUs and GPUs: encoders (packed batches in, rows out), encoder-decoders, and models made of cells."""

from typing import TYPE_CHECKING, Any

from penstock.engine.types import BatchOutput, Engine, ModelInfo, PackedBatch, PipelinedEngine, TaskOptions

if TYPE_CHECKING:
    from penstock.engine.calibration import Calibration, Timing, measure, warm_up
    from penstock.engine.cells.models.loading import is_made_of_cells
    from penstock.engine.device import choose_device, processor_name
    from penstock.engine.generation.loading import generates
    from penstock.engine.lanes import EngineLanes
    from penstock.engine.loading.cells import ServedCells, load_served_cells
    from penstock.engine.loading.encoder import load_engine
    from penstock.engine.loading.generation import GenerationModel, load_generation_model
    from penstock.engine.model.checkpoint import default_name, resolve_model
    from penstock.engine.null import NullEngine
    from penstock.engine.packed_model import PackedModel, from_torch
    from penstock.engine.precision_loss import PrecisionLoss, measure_loss

# Imported at first use, so that importing this package imports no torch.
_LAZY = {
    "Calibration": "calibration",
    "EngineLanes": "lanes",
    "GenerationModel": "loading.generation",
    "NullEngine": "null",
    "PackedModel": "packed_model",
    "PrecisionLoss": "precision_loss",
    "ServedCells": "loading.cells",
    "Timing": "calibration",
    "choose_device": "device",
    "from_torch": "packed_model",
    "default_name": "model.checkpoint",
    "generates": "generation.loading",
    "is_made_of_cells": "cells.models.loading",
    "load_engine": "loading.encoder",
    "load_generation_model": "loading.generation",
    "load_served_cells": "loading.cells",
    "measure": "calibration",
    "measure_loss": "precision_loss",
    "processor_name": "device",
    "resolve_model": "model.checkpoint",
    "warm_up": "calibration",
}

__all__ = [
    "BatchOutput",
    "Calibration",
    "Engine",
    "EngineLanes",
    "GenerationModel",
    "ModelInfo",
    "NullEngine",
    "PackedBatch",
    "PackedModel",
    "PipelinedEngine",
    "PrecisionLoss",
    "ServedCells",
    "TaskOptions",
    "Timing",
    "choose_device",
    "default_name",
    "from_torch",
    "generates",
    "is_made_of_cells",
    "load_engine",
    "load_generation_model",
    "load_served_cells",
    "measure",
    "measure_loss",
    "processor_name",
    "resolve_model",
    "warm_up",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
