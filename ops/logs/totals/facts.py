"""The figures of logs, by name: the summary shows them, and `diff` compares them."""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

from penstock.ops.logs.text import duration, integer, rate, share, short
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


def facts(digest: Digest) -> dict[tuple[str, str], Fact]:
    """All of them, by section and name, in the order of the sections."""
    found = (fact for of_section in (_requests, _batches, _workers) for fact in of_section(digest))
    return {(fact.section, fact.name): fact for fact in found}


def _requests(digest: Digest) -> Iterator[Fact]:
    totals, span_s = digest.series.totals(), digest.series.span_s
    answered = totals["answered"]
    yield Fact("requests", "answered", answered, integer, 1)
    yield Fact("requests", "answered a second", answered / span_s if span_s else math.nan, rate, 1)
    yield Fact("requests", "in the best 10 s", digest.series.best_rate("answered"), rate, 1)
    for percent in PERCENTS:
        yield Fact("requests", f"latency p{percent}", latency_percentile_s(totals, percent), duration, -1)
    for code, rejected in sorted(digest.rejections.by_code.items()):
        yield Fact("requests", f"rejected: {code}", rejected.count, integer, -1)
    for cause in LATE[1:]:  # the first are rejected, as overloaded
        yield Fact("requests", f"deadline: {cause}", totals[cause], integer, -1)
    sequences = totals["sequences"] + totals["cached"]
    yield Fact("requests", "from the cache", totals["cached"] / sequences if sequences else math.nan, share, 1)
    yield Fact("requests", "greatest backlog", totals["backlog_s"], duration, -1)
    for name, stages in digest.requests.stages.items():
        for stage, times in stages.items():
            for percent in PERCENTS:
                yield Fact("stages", f"{name} {stage} p{percent}", times.percentile(percent), duration, -1)


def _batches(digest: Digest) -> Iterator[Fact]:
    batches, every, totals = digest.batches, digest.batches.all, digest.series.totals()
    yield Fact("batches", "batches", max(totals["batches"], every.batches), integer)
    for percent in PERCENTS[:2]:
        for key in ("sequences", "tokens"):
            yield Fact("batches", f"{key} p{percent}", batches.histograms[key].percentile(percent), integer)
    for percent in PERCENTS:
        yield Fact("batches", f"time p{percent}", batches.histograms["device_s"].percentile(percent), duration, -1)
    speed = every.tokens / every.device_s if every.device_s else math.nan
    yield Fact("batches", "tokens a second of a lane", speed, short, 1)
    avoided = every.padding_avoided if every.padded_tokens else math.nan
    yield Fact("batches", "padding avoided", avoided, share)
    for trigger in TRIGGERS:
        if number := totals[trigger]:
            yield Fact("batches", f"trigger {trigger}", number / every.batches, share)
    for percent in PERCENTS[:2]:
        yield Fact("costs", f"error p{percent}", every.ratios.deviation(percent), share, -1)
    yield Fact("costs", "predicted over measured", 1.0 + every.bias if every.batches else math.nan, short)


def _workers(digest: Digest) -> Iterator[Fact]:
    totals = digest.series.totals()
    for name, number in digest.lives.counts.items():
        yield Fact("workers", f"{name}s", number, integer, 0 if name == "start" else -1)
    yield Fact("workers", "gaps over 30 s", digest.gaps.count, integer, -1)
    for name in ("errors", "warnings"):
        yield Fact("workers", name, totals[name], integer, -1)
