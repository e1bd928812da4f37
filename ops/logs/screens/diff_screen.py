"""`penstock logs diff`: the figures of two runs side by side."""

import math
from collections.abc import Iterator, Sequence
from operator import itemgetter

from rich.text import Text

from penstock.ops.logs.lines.event import OF_EVERY_LINE
from penstock.ops.logs.screens.screens import Parts
from penstock.ops.logs.screens.tables import BAD, DIM, HEAD, Column, Section
from penstock.ops.logs.text import duration
from penstock.ops.logs.totals.digest import Digest
from penstock.ops.logs.totals.facts import Fact, facts

_GOOD = "green"
_NOTABLE = 0.1  # of a change that has a direction: coloured from here on
_SAME = 0.005


def diff(first: Digest, second: Digest, names: Sequence[str]) -> Parts:
    """A row for each figure that either has, and the settings that differ."""
    rows: list[tuple[str | Text, ...]] = [("time", duration(first.series.span_s), duration(second.series.span_s), "")]
    section = ""
    for before, after in _paired(first, second):
        if before.section != section:
            section = before.section
            rows.append((Text(section, style=HEAD), "", "", ""))
        rows.append((f"  {before.name}", before.text, after.text, _change(before, after)))
    yield Section("", "", _columns("", *[f">{name}" for name in names], ">change"), rows, is_apart=False)
    if changed := _settings_changed(first, second):
        yield Section("Settings", "", _columns("", *[f">{name}" for name in names]), changed)
    note = "Green is better by a tenth or more, red is worse. Counts depend on how long each run was."
    yield Section("", "", (), (), [Text(note, style=DIM)])


def _columns(*names: str) -> list[Column]:
    """Of rows that are their cells. An empty one at the end folds in place of the others."""
    return [*[Column(name, itemgetter(place)) for place, name in enumerate(names)], Column("", lambda row: "")]


def _paired(first: Digest, second: Digest) -> Iterator[tuple[Fact, Fact]]:
    """The figures of both, in the order of the first; without those that both lack, or that are zero in both."""
    one, other = facts(first), facts(second)
    sections = list(dict.fromkeys(section for section, _ in one))
    for key in sorted({**one, **other}, key=lambda key: sections.index(key[0])):
        absent = (one.get(key) or other[key])._replace(value=0.0)
        before, after = one.get(key, absent), other.get(key, absent)
        if any(value and not math.isnan(value) for value in (before.value, after.value)):
            yield before, after


def _change(before: Fact, after: Fact) -> Text:
    if math.isnan(before.value) or math.isnan(after.value):
        return Text("")
    if not before.value:
        return Text("new", style=_style(before.better, math.inf)) if after.value else Text("")
    change = after.value / before.value - 1.0
    if abs(change) < _SAME:
        return Text("=", style=DIM)
    shown = f"{change + 1:,.1f} times" if change >= 1 else f"{change * 100:+.0f} %"
    return Text(shown, style=_style(before.better, change))


def _style(better: int, change: float) -> str:
    if not better or abs(change) < _NOTABLE:
        return ""
    return _GOOD if change * better > 0 else BAD


def _settings_changed(first: Digest, second: Digest) -> list[tuple[str, str, str]]:
    """Settings in force that differ; a reader compares two versions or two configurations."""
    own = {"event", "reasons", "metrics_port", "bootstrap_servers", *OF_EVERY_LINE} - {"model", "service.version"}
    if not first.settings or not second.settings:
        return []
    keys = sorted((first.settings.keys() | second.settings.keys()) - own)
    pairs = [(key, str(first.settings.get(key, "-")), str(second.settings.get(key, "-"))) for key in keys]
    return [(f"  {key}", one[:40], other[:40]) for key, one, other in pairs if one != other]
