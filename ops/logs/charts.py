"""The plots of the report, drawn by matplotlib. Inks are stand-ins that the page replaces by colours of its theme."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np

from penstock.ops.logs.digest import Digest
from penstock.ops.logs.series import LATENCIES, LATENCY_BOUNDS_S, MISSES, TRIGGERS, latency_percentile_s

INK, FAINT = "#010203", "#040506"  # text and axes; grid
PALETTE = ("#3b7dd8", "#e08a1e", "#2f9e6e", "#c2483d", "#8a63c9", "#7a8793", "#b3a13a")
_SPANS = 120  # at most, along the time axis
_MIN_SPAN_S = 2


class Chart(NamedTuple):
    """One plot: its title, what it shows, and the function that draws it, which returns whether there is anything."""

    title: str
    note: str
    draw: Callable[[Any, "Spans"], bool]


class Spans:
    """The digest's series in about a hundred spans."""

    def __init__(self, digest: Digest) -> None:
        self.digest = digest
        self.width_s = max(_MIN_SPAN_S, -(-digest.series.span_s // _SPANS))
        starts, self.columns = digest.series.spans(self.width_s)
        self.width_s = int(starts[1] - starts[0]) if len(starts) > 1 else self.width_s
        self.starts_s = starts.astype(float)
        self.days = starts / 86400.0  # as matplotlib counts

    def rate(self, name: str) -> Any:
        """A column by second."""
        return self.columns[name] / self.width_s


def charts() -> list[Chart]:
    """In the order of the page."""
    return [
        Chart("Throughput", "answered and rejected requests a second", _throughput),
        Chart("Latency", "online requests by latency and time: darker is more; the line is p95", _latency),
        Chart("Triggers", "batches a second by why they ran", _triggers),
        Chart("Padding", "slots that padded batches would have wasted, as a share", _padding),
        Chart("Cache", "sequences a second from the cache and from the engine", _cache),
        Chart("Lag", "how long sampled requests waited in Kafka, and the workers' backlog, at most", _lag),
        Chart("Errors", "missed deadlines, and warnings and errors in the logs, a second", _errors),
        Chart("Stages", "of sampled requests: p50, p95 and p99", _stages),
        Chart("Costs", "predicted over measured seconds of logged batches", _costs),
    ]


def _throughput(axes: Any, spans: Spans) -> bool:
    answered, rejected = spans.rate("answered"), spans.rate("refused")
    if not answered.any() and not rejected.any():
        return False
    axes.fill_between(spans.days, answered, step="post", color=PALETTE[0], alpha=0.25, linewidth=0)
    axes.step(spans.days, answered, where="post", color=PALETTE[0], label="answered")
    if rejected.any():
        axes.step(spans.days, rejected, where="post", color=PALETTE[3], label="rejected")
    return _over_time(axes, spans, "requests/s")


def _latency(axes: Any, spans: Spans) -> bool:
    table = np.array([spans.columns[name] for name in LATENCIES])
    if not table.any():
        return False
    used = np.flatnonzero(table.any(axis=1))
    low, high = max(0, used[0] - 1), min(len(LATENCIES), used[-1] + 2)
    shown = np.sqrt(table[low:high] / table.max())
    image = np.zeros((*shown.shape, 4))
    image[..., :3] = [int(PALETTE[0][place : place + 2], 16) / 255 for place in (1, 3, 5)]
    image[..., 3] = np.where(shown > 0, 0.12 + 0.88 * shown, 0)
    right = spans.days[-1] + spans.width_s / 86400
    axes.imshow(image, aspect="auto", origin="lower", extent=(spans.days[0], right, 0, high - low), interpolation="none")
    edges = [0.0, *LATENCY_BOUNDS_S][low : high + 1]
    axes.set_yticks(range(high - low + 1), [_milliseconds(edge) for edge in edges], fontsize=8)
    _draw_p95(axes, spans, table, low, high)
    return _over_time(axes, spans, "", has_zero=False)


def _draw_p95(axes: Any, spans: Spans, table: Any, low: int, high: int) -> None:
    edges = np.array([0.0, *LATENCY_BOUNDS_S[:-1]])
    p95 = np.array([latency_percentile_s(dict(zip(LATENCIES, row, strict=True)), 95) for row in table.T])
    rows = np.interp(p95, edges, np.arange(len(edges))) - low
    axes.plot(spans.days + spans.width_s / 2 / 86400, rows, color=PALETTE[1], linewidth=1.4, label="p95")
    axes.set_ylim(0, high - low)


def _triggers(axes: Any, spans: Spans) -> bool:
    names = [name for name in TRIGGERS if spans.columns[name].any()]
    if not names:
        return False
    heights = [spans.rate(name) for name in names]
    axes.stackplot(spans.days, heights, labels=names, colors=PALETTE, step="post", alpha=0.85, linewidth=0)
    return _over_time(axes, spans, "batches/s")


def _padding(axes: Any, spans: Spans) -> bool:
    slots, tokens = spans.columns["logged_slots"], spans.columns["logged_tokens"]
    if not slots.any():
        return False
    wasted = np.where(slots > 0, 100 * (1 - tokens / np.maximum(slots, 1)), np.nan)
    axes.fill_between(spans.days, np.nan_to_num(wasted), step="post", color=PALETTE[2], alpha=0.25, linewidth=0)
    axes.step(spans.days, wasted, where="post", color=PALETTE[2])
    _over_time(axes, spans, "% avoided")
    axes.set_ylim(0, 100)
    return True


def _cache(axes: Any, spans: Spans) -> bool:
    cached, computed = spans.rate("cached"), spans.rate("sequences")
    if not cached.any():
        return False
    labels, colours = ["cache", "engine"], (PALETTE[2], PALETTE[5])
    axes.stackplot(spans.days, [cached, computed], labels=labels, colors=colours, step="post", alpha=0.85, linewidth=0)
    return _over_time(axes, spans, "sequences/s")


def _lag(axes: Any, spans: Spans) -> bool:
    kafka, backlog = spans.columns["kafka_s"], spans.columns["backlog_s"]
    if not kafka.any() and not backlog.any():
        return False
    axes.step(spans.days, kafka, where="post", color=PALETTE[0], label="in Kafka")
    axes.step(spans.days, backlog, where="post", color=PALETTE[1], label="backlog")
    return _over_time(axes, spans, "s")


def _errors(axes: Any, spans: Spans) -> bool:
    names = [name for name in (*MISSES, "warnings", "errors") if spans.columns[name].any()]
    if not names:
        return False
    heights = [spans.rate(name) for name in names]
    colours = [PALETTE[3], PALETTE[1], PALETTE[6], PALETTE[4], PALETTE[5], PALETTE[0]]
    axes.stackplot(spans.days, heights, labels=names, colors=colours, step="post", alpha=0.85, linewidth=0)
    return _over_time(axes, spans, "a second")


def _stages(axes: Any, spans: Spans) -> bool:
    found = [(name, times) for name, times in spans.digest.requests.stages.items() if len(times)]
    if not found:
        return False
    for place, (_, times) in enumerate(reversed(found)):
        low, middle, high = (max(times.percentile(percent), 1e-6) * 1e3 for percent in (50, 95, 99))
        axes.plot([low, high], [place, place], color=PALETTE[0], linewidth=5, alpha=0.3, solid_capstyle="butt")
        axes.plot([low, middle], [place, place], color=PALETTE[0], linewidth=5, solid_capstyle="butt")
        axes.plot([low], [place], marker="|", markersize=11, markeredgewidth=2, color=INK)
    axes.set_yticks(range(len(found)), [name for name, _ in reversed(found)])
    axes.set_xscale("log")
    axes.set_xlabel("ms: the mark is p50, the dark bar ends at p95, the light one at p99", fontsize=8)
    axes.grid(axis="x", color=FAINT, linewidth=0.6)
    return True


def _costs(axes: Any, spans: Spans) -> bool:
    ratios = spans.digest.batches.all.ratios
    if not len(ratios):
        return False
    edges = np.geomspace(0.25, 4.0, 49)
    counts = ratios.between(edges)
    axes.bar(edges[:-1], counts, width=np.diff(edges), align="edge", color=PALETTE[0], alpha=0.85, linewidth=0)
    axes.axvline(1.0, color=INK, linewidth=1)
    axes.set_xscale("log")
    axes.set_xticks([0.25, 0.5, 1, 2, 4], ["¼", "½", "1", "2", "4"])
    axes.set_xlabel("predicted / measured", fontsize=8)
    axes.set_ylabel("batches", fontsize=8)
    axes.grid(axis="y", color=FAINT, linewidth=0.6)
    return True


def _over_time(axes: Any, spans: Spans, unit: str, *, has_zero: bool = True) -> bool:
    """Axes that all plots over time have. Returns true."""
    step = spans.width_s / 86400
    axes.set_xlim(spans.days[0], spans.days[-1] + step)
    if has_zero:
        axes.set_ylim(bottom=0)
    places = np.linspace(spans.starts_s[0], spans.starts_s[-1] + spans.width_s, 5)
    form = "%H:%M:%S" if places[-1] - places[0] < 1800 else "%H:%M" if places[-1] - places[0] < 2 * 86400 else "%d %b"
    axes.set_xticks(places / 86400, [datetime.fromtimestamp(place, UTC).strftime(form) for place in places])
    axes.set_ylabel(unit, fontsize=8)
    axes.grid(axis="y", color=FAINT, linewidth=0.6)
    labels = axes.get_legend_handles_labels()[1]
    if len(labels) > 1 or labels == ["p95"]:
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=6, frameon=False, fontsize=8, borderaxespad=0.2)
    return True


def _milliseconds(seconds: float) -> str:
    return "30+ s" if np.isinf(seconds) else f"{seconds:g} s" if seconds >= 1 else f"{seconds * 1e3:g} ms"
