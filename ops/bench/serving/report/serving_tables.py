"""Tables of the kept serving runs. Reads the result files alone: no scheduler, no engine."""

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.ops.bench.common.kept_tables import of_each_machine, target_table
from penstock.ops.bench.common.markdown import table
from penstock.ops.bench.common.runs import Run
from penstock.ops.bench.common.verdicts import Spread
from penstock.ops.bench.serving.report.serving_measures import measures

_MS = 1e3
_WITH_TARGETS = ("saturation", "goodput", "bursts", "classes", "validation")

Row = Mapping[str, Any]


def goodput() -> str:
    """Table `serving`: answers in time under steady arrivals, by load, at each workload's own objective."""
    return of_each_machine("serving", ("goodput",), _goodput)


def saturation() -> str:
    """Table `serving-saturation`: answers a second of every system while more arrive than it can answer."""
    return of_each_machine("serving", ("saturation",), _saturation)


def bursts() -> str:
    """Table `serving-bursts`: the same as `serving` in bursts, with the time that each run covered."""
    return of_each_machine("serving", ("bursts",), _bursts)


def through_kafka() -> str:
    """Table `serving-kafka`: the highest rate that each system sustains, in process and through a broker."""
    return of_each_machine("serving-kafka", ("kafka",), _kafka)


def loads() -> str:
    """Table `serving-loads`: the answers in time of each system through a broker, at shares of saturation."""
    return of_each_machine("serving-kafka", ("loads",), _loads)


def against_targets() -> str:
    """Table `serving-targets`."""
    return of_each_machine("serving", _WITH_TARGETS, lambda runs: target_table("serving", runs, measures))


def _goodput(runs: Sequence[Run]) -> str:
    rows = []
    for lengths, found in _by_lengths(runs, "goodput").items():
        objectives = sorted({row["slo_s"] for row in found})
        slo_s = objectives[len(objectives) // 2]  # beside it are its half and its double
        rows += _rows(lengths, [row for row in found if row["slo_s"] == slo_s])
    return _table(rows)


def _bursts(runs: Sequence[Run]) -> str:
    return _table([row for lengths, found in _by_lengths(runs, "bursts").items() for row in _rows(lengths, found)])


def _loads(runs: Sequence[Run]) -> str:
    by_lengths = _by_lengths(runs, "loads")
    loads = sorted({row["load"] for found in by_lengths.values() for row in found})
    rows = []
    for lengths, found in by_lengths.items():
        for system in dict.fromkeys(row["system"] for row in found):
            own = [
                (row["load"], row["goodput_per_s"] / row["offered_per_s"]) for row in found if row["system"] == system
            ]
            shares = [_percent([share for at, share in own if at == load]) for load in loads]
            rows.append([f"{lengths} tokens", system, *shares])
    return table(["requests", "system", *[f"in time at {load:g}" for load in loads]], rows) if rows else ""


def _rows(lengths: str, found: Sequence[Row]) -> list[list[str]]:
    rows = []
    for load in sorted({row["load"] for row in found}):
        at_load = [row for row in found if row["load"] == load]
        for system in dict.fromkeys(row["system"] for row in at_load):
            chosen = [row for row in at_load if row["system"] == system]
            accepted = [1 - sum(row["refused"].values()) / row["requests"] for row in chosen]
            rows.append(
                [
                    f"{lengths} tokens, {chosen[0]['slo_s'] * _MS:.0f} ms",
                    f"{load:g}",
                    system,
                    _spread([row["offered_per_s"] for row in chosen]),
                    _spread([row["goodput_per_s"] for row in chosen]),
                    _percent(accepted),
                    _percent([row["in_time_of_accepted"] for row in chosen]),
                    _spread([row["requests"] / row["offered_per_s"] for row in chosen]),
                ]
            )
    return rows


def _table(rows: Sequence[Sequence[str]]) -> str:
    columns = [
        "requests, objective",
        "load",
        "system",
        "offered/s",
        "in time/s",
        "accepted",
        "in time, of the accepted",
    ]
    return table([*columns, "span, s"], rows) if rows else ""


def _saturation(runs: Sequence[Run]) -> str:
    rows = []
    for lengths, found in _by_lengths(runs, "saturation").items():
        for system in dict.fromkeys(row["system"] for row in found):
            chosen = [row for row in found if row["system"] == system]
            batch = [row["overload"]["mean_batch"] for row in chosen]
            rows.append([lengths, system, _spread([row["saturation_per_s"] for row in chosen]), _spread(batch)])
    return table(["tokens", "system", "req/s", "sequences a batch"], rows) if rows else ""


def _kafka(runs: Sequence[Run]) -> str:
    parts = [run.record["parts"]["kafka"] for run in runs if "kafka" in run.record["parts"]]
    rows = []
    for system in dict.fromkeys(row["system"] for part in parts for row in part["rows"]):
        chosen = [row for part in parts for row in part["rows"] if row["system"] == system]
        cells = []
        for place in ("in_process", "through_kafka"):
            cells.append(_spread([row[place]["rate_per_s"] for row in chosen]))
            cells += [_spread([row[place]["latency_s"][which] * _MS for row in chosen]) for which in ("p50", "p99")]
        rows.append([system, *cells])
    columns = [
        f"{what}, {place}" for place in ("in process", "through Kafka") for what in ("req/s", "p50 ms", "p99 ms")
    ]
    return table(["system", *columns], rows) if rows else ""


def _by_lengths(runs: Sequence[Run], part: str) -> dict[str, list[Row]]:
    """Rows of a part over all runs; a run holds one workload, or in `saturation` a list of them."""
    found: dict[str, list[Row]] = {}
    for run in runs:
        held = run.record["parts"].get(part, [])
        for workload in held if isinstance(held, list) else [held]:
            found.setdefault(workload["lengths"], []).extend(workload["rows"])
    return found


def _spread(values: Sequence[float | None]) -> str:
    """Median and range; empty where a run has no value, which stands for infinity."""
    known = [value for value in values if value is not None]
    return str(Spread(tuple(known))) if len(known) == len(values) else "∞"


def _percent(shares: Sequence[float | None]) -> str:
    known = tuple(100 * share for share in shares if share is not None)
    return f"{Spread(known)} %" if known else ""
