"""The report: one page without scripts that loads nothing, or one picture."""

import html
import io
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from string import Template
from typing import Any

from penstock.ops.logs.errors import LogsError, NoEvents
from penstock.ops.logs.libraries import matplotlib, pyplot
from penstock.ops.logs.report.charts import CHARTS, FAINT, INK, Chart, Spans
from penstock.ops.logs.screens.summary import life_columns
from penstock.ops.logs.screens.tables import Column
from penstock.ops.logs.text import count, date_and_clock, duration, integer, printable
from penstock.ops.logs.totals.digest import Digest
from penstock.ops.logs.totals.facts import Fact, facts

_PAGE = Path(__file__).with_name("page.html")
_INCHES = (4.2, 2.2)
_COLUMNS = 3  # of the picture
_TILES = (
    *("answered", "a second", "latency p50", "latency p99", "rejected", "from the cache", "padding avoided"),
    *("restarts", "errors"),
)
_ALARMS = ("rejected", "restarts", "errors")
_FACTS = 200
_EVENTS = 60
_LOOK: dict[str, Any] = {
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right"), False),
    **dict.fromkeys(("axes.axisbelow", "figure.constrained_layout.use"), True),
    **{"svg.fonttype": "none", "svg.hashsalt": "penstock", "axes.titlelocation": "left"},
    **{"font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans"]},
    **{"font.size": 9, "xtick.labelsize": 8, "ytick.labelsize": 8},
}


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
    with pyplot.rc_context(_LOOK):
        data = _picture(spans) if out.suffix == ".png" else _page(digest, spans).encode()
    out.write_bytes(data)


def _picture(spans: Spans) -> bytes:
    """The plots in three columns, dark on white."""
    rows = -(-len(CHARTS) // _COLUMNS)
    figure, cells = pyplot.subplots(rows, _COLUMNS, figsize=(_COLUMNS * 4.8, rows * 2.9), squeeze=False)
    for axes in cells.flat[len(CHARTS) :]:
        axes.remove()
    for chart, axes in zip(CHARTS, cells.flat, strict=False):
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
    return Template(_PAGE.read_text(encoding="utf-8")).substitute(
        about=_safe(about),
        notes="".join(f'<p class="note">{_safe(note)}</p>' for note in notes),
        figures="".join(_tiles(digest)),
        plots="".join(_figure(chart, spans) for chart in CHARTS),
        tables="".join(_cards(digest)),
        events=_events(digest),
    )


def _tiles(digest: Digest) -> Iterator[str]:
    """The figures that an operator looks at first."""
    known = {name: fact for (_, name), fact in facts(digest).items()}
    known["a second"] = known["answered a second"]
    known["rejected"] = Fact("requests", "rejected", digest.rejections.total, integer)
    for label in _TILES:
        is_bad = label in _ALARMS and known[label].value > 0
        yield f'<div class="tile{" bad" if is_bad else ""}"><b>{_safe(known[label].text)}</b><span>{label}</span></div>'


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


def _cards(digest: Digest) -> Iterator[str]:
    """A table of each section of figures."""
    known = [fact for fact in list(facts(digest).values())[:_FACTS] if not math.isnan(fact.value)]
    for section, of_section in groupby(known, lambda fact: fact.section):
        rows = _rows((Column("", "name"), Column("", "text")), of_section)
        yield f'<div class="card"><h2>{section}</h2><table>{rows}</table></div>'


def _events(digest: Digest) -> str:
    events = digest.lives.by_time[-_EVENTS:]
    rows = _rows(life_columns(digest), events, lambda event: f' class="{event.level}"')
    head = "<h2>starts, ends and rebalances</h2>"
    return f'<section class="card">{head}<table>{rows}</table></section>' if events else ""


def _rows(columns: Sequence[Column], rows: Iterable[Any], attributes: Callable[[Any], str] = lambda row: "") -> str:
    """Rows as HTML, with attributes of each."""
    cells = ((row, "".join(f"<td>{_safe(column.text(row))}</td>" for column in columns)) for row in rows)
    return "".join(f"<tr{attributes(row)}>{text}</tr>" for row, text in cells)


def _safe(text: object) -> str:
    return html.escape(printable(str(text)))
