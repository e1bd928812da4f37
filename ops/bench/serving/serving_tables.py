"""Tables of serving runs, kept ones or one that has just ended. Reads their records alone: no scheduler, no engine.

A table has a row for each group of equal labels, and in each cell a figure of the group's rows: its median and range.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock.ops.bench.common.kept_tables import of_each_machine
from penstock.ops.bench.common.markdown import table
from penstock.ops.bench.common.runs import Run
from penstock.ops.bench.common.verdicts import Spread

Row = Mapping[str, Any]
Label = Callable[[Row], str]
Column = Callable[[Sequence[Row]], str]

_MS = 1e3


def spread(figure: Callable[[Row], float | None]) -> Column:
    """Median and range; ∞ where a run has no value, which stands for infinity."""

    def cell(rows: Sequence[Row]) -> str:
        values = [figure(row) for row in rows]
        known = tuple(value for value in values if value is not None)
        return str(Spread(known)) if len(known) == len(values) else "∞"

    return cell


def percent(share: Callable[[Row], float | None]) -> Column:
    """The same of a share; rows without one do not count."""

    def cell(rows: Sequence[Row]) -> str:
        known = tuple(100 * value for row in rows if (value := share(row)) is not None)
        return f"{Spread(known)} %" if known else ""

    return cell


def _latency(place: str, which: str) -> Column:
    """Of a row that has its figures under `place`, or of the row itself."""
    return spread(lambda row: _scaled((row[place] if place else row)["latency_s"][which]))


def _scaled(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * _MS


def _of(name: str) -> Column:
    return spread(lambda row: row[name])


def _grouped(rows: Sequence[Row], labels: Mapping[str, Label], columns: Mapping[str, Column]) -> str:
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(label(row) for label in labels.values()), []).append(row)
    cells = [[*key, *[column(found) for column in columns.values()]] for key, found in groups.items()]
    return table([*labels, *columns], cells) if cells else ""


def _rows(runs: Sequence[Run], part: str) -> list[Row]:
    """Rows of a part over all runs, each with its lengths. A run has one workload, or in `saturation` several."""
    found: dict[str, list[Row]] = {}
    for run in runs:
        held = run.record["parts"].get(part, [])
        for workload in held if isinstance(held, list) else [held]:
            lengths = workload["lengths"]
            found.setdefault(lengths, []).extend({**row, "lengths": lengths} for row in workload["rows"])
    return [row for rows in found.values() for row in rows]


_SYSTEM: Mapping[str, Label] = {"system": lambda row: str(row["system"])}
_OBJECTIVE: Mapping[str, Label] = {
    "requests, objective": lambda row: f"{row['lengths']} tokens, {row['slo_s'] * _MS:.0f} ms",
    "load": lambda row: f"{row['load']:g}",
    **_SYSTEM,
}
_IN_TIME: Mapping[str, Column] = {
    "offered/s": _of("offered_per_s"),
    "in time/s": _of("goodput_per_s"),
    "accepted": percent(lambda row: 1 - sum(row["refused"].values()) / row["requests"]),
    "in time, of the accepted": percent(lambda row: row["in_time_of_accepted"]),
    "span, s": spread(lambda row: row["requests"] / row["offered_per_s"]),
}


def _saturation(runs: Sequence[Run]) -> str:
    columns = {"req/s": _of("saturation_per_s"), "sequences a batch": spread(lambda row: row["overload"]["mean_batch"])}
    return _grouped(_rows(runs, "saturation"), {"tokens": lambda row: row["lengths"], **_SYSTEM}, columns)


def _goodput(runs: Sequence[Run]) -> str:
    """At each workload's own objective; beside it are its half and its double."""
    rows = _rows(runs, "goodput")
    objectives = {lengths: sorted({r["slo_s"] for r in rows if r["lengths"] == lengths}) for lengths in _lengths(rows)}
    own = {lengths: found[len(found) // 2] for lengths, found in objectives.items()}
    return _grouped([row for row in rows if row["slo_s"] == own[row["lengths"]]], _OBJECTIVE, _IN_TIME)


def _lengths(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row["lengths"] for row in rows))


def _bursts(runs: Sequence[Run]) -> str:
    return _grouped(_rows(runs, "bursts"), _OBJECTIVE, _IN_TIME)


def _classes(runs: Sequence[Run]) -> str:
    latencies = {f"online {which} ms": _latency("", which) for which in ("p50", "p99")}
    columns = {"online in time/s": _of("goodput_per_s"), **latencies, "bulk req/s": _of("bulk_per_s")}
    return _grouped(_rows(runs, "classes"), {"beside": lambda row: row["load"]}, columns)


def _kafka(runs: Sequence[Run]) -> str:
    def of(place: str, name: str) -> dict[str, Column]:
        rate = {f"req/s, {name}": spread(lambda row: row[place]["rate_per_s"])}
        return rate | {f"{which} ms, {name}": _latency(place, which) for which in ("p50", "p99")}

    columns = of("in_process", "in process") | of("through_kafka", "through Kafka")
    return _grouped(_rows(runs, "kafka"), _SYSTEM, columns)


def _loads(runs: Sequence[Run]) -> str:
    rows = _rows(runs, "loads")

    def at(load: float) -> Column:
        return percent(lambda row: row["goodput_per_s"] / row["offered_per_s"] if row["load"] == load else None)

    columns = {f"in time at {load:g}": at(load) for load in sorted({row["load"] for row in rows})}
    return _grouped(rows, {"requests": lambda row: f"{row['lengths']} tokens", **_SYSTEM}, columns)


# Of the parts of a run: title, and the table over runs.
PARTS: Mapping[str, tuple[str, Callable[[Sequence[Run]], str]]] = {
    "saturation": ("Answers a second while more arrive than can be answered", _saturation),
    "goodput": ("Answers in time under steady arrivals; load 1 is the default's saturation", _goodput),
    "bursts": ("The same in bursts of five times the mean rate", _bursts),
    "classes": ("Online requests at half of saturation, without and beside bulk", _classes),
    "kafka": ("The highest rate that each system sustains, in process and through a broker", _kafka),
    "loads": ("Answers in time through a broker, at shares of saturation", _loads),
}


def _kept(part: str) -> Callable[[], str]:
    """The table of a part over the kept runs of each machine."""
    suite = "serving-kafka" if part in ("kafka", "loads") else "serving"
    return lambda: of_each_machine(suite, [part], PARTS[part][1])


TABLES = {"serving": _kept("goodput")} | {
    f"serving-{part}": _kept(part) for part in ("saturation", "bursts", "kafka", "loads")
}


def costs(run: Run) -> str:
    """What the cost model of each engine of one run was worth."""
    engines = [{"engine": kind, **found} for kind, found in run.record["engines"].items() if found["run_errors"]]
    columns = {
        "calibration, s": _of("calibration_s"),
        "batches run": _of("batches_run"),
        "p50 error": percent(lambda row: row["run_errors"][0]),
        "p95 error": percent(lambda row: row["run_errors"][1]),
    }
    return _grouped(engines, {"engine": lambda row: row["engine"]}, columns)
