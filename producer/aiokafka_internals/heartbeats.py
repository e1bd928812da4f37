"""Heartbeats at moments that all members of a group have in common.

A member learns from the answer to a heartbeat that its group rebalances. It then gives its partitions back, and no
member gets new ones before the last has heard of it too. Members whose heartbeats fall on different moments wait for
one another, for up to an interval; so they fall on whole multiples of it, by the clock. A rebalance begins apart from
these moments, or some would hear of it an interval before the others. Where the clocks of machines differ, members only
wait longer.

aiokafka (0.14) sends heartbeats an interval after the last one, and revokes everything in a rebalance. To go, it needs
cooperative rebalances (KIP-429) or the group protocol of KIP-848, in which members do not wait for one another.
"""

import asyncio
import time
from typing import Any

from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.protocol.group import JoinGroupRequest

EVERY_S = 0.2  # a heartbeat takes an idle member some 0.5 ms of a core
_APART_S = 0.03  # a busy member's heartbeat is up to some 20 ms late


class CommonHeartbeats(GroupCoordinator):  # type: ignore[misc]  # aiokafka has no type information
    """aiokafka's coordinator, which waits for the next common moment before each heartbeat.

    A new member joins apart from these moments. One that knows of a rebalance joins it at once.
    """

    async def _do_rejoin_group(self, subscription: Any) -> bool:
        if self.member_id == JoinGroupRequest.UNKNOWN_MEMBER_ID:
            await asyncio.sleep(until_apart(time.time()))
        return bool(await super()._do_rejoin_group(subscription))

    async def _do_heartbeat(self) -> bool:
        await asyncio.sleep(until_next(time.time()))
        return bool(await super()._do_heartbeat())


def until_next(now: float) -> float:
    """Seconds from a Unix time to the next common moment."""
    return EVERY_S * (1 - now / EVERY_S % 1)


def until_apart(now: float) -> float:
    """Seconds from a Unix time until a rebalance may begin: 0, unless a common moment is near."""
    left_s = until_next(now)
    if left_s < _APART_S:
        return left_s + _APART_S
    return max(0.0, _APART_S - (EVERY_S - left_s))
