"""The report: one page without scripts that loads nothing, or one picture."""

import html
import io
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from penstock.ops.logs.errors import LogsError, NoEvents
from penstock.ops.logs.libraries import matplotlib, pyplot
from penstock.ops.logs.lines.event import clock, date_and_clock, duration, printable
from penstock.ops.logs.report.charts import FAINT, INK, Chart, Spans, charts
from penstock.ops.logs.screens.tables import count
from penstock.ops.logs.totals.digest import Digest
from penstock.ops.logs.totals.facts import facts, integer
from penstock.ops.logs.totals.lives import sentence

_STYLE = Path(__file__).with_name("report.css")
_INCHES = (4.2, 2.2)
_COLUMNS = 3  # of the picture
_FACTS = 200
_EVENTS = 60
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<header><h1>{title}</h1><p>{about}</p>{notes}</header>
<main>
<section class="figures">{figures}</section>
<section class="plots">{plots}</section>
<section class="tables">{tables}</section>
{events}
</main>
</body>
</html>
"""


def write_report(out: Path, read: Callable[[], Digest]) -> None:
    """Write the page, or with the suffix .png the plots as one picture. `read` is called after the first checks.

    Raises LogsError.
    """
    if out.suffix not in (".html", ".png"):
        raise LogsError(f"A report is a page or a picture: OUT.html or OUT.png. Given: {out}")
    if not out.absolute().parent.is_dir():
        raise LogsError(f"There is no directory {out.absolute().parent} for the report.")
    matplotlib.use("agg")  # draws without a display
    digest = read()
    if not digest.series:
        raise NoEvents("No event with a time passes, so there is nothing to plot.")
    spans = Spans(digest)
    with pyplot.rc_context(_look()):
        data = _picture(spans) if out.suffix == ".png" else _page(digest, spans).encode()
    out.write_bytes(data)


def _look() -> dict[str, Any]:
    inks = dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK)
    return {
        **inks,
        "svg.fonttype": "none",
        "svg.hashsalt": "penstock",
        "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans"],
        "font.size": 9,
        "xtick.labelsize": 8,
        "ytick.labelsize": 8,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "axes.titlelocation": "left",
        "figure.constrained_layout.use": True,
    }


def _picture(spans: Spans) -> bytes:
    """The plots in three columns, dark on white."""
    made = charts()
    rows = -(-len(made) // _COLUMNS)
    figure, cells = pyplot.subplots(rows, _COLUMNS, figsize=(_COLUMNS * 4.8, rows * 2.9), squeeze=False)
    for axes in cells.flat[len(made) :]:
        axes.remove()
    for chart, axes in zip(made, cells.flat, strict=False):
        axes.set_title(chart.title, fontweight="bold", pad=34)
        if not chart.draw(axes, spans):
            axes.set_axis_off()
            axes.text(0.5, 0.5, "nothing in these logs", ha="center", transform=axes.transAxes)
    for text in figure.findobj(lambda one: hasattr(one, "get_color") and one.get_color() == FAINT):
        text.set_color("#dddddd")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120, facecolor="white")
    pyplot.close(figure)
    return buffer.getvalue()


def _page(digest: Digest, spans: Spans) -> str:
    starts, ends = spans.starts_s[0], spans.starts_s[-1] + spans.width_s
    lines = digest.lines
    about = f"{date_and_clock(starts)} to {date_and_clock(ends)} UTC, {duration(ends - starts)}. "
    about += f"{count(len(digest.sources), 'log')}, {integer(lines.lines)} lines"
    if digest.models:
        about += f", model {', '.join(sorted(digest.models))}"
    notes = []
    if lines.broken or lines.foreign:
        notes.append(
            f"{integer(lines.broken)} broken lines and {integer(lines.foreign)} of other programs are left out."
        )
    notes += [f"{source.name}: {note}." for source in digest.sources for note in source.notes]
    return _PAGE.format(
        title="penstock logs",
        style=_STYLE.read_text(encoding="utf-8"),
        about=_safe(about),
        notes="".join(f'<p class="note">{_safe(note)}</p>' for note in notes),
        figures="".join(_tiles(digest)),
        plots="".join(_figure(chart, spans) for chart in charts()),
        tables=_fact_tables(digest),
        events=_events_table(digest),
    )


def _tiles(digest: Digest) -> Iterator[str]:
    """The figures that an operator looks at first."""
    shown = {
        ("requests", "answered"): "answered",
        ("requests", "answered a second"): "a second",
        ("requests", "latency p50"): "latency p50",
        ("requests", "latency p99"): "latency p99",
        ("requests", "from the cache"): "from the cache",
        ("batches", "padding avoided"): "padding avoided",
        ("workers", "restarts"): "restarts",
        ("workers", "errors"): "errors",
    }
    known = facts(digest)
    rejected = digest.rejections.total
    for key, label in shown.items():
        if key == ("requests", "from the cache"):
            yield _tile("rejected", integer(rejected), bad=rejected > 0)
        fact = known[key]
        yield _tile(label, fact.text, bad=key[0] == "workers" and fact.value > 0)


def _tile(label: str, text: str, *, bad: bool) -> str:
    return f'<div class="tile{" bad" if bad else ""}"><b>{_safe(text)}</b><span>{_safe(label)}</span></div>'


def _figure(chart: Chart, spans: Spans) -> str:
    figure, axes = pyplot.subplots(figsize=_INCHES)
    try:
        is_drawn = chart.draw(axes, spans)
        body = _svg(figure, chart.title) if is_drawn else '<p class="none">Nothing in these logs.</p>'
    finally:
        pyplot.close(figure)
    return f"<figure><figcaption><b>{chart.title}</b> {_safe(chart.note)}</figcaption>{body}</figure>"


def _svg(figure: Any, title: str) -> str:
    """An SVG element whose inks follow the page's theme."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :].replace(INK, "var(--ink)").replace(FAINT, "var(--faint)")
    name = re.sub(r"\W+", "-", title.lower())
    text = re.sub(r'\b(id="|url\(#|href="#)', rf"\g<1>{name}-", text)  # ids are of the whole page
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    return text.replace("<svg ", f'<svg role="img" aria-label="{title}" ', 1)


def _fact_tables(digest: Digest) -> str:
    sections: dict[str, list[str]] = {}
    for fact in list(facts(digest).values())[:_FACTS]:
        if not math.isnan(fact.value):
            sections.setdefault(fact.section, []).append(
                f"<tr><td>{_safe(fact.name)}</td><td>{_safe(fact.text)}</td></tr>"
            )
    return "".join(
        f'<div class="card"><h2>{name}</h2><table>{"".join(rows)}</table></div>' for name, rows in sections.items()
    )


def _events_table(digest: Digest) -> str:
    events = digest.lives.by_time[-_EVENTS:]
    if not events:
        return ""
    rows = "".join(
        f'<tr class="{event.level}"><td>{clock(event.time_s)}</td><td>{_safe(digest.sources[event.source].name)}</td>'
        f"<td>{_safe(event.fields.get('worker', ''))}</td><td>{_safe(sentence(event))}</td></tr>"
        for event in events
    )
    return f'<section class="card"><h2>starts, ends and rebalances</h2><table>{rows}</table></section>'


def _safe(text: object) -> str:
    return html.escape(printable(str(text)))
