"""Samples by hash: of one size whatever is offered, of the same keys on both sides, with the latest record of each."""

from collections.abc import Sequence
from functools import partial
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from penstock.ops.parity.keyed_sample import KeyedSample, SampledRecord, common_reach

KEYS = st.binary(max_size=2)


def sample_of(keys: Sequence[bytes], size: int) -> KeyedSample:
    """A topic's, whose records have their number as place."""
    sample = KeyedSample("topic", size)
    for number, key in enumerate(keys):
        sample.offer(key, partial(SampledRecord, str(number), 1.0))
    return sample


@given(st.lists(KEYS), st.randoms(), st.integers(1, 5))
def test_a_sample_does_not_depend_on_the_order_of_the_keys(keys: list[bytes], random: Random, size: int) -> None:
    shuffled = random.sample(keys, len(keys))
    first, second = sample_of(keys, size), sample_of(shuffled, size)
    assert first.within(None).keys() == second.within(None).keys()
    assert len(first.within(None)) == min(size, len(set(keys)))


@given(st.lists(KEYS), st.integers(1, 5))
def test_the_last_record_of_a_key_is_the_one_in_the_sample(keys: list[bytes], size: int) -> None:
    last = {str(number) for number in {key: number for number, key in enumerate(keys)}.values()}
    assert {one.place for one in sample_of(keys, size).within(None).values()} <= last


@given(st.sets(KEYS), st.sets(KEYS), st.integers(1, 5))
def test_within_the_common_reach_no_key_of_either_side_is_left_out(
    ours: set[bytes], theirs: set[bytes], size: int
) -> None:
    """So a key that one side lacks there is a key that its topic lacks."""
    first, second = sample_of(sorted(ours), size), sample_of(sorted(theirs), size)
    reach = common_reach(first, second)
    in_both = sample_of(sorted(ours & theirs), len(ours) + 1).within(reach).keys()
    assert first.within(reach).keys() & second.within(reach).keys() == in_both
    of_ours = sample_of(sorted(ours), len(ours) + 1).within(reach).keys()
    assert first.within(reach).keys() == of_ours


def test_of_a_key_in_two_partitions_the_later_record_counts() -> None:
    """Keys move where partitions are added; those are read in their order, not in that of time."""
    sample = KeyedSample("topic", 4)
    for place, partition, timestamp_ms in (("new", 0, 20), ("old", 1, 10), ("newest", 2, 30), ("out of order", 2, 25)):
        sample.offer(b"key", partial(SampledRecord, place, 1.0, partition=partition, timestamp_ms=timestamp_ms))
    assert [one.place for one in sample.within(None).values()] == ["out of order"]


def test_records_outside_the_sample_are_not_read() -> None:
    read = list[int]()

    def record(number: int) -> SampledRecord:
        read.append(number)
        return SampledRecord(str(number), 1.0)

    sample = KeyedSample("topic", 10)
    for number in range(10_000):
        sample.offer(b"%d" % number, partial(record, number))
    assert sample.num_records == 10_000
    assert len(read) < 200
