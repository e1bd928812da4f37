"""Numbers as columns, and what is added up from them, against one number at a time."""

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.ops.logs.lines.event import Event, number
from penstock.ops.logs.totals.columns import column_of, distinct
from tests.ops.logs.helpers import batch, digest, line

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(10**300, 10**310),
    st.floats(),
    st.text(max_size=3),
    st.lists(st.floats(), max_size=2),
)


@given(st.lists(VALUES, max_size=20))
def test_a_column_has_the_numbers_of_the_events(values: list[Any]) -> None:
    events = [Event(0, None, {"event": "x", "key": value}) for value in values]
    expected = [np.nan if (one := number(value)) is None else one for value in values]
    np.testing.assert_array_equal(column_of(events, "key"), expected)
    assert np.isnan(column_of(events, "other")).all()


@given(st.one_of(st.lists(st.integers(-50, 5000)), st.lists(st.integers(-(2**62), 2**62))))
def test_distinct_numbers_are_those_of_numpy(numbers: list[int]) -> None:
    values = np.array(numbers, np.int64)
    found, places = distinct(values)
    expected = sorted(set(numbers))
    assert found.tolist() == expected
    assert found[places].tolist() == numbers


def test_batches_of_many_kinds_and_times_add_up(tmp_path: Path) -> None:
    """Unknown texts, clocks years apart, lines without a time, and more than one kind of each."""
    rng = np.random.default_rng(0)
    triggers = ["hungry", "timeout", *(f"kind {number}" for number in range(90))]
    made = [
        batch(
            int(rng.choice([0, 1, 2, 59])),
            trigger=str(rng.choice(triggers)),
            partition=str(rng.choice(["fifo", "dp", "ü"])),
            sequences=int(rng.integers(0, 9)),
            tokens=int(rng.integers(0, 5000)),
            device_s=float(rng.integers(1, 9)) / 1000,
        )
        for _ in range(400)
    ]
    made += [one.replace('"timestamp": "2026', '"timestamp": "1999') for one in made[:20]]
    made += [one.replace('"timestamp": "', '"timestamp": "?') for one in made[:20]]
    path = tmp_path / "worker.log"
    path.write_text("".join(made), encoding="utf-8")
    lines = [json.loads(one) for one in made]
    found = digest(path).batches
    for table, key in ((found.by_trigger, "trigger"), (found.by_partition, "partition")):
        assert {name: group.batches for name, group in table.items()} == Counter(one[key] for one in lines)
        tokens: dict[str, int] = defaultdict(int)
        for one in lines:
            tokens[one[key]] += one["tokens"]
        assert {name: group.tokens for name, group in table.items()} == tokens
    sizes = Counter((max(one["tokens"], 1) - 1).bit_length() for one in lines)
    assert {size: group.batches for size, group in found.by_tokens.items()} == sizes
    assert found.all.device_s == pytest.approx(sum(one["device_s"] for one in lines))
    assert len(found.all.ratios) == len(lines)


def test_requests_of_odd_values_are_counted(tmp_path: Path) -> None:
    """Fields that are missing, no numbers, or not finite leave the others as they are."""
    odd: list[dict[str, Any]] = [
        {"sample": "first", "kafka_ms": -5.0, "total_ms": 7.0},
        {"sample": "first", "kafka_ms": "soon", "total_ms": float("nan")},
        {"sample": "slowest", "kafka_ms": True, "total_ms": 9000},
        {"sample": "first", "total_ms": None, "compute_ms": 3},
        {"sample": "first", "class": "bulk", "total_ms": 20.0},
        {},
    ]
    path = tmp_path / "worker.log"
    path.write_text("".join(line("request_done", **fields) for fields in odd) + line("request_done", None, total_ms=8))
    found = digest(path)
    stages = found.requests.stages
    assert found.requests.events["request_done"] == len(odd) + 1
    assert [event.fields.get("total_ms") for event in found.requests.slowest("online")] == [9000, 8, 7.0]
    assert [event.fields.get("total_ms") for event in found.requests.slowest("bulk")] == [20.0]
    counted = {name: {stage: len(times) for stage, times in of.items() if len(times)} for name, of in stages.items()}
    assert counted == {"online": {"kafka": 1, "total": 1, "compute": 1}, "bulk": {"total": 1}}
    assert found.requests.num_ahead == 1
    totals = found.series.totals()
    assert (totals["kafka_s"], totals["slowest_s"]) == (0.0, 9.0)
