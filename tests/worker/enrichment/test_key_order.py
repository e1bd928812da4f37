"""The order of keys, under any order of results, rejections and records that are given up."""

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.worker.enrichment.key_order import KeyOrder
from penstock.worker.enrichment.output import Output
from penstock.worker.requests.record import PendingRecord

SOURCE = ("topic", 0)
KEYS = (None, b"", b"a", b"b")
ENDS = ("output", "rejected", "given up")


def record(offset: int, key: bytes | None) -> PendingRecord:
    original: Any = SimpleNamespace(topic="topic", partition=0, offset=offset, key=key, value=b"", headers=[])
    return PendingRecord(original, SOURCE, False)


def output(of: PendingRecord) -> Output:
    return Output(of.original.key, b"", [], lambda *_: None, of, "output", "ok")


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[PendingRecord, str]]:
    """Records of one partition and how each ends, in the order of their ends."""
    records = [record(offset, draw(st.sampled_from(KEYS))) for offset in range(draw(st.integers(1, 12)))]
    return [(one, draw(st.sampled_from(ENDS))) for one in draw(st.permutations(records))]


@given(histories())
def test_outputs_of_a_key_leave_in_their_order_and_none_behind_one_that_was_given_up(
    history: list[tuple[PendingRecord, str]],
) -> None:
    order = KeyOrder()
    order.admit(sorted([one for one, _ in history], key=lambda one: one.original.offset))
    left: list[PendingRecord] = []
    again: list[PendingRecord] = []  # the next owner reads them
    rejected: list[PendingRecord] = []
    for one, end in history:
        if one in again:  # it was given up with one before it
            continue
        if end == "given up":
            again += [one, *order.give_up([one])]
            continue
        leaving, given_up = order.finish([(one, output(one) if end == "output" else None)])
        left += [sent.origin for sent in leaving]
        again += given_up
        rejected += [one] if end == "rejected" else []
    ends = [*left, *again, *rejected]
    assert len(ends) == len(set(map(id, ends))) == len(history)
    for key in KEYS[1:]:
        offsets = [one.original.offset for one in left if one.original.key == key]
        assert offsets == sorted(offsets)
        unread = [one.original.offset for one in again if one.original.key == key]
        assert not unread or all(offset < min(unread) for offset in offsets)


def test_a_partition_that_comes_back_begins_anew() -> None:
    order, first, second = KeyOrder(), record(1, b"a"), record(2, b"a")
    order.admit([first, second])
    order.give_up([first])
    order.forget({SOURCE})
    again = record(1, b"a")
    order.admit([again])
    leaving, given_up = order.finish([(again, output(again))])
    assert [one.origin for one in leaving] == [again]
    assert given_up == []


def test_a_record_that_ends_after_its_partition_was_revoked_is_given_up_also_if_it_is_here_again() -> None:
    order = KeyOrder()
    before, again = record(0, b"a"), record(0, b"a")
    before.epoch, again.epoch = 1, 2
    order.admit([before])
    order.forget({SOURCE})
    assert order.finish([(before, output(before))]) == ([], [before])
    assert order.finish([(before, None)]) == ([], [])
    order.admit([again])
    assert order.finish([(before, output(before))]) == ([], [before])
    leaving, given_up = order.finish([(again, output(again))])
    assert ([one.origin for one in leaving], given_up) == ([again], [])
