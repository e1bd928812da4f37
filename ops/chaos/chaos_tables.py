"""Tables of the kept chaos runs: the newest of each delivery mode, side by side."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from penstock.ops.bench.common.machine import title
from penstock.ops.bench.common.markdown import table
from penstock.ops.bench.common.measures import results
from penstock.ops.bench.common.runs import RESULTS, Run, kept_runs, machines
from penstock.ops.bench.common.tables import NONE_KEPT
from penstock.ops.chaos.verdict.answered_otherwise import LETTER
from penstock.ops.chaos.verdict.fault_effects import MOST_P99_S, MOST_RECOVERY_S

Report = Mapping[str, Any]

_SUITE = "chaos"
_LOST = ("unanswered", "left_behind", "request_lost_by_brokers")
_WRONG = (
    "wrong_answer",
    "wrong_rows",
    "wrong_result_of_a_call",
    "wrong_error_of_a_call",
    "different_answers",
    "expired_before_its_deadline",
    "reply_to_nothing",
    "reply_in_another_topic",
    "reply_with_another_correlation_id",
)
_LETTERS = ("letter_incomplete", "letter_of_nothing", "letter_with_another_code")


def outcomes(root: Path = RESULTS) -> str:
    """Each run's requests, its violations, and the time for which faults were felt."""
    rows: list[tuple[str, Callable[[Report], Any]]] = [
        ("seed", lambda report: f"{report['settings']['seed']}"),
        ("minutes of load", lambda report: report["phases_s"]["load"] / 60),
        ("requests", lambda report: report["counts"]["requests"]),
        ("of them repeated sequences", _repeated),
        ("faults injected", lambda report: len(_injected(report))),
        ("kinds of faults that never came", lambda r: ", ".join(r.get("kinds_never_injected", ())) or "0"),
        ("lost", _violations(*_LOST)),
        ("answered wrong", _violations(*_WRONG)),
        ("committed before their answers", _violations("committed_unanswered")),
        ("incomplete dead letters", _violations(*_LETTERS)),
        ("good requests answered by a dead letter alone", _otherwise(is_letter=True)),
        ("good requests answered by an error", _otherwise(is_letter=False)),
        ("answered twice for a reader with `read_committed`", _visible_twice),
        ("answered twice in the topic, before readers drop duplicates", lambda r: f"{r['raw_duplicate_share']:.3%}"),
        ("all violations", lambda report: sum(report["violations"].values())),
        (f"slowest recovery after kill -9, s (≤ {MOST_RECOVERY_S:g})", lambda r: r["slowest_recovery_after_kill_s"]),
        (f"slowest p99 during a roll, s (≤ {MOST_P99_S:g})", lambda r: r["slowest_p99_of_a_roll_s"]),
    ]
    return _beside_each_other(rows, root)


def faults(root: Path = RESULTS) -> str:
    """How often each kind of fault came, and for how long requests were slow after it, where it came alone."""
    kinds = sorted({fault["kind"] for run in _newest(root) for fault in _injected(_report(run))})
    return _beside_each_other([(f"`{kind}`", _felt(kind)) for kind in kinds], root)


def _beside_each_other(rows: list[tuple[str, Callable[[Report], Any]]], root: Path) -> str:
    runs = _newest(root)
    if not runs:
        return NONE_KEPT
    heads = [f"`{_report(run)['settings']['delivery']}`" for run in runs]
    shown = table(["", *heads], [[name, *[measure(_report(run)) for run in runs]] for name, measure in rows])
    sources = "; ".join(f"{run.date}, commit {run.commit}, {title(run.record['machine'])}" for run in runs)
    return f"{shown}\n\n*In the order of the columns: {sources}.*"


def _newest(root: Path) -> list[Run]:
    """The newest run of each delivery mode with requests, on any machine."""
    kept = [run for machine in machines(_SUITE, root) for run in kept_runs(_SUITE, machine, root)]
    runs = [run for run in kept if _report(run)["settings"].get("load") != "routes"]
    runs.sort(key=lambda run: str(run.record["started"]))
    found = {_report(run)["settings"]["delivery"]: run for run in runs}
    return [found[chosen] for chosen in sorted(found)]


def _report(run: Run) -> Report:
    return results(run.record)["chaos"]  # type: ignore[no-any-return]  # as `run_chaos` returned it


def _injected(report: Report) -> list[Mapping[str, Any]]:
    """The faults that happened."""
    return [fault for fault in report["faults"] if "error" not in fault]


def _violations(*kinds: str) -> Callable[[Report], int]:
    return lambda report: sum(report["violations"].get(kind, 0) for kind in kinds)


def _visible_twice(report: Report) -> int | None:
    if report["settings"]["delivery"] == "at_least_once":
        return None
    return _violations("answered_twice", "letter_of_an_answered_request")(report)


def _otherwise(*, is_letter: bool) -> Callable[[Report], str]:
    """Good requests without their results, by code."""

    def shown(report: Report) -> str:
        found = report["good_requests_answered_otherwise"]["by_outcome"].items()
        return ", ".join(f"{n:,} {name}" for name, n in found if name.startswith(LETTER) == is_letter) or "0"

    return shown


def _repeated(report: Report) -> str:
    counts = report["counts"]
    return f"{1 - counts['distinct_sequences'] / counts['sequences']:.0%}"


def _felt(kind: str) -> Callable[[Report], str]:
    def shown(report: Report) -> str:
        found = [fault for fault in _injected(report) if fault["kind"] == kind]
        alone = [fault for fault in found if "recovery_s" in fault]
        if not alone:
            return f"{len(found)}"
        slowest = max(fault["recovery_s"] for fault in alone)
        is_cut_off = not all(fault.get("recovered", True) for fault in alone)  # the next fault came before
        return f"{len(found)}, {'at least ' if is_cut_off else ''}{slowest:.1f} s"

    return shown


TABLES: Mapping[str, Callable[[], str]] = {"chaos": outcomes, "chaos-faults": faults}
