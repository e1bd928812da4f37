"""The plots of the report, drawn by matplotlib. Inks are stand-ins that the page replaces by colours of its theme."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle
from typing import Any, NamedTuple

import numpy as np

from penstock.ops.logs.text import moment
from penstock.ops.logs.totals.digest import Digest
from penstock.ops.logs.totals.series import LATE, LATENCIES, LATENCY_BOUNDS_S, SUMS, TRIGGERS, latency_percentile_s

INK, FAINT = "#010203", "#040506"  # text and axes; grid
PALETTE = ("#3b7dd8", "#e08a1e", "#2f9e6e", "#c2483d", "#8a63c9", "#7a8793", "#b3a13a")
_TICKS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
_MAX_TICKS = 5
_SPANS = 120  # at most, along the time axis
_MIN_SPAN_S = 2


class Spans:
    """The digest's series in about a hundred spans."""

    def __init__(self, digest: Digest) -> None:
        self.digest = digest
        self.width_s = max(_MIN_SPAN_S, -(-digest.series.span_s // _SPANS))
        starts, self.columns = digest.series.spans(self.width_s)
        self.width_s = int(starts[1] - starts[0]) if len(starts) > 1 else self.width_s
        self.starts_s = starts.astype(float)
        self.edges_s = np.append(self.starts_s, self.starts_s[-1] + self.width_s)
        tokens, padded = self.columns["logged_tokens"], self.columns["logged_padded_tokens"]
        self.columns["avoided"] = np.where(padded > 0, 100 * (1 - tokens / np.maximum(padded, 1)), np.nan)

    def heights(self, name: str) -> Any:
        """A column at the edges: sums by second, others as they are."""
        values = self.columns[name] / (self.width_s if name in SUMS else 1)
        return np.append(values, values[-1])


class Curve(NamedTuple):
    """A column over time."""

    column: str
    colour: str
    label: str
    is_filled: bool = False  # down to zero


@dataclass(frozen=True)
class OverTime:
    """Draws columns over time, those that hold anything: curves, or a stack of them."""

    unit: str
    curves: tuple[Curve, ...]
    is_stack: bool = False
    needs: str = ""  # a column without which there is nothing to draw
    top: float | None = None  # of the axis

    def __call__(self, axes: Any, spans: Spans) -> bool:
        curves = [one for one in self.curves if spans.columns[one.column].any()]
        if not curves or (self.needs and not spans.columns[self.needs].any()):
            return False
        labels, colours = [one.label for one in curves], [one.colour for one in curves]
        heights = [spans.heights(one.column) for one in curves]
        if self.is_stack:
            look = {"step": "post", "alpha": 0.85, "linewidth": 0}
            axes.stackplot(spans.edges_s, heights, labels=labels, colors=colours, **look)
        for one, values in zip(curves, heights, strict=True) if not self.is_stack else ():
            axes.step(spans.edges_s, values, where="post", color=one.colour, label=one.label, linewidth=1.3)
            if one.is_filled:
                filled = np.nan_to_num(values)
                axes.fill_between(spans.edges_s, filled, step="post", color=one.colour, alpha=0.25, linewidth=0)
        _label(axes, spans, self.unit)
        axes.set_ylim(bottom=0, top=self.top)
        return True


class Chart(NamedTuple):
    """One plot: its title, what it shows, and the function that draws it, which returns whether there is anything."""

    title: str
    note: str
    draw: Callable[[Any, Spans], bool]


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
    extent = (spans.edges_s[0], spans.edges_s[-1], 0, high - low)
    axes.imshow(image, aspect="auto", origin="lower", extent=extent, interpolation="none")
    edges = np.array([0.0, *LATENCY_BOUNDS_S])
    axes.set_yticks(range(high - low + 1), [_milliseconds(edge) for edge in edges[low : high + 1]], fontsize=8)
    p95 = np.array([latency_percentile_s(dict(zip(LATENCIES, row, strict=True)), 95) for row in table.T])
    rows = np.interp(p95, edges[:-1], np.arange(len(edges) - 1)) - low
    axes.plot(spans.starts_s + spans.width_s / 2, rows, color=PALETTE[1], linewidth=1.4, label="p95")
    axes.set_ylim(0, high - low)
    _label(axes, spans, "")
    return True


def _milliseconds(seconds: float) -> str:
    return "30+ s" if np.isinf(seconds) else f"{seconds:g} s" if seconds >= 1 else f"{seconds * 1e3:g} ms"


def _stages(axes: Any, spans: Spans) -> bool:
    classes = spans.digest.requests.stages
    found = [(f"{name} {stage}", times) for name in classes for stage, times in classes[name].items() if len(times)]
    if not found:
        return False
    for place, (_, times) in enumerate(reversed(found)):
        low, middle, high = (max(times.percentile(percent), 1e-6) * 1e3 for percent in (50, 95, 99))
        axes.plot([low, high], [place, place], color=PALETTE[0], linewidth=5, alpha=0.3, solid_capstyle="butt")
        axes.plot([low, middle], [place, place], color=PALETTE[0], linewidth=5, solid_capstyle="butt")
        axes.plot([low], [place], marker="|", markersize=11, markeredgewidth=2, color=INK)
    axes.set_yticks(range(len(found)), [name for name, _ in reversed(found)])
    axes.set_xscale("log")
    axes.set_xlabel("ms: p50 is the mark, p95 ends the dark bar, p99 the light", fontsize=8)
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
    axes.set_xticks([], minor=True)
    axes.set_xlabel("predicted / measured", fontsize=8)
    axes.set_ylabel("batches", fontsize=8)
    axes.grid(axis="y", color=FAINT, linewidth=0.6)
    return True


def _label(axes: Any, spans: Spans, unit: str) -> None:
    """The time axis, the unit of the other, and a legend where it tells more than the title."""
    first, last = spans.edges_s[0], spans.edges_s[-1]
    axes.set_xlim(first, last)
    step = next((one for one in _TICKS_S if (last - first) / one <= _MAX_TICKS), None)
    step = step or 86400 * -(-(last - first) // (86400 * _MAX_TICKS))
    places = np.arange(-(-first // step) * step, last + 1, step)
    form = "%H:%M:%S" if step < 60 else "%H:%M" if step < 86400 else "%d %b"
    axes.set_xticks(places, [moment(place).strftime(form) for place in places])
    axes.set_ylabel(unit, fontsize=8)
    axes.grid(axis="y", color=FAINT, linewidth=0.6)
    labels = axes.get_legend_handles_labels()[1]
    if len(labels) > 1 or labels == ["p95"]:
        look = {"frameon": False, "fontsize": 8, "borderaxespad": 0.2, "columnspacing": 1.0, "handlelength": 1.2}
        axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 1), ncols=min(4, len(labels)), **look)


_BLUE, _ORANGE, _GREEN, _RED, _, _GREY = PALETTE[:6]
_THROUGHPUT = Curve("answered", _BLUE, "answered", is_filled=True), Curve("refused", _RED, "rejected")
_TRIGGERS = tuple(Curve(name, colour, name) for name, colour in zip(TRIGGERS, cycle(PALETTE), strict=False))
_AVOIDED = Curve("avoided", _GREEN, "", is_filled=True)
_CACHE = Curve("cached", _GREEN, "cache"), Curve("sequences", _GREY, "engine")
_LAG = Curve("kafka_s", _BLUE, "in Kafka"), Curve("backlog_s", _ORANGE, "backlog")
_PLACES = dict(zip((*LATE, "warnings", "errors"), (3, 1, 6, 4, 2, 5, 0), strict=True))
_FAULTS = tuple(Curve(name, PALETTE[place], name) for name, place in _PLACES.items())
_PADDED = "padding that padded batches would have had, as a share of their tokens"
_WAITED = "how long sampled requests waited in Kafka, and the workers' backlog, at most"
_MISSED = "missed deadlines, and warnings and errors in the logs, a second"
_RUN = "sequences a second from the cache and from the engine"
CHARTS = (  # in the order of the page
    Chart("Throughput", "answered and rejected requests a second", OverTime("requests/s", _THROUGHPUT)),
    Chart("Latency", "online requests by latency and time: darker is more; the line is p95", _latency),
    Chart("Triggers", "batches a second by why they ran", OverTime("batches/s", _TRIGGERS, is_stack=True)),
    Chart("Padding", _PADDED, OverTime("% avoided", (_AVOIDED,), needs="logged_padded_tokens", top=100)),
    Chart("Cache", _RUN, OverTime("sequences/s", _CACHE, is_stack=True, needs="cached")),
    Chart("Lag", _WAITED, OverTime("s", _LAG)),
    Chart("Errors", _MISSED, OverTime("a second", _FAULTS, is_stack=True)),
    Chart("Stages", "of sampled requests: p50, p95 and p99", _stages),
    Chart("Costs", "predicted over measured seconds of logged batches", _costs),
)
