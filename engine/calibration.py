"""Timing of an engine for the scheduler's cost model; it also warms the engine up.

A batch's time depends on its tokens, its longest sequence and the spread of the lengths. The plan is a grid of total
tokens by longest sequence: random lengths, equal lengths in full batches, and single sequences; for an engine that
pads, a grid of sequences by longest. A few random batches are timed to check the fit, not to fit.

Batches are timed one at a time. Concurrent lanes compete for caches and memory, so batches take somewhat longer there:
a common factor, which the scheduler's online correction learns.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from penstock.engine.device_share import DeviceShare
from penstock.engine.types import BatchOutput, Engine, ModelInfo, PackedBatch, PreparedEngine, TaskOptions

Lengths = tuple[int, ...]  # tokens of each sequence of a batch

_SHORTEST = 8  # the first level of lengths and of tokens
_NUM_LENGTHS, _NUM_SIZES = 5, 7  # levels of the longest sequence, and of tokens or sequences
_NUM_CHECKS = 10
_MAX_ROUNDS = 5
_PREPARING, _WARMING = 0.3, 0.7  # most of the budget for `PreparedEngine.prepare`
_QUARTILE = 0.25


@dataclass(frozen=True, slots=True)
class Timing:
    """One measured batch."""

    lengths: Lengths
    seconds: float  # lower quartile of its runs


@dataclass(frozen=True, slots=True)
class Calibration:
    """Timings of an engine."""

    timings: tuple[Timing, ...]  # of the plan, smallest first; at least one
    checks: tuple[Timing, ...]  # of random batches within the same bounds, to check the fit; may be empty


def measure(engine: Engine, *, max_sequences: int, max_tokens: int, budget_s: float = 10.0) -> Calibration:
    """Time the engine on about forty batches up to the caps, smallest first, within the budget. At least one is timed.

    Blocks. Called before lanes start. `max_sequences` and `max_tokens` are the scheduler's caps of a batch; a single
    sequence may have more tokens, up to the model's.

    A `PreparedEngine` is prepared first. Then every shape runs untimed, twice on a GPU, where the first two runs
    compile, load or capture. The rest of the budget is for rounds over all shapes, and at last over the smaller ones:
    an interruption then affects few runs of many shapes, not all runs of one. Interruptions only add time, so a shape's
    time is the lower quartile of its runs.
    """
    started = time.perf_counter()
    caps = {"max_sequences": max_sequences, "max_tokens": max_tokens}
    _prepare(engine, DeviceShare(), budget_s=budget_s * _PREPARING, **caps)
    plan = timing_plan(engine.info, max_sequences, max_tokens)
    checks = _random_batches(engine.info, max_sequences, max_tokens)
    chosen = sorted(dict.fromkeys(plan + checks), key=lambda lengths: _size(engine.info, lengths))
    batches = _run_once(engine, chosen, budget_s - (time.perf_counter() - started), rounds=1)
    runs: list[list[float]] = [[] for _ in batches]
    for _ in range(_MAX_ROUNDS):
        for batch, seconds in zip(batches.values(), runs, strict=True):
            if seconds and time.perf_counter() - started + seconds[-1] > budget_s:
                break  # smaller shapes may still fit
            seconds.append(engine.run(batch).device_s)
    timings = [
        Timing(lengths, float(np.quantile(seconds, _QUARTILE))) for lengths, seconds in zip(batches, runs, strict=True)
    ]
    planned = set(plan)
    return Calibration(
        tuple(timing for timing in timings if timing.lengths in planned),
        tuple(timing for timing in timings if timing.lengths not in planned),
    )


def warm_up(
    engine: Engine, *, max_sequences: int, max_tokens: int, budget_s: float = 4.0, device_share: float = 1.0
) -> None:
    """Prepare and run an engine as `measure` does, without timing it. Blocks.

    `device_share`: part of the time in which batches may run and kernels be loaded. The engine rests in between for the
    others that use its device, which does not count against the budget.
    """
    started = time.perf_counter()
    share = DeviceShare(device_share)
    _prepare(engine, share, max_sequences=max_sequences, max_tokens=max_tokens, budget_s=budget_s * _WARMING)
    plan = sorted(timing_plan(engine.info, max_sequences, max_tokens), key=lambda lengths: _size(engine.info, lengths))
    left_s = budget_s - (time.perf_counter() - started - share.rested_s)
    _run_once(_RestingEngine(engine, share), plan, left_s / device_share, rounds=0)


def _prepare(engine: Engine, share: DeviceShare, *, max_sequences: int, max_tokens: int, budget_s: float) -> None:
    if isinstance(engine, PreparedEngine):
        engine.prepare(share, max_sequences=max_sequences, max_tokens=max_tokens, budget_s=budget_s)


class _RestingEngine:
    """An `Engine` that rests after each batch."""

    def __init__(self, engine: Engine, share: DeviceShare) -> None:
        self.info = engine.info
        self._engine = engine
        self._share = share

    def run(self, batch: PackedBatch) -> BatchOutput:
        with self._share.used():
            return self._engine.run(batch)


def timing_plan(info: ModelInfo, max_sequences: int, max_tokens: int) -> tuple[Lengths, ...]:
    """The batches to fit on, each once: see the module's docstring. Deterministic."""
    rng = np.random.default_rng(0)
    shortest = min(_SHORTEST, info.max_tokens)
    counts = _levels(2, max(2, min(max_sequences, max_tokens // shortest)), _NUM_SIZES - 1)
    sizes = _levels(_SHORTEST, max_tokens, _NUM_SIZES)
    plan: dict[Lengths, None] = {}
    for longest in _levels(shortest, info.max_tokens, _NUM_LENGTHS):
        plan[(longest,)] = None
        most = min(max_sequences, max_tokens // longest)  # sequences of this length in a full batch
        if most < 2:
            continue
        if info.padded:
            mixed = [_mixed(rng, longest, count=count) for count in counts if count <= most]
        else:
            room = max_sequences * longest // 2  # at half the longest on average
            mixed = [
                _mixed(rng, longest, tokens=tokens)[:max_sequences] for tokens in sizes if longest < tokens <= room
            ]
        plan.update(dict.fromkeys(mixed))
        plan[(longest,) * most] = None
    return tuple(plan)


def _run_once(engine: Engine, plan: Sequence[Lengths], budget_s: float, *, rounds: int) -> dict[Lengths, PackedBatch]:
    """Run batches in turn until the next would exceed the budget, by the pace of the last. Returns those that ran.

    The budget includes the time of `rounds` more over all of them, without compilation.
    """
    started = time.perf_counter()
    ready: dict[Lengths, PackedBatch] = {}
    pace_s = round_s = 0.0  # of a token, and of one batch of each shape that ran
    for lengths in plan:
        size = _size(engine.info, lengths)
        next_s = pace_s * size
        if ready and time.perf_counter() - started + next_s + rounds * (round_s + next_s) > budget_s:
            break
        batch = _batch(engine, lengths)
        if not ready or engine.info.device != "cpu":
            engine.run(batch)
        run_started = time.perf_counter()
        engine.run(batch)
        run_s = time.perf_counter() - run_started
        pace_s, round_s = run_s / size, round_s + run_s
        ready[lengths] = batch
    return ready


def _random_batches(info: ModelInfo, max_sequences: int, max_tokens: int) -> tuple[Lengths, ...]:
    """Batches of any size and shape within the caps, small ones as often as large ones."""
    rng = np.random.default_rng(1)
    batches = []
    for _ in range(_NUM_CHECKS):
        longest = _log_uniform(rng, min(_SHORTEST, info.max_tokens), min(info.max_tokens, max_tokens))
        most = min(max_sequences, max_tokens // longest)
        if info.padded:
            batches.append(_mixed(rng, longest, count=_log_uniform(rng, 1, most)))
        else:
            batches.append(_mixed(rng, longest, tokens=_log_uniform(rng, longest, most * longest))[:max_sequences])
    return tuple(batches)


def _mixed(rng: np.random.Generator, longest: int, *, tokens: int = 0, count: int = 0) -> Lengths:
    """Uniformly random lengths, one of them `longest`: `count` sequences, or as many as have `tokens` together."""
    draws = rng.integers(1, longest, count - 1 if count else tokens, endpoint=True)
    if not count:
        draws = draws[: np.searchsorted(np.cumsum(draws), tokens - longest)]
        rest = tokens - longest - int(draws.sum())
        draws = np.append(draws, rest) if rest else draws
    return (longest, *draws.tolist())


def _levels(low: int, high: int, num: int) -> list[int]:
    """At most `num` integers from `low` to `high`, evenly spaced as logarithms. Just `high` where it is below `low`."""
    if high <= low:
        return [high]
    return sorted({round(level) for level in np.geomspace(low, high, num)})


def _log_uniform(rng: np.random.Generator, low: int, high: int) -> int:
    return int(np.exp(rng.uniform(np.log(low), np.log(max(low, high)))).round())


def _size(info: ModelInfo, lengths: Lengths) -> int:
    """Tokens that the engine computes, padding included."""
    return len(lengths) * max(lengths) if info.padded else sum(lengths)


def _batch(engine: Engine, lengths: Lengths) -> PackedBatch:
    bounds = np.cumsum((0, *lengths), dtype=np.int32)
    ids = np.random.default_rng(0).integers(0, engine.info.vocab_size, bounds[-1], dtype=np.int32)
    tasks = engine.info.tasks
    wanted = TaskOptions("embed" if "embed" in tasks else min(tasks))
    return PackedBatch(ids, bounds, max(lengths), None, (wanted,) * len(lengths))
