"""The tables of kept chaos runs show the newest run of each mode, and count each kind of violation."""

from pathlib import Path
from typing import Any

from penstock.ops.bench.common.runs import begin, keep
from penstock.ops.chaos.chaos_tables import faults, outcomes

MACHINE: dict[str, Any] = {"cpu": "AMD EPYC", "cores_used": [0, 1], "versions": {}, "commit": "a" * 40}


def kept(root: Path, day: int, delivery: str, **violations: int) -> None:
    report = {
        "settings": {"seed": day, "delivery": delivery},
        "phases_s": {"load": 600.0},
        "counts": {"requests": 5000, "sequences": 6000, "distinct_sequences": 3000},
        "raw_duplicate_share": 0.0123,
        "good_requests_answered_otherwise": {"by_outcome": {"dead letter (backend)": 1234, "error reply (expired)": 2}},
        "kinds_never_injected": ["clock_stepped"],
        "faults": [
            {"kind": "rolled", "recovery_s": 1.0},
            {"kind": "member_killed", "recovery_s": 4.25},
            {"kind": "member_killed", "beside": ["rolled"]},
            {"kind": "member_killed", "error": "No member ran."},
            {"kind": "no_leader", "recovery_s": 7.9, "recovered": False},
        ],
        "slowest_recovery_after_kill_s": 4.25,
        "slowest_p99_of_a_roll_s": None,
        "violations": violations,
    }
    header = {**begin("chaos", MACHINE), "started": f"2026-01-0{day}T00:00:00+00:00"}
    keep({**header, "parts": {"chaos": report}}, root)


def cells(text: str, name: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {name} |")]
    return [cell.strip() for cell in line.split("|")[2:-1]]


def test_the_newest_run_of_each_mode_is_shown_with_what_it_broke(tmp_path: Path) -> None:
    kept(tmp_path, 1, "at_least_once", unanswered=7)
    kept(tmp_path, 2, "at_least_once", left_behind=1, wrong_rows=2)
    kept(tmp_path, 3, "exactly_once", answered_twice=3)
    text = outcomes(tmp_path)
    assert cells(text, "seed") == ["2", "3"]
    assert cells(text, "lost") == ["1", "0"]
    assert cells(text, "answered wrong") == ["2", "0"]
    assert cells(text, "all violations") == ["3", "3"]
    assert cells(text, "good requests answered by a dead letter alone") == ["1,234 dead letter (backend)"] * 2
    assert cells(text, "good requests answered by an error") == ["2 error reply (expired)"] * 2
    assert cells(text, "kinds of faults that never came") == ["clock_stepped"] * 2
    assert cells(text, "answered twice for a reader with `read_committed`") == ["", "3"]
    assert cells(text, "answered twice in the topic, before readers drop duplicates") == ["1.230%", "1.230%"]


def test_faults_have_their_number_and_the_slowest_recovery_of_those_alone(tmp_path: Path) -> None:
    kept(tmp_path, 1, "exactly_once")
    assert cells(faults(tmp_path), "`member_killed`") == ["2, 4.2 s"]
    assert cells(faults(tmp_path), "`no_leader`") == ["1, at least 7.9 s"]
    assert cells(outcomes(tmp_path), "faults injected") == ["4"]


def test_without_a_kept_run_there_is_no_table(tmp_path: Path) -> None:
    assert outcomes(tmp_path) == faults(tmp_path) == "No run has been kept."
