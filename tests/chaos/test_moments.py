"""Faults come in seeded rounds: each kind alone, and then several together."""

import itertools
import random

from penstock.ops.chaos.faults.faults import KINDS, OF_BROKERS, moments


def rounds(seed: int) -> list[list[str]]:
    """Moments of two rounds."""
    found: list[list[str]] = []
    for together in moments(KINDS, 3, random.Random(seed)):
        found.append([*together])
        if sum(map(len, found)) == 2 * len(KINDS):
            break
    return found


def test_each_kind_comes_alone_and_then_beside_others() -> None:
    found = rounds(seed=1)
    alone, together = found[: len(KINDS)], found[len(KINDS) :]
    assert {len(moment) for moment in alone} == {1}
    assert {2, 3} <= {len(moment) for moment in together} <= {1, 2, 3}  # what is left over may be alone
    assert sorted(itertools.chain(*alone)) == sorted(itertools.chain(*together)) == sorted(KINDS)


def test_no_two_faults_of_brokers_come_together() -> None:
    for seed in range(20):
        assert all(len(OF_BROKERS.intersection(moment)) < 2 for moment in rounds(seed))


def test_what_controllers_undo_does_not_come_while_two_of_three_are_away() -> None:
    of_controllers = {"partitions_added", "replies_refused", "access_revoked"}
    for seed in range(20):
        beside = [set(moment) & of_controllers for moment in rounds(seed) if "no_leader" in moment]
        assert not any(beside)


def test_the_seed_decides() -> None:
    assert rounds(seed=1) == rounds(seed=1) != rounds(seed=2)
