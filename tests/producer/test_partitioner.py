"""The choice of partitions: full batches, an even spread, and equal requests together where they come alone."""

from collections import Counter

import numpy as np
import pytest

from penstock.producer.transport.partitioner import StickyPartitioner
from penstock.producer.wire.headers import content_key
from penstock.producer.wire.topics import NUM_PARTITIONS


def keys(count: int) -> list[bytes]:
    return [content_key(b"%d" % number) for number in range(count)]


def test_requests_of_one_moment_fill_batches_that_are_spread_over_all_partitions() -> None:
    partitioner = StickyPartitioner(NUM_PARTITIONS)
    chosen = [partitioner.partition(key, 115, 1.0) for key in keys(10_000)]
    changes = np.flatnonzero(np.diff(chosen)) + 1
    sizes = np.diff([0, *changes, len(chosen)])
    assert 25 <= np.median(sizes) <= 40
    assert set(chosen) == set(range(NUM_PARTITIONS))
    members = Counter(partition * 4 // NUM_PARTITIONS for partition in chosen)  # as Kafka assigns ranges
    assert max(members.values()) < 1.3 * 10_000 / 4


def test_large_requests_are_batches_of_their_own() -> None:
    partitioner = StickyPartitioner(NUM_PARTITIONS)
    chosen = [partitioner.partition(key, 10_000, 1.0) for key in keys(1000)]
    assert chosen == [StickyPartitioner(NUM_PARTITIONS).partition(key, 1, 1.0) for key in keys(1000)]


def test_no_partition_is_kept_for_longer_than_a_moment() -> None:
    partitioner = StickyPartitioner(NUM_PARTITIONS)
    chosen = [partitioner.partition(key, 115, number * 0.0005) for number, key in enumerate(keys(2000))]
    runs = np.diff(np.flatnonzero(np.diff([-1, *chosen, -1])))
    assert np.quantile(runs, 0.9) <= 6  # three of 1 ms, or the same partition again


@pytest.mark.parametrize("step_s", [0.002, -3600.0])
def test_equal_requests_that_come_alone_meet(step_s: float) -> None:
    one, two = (StickyPartitioner(NUM_PARTITIONS) for _ in range(2))
    for number, key in enumerate(keys(100)):
        now = 1e9 + number * step_s
        assert one.partition(key, 115, now) == two.partition(key, 115, now + 0.5)
