"""Members hear of a rebalance at the same moment, whenever each of them has joined."""

from typing import Any

import pytest
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.protocol.group import JoinGroupRequest

from penstock.producer.aiokafka_internals.heartbeats import EVERY_S, CommonHeartbeats, until_apart, until_next

MOMENT = 1_764_000_000.0  # a multiple of the interval


@pytest.mark.parametrize("late_s", [0.0, 0.001, 0.05, 0.1, 0.199])
def test_the_next_common_moment_is_the_same_for_all(late_s: float) -> None:
    assert until_next(MOMENT + late_s) == pytest.approx(EVERY_S - late_s, abs=1e-5)


async def test_a_heartbeat_is_sent_at_a_common_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    now, sent = MOMENT + 0.13, list[float]()

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    async def send(coordinator: Any) -> bool:
        sent.append(now)
        return True

    monkeypatch.setattr("penstock.producer.aiokafka_internals.heartbeats.asyncio.sleep", sleep)
    monkeypatch.setattr("penstock.producer.aiokafka_internals.heartbeats.time.time", lambda: now)
    monkeypatch.setattr(GroupCoordinator, "_do_heartbeat", send)
    coordinator = CommonHeartbeats.__new__(CommonHeartbeats)
    for _ in range(3):
        assert await coordinator._do_heartbeat()
        now += 0.003  # until the answer
    assert sent == pytest.approx([MOMENT + EVERY_S * n for n in (1, 2, 3)], abs=1e-5)


@pytest.mark.parametrize(
    ("since_s", "wait_s"), [(0.0, 0.03), (0.01, 0.02), (0.05, 0.0), (0.15, 0.0), (0.18, 0.05), (0.199, 0.031)]
)
def test_a_rebalance_begins_apart_from_the_common_moments(since_s: float, wait_s: float) -> None:
    assert until_apart(MOMENT + since_s) == pytest.approx(wait_s, abs=1e-5)


@pytest.mark.parametrize(("member_id", "wait_s"), [(JoinGroupRequest.UNKNOWN_MEMBER_ID, 0.04), ("member-1", 0.0)])
async def test_a_new_member_joins_apart_from_them_and_others_at_once(
    monkeypatch: pytest.MonkeyPatch, member_id: str, wait_s: float
) -> None:
    waited = list[float]()

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    async def join(coordinator: Any, subscription: object) -> bool:
        return True

    monkeypatch.setattr("penstock.producer.aiokafka_internals.heartbeats.asyncio.sleep", sleep)
    monkeypatch.setattr("penstock.producer.aiokafka_internals.heartbeats.time.time", lambda: MOMENT - 0.01)
    monkeypatch.setattr(GroupCoordinator, "_do_rejoin_group", join)
    coordinator = CommonHeartbeats.__new__(CommonHeartbeats)
    coordinator.member_id = member_id
    assert await coordinator._do_rejoin_group(None)
    assert sum(waited) == pytest.approx(wait_s, abs=1e-5)
