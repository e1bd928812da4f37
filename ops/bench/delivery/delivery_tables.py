"""Tables of the kept runs of the suite `delivery`."""

from collections.abc import Mapping, Sequence

from penstock.ops.bench.common.kept_tables import of_each_machine, spreads, target_table
from penstock.ops.bench.common.markdown import table
from penstock.ops.bench.common.runs import Run
from penstock.ops.bench.common.verdicts import Spread
from penstock.ops.bench.delivery.delivery_measures import CRASH_FIGURES, MODES, SERVICES, TWICE_BY_KEY, measures
from penstock.ops.bench.delivery.turns import PROCESSES

SUITE = "delivery"
_POISON, _CRASH, _ROLL, _BEFORE = ("poison",), ("crash", "crash-default"), ("roll",), ("before",)

Found = Mapping[str, Spread]


def failures() -> str:
    """Table `delivery-failures`: poison, crashes and a rolling restart."""
    return of_each_machine(SUITE, (*_POISON, *_CRASH, *_ROLL), _failures)


def modes() -> str:
    """Table `delivery-modes`: exactly_once beside at_least_once."""
    return of_each_machine(SUITE, tuple(MODES), _modes)


def before() -> str:
    """Table `delivery-before`: this commit beside an earlier one."""
    return of_each_machine(SUITE, _BEFORE, _before)


def against_targets() -> str:
    """Table `delivery-targets`."""
    parts = (*_POISON, *_CRASH, *_ROLL, *MODES, *_BEFORE)
    return of_each_machine(SUITE, parts, lambda runs: target_table(SUITE, runs, measures))


def _failures(runs: Sequence[Run]) -> str:
    found = spreads(runs, measures)
    poison = "good requests unanswered, share"
    rows = [
        ["1 % poison: share of good requests unanswered", *_cells(found, "poison", poison)],
        *[
            [f"kill -9 twice: {name}", *_cells(found, "crash", name)]
            for name in (*CRASH_FIGURES.values(), TWICE_BY_KEY)
        ],
        ["kill -9 twice: longest until every partition is answered again, s", *_cells(found, "crash", "recovery, s")],
        ["rolling restart: requests lost", _shown(found, "roll, requests lost"), "", ""],
        ["rolling restart: p99 of the whole roll, s", _shown(found, "roll, p99, s"), "", ""],
        ["rolling restart: seconds", _shown(found, "roll, s"), "", ""],
    ]
    return table(["", *SERVICES], [row for row in rows if any(row[1:])])


def _modes(runs: Sequence[Run]) -> str:
    found = spreads(runs, measures)
    rows = []
    for name in found:
        if name.endswith(ending := ", exactly_once over at_least_once"):
            work = name.removesuffix(ending)
            rows += [[work, mode, *_side(found, f"{work}, {mode}"), ""] for mode in ("at_least_once", "exactly_once")]
            rows[-1][-1] = str(found[name])
    columns = ["16 partitions", "delivery", "req/s", *[f"{kind}, µs a record" for kind in PROCESSES], "ratio of req/s"]
    return table(columns, rows) if rows else ""


def _before(runs: Sequence[Run]) -> str:
    found = spreads(runs, measures)
    rows = []
    for name in found:
        if name.endswith(ending := ", now over before") and "µs" not in name:
            load = name.removesuffix(ending)
            sides = {"before": _commit_before(runs), "now": runs[-1].commit}
            rows += [[load, commit, *_side(found, f"{side}, {load}"), ""] for side, commit in sides.items()]
            rows[-1][-1] = str(found[name])
    columns = ["null engine", "worker of", "req/s", *[f"{kind}, µs a record" for kind in PROCESSES], "ratio of req/s"]
    return table(columns, rows) if rows else ""


def _commit_before(runs: Sequence[Run]) -> str:
    details = [run.record["parts"].get("before", {}).get("details", {}) for run in runs]
    return next(str(found["commit"])[:7] for found in details if "commit" in found)


def _side(found: Found, name: str) -> list[str]:
    return [_shown(found, f"{name}, req/s"), *[_shown(found, f"{name}, {kind} µs a record") for kind in PROCESSES]]


def _cells(found: Found, part: str, figure: str) -> list[str]:
    return [_shown(found, f"{part}, {service}, {figure}") for service in SERVICES]


def _shown(found: Found, name: str) -> str:
    return str(found[name]) if name in found else ""
