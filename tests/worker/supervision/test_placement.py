"""Where members run: pure arithmetic over cores, GPUs and memory."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.worker.supervision.placement import CannotPlace, Gpu, Machine, num_fitting, one_more, place

GIB = 1 << 30


def machine(cores: int, gpus: int = 0) -> Machine:
    return Machine(tuple(range(cores)), tuple(Gpu(f"GPU-{n}", "NVIDIA H200", 100 * GIB) for n in range(gpus)))


@pytest.mark.parametrize(
    ("cores", "gpus", "members"),
    [(16, 1, 5), (10, 1, 5), (6, 1, 3), (4, 1, 2), (1, 1, 1), (32, 2, 10), (64, 4, 20), (8, 4, 4), (2, 8, 8)],
)
def test_each_gpu_gets_five_members_but_one_for_two_cores_at_most(cores: int, gpus: int, members: int) -> None:
    placements = place(machine(cores, gpus), range(gpus), None)
    assert len(placements) == members
    assert set(Counter(placement.gpu for placement in placements).values()) == {members // gpus}


def test_a_cpu_gets_one_member_with_all_cores_unless_more_are_asked_for() -> None:
    assert [placement.cpus for placement in place(machine(4), [], None)] == [(0, 1, 2, 3)]
    assert [placement.cpus for placement in place(machine(5), [], 2)] == [(0, 1, 2), (3, 4)]
    assert [placement.cpus for placement in place(machine(2), [], 3)] == [(0,), (1,), (0,)]


@given(st.integers(1, 200), st.integers(1, 8), st.none() | st.integers(1, 9))
def test_members_of_one_gpu_or_more_share_the_cores_evenly(cores: int, gpus: int, processes: int | None) -> None:
    placements = place(machine(cores, gpus), range(gpus), processes)
    assert [placement.worker for placement in placements] == list(range(len(placements)))
    assert all(placement.cpus for placement in placements)
    used = Counter(cpu for placement in placements for cpu in placement.cpus)
    if cores >= len(placements) and cores // gpus * gpus >= len(placements):
        assert set(used.values()) == {1}
        assert len(used) == cores
        sizes = [len(placement.cpus) for placement in placements]
        assert max(sizes) - min(sizes) <= 2
    # Kafka deals partitions to members in the order of their numbers: neighbours are on different GPUs.
    assert [placement.gpu for placement in placements[:gpus]] == list(range(gpus))


def test_only_the_gpus_that_are_named_are_used() -> None:
    placements = place(machine(8, 4), [3, 1], 2)
    assert [(placement.worker, placement.gpu, placement.uuid) for placement in placements] == [
        (0, 3, "GPU-3"),
        (1, 1, "GPU-1"),
        (2, 3, "GPU-3"),
        (3, 1, "GPU-1"),
    ]
    assert {placement.environment["CUDA_VISIBLE_DEVICES"] for placement in placements} == {"GPU-1", "GPU-3"}
    assert placements[0].environment["RAYON_NUM_THREADS"] == "1"


@pytest.mark.parametrize(("gpus", "says"), [(0, "no GPU is visible"), (1, "1 visible GPU,"), (4, "4 visible GPUs,")])
def test_a_gpu_that_is_not_there_is_refused(gpus: int, says: str) -> None:
    with pytest.raises(CannotPlace, match=f"--gpus 7: .*{says}"):
        place(machine(8, gpus), [7], None)


def test_one_more_goes_where_the_fewest_are_and_shares_their_cores() -> None:
    placed = place(machine(8, 2), range(2), 2)
    more = one_more(machine(8, 2), [placement for placement in placed if placement.worker != 1], {0, 2, 3})
    assert (more.worker, more.gpu, more.uuid, more.cpus) == (1, 1, "GPU-1", (6, 7))
    more = one_more(machine(2), place(machine(2), [], 2), {0, 1, 2})
    assert (more.worker, more.gpu, more.cpus) == (3, None, (0, 1))


def test_memory_limits_the_members_and_the_arithmetic_says_so() -> None:
    assert num_fitting(3, 10 * GIB, 3 * GIB) == (3, "")
    assert num_fitting(3, None, 3 * GIB) == (3, "")
    assert num_fitting(4, 10 * GIB, 3 * GIB) == (3, "4 members need 4 x 3.0 GiB, 10.0 GiB are free: 3 fit")
    assert num_fitting(1, 2 * GIB, 3 * GIB) == (0, "1 member needs 1 x 3.0 GiB, 2.0 GiB are free: none fit")
