"""The figures of logs, by name: the summary shows them, and `diff` compares them."""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

from penstock.ops.logs.lines.event import duration
from penstock.ops.logs.totals.digest import Digest
from penstock.ops.logs.totals.series import LATE, TRIGGERS, latency_percentile_s

PERCENTS = (50, 95, 99)


class Fact(NamedTuple):
    """One figure."""

    section: str
    name: str
    value: float  # NaN: the logs do not tell
    show: Callable[[float], str]
    better: int = 0  # 1: more is better; -1: less is better

    @property
    def text(self) -> str:
        return "-" if math.isnan(self.value) else self.show(self.value)


def integer(value: float) -> str:
    return f"{value:,.0f}"


def rate(value: float) -> str:
    return f"{value:,.0f}/s" if value >= 10 else f"{value:.2g}/s"


def share(value: float) -> str:
    return f"{value * 100:.1f} %"


def short(value: float) -> str:
    """Three digits."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def facts(digest: Digest) -> Iterator[Fact]:
    """All of them, by section."""
    yield from _requests(digest)
    yield from _stages(digest)
    yield from _batches(digest)
    yield from _costs(digest)
    yield from _workers(digest)


def _requests(digest: Digest) -> Iterator[Fact]:
    totals, span_s = digest.series.totals(), digest.series.span_s
    answered = totals["answered"]
    yield Fact("requests", "answered", answered, integer, 1)
    yield Fact("requests", "answered a second", answered / span_s if span_s else math.nan, rate, 1)
    yield Fact("requests", "in the best 10 s", best_rate(digest), rate, 1)
    for percent in PERCENTS:
        yield Fact("requests", f"latency p{percent}", latency_percentile_s(totals, percent), duration, -1)
    for code, rejected in sorted(digest.rejections.by_code.items()):
        yield Fact("requests", f"rejected: {code}", rejected.count, integer, -1)
    for cause in LATE[1:]:  # the first are rejected, as overloaded
        yield Fact("requests", f"deadline: {cause}", totals[cause], integer, -1)
    sequences = totals["sequences"] + totals["cached"]
    yield Fact("requests", "from the cache", totals["cached"] / sequences if sequences else math.nan, share, 1)
    yield Fact("requests", "greatest backlog", totals["backlog_s"], duration, -1)


def _stages(digest: Digest) -> Iterator[Fact]:
    for name, stages in digest.requests.stages.items():
        for stage, times in stages.items():
            for percent in PERCENTS:
                yield Fact("stages", f"{name} {stage} p{percent}", times.percentile(percent), duration, -1)


def _batches(digest: Digest) -> Iterator[Fact]:
    batches, totals = digest.batches, digest.series.totals()
    yield Fact("batches", "batches", max(totals["batches"], batches.all.batches), integer)
    for percent in PERCENTS[:2]:
        yield Fact("batches", f"sequences p{percent}", batches.sequences.percentile(percent), integer)
        yield Fact("batches", f"tokens p{percent}", batches.tokens.percentile(percent), integer)
    for percent in PERCENTS:
        yield Fact("batches", f"time p{percent}", batches.seconds.percentile(percent), duration, -1)
    speed = batches.all.tokens / batches.all.device_s if batches.all.device_s else math.nan
    yield Fact("batches", "tokens a second of a lane", speed, short, 1)
    yield Fact(
        "batches", "padding avoided", batches.all.padding_avoided if batches.all.padded_tokens else math.nan, share
    )
    for trigger in TRIGGERS:
        if number := totals[trigger]:
            yield Fact("batches", f"trigger {trigger}", number / batches.all.batches, share)


def _costs(digest: Digest) -> Iterator[Fact]:
    every = digest.batches.all
    for percent in PERCENTS[:2]:
        yield Fact("costs", f"error p{percent}", every.ratios.deviation(percent), share, -1)
    yield Fact("costs", "predicted over measured", 1.0 + every.bias if every.batches else math.nan, short)


def _workers(digest: Digest) -> Iterator[Fact]:
    counts, totals = digest.lives.counts, digest.series.totals()
    yield Fact("workers", "starts", counts["start"], integer)
    yield Fact("workers", "restarts", counts["restart"], integer, -1)
    yield Fact("workers", "deaths", counts["death"], integer, -1)
    yield Fact("workers", "rebalances", counts["rebalance"], integer, -1)
    yield Fact("workers", "gaps over 30 s", digest.gaps.count, integer, -1)
    yield Fact("workers", "errors", totals["errors"], integer, -1)
    yield Fact("workers", "warnings", totals["warnings"], integer, -1)


def best_rate(digest: Digest) -> float:
    """Requests a second in the ten seconds with most answers. NaN without any."""
    if not digest.series:
        return math.nan
    _, columns = digest.series.filled_spans(10)
    width_s = max(10, digest.series.width_s)
    return float(columns["answered"].max()) / min(width_s, max(digest.series.span_s, 1))
