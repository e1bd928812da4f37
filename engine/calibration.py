"""Timings of the real engine, from which a scheduler's cost model is fitted; on the way everything is warmed up.

A batch's time depends on its tokens, on its longest sequence and on how even the lengths are. So the plan is a grid of
total tokens by longest sequence, each with random lengths, with equal lengths where a batch is full, and with single
sequences; for an engine that pads, a grid of sequences by longest. Beside the plan, a few random batches are timed on
which nobody fits anything: they tell how good the fit is.

Batches are timed one at a time. On an engine with several lanes they will compete for caches and memory, and each will
take somewhat longer than measured here: that is a common factor, and the scheduler's online correction finds it.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from penstock.engine.types import Engine, ModelInfo, PackedBatch, PreparedEngine, TaskOptions

Lengths = tuple[int, ...]  # tokens of each sequence of a batch

_SHORTEST = 8  # the first level of lengths and of tokens
_NUM_LENGTHS, _NUM_SIZES = 5, 7  # levels of the longest sequence, and of tokens or sequences
_NUM_CHECKS = 10
_MAX_ROUNDS = 5
_PREPARING, _WARMING = 0.3, 0.7  # of the budget, at most, for what engines prepare
_QUARTILE = 0.25


@dataclass(frozen=True, slots=True)
class Timing:
    """One measured batch."""

    lengths: Lengths
    seconds: float  # lower quartile of its runs


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was measured of an engine."""

    timings: tuple[Timing, ...]  # of the plan, smallest first: to fit. At least one
    checks: tuple[Timing, ...]  # of random batches within the same bounds: to judge the fit by. May be empty


def measure(engine: Engine, *, max_sequences: int, max_tokens: int, budget_s: float = 10.0) -> Calibration:
    """Time the engine on about forty batches up to the caps, smallest first, within the budget. At least one is timed.

    Blocks. Run it in a lane's stead, before the lanes start. `max_sequences` and `max_tokens` bound a batch, as the
    scheduler's caps do; a single sequence may have more tokens, up to the model's.

    An engine that can be prepared is, first, for three tenths of the budget at most. Then every shape is run uncounted,
    twice on a GPU, where the first two compile, load or capture. What is left of the budget goes to rounds over all of
    them, and at last over the smaller ones: whatever else holds up the processor for a moment then falls on a few runs
    of many shapes, not on all runs of one. It can only add time, so the lower quartile of a shape's runs is its time.
    """
    started = time.perf_counter()
    caps = {"max_sequences": max_sequences, "max_tokens": max_tokens}
    _prepare(engine, budget_s=budget_s * _PREPARING, **caps)
    plan = timing_plan(engine.info, max_sequences, max_tokens)
    checks = _random_batches(engine.info, max_sequences, max_tokens)
    chosen = sorted(dict.fromkeys(plan + checks), key=lambda lengths: _size(engine.info, lengths))
    batches = _run_once(engine, chosen, budget_s - (time.perf_counter() - started), rounds=1)
    runs: list[list[float]] = [[] for _ in batches]
    for _ in range(_MAX_ROUNDS):
        for batch, seconds in zip(batches.values(), runs, strict=True):
            if seconds and time.perf_counter() - started + seconds[-1] > budget_s:
                break  # what is smaller may still fit once more
            seconds.append(engine.run(batch).device_s)
    timings = [
        Timing(lengths, float(np.quantile(seconds, _QUARTILE))) for lengths, seconds in zip(batches, runs, strict=True)
    ]
    planned = set(plan)
    return Calibration(
        tuple(timing for timing in timings if timing.lengths in planned),
        tuple(timing for timing in timings if timing.lengths not in planned),
    )


def warm_up(engine: Engine, *, max_sequences: int, max_tokens: int, budget_s: float = 4.0) -> None:
    """What `measure` does on the way, for an engine whose times are known: shapes met, kernels compiled. Blocks."""
    started = time.perf_counter()
    _prepare(engine, max_sequences=max_sequences, max_tokens=max_tokens, budget_s=budget_s * _WARMING)
    plan = sorted(timing_plan(engine.info, max_sequences, max_tokens), key=lambda lengths: _size(engine.info, lengths))
    _run_once(engine, plan, budget_s - (time.perf_counter() - started), rounds=0)


def _prepare(engine: Engine, *, max_sequences: int, max_tokens: int, budget_s: float) -> None:
    if isinstance(engine, PreparedEngine):
        engine.prepare(max_sequences=max_sequences, max_tokens=max_tokens, budget_s=budget_s)


def timing_plan(info: ModelInfo, max_sequences: int, max_tokens: int) -> tuple[Lengths, ...]:
    """The batches to fit on, each once: see this module's docstring. Deterministic."""
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
            mixed = [_mixed(rng, longest, tokens=tokens) for tokens in sizes if longest < tokens <= room]
        plan.update(dict.fromkeys(mixed))
        plan[(longest,) * most] = None
    return tuple(plan)


def _run_once(engine: Engine, plan: Sequence[Lengths], budget_s: float, *, rounds: int) -> dict[Lengths, PackedBatch]:
    """Run batches in turn until the next would exceed the budget, by the pace of the last. Returns those that ran.

    What `rounds` more over all of them will take stays free: much less than this, where a first run also compiles.
    """
    started = time.perf_counter()
    ready: dict[Lengths, PackedBatch] = {}
    pace_s = round_s = 0.0  # a token, and a batch of each shape that ran
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
    """Uniformly random lengths, one of which is `longest`: `count` sequences, or as many as make up `tokens`."""
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
    """Tokens that the engine works on, padding included."""
    return len(lengths) * max(lengths) if info.padded else sum(lengths)


def _batch(engine: Engine, lengths: Lengths) -> PackedBatch:
    cu_seqlens = np.cumsum((0, *lengths), dtype=np.int32)
    return PackedBatch(
        token_ids=np.random.default_rng(0).integers(0, engine.info.vocab_size, cu_seqlens[-1], dtype=np.int32),
        cu_seqlens=cu_seqlens,
        max_seqlen=max(lengths),
        token_type_ids=None,
        options=(TaskOptions("embed"),) * len(lengths),
    )
