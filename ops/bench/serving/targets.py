"""What was asked for, beside what a result file says."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from penstock.ops.bench.common.claims import Claim, Criterion
from penstock.ops.bench.serving.systems import PAPER_BATCH, PAPER_RATES
from penstock.ops.bench.serving.tables import mean_of_real

Record = Mapping[str, Any]

_DEFAULT, _TEI, _NONE = "penstock default", "TEI's rule", "packed, none"
_PADDED_DP, _PADDED_NAIVE = f"padded, DP, max {PAPER_BATCH}", f"padded, naive, max {PAPER_BATCH}"
_GPU_GAIN = {"2-100": 12.0, "5-500": 4.0}  # over no batch
_PADDING_DP = f"padding, DP, max {PAPER_BATCH}"
_BETTER = math.nextafter(1.0, 2.0)  # as much is not better
_CHANCE = 0.01  # two runs of one system differ by as much


def claims(record: Record) -> list[Claim]:
    """Every figure of the issue that the record has a measurement of. On a CPU the gains over
    no batch and over padding are reported, not promised."""
    parts = record["parts"]
    return [
        *(claim for workload in parts.get("saturation", ()) for claim in _gains(workload, record["is_gpu"])),
        *_goodput(parts.get("goodput")),
        *_bursts(parts.get("bursts")),
        *_classes(parts.get("classes")),
        *_costs(record),
        *_scheduler(parts.get("scheduler")),
        *_validation(parts.get("validation")),
    ]


def _gains(workload: Record, is_gpu: bool) -> Iterator[Claim]:
    rates = {row["system"]: row["saturation_per_s"] for row in workload["rows"]}
    lengths = workload["lengths"]
    paper = PAPER_RATES.get(lengths)
    of_batches = _GPU_GAIN.get(lengths) if is_gpu else None
    yield _gain(lengths, rates, _DEFAULT, _NONE, of_batches, "" if is_gpu else _reason(workload["us_a_token"]))
    for padded_dp in (_PADDING_DP, _PADDED_DP):  # the same runtime, like for like; and transformers'
        yield _gain(lengths, rates, _DEFAULT, padded_dp, 1.25 if is_gpu else None)
    note = f"; the paper: {paper[3] / paper[2]:.2f}" if paper else ""
    yield _gain(lengths, rates, _PADDED_DP, _PADDED_NAIVE, 1.2, note)
    yield _never_below(workload)


def _reason(us_a_token: Record) -> str:
    """Why batches gain no more: what is left to gain is what a token costs more alone."""
    packed = us_a_token["packed"]
    return f"; a token costs {packed['alone']:.1f} µs of a lane alone, {packed['full']:.1f} in a full batch"


def _never_below(workload: Record) -> Claim:
    """The DP beside one padded batch, where it stands worst of all rates."""
    curves = {row["system"]: row["curve"] for row in workload["rows"]}
    pairs = list(zip(curves[_PADDED_DP], curves[_PADDED_NAIVE], strict=True))
    (offered, ours), (_, theirs) = min(pairs, key=lambda pair: _times(pair[0][1], pair[1][1]))
    ratio = _times(ours, theirs)
    criterion = Criterion(f"times the answers ({_CHANCE:.0%} is chance)", ratio, 1 - _CHANCE, 1.0)
    work = f"the worst of {len(pairs)} rates, simulated, {workload['lengths']} tokens: {offered:,.0f} req/s"
    answers = f"{_PADDED_DP} {ours:,.0f} req/s", f"{_PADDED_NAIVE} {theirs:,.0f} req/s"
    return Claim(work, *answers, ratio, "", None, criterion)


def _gain(
    lengths: str, rates: Mapping[str, float], ours: str, theirs: str, must: float | None, note: str = ""
) -> Claim:
    ratio = rates[ours] / rates[theirs]
    criterion = None if must is None else Criterion("times as many requests", ratio, must, must)
    return Claim(
        f"saturation, {lengths} tokens",
        f"{ours} {rates[ours]:,.0f} req/s",
        f"{theirs} {rates[theirs]:,.0f} req/s{note}",
        ratio,
        "",
        None,
        criterion,
    )


def _goodput(part: Record | None) -> Iterator[Claim]:
    if part is None:
        return
    slo_s = sorted({row["slo_s"] for row in part["rows"]})[1]  # the objective itself; beside it its half and double
    at = {(row["system"], row["slo_s"], row["load"]): row for row in part["rows"]}
    loads = sorted({row["load"] for row in part["rows"]})
    work = f"goodput, {part['lengths']} tokens, SLO {slo_s * 1e3:.0f} ms"
    in_time = at[_DEFAULT, slo_s, 0.9]["in_time_of_accepted"]
    share = "share of the accepted in time"
    yield _plain(f"{work}, 0.9 of saturation", f"{in_time:.2%}", Criterion(share, in_time, 0.999, 0.999))
    peak = max(at[_DEFAULT, slo_s, load]["goodput_per_s"] for load in loads)
    kept = at[_DEFAULT, slo_s, 2.0]["goodput_per_s"] / peak
    yield _plain(f"{work}, 2 x saturation", f"{kept:.1%}", Criterion("share of its peak", kept, 0.9, 0.9))
    pairs = [(row, at[_TEI, row["slo_s"], row["load"]]) for row in part["rows"] if row["system"] == _DEFAULT]
    yield _against_tei(pairs)


def _bursts(part: Record | None) -> Iterator[Claim]:
    if part is None:
        return
    for load in sorted({row["load"] for row in part["rows"]}):
        pair = {row["system"]: row for row in part["rows"] if row["load"] == load}
        work = f"bursts of 5 x the mean, {load:g} of saturation"
        ours, theirs = pair[_DEFAULT]["goodput_per_s"], pair[_TEI]["goodput_per_s"]
        yield _ratio(work, ours, theirs, Criterion("times TEI's goodput, above 1", _times(ours, theirs), _BETTER, 1.05))


def _against_tei(pairs: list[tuple[Record, Record]]) -> Claim:
    """Where we stand worst, of all loads and objectives."""
    ours, theirs = min(pairs, key=lambda pair: _times(pair[0]["goodput_per_s"], pair[1]["goodput_per_s"]))
    ratio = _times(ours["goodput_per_s"], theirs["goodput_per_s"])
    criterion = Criterion(f"times TEI's goodput ({_CHANCE:.0%} is chance)", ratio, 1 - _CHANCE, 1.0)
    where = f"goodput, the worst of all: {ours['load']:g} of saturation, SLO {ours['slo_s'] * 1e3:.0f} ms"
    return _ratio(where, ours["goodput_per_s"], theirs["goodput_per_s"], criterion)


def _classes(part: Record | None) -> Iterator[Claim]:
    if part is None:
        return
    without, with_bulk = (1e3 * _finite(row["latency_s"]["p99"]) for row in part["rows"])
    allowed = max(2.0, 0.1 * without)
    yield Claim(
        "online p99 beside saturating bulk",
        f"{with_bulk:.1f} ms, and {part['rows'][1]['bulk_per_s']:,.0f} bulk req/s",
        f"without bulk {without:.1f} ms",
        without / with_bulk,
        "",
        None,
        Criterion("ms more (10 % or 2 ms)", with_bulk - without, allowed, 0.0, higher_is_better=False),
    )


def _costs(record: Record) -> Iterator[Claim]:
    limit = 0.1 if record["is_gpu"] else 0.2
    for kind, engine in record["engines"].items():
        p50, p95 = engine["run_errors"]
        if p95 is not None:  # some batch was run
            criterion = Criterion("p95 of |predicted / measured - 1|", p95, limit, limit, higher_is_better=False)
            work = f"cost model, {kind}, {engine['batches_run']:,} batches of real runs"
            yield _plain(work, f"{p95:.1%}, median {p50:.1%}", criterion)
        seconds = engine["calibration_s"]
        within = Criterion("seconds", seconds, 10.0, 10.0, higher_is_better=False)
        yield _plain(f"calibration, {kind}", f"{seconds:.1f} s", within)


def _scheduler(part: Record | None) -> Iterator[Claim]:
    if part is None:
        return
    us, mixed_us = part["us"][_DEFAULT], part["us_three_slos"][_DEFAULT]
    work = f"scheduler with {part['queued']:,} queued"
    criterion = Criterion("µs a request", us, 5.0, 5.0, higher_is_better=False)
    yield _plain(f"{work}, one SLO", f"{us:.1f} µs a request", criterion)
    yield _plain(f"{work}, three SLOs in turn", f"{mixed_us:.1f} µs a request", None)
    kind, dp_ms = max(part["dp_ms"].items(), key=lambda item: float(item[1]))
    within = Criterion("ms", dp_ms, 1.0, 1.0, higher_is_better=False)
    size = f"{part['dp_queued']:,} queued, batches of at most {part['dp_max_batch']}"
    yield _plain(f"the DP, {size}, {kind} cost", f"{dp_ms:.2f} ms", within)


def _validation(part: Record | None) -> Iterator[Claim]:
    if part is None:
        return
    for key, what in (("answered_per_s", "throughput"), ("p99_s", "p99 of what is answered")):
        rows = part["rows"]
        off = max(abs(_finite(row["simulated"][key]) / _finite(mean_of_real(row, key)) - 1) for row in rows)
        apart = max(abs(_finite(row["again"][key]) / _finite(row["real"][key]) - 1) for row in rows)
        criterion = Criterion("off by", off, 0.1, 0.05, higher_is_better=False)
        work = f"simulator beside the mean of two real runs, {what}"
        yield Claim(work, f"{off:.1%} off at most", f"the two are {apart:.1%} apart at most", None, "", None, criterion)


def _plain(work: str, ours: str, criterion: Criterion | None) -> Claim:
    return Claim(work, ours, "", None, "", None, criterion)


def _ratio(work: str, ours: float, theirs: float, criterion: Criterion) -> Claim:
    return Claim(
        work, f"{ours:,.0f} req/s", f"TEI's rule {theirs:,.0f} req/s", _times(ours, theirs), "", None, criterion
    )


def _times(ours: float, theirs: float) -> float:
    """Nothing is as much as nothing."""
    if theirs > 0:
        return ours / theirs
    return math.inf if ours > 0 else 1.0


def _finite(value: float | None) -> float:
    """JSON's null stands for infinite."""
    return math.inf if value is None else value
