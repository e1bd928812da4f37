"""The listener that aiokafka calls in a rebalance."""

from collections.abc import Awaitable, Callable

import structlog
from aiokafka import ConsumerRebalanceListener, TopicPartition

Rebalanced = Callable[[set[TopicPartition]], Awaitable[None]]

log = structlog.get_logger("penstock.consumer")


class RebalanceListener(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no type information
    """Logs what `revoked` raises as a bug; aiokafka swallows it."""

    def __init__(self, revoked: Rebalanced, assigned: Rebalanced) -> None:
        self._revoked = revoked
        self._assigned = assigned

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        try:
            await self._revoked(set(revoked))
        except Exception:
            log.exception("revocation_failed", note="This is a bug.")
            raise

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        await self._assigned(set(assigned))
