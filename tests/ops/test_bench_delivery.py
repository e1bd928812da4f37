"""The benchmarks of delivery: how answers are counted, when a partition has recovered, and what the tables say."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.engine import NullEngine, PackedBatch, TaskOptions
from penstock.ops.bench.common.runs import Run, begin
from penstock.ops.bench.contestants.stand_in import (
    PoisonableEngine,
    Unanswerable,
    poisonable,
    sleeping_encode,
)
from penstock.ops.bench.delivery.delivery_tables import SERVICES, SUITE, TABLES
from penstock.ops.bench.delivery.part_poison import with_late_answers
from penstock.ops.bench.delivery.part_roll import figures
from penstock.ops.bench.delivery.transcript import Answer, Sent, Transcript, counts, recovery_s
from penstock.ops.bench.load.call_times import CallTimes
from penstock.ops.bench.load.load_bench import PROCESSES

MACHINE = {"cpu": "AMD EPYC", "cores_used": [0, 1], "versions": {}}


def test_an_answer_that_comes_again_with_its_key_is_dropped_by_a_reader() -> None:
    answers = {
        b"once": [Answer(1.0, b"k")],
        b"again": [Answer(1.0, b"k"), Answer(2.0, b"k"), Answer(3.0, b"k")],
        b"other key": [Answer(1.0, b"k"), Answer(2.0, b"l")],
        b"no keys": [Answer(1.0, None), Answer(2.0, None)],
        b"never": [],
    }
    assert counts(Transcript(dict.fromkeys(answers, Sent(0, 0.0)), answers)) == {
        "requests": 5,
        "unanswered": 1,
        "answered_twice": 3,
        "answers_too_many": 4,
        "answered_twice_by_key": 2,
    }


def test_recovery_ends_when_every_partition_has_answered_what_was_sent_after_the_kill() -> None:
    sent = {b"before": Sent(0, 9.0), b"a": Sent(0, 10.0), b"b": Sent(0, 11.0), b"c": Sent(1, 10.5), b"d": Sent(2, 20.0)}
    answers = {
        b"before": [Answer(10.1, None)],
        b"a": [Answer(14.0, None), Answer(15.0, None)],
        b"b": [Answer(13.0, None)],
        b"c": [Answer(10.6, None)],
        b"d": [],
    }
    assert recovery_s(Transcript(sent, answers), 10.0, 20.0) == 3.0
    assert math.isinf(recovery_s(Transcript(sent, answers), 10.0, 21.0))


def test_poison_raises_on_both_sides() -> None:
    encode = poisonable(sleeping_encode)
    assert encode(["text"]).shape == (1, 384)
    with pytest.raises(Unanswerable):
        encode(["text", "text poison"])
    engine = PoisonableEngine(NullEngine(), poison=7)
    assert len(engine.run(batch_of([5, 6], [8])).rows) == 2
    with pytest.raises(Unanswerable):
        engine.run(batch_of([5, 6], [7]))


def test_answers_that_came_late_count_for_the_alternative() -> None:
    result = {"good": 40.0, "good_unanswered": 12.0, "poison": 5, "poison_answered": 1}
    found = with_late_answers(result, {"requests": 50, "unanswered": 7})
    assert (found["good"], found["good_unanswered"]) == (45, 3)


def test_a_roll_is_judged_by_the_requests_that_were_due_in_it() -> None:
    calls = CallTimes.of([(1.0, 1.1, 1, 0), (4.0, 7.0, 1, 0), (5.0, 5.5, 1, 0), (6.0, 6.1, 0, 1), (9.0, 9.9, 1, 0)])
    found = figures(calls, 4.0, 6.5)
    assert (found["requests"], found["lost"], found["lost_of_whole_load"]) == (3, 1, 1)
    assert found["p50_ms"] == pytest.approx(3000)
    assert math.isinf(found["p99_ms"])
    assert found["before_p99_ms"] == pytest.approx(100)


def test_a_run_of_some_parts_has_the_tables_of_these(tmp_path: Path) -> None:
    calls = {"good": 990, "good_unanswered": 0}
    record = run_of(poison=dict.fromkeys(SERVICES[:2], calls), before=None)
    shown = {name: table.of_runs([Run(tmp_path, record)]) for name, table in TABLES.items()}
    assert "poison" in shown["delivery-failures"]
    assert (shown["delivery-modes"], shown["delivery-before"]) == ("", "")


def test_ratios_are_of_the_medians_of_the_rounds() -> None:
    crash = {"requests": 3000, "unanswered": 0, "answered_twice": 9, "answered_twice_by_key": 0, "recovery_s": [1, 2]}
    found = SUITE.measures(
        run_of(
            crash=dict.fromkeys(SERVICES[:2], crash),
            modes={"loads": {"a record each": sides("at_least_once", "exactly_once")}},
            before={"commit": "4307cdd1", "loads": {"64 a record": sides("now", "before")}},
        )
    )
    assert found["null engine, a record each, exactly_once over at_least_once"] == pytest.approx(0.9)
    assert found["64 a record, now over before"] == pytest.approx(100 / 90)
    assert found["crash, FastStream, recovery, s"] == 2


def batch_of(*sequences: list[int]) -> PackedBatch:
    return PackedBatch.of([np.array(ids, np.int32) for ids in sequences], [TaskOptions("embed")] * len(sequences))


def run_of(**parts: Any) -> dict[str, Any]:
    """A run of these parts; None: one that failed."""
    return {**begin("delivery", MACHINE, commit="abcdef0"), "parts": {name: {"result": parts[name]} for name in parts}}


def sides(first: str, second: str) -> dict[str, Any]:
    """Three rounds each; the second side has nine tenths of the first's rate."""
    return {
        name: [{"requests_per_s": rate * factor, "cpu_us": dict.fromkeys(PROCESSES, 50.0)} for factor in (0.5, 1, 2)]
        for name, rate in ((first, 100.0), (second, 90.0))
    }
