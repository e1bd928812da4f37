"""The systems that are compared, as data: which engine, and which scheduler settings."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from penstock.scheduler import SchedulerSettings

EngineKind = Literal["packed", "padded", "padding"]

ENGINES: dict[EngineKind, str] = {
    "packed": "penstock's runtime, no padding",
    "padded": "transformers, padded to the longest of the batch",
    "padding": "penstock's runtime fed with padding, as TurboTransformers' batches are",
}

PAPER_BATCH = 20  # TurboTransformers section 6.3: most requests in a batch


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits that all systems of one table share."""

    worker: SchedulerSettings  # a worker's defaults with this engine; every system has its caps and lanes
    slo_s: float


@dataclass(frozen=True, slots=True)
class System:
    """One row of the tables."""

    name: str
    engine: EngineKind
    settings: SchedulerSettings


def default(limits: Limits, slo_s: float | None = None) -> System:
    """A worker's defaults, with an SLO."""
    return System("penstock default", "packed", replace(limits.worker, slo_s=slo_s or limits.slo_s))


def tei(limits: Limits) -> System:
    """text-embeddings-inference: first come first served up to a token budget, at once, whatever the deadlines."""
    return _system(limits, "TEI's rule", "packed", partition="fifo")


def no_batch(limits: Limits) -> System:
    """The runtime, one request at a time: the baseline of batching."""
    return _system(limits, "packed, none", "packed", partition="none", max_batch_sequences=1)


def on_padded(limits: Limits) -> list[System]:
    """The systems of the paper, all with the trigger hungry."""
    paper: dict[str, Any] = {"max_batch_sequences": PAPER_BATCH, "max_batch_tokens": 10**9}
    return [
        _system(limits, "padded, none", "padded", partition="none", max_batch_sequences=1),
        _system(limits, f"padded, naive, max {PAPER_BATCH}", "padded", partition="naive", **paper),
        _system(limits, "padded, fifo", "padded", partition="fifo"),
        _system(limits, "padded, sorted", "padded", partition="sorted"),
        _system(limits, f"padded, DP, max {PAPER_BATCH}", "padded", partition="dp", order="cost-first", **paper),
        _system(limits, "padded, DP", "padded", partition="dp", order="cost-first"),
    ]


def on_packed(limits: Limits) -> list[System]:
    """Two lazy systems, TEI's rule, and a worker's defaults."""
    lazy: dict[str, Any] = {"trigger": "lazy"}
    return [
        no_batch(limits),
        _system(limits, "packed, fifo", "packed", partition="fifo", **lazy),
        _system(limits, "packed, DP", "packed", partition="dp", order="cost-first", **lazy),
        tei(limits),
        default(limits),
    ]


def on_padding(limits: Limits) -> list[System]:
    """The last two of the paper's four systems, on a runtime as fast as ours."""
    paper: dict[str, Any] = {"max_batch_sequences": PAPER_BATCH, "max_batch_tokens": 10**9}
    return [
        _system(limits, f"padding, naive, max {PAPER_BATCH}", "padding", partition="naive", **paper),
        _system(limits, f"padding, DP, max {PAPER_BATCH}", "padding", partition="dp", order="cost-first", **paper),
    ]


def all_systems(limits: Limits) -> list[System]:
    """All systems, slowest engine first."""
    return [*on_padded(limits), *on_padding(limits), *on_packed(limits)]


# The paper's systems -> the ones here, and its requests a second for each of its two workloads.
PAPER_CHAIN: Sequence[tuple[str, str]] = (
    ("PyTorch-NoBatch", "padded, none"),
    ("Turbo-NoBatch", "packed, none"),
    ("Turbo-Naive-Batch", f"padding, naive, max {PAPER_BATCH}"),
    ("Turbo-DP-Batch", f"padding, DP, max {PAPER_BATCH}"),
)
PAPER_RATES: dict[str, tuple[float, ...]] = {"2-100": (99, 237, 323, 402), "5-500": (60, 120, 98, 144)}


def _system(limits: Limits, name: str, engine: EngineKind, **changes: Any) -> System:
    """A worker's caps with the trigger hungry, order of arrival and admission `accept`, unless changed."""
    plain = {"slo_s": None, "trigger": "hungry", "order": "arrival", "admission": "accept"}
    return System(name, engine, replace(limits.worker, **{**plain, **changes}))
