"""Settings in force: values that were given, and defaults that depend on the engine.

No other file decides defaults, but for `state_slots` and `page_memory_mib`: the model decides them when it is loaded.
"""

import os
from collections.abc import Mapping
from inspect import get_annotations
from pathlib import Path
from typing import Any, Literal

from penstock.engine import ModelInfo
from penstock.producer.wire.messages import STEPPED_TASKS
from penstock.producer.wire.topics import request_topic
from penstock.scheduler import SchedulerSettings
from penstock.worker.model_settings import ModelSettings
from penstock.worker.settings import WorkerSettings

# Of a batch: sequences, and tokens. A GPU needs larger batches than a CPU to be busy.
_CAPS: Mapping[str, tuple[int, int]] = {"cpu": (256, 1024), "cuda": (1024, 16_384)}
_CHOSEN_HERE = {"device", "engine", "dtype"}  # where these are open values, as None is anywhere
_OPEN = ("auto", "auto-int8")


class ResolvedSettings(WorkerSettings):
    """A worker's settings without open values, but those that a loaded model decides. Made by `resolve`."""

    served_name: str
    device: Literal["cpu", "cuda"]
    engine: Literal["packed", "padded"]
    max_batch_sequences: int
    max_batch_tokens: int
    cost_path: Path
    processes: int
    lanes: int
    max_wait_ms: float
    group_id: str

    reasons: Mapping[str, list[str]]  # "given", "environment", "default for cuda", … -> the settings decided by it


def resolve(settings: WorkerSettings, info: ModelInfo, processes: int = 1) -> ResolvedSettings:
    """Decide the open values for a loaded engine. Called once, after the engine is loaded.

    `processes`: how many members run on the engine's device.
    """
    values = dict(settings)
    reasons: dict[str, list[str]] = {}
    for reason, defaults in _defaults(settings, info, processes).items():
        decided = {name: value for name, value in defaults.items() if _is_open(name, values[name])}
        values |= decided
        reasons[reason] = sorted(decided)
    derived = {name for names in reasons.values() for name in names}
    for name in sorted(settings.model_fields_set - derived):
        reasons.setdefault(settings.origins[name], []).append(name)
    reasons["default"] = sorted(values.keys() - settings.model_fields_set - derived)
    return ResolvedSettings.model_construct(
        **values, reasons={reason: names for reason, names in reasons.items() if names}
    )


def open_settings(settings: WorkerSettings) -> set[str]:
    """Settings that `resolve` decides."""
    decided = _CHOSEN_HERE | (get_annotations(ResolvedSettings).keys() & WorkerSettings.model_fields.keys())
    return {name for name in decided if _is_open(name, getattr(settings, name))}


def _is_open(name: str, value: object) -> bool:
    return value is None or (value in _OPEN and name in _CHOSEN_HERE)


def _defaults(settings: WorkerSettings, info: ModelInfo, processes: int) -> Mapping[str, Mapping[str, Any]]:
    """Reason -> name -> value."""
    device = _device(info)
    max_sequences, max_tokens = batch_caps(settings, info)
    return {
        "found for this model and machine": {
            "device": device,
            "engine": "padded" if info.padded else "packed",
            "dtype": info.dtype,
        },
        f"default for {device}": {
            "lanes": len(os.sched_getaffinity(0)) if device == "cpu" and not info.tasks & STEPPED_TASKS else 1,
            "max_wait_ms": 0.0,
            "max_batch_sequences": max_sequences,
            "max_batch_tokens": max_tokens,
        },
        f"default for model {info.name}": {
            "served_name": info.name,
            "topic": None if settings.all_routes else request_topic(info.name),
            "group_id": ".".join(["penstock", info.name, *[route.output_topic for route in settings.all_routes]]),
        },
        "default for this machine": {"processes": processes},
        "default for this user": {"cost_path": default_cost_path()},
    }


def batch_caps(settings: ModelSettings, info: ModelInfo) -> tuple[int, int]:
    """Most sequences and most tokens in a batch."""
    return batch_caps_on(settings, _device(info))


def batch_caps_on(settings: ModelSettings, device: str) -> tuple[int, int]:
    """As `batch_caps`, for a model that is not loaded yet. device: "cpu" or "cuda"."""
    max_sequences, max_tokens = _CAPS[device]
    return settings.max_batch_sequences or max_sequences, settings.max_batch_tokens or max_tokens


def default_cost_path() -> Path:
    """The file of cost tables in the user's cache directory, by the XDG base directory specification."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock" / "costs.sqlite"


def scheduler_settings(settings: ResolvedSettings) -> SchedulerSettings:
    """The scheduler's part of a worker's settings."""
    return SchedulerSettings(
        max_wait_s=settings.max_wait_ms / 1e3,
        max_batch_sequences=settings.max_batch_sequences,
        max_batch_tokens=settings.max_batch_tokens,
        slo_s=None if settings.slo_ms is None else settings.slo_ms / 1e3,
        trigger=settings.trigger,
        partition=settings.partition,
        order=settings.order,
        admission=settings.admission,
        num_lanes=settings.lanes,
        bulk_slice_s=settings.bulk_slice_ms / 1e3,
    )


def _device(info: ModelInfo) -> Literal["cpu", "cuda"]:
    return "cpu" if info.device == "cpu" else "cuda"
