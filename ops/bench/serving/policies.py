"""The batching policies that are compared, as arguments of `penstock worker`, and their table. A new one is a row."""

from collections.abc import Mapping, Sequence

from penstock.ops.bench.common.measures import Measures, Record, Suite, results
from penstock.ops.bench.common.tables import Grid, Table

DEFAULT, TEI = "penstock default", "TEI's rule"
_PLAIN = ("--order", "arrival", "--admission", "accept")

POLICIES: Mapping[str, Sequence[str]] = {
    "packed, none": ("--trigger", "hungry", "--partition", "none", "--max-batch-sequences", "1", *_PLAIN),
    # text-embeddings-inference: first come first served up to a token budget, at once, whatever the deadlines.
    TEI: ("--trigger", "hungry", "--partition", "fifo", *_PLAIN),
    "packed, DP": ("--trigger", "lazy", "--partition", "dp", "--order", "cost-first", "--admission", "accept"),
    DEFAULT: (),
}
KEEPS_DEADLINES = frozenset({DEFAULT})  # the calls of the others have no deadline, so that they refuse none

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
