"""An idempotent producer that is replaced after a failure with which it cannot go on."""

import asyncio
from collections.abc import Callable

import structlog
from aiokafka.errors import KafkaError

from penstock.producer.aiokafka_internals.producer import FailoverProducer
from penstock.producer.errors import KafkaUnreachable
from penstock.producer.transport.cluster import KafkaCluster
from penstock.producer.transport.connection import connect, disconnect

_STOP_S = 2.0
_RETIRE_S = 10.0  # for the batches that a replaced producer has underway to other partitions

log = structlog.get_logger("penstock.outbox")


class ReplaceableProducer:
    """The producer in use, and replaced ones with batches underway."""

    def __init__(self, cluster: KafkaCluster, make: Callable[[], FailoverProducer]) -> None:
        self.current: FailoverProducer | None = None  # None before `start` and after `stop`
        self._cluster = cluster
        self._make = make
        self._replacing = asyncio.Lock()
        self._retiring: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Connect, and log that the broker is waited for. Raises KafkaUnreachable and KafkaRefused."""
        self.current = await connect(self._cluster, self._make)

    async def stop(self) -> None:
        """Disconnect, within a few seconds. Batches underway are dropped."""
        if self.current is not None:
            producer, self.current = self.current, None
            await disconnect(producer, _STOP_S)
        for task in self._retiring:
            task.cancel()
        await asyncio.gather(*self._retiring, return_exceptions=True)

    async def replace(self, failed: FailoverProducer | None) -> None:
        """Replace a producer that has failed, if it is the current one and cannot go on. Waits for the broker."""
        async with self._replacing:
            if failed is None or self.current is not failed or failed.can_go_on:
                return
            try:
                self.current = await connect(self._cluster, self._make)
            except (KafkaError, KafkaUnreachable) as error:  # the next batch fails as well, and retries this
                log.warning("producer_not_replaced", error=repr(error))
                return
            log.warning("producer_replaced")
            retiring = asyncio.create_task(_retire(failed))
            self._retiring.add(retiring)
            retiring.add_done_callback(self._retiring.discard)


async def _retire(producer: FailoverProducer) -> None:
    """Let the batches to other partitions end, then fail those that are left: they are sent again by the new one."""
    try:
        await asyncio.wait((asyncio.create_task(producer.flush()),), timeout=_RETIRE_S)
    finally:
        producer.fail_batches("The producer was replaced.")
        await disconnect(producer, _STOP_S)
        await producer.client.close()
