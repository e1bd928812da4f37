"""The figures of one kept run by name, as declarations: where each lies in the run's file, or what it is made of.

    CACHE = Suite("cache", (
        At("hits.*.*.rate", "hits *, records of *, answers/s"),
        At("zipf.hit_rates.*.ours", "* of the bytes, hit rate", keys=("{:.0%}".format,)),
        At("misses.rows.[engine,load].passes", "*, load *, answers/s", of=median_rate),
        From("*, times the bare echo", ("*, req/s", "bare echo, req/s")),
        From("*, points lost", ("ideal, *", "ours, *"), lambda ideal, ours: 100 * (ideal - ours)),
    ))
    CACHE.measures(run.record)["bare echo, req/s"]

A new figure is a new line. What a run did not measure is absent, and so is what JSON has as null. `*` in a name stands
for text without ", ": in `At` for a key on the path, in the order of the path; in `From` for what the names of its
operands have in common. Figures that need more than that come from a function: a member of `Suite.declared` may be any
function of the whole record that returns figures by name.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import truediv
from typing import Any

Record = Mapping[str, Any]  # a whole run, as its file holds it
Measures = Mapping[str, float]  # name -> figure, of one run
Found = tuple[tuple[Any, ...], Any]  # the keys on the way, and what lies there


def results(record: Record) -> dict[str, Any]:
    """Findings of each part; empty for one that failed. Older runs have them under `details`, or without more."""
    return {name: _result(part) for name, part in record["parts"].items()}


def _result(part: Mapping[str, Any]) -> Any:
    kept_under = [key for key in ("result", "details") if key in part]
    return (part[kept_under[0]] or {}) if kept_under else part


@dataclass(frozen=True, slots=True)
class At:
    """Figures that lie in a run's file, one for each place that the path leads to."""

    path: str
    """From a part's name into what it found, with dots: a key; `*`, every key of an object; `[a,b]`, every object of a
    list, by its fields a and b (one object counts as a list of one)."""
    name: str
    of: Callable[[Any], float | None] | None = None  # of what lies there; default: that is the figure
    keys: Sequence[Callable[[Any], str]] = ()  # how each `*` is shown; keys that look like numbers are numbers

    def figures(self, record: Record, _: Measures) -> Iterator[tuple[str, float]]:
        for keys, value in _places(results(record), self.path.split(".")):
            figure = value if self.of is None or value is None else self.of(value)
            if figure is not None:
                shown = [show(key) for show, key in zip(self.keys, keys, strict=True)] if self.keys else keys
                yield filled(self.name, list(map(str, shown))), float(figure)


@dataclass(frozen=True, slots=True)
class From:
    """A figure made of others of the same run, which are declared before it; of two, the ratio."""

    name: str
    operands: Sequence[str]
    of: Callable[..., float] = truediv

    def figures(self, _: Record, found: Measures) -> Iterator[tuple[str, float]]:
        for texts in matches(self.operands[0], found):
            names = [filled(operand, texts) for operand in self.operands]
            if all(name in found for name in names):
                yield filled(self.name, texts), self.of(*[found[name] for name in names])


@dataclass(frozen=True, slots=True)
class Suite:
    """The kept runs under `results/<name>`, and their figures."""

    name: str
    declared: Sequence[At | From | Callable[[Record], Measures]]

    def measures(self, record: Record) -> dict[str, float]:
        """All figures of one run, in the order of the declarations."""
        found: dict[str, float] = {}
        for one in self.declared:
            found |= dict(one.figures(record, found)) if isinstance(one, At | From) else one(record)
        return found


def matches(pattern: str, names: Measures | Sequence[str]) -> list[list[str]]:
    """Texts that the `*` of a pattern stand for in each name of its form, each once, in the order of the names."""
    form = re.compile("((?:(?!, ).)*?)".join(map(re.escape, pattern.split("*"))))
    return [list(found.groups()) for found in map(form.fullmatch, names) if found]


def filled(pattern: str, texts: Sequence[str]) -> str:
    """The pattern with a text for each `*`, in order."""
    left = iter(texts)
    return re.sub(r"\*", lambda _: next(left), pattern)


def _places(value: Any, steps: Sequence[str]) -> Iterator[Found]:
    if not steps:
        yield (), value
        return
    for keys, inner in _step(value, steps[0]):
        for more, found in _places(inner, steps[1:]):
            yield (*keys, *more), found


def _step(value: Any, step: str) -> Iterator[Found]:
    if step.startswith("["):
        for row in value if isinstance(value, list) else [value]:
            yield tuple(row[field] for field in step[1:-1].split(",")), row
    elif not isinstance(value, Mapping):
        return
    elif step == "*":
        yield from (((_number(key),), inner) for key, inner in value.items())
    elif step in value:
        yield (), value[step]


def _number(key: str) -> Any:
    if re.fullmatch(r"\d+", key):
        return int(key)
    return float(key) if re.fullmatch(r"\d+\.\d+", key) else key
