"""Figures and tables of the kept runs of policies through Kafka."""

from penstock.ops.bench.common.kept_tables import Measures, Record
from penstock.ops.bench.common.measures import Suite, results
from penstock.ops.bench.common.tables import Grid, Table
from penstock.ops.bench.serving.policies import POLICIES

LOADS = (0.7, 0.9, 1.2)  # of saturation


def _in_time(record: Record) -> Measures:
    """Percent of all requests that were answered within the objective, by policy and load."""
    found = results(record).get("loads", {})
    return {
        f"{found['lengths']} tokens, {row['system']}, in time at {row['load']:g}": 100
        * row["goodput_per_s"]
        / row["offered_per_s"]
        for row in found.get("rows", ())
    }


SUITE = Suite("serving-kafka", [_in_time])
GRID = Grid(
    ["requests", "system", *[f"in time at {load:g}" for load in LOADS]],
    [
        ["* tokens", policy, *[f"{{* tokens, {policy}, in time at {load:g}}} %" for load in LOADS]]
        for policy in POLICIES
    ],
)
TABLES = {"serving-loads": Table(SUITE, ["loads"], [GRID])}
