"""The systems that are compared, as data: which engine, and what differs from a worker's scheduler settings."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from penstock.scheduler import SchedulerSettings

EngineKind = Literal["packed", "padded"]  # penstock's runtime; transformers, padded to the longest of the batch

DEFAULT, TEI, NO_BATCH, DP = "penstock default", "TEI's rule", "packed, none", "packed, DP"

_PLAIN: Mapping[str, Any] = {"slo_s": None, "trigger": "hungry", "order": "arrival", "admission": "accept"}
_ONE: Mapping[str, Any] = {"partition": "none", "max_batch_sequences": 1}
_DP: Mapping[str, Any] = {"partition": "dp", "order": "cost-first"}
_PAPER: Mapping[str, Any] = {"max_batch_sequences": 20, "max_batch_tokens": 10**9}  # TurboTransformers section 6.3

# Each has a worker's caps and lanes, and `_PLAIN` with these changes. Slowest engine first.
SYSTEMS: Mapping[str, tuple[EngineKind, Mapping[str, Any]]] = {
    "padded, none": ("padded", _ONE),
    "padded, naive, max 20": ("padded", {"partition": "naive", **_PAPER}),
    "padded, fifo": ("padded", {"partition": "fifo"}),
    "padded, sorted": ("padded", {"partition": "sorted"}),
    "padded, DP, max 20": ("padded", {**_DP, **_PAPER}),
    "padded, DP": ("padded", _DP),
    NO_BATCH: ("packed", _ONE),
    "packed, fifo": ("packed", {"partition": "fifo", "trigger": "lazy"}),
    DP: ("packed", {**_DP, "trigger": "lazy"}),
    # text-embeddings-inference: first come first served up to a token budget, at once, whatever the deadlines.
    TEI: ("packed", {"partition": "fifo"}),
}


@dataclass(frozen=True, slots=True)
class System:
    """One row of the tables."""

    name: str
    engine: EngineKind
    settings: SchedulerSettings


def system_of(name: str, worker: SchedulerSettings, slo_s: float) -> System:
    """A system beside a worker with these settings. `DEFAULT` is the worker itself, with an objective."""
    if name == DEFAULT:
        return System(name, "packed", replace(worker, slo_s=slo_s))
    engine, changes = SYSTEMS[name]
    return System(name, engine, replace(worker, **{**_PLAIN, **changes}))
