"""The initial cost model of a worker: a table kept by an earlier run, or a few seconds of measuring."""

import math
import time
from dataclasses import astuple, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import structlog

import penstock.engine  # its functions that need torch are looked up when they are called
from penstock.cache import CostKey, CostTables
from penstock.engine import Engine, ModelInfo, measure, warm_up
from penstock.scheduler import CorruptTable, CostTable, LearnedCost, fit_cost_table
from penstock.scheduler.costs.table import Sample

BUDGET_S = 9.0  # with the fit and the checks, ten seconds
_MIN_BATCH_S = 1e-9  # the null engine reports 0
_MAX_RATIO = 20.0  # largest factor between a prediction and the timing that it was fitted to

_CUPY_PACKAGES = ("cupy-cuda12x", "cupy-cuda13x", "cupy")  # one of them compiles the kernels

log = structlog.get_logger("penstock.costs")


@dataclass(frozen=True, slots=True)
class MeasuredCosts:
    """A fitted cost table, and timings of other batches as a check of the fit."""

    table: CostTable
    checks: tuple[Sample, ...]  # empty if the time budget was spent
    measured_at: float  # Unix time in seconds
    took_s: float
    max_sequences: int  # batch caps of the measurement, whether or not its budget sufficed to reach them
    max_tokens: int

    def too_small_for(self, *, max_sequences: int, max_tokens: int) -> str:
        """Reason why the table does not cover batches up to these caps, for a log; empty if it does.

        It covers batches of up to twice its caps: beyond them the learned correction of the costs takes over.
        """
        if max_sequences <= 2 * self.max_sequences and max_tokens <= 2 * self.max_tokens:
            return ""
        return f"there is one for batches of {self.max_sequences:,} sequences and {self.max_tokens:,} tokens at most"

    def errors(self) -> tuple[float, float]:
        """(p50, p95) of |predicted / measured - 1| of the checks; NaN without checks."""
        if not self.checks:
            return float("nan"), float("nan")
        p50, p95 = np.quantile([abs(sample.error(self.table)) for sample in self.checks], (0.5, 0.95)).tolist()
        return p50, p95

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data, from which `from_dict` makes an equal object."""
        return {
            "table": self.table.to_dict(),
            "checks": [list(astuple(sample)) for sample in self.checks],
            "measured_at": self.measured_at,
            "took_s": self.took_s,
            "max_sequences": self.max_sequences,
            "max_tokens": self.max_tokens,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "MeasuredCosts":
        """Inverse of `to_dict`. Raises CorruptTable for invalid data.

        A table that contradicts its own timings is invalid: it would let admission reject every request, or none.
        """
        table = CostTable.from_dict(data.get("table"))
        _check_fit(table)
        checks = CostTable.from_dict({**table.to_dict(), "samples": data.get("checks")}).samples
        measured_at, took_s = data.get("measured_at"), data.get("took_s")
        if not isinstance(measured_at, float) or not isinstance(took_s, float) or not 0 <= measured_at < 1e11:
            raise CorruptTable(f"measured_at and took_s must be seconds. Found: {measured_at!r:.40}, {took_s!r:.40}")
        max_sequences, max_tokens = data.get("max_sequences"), data.get("max_tokens")
        if not isinstance(max_sequences, int) or not isinstance(max_tokens, int) or min(max_sequences, max_tokens) < 1:
            raise CorruptTable(f"The caps must be counts. Found: {max_sequences!r:.40}, {max_tokens!r:.40}")
        return cls(table, checks, measured_at, took_s, max_sequences, max_tokens)


async def cost_for(
    engine: Engine,
    path: Path | None,
    *,
    model: str,
    max_sequences: int,
    max_tokens: int,
    budget_s: float = BUDGET_S,
    device_share: float = 1.0,
) -> LearnedCost:
    """Load the cost table that is kept for this engine, or measure and keep one. Warms up the engine in either case.

    Called once, before the lanes start; blocks while the engine runs. `model`: a path or id. The caps are the
    scheduler's; a table of much smaller caps is replaced. `path` None: the table is not kept. A file that cannot be
    read or written causes a warning. Costs learned later are not written back, because they depend on the load.
    `device_share`: of a warm-up, see `penstock.engine.warm_up`; timings take all of the device.
    """
    caps = {"max_sequences": max_sequences, "max_tokens": max_tokens}
    if path is None:
        return LearnedCost(measure_costs(engine, **caps, budget_s=budget_s, reason="no file").table)
    tables, key = CostTables(path), cost_key(engine.info, model)
    kept = await kept_costs(tables, key)
    reason = await why_none(tables, key) if kept is None else kept.too_small_for(**caps)
    if kept is None or reason:
        costs = measure_costs(engine, **caps, budget_s=budget_s, reason=reason)
        await tables.put(key, costs.to_dict())
        await tables.add_served_name(key.revision, engine.info.name)
        return LearnedCost(costs.table)
    await tables.add_served_name(key.revision, engine.info.name)
    started = time.monotonic()
    warm_up(engine, **caps, device_share=device_share)
    log.info("cost_table_loaded", path=str(path), **_figures(kept), warm_up_s=round(time.monotonic() - started, 3))
    return LearnedCost(kept.table)


def measure_costs(
    engine: Engine, *, max_sequences: int, max_tokens: int, reason: str, budget_s: float = BUDGET_S
) -> MeasuredCosts:
    """Time the engine and fit a table. Blocks for about `budget_s`. `reason` is logged.

    Raises ValueError if no timing is valid.
    """
    started = time.monotonic()
    measured = measure(engine, max_sequences=max_sequences, max_tokens=max_tokens, budget_s=budget_s)
    timings = [(timing.lengths, max(timing.seconds, _MIN_BATCH_S)) for timing in measured.timings]
    table = fit_cost_table(timings, padded=engine.info.padded)
    checks = tuple(
        Sample.of(timing.lengths, timing.seconds) for timing in measured.checks if 0 < timing.seconds < math.inf
    )
    costs = MeasuredCosts(table, checks, time.time(), time.monotonic() - started, max_sequences, max_tokens)
    log.info("cost_table_measured", reason=reason, **_figures(costs), seconds=round(costs.took_s, 3))
    return costs


async def kept_costs(tables: CostTables, key: CostKey) -> MeasuredCosts | None:
    """The table under the key; None if there is none, or, with a warning, if it is invalid."""
    data = await tables.get(key)
    if data is None:
        return None
    try:
        return MeasuredCosts.from_dict(data)
    except CorruptTable as error:
        log.warning("cost_table_corrupt", reason=str(error))
        return None


async def why_none(tables: CostTables, key: CostKey) -> str:
    """Reason why there is no table under the key, for a message or a log."""
    nearest = await tables.nearest(key)
    if nearest is None:
        return "no table of this model"
    differences = key.differences(nearest)
    if not differences:
        return "the table cannot be used"
    return "; ".join(f"there is one for {field} {value}" for field, value in differences.items())


def cost_key(info: ModelInfo, model: str) -> CostKey:
    """Everything that batch times of this engine depend on. `model`: a path or id, not the served name."""
    packages = ["penstock", "torch", *(["transformers"] if info.padded else [])]
    if info.device != "cpu" and not info.padded:
        packages += filter(_is_installed, _CUPY_PACKAGES)
    return CostKey(
        device=penstock.engine.processor_name() if info.device == "cpu" else info.device,
        model=penstock.engine.default_name(model),
        revision=info.revision,
        dtype=info.dtype,
        runtime=", ".join([*(f"{name} {version(name)}" for name in packages), "padded" if info.padded else "packed"]),
    )


def _is_installed(package: str) -> bool:
    try:
        return bool(version(package))
    except PackageNotFoundError:
        return False


def _check_fit(table: CostTable) -> None:
    """Raises CorruptTable if the table has no timings or contradicts them."""
    if not table.samples:
        raise CorruptTable("The table has no timings.")
    for sample in table.samples:
        predicted_s = sample.predicted_by(table)
        if not 1 / _MAX_RATIO <= predicted_s / sample.seconds <= _MAX_RATIO:
            raise CorruptTable(f"The table predicts {predicted_s:g} s for a batch that took {sample.seconds:g} s.")


def _figures(costs: MeasuredCosts) -> dict[str, float]:
    """A table's figures, for a log event."""
    base = costs.table.base
    figures = {
        "timings": len(costs.table.samples),
        "floor_ms": round(base.floor_s * 1e3, 3),
        "us_per_token": round(base.beta_s * 1e6, 3),
    }
    if costs.checks:
        figures["error_p50"], figures["error_p95"] = (round(error, 4) for error in costs.errors())
    return figures
