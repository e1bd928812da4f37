"""Back-pressure: each of the four counts can fill the worker, and each lets it go on."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.worker.held import Held

MIB = 1024 * 1024


@pytest.mark.parametrize(
    ("count", "bound"), [("records", 100), ("rows", 800), ("request_bytes", 256 * MIB), ("reply_bytes", 64 * MIB)]
)
def test_each_count_alone_fills_it_and_a_quarter_must_be_free_again(count: str, bound: int) -> None:
    held = Held(max_records=100)
    setattr(held, count, bound - 1)
    assert (held.is_full, held.has_room) == (False, False)
    setattr(held, count, bound)
    assert (held.is_full, held.has_room) == (True, False)
    setattr(held, count, bound * 3 // 4 - 1)
    assert (held.is_full, held.has_room) == (False, True)


def test_admission_waits_for_rows_and_replies_and_never_for_records_that_wait_for_it() -> None:
    held = Held(max_records=1)
    held.records, held.request_bytes = 500, 1000 * MIB
    assert held.can_admit
    held.rows = 8
    assert not held.can_admit
    held.rows, held.reply_bytes = 0, 64 * MIB
    assert not held.can_admit


@given(st.lists(st.binary(max_size=9) | st.none()))
def test_what_is_taken_and_let_go_leaves_nothing(values: list[bytes | None]) -> None:
    class Record:
        def __init__(self, value: bytes | None) -> None:
            self.value = value

    held: Any = Held(max_records=100)
    records = [Record(value) for value in values]
    for record in records:
        held.take(record)
    assert (held.records, held.request_bytes) == (len(values), sum(len(value or b"") for value in values))
    for record in reversed(records):
        held.let_go(record)
    assert (held.records, held.request_bytes) == (0, 0)
