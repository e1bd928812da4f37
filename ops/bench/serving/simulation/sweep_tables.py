"""Simulated fleets as tables."""

from collections.abc import Iterator, Mapping
from typing import Any

from penstock.ops.bench.common.comparison import Grid

NOTICED = 0.2  # of the time, from a worker's loss until others have its partitions

_SECONDS = ("busy s per million", "paid s per million")
_USUAL = ("req/s", "p50 ms", "p99 ms", "refused", *_SECONDS)

Record = Mapping[str, Any]


def grids(record: Record) -> Iterator[Grid]:
    """The table of every part that the record has."""
    makers = {"load": _loads, "fleet": _fleets, "cache": _caches, "loss": _losses, "large": _large}
    for part, rows in record["parts"].items():
        yield makers[part](record, rows)


def _loads(record: Record, rows: list[Record]) -> Grid:
    return Grid(
        f"One worker by load, in saturations of {record['saturation_per_s']:,.0f} req/s; latencies of what is answered",
        ("load", *_USUAL),
        [(f"{row['load']:g} x", *_usual(row)) for row in rows],
    )


def _fleets(record: Record, rows: list[Record]) -> Grid:
    return Grid(
        f"Fleets at {record['plan']['load']:g} of their saturation",
        ("workers, keys", *_USUAL, "busiest / mean"),
        [(f"{row['workers']}, {row['keys']}", *_usual(row), f"{row['busiest']:.2f}") for row in rows],
    )


def _caches(record: Record, rows: list[Record]) -> Grid:
    return Grid(
        "Response caches: repeats stay with a worker (key) or go anywhere (spread)",
        ("repeats, routing", *_USUAL, "from the cache"),
        [
            (f"{row['repeats']:.0%}, {row['routing']}", *_usual(row), f"{row['hits'] / row['requests']:.1%}")
            for row in rows
        ],
    )


def _losses(record: Record, rows: list[Record]) -> Grid:
    return Grid(
        f"A worker of {rows[0]['workers']} is lost, and noticed after {NOTICED:.0%} of the time",
        ("load, lost", *_USUAL, "max ms", "moved", "without an end"),
        [
            (
                f"{row['load']:g} x, {row['lost']}",
                *_usual(row),
                f"{row['max_s'] * 1e3:,.0f}",
                _count(row["moved"]),
                _count(row["requests"] - row["answered"] - row["refused"]),
            )
            for row in rows
        ],
    )


def _large(record: Record, rows: list[Record]) -> Grid:
    return Grid(
        f"A large run, at {record['plan']['load']:g} of saturation: what it takes to simulate",
        ("workers", "requests", "simulated in s", "requests simulated a second", *_USUAL),
        [
            (
                str(row["workers"]),
                _count(row["requests"]),
                f"{row['simulated_in_s']:.0f}",
                _count(row["requests"] / row["simulated_in_s"]),
                *_usual(row),
            )
            for row in rows
        ],
    )


def _usual(row: Record) -> tuple[str, ...]:
    return (
        _count(row["rate_per_s"]),
        f"{row['p50_s'] * 1e3:.2f}",
        f"{row['p99_s'] * 1e3:.2f}",
        f"{row['refused'] / row['requests']:.1%}",
        f"{row['busy_s_per_million']:.1f}",
        f"{row['paid_s_per_million']:.1f}",
    )


def _count(value: float) -> str:
    return f"{value:,.0f}"
