"""aiokafka's sender for a producer without transactions, which wakes once for a batch.

aiokafka's (0.14) also wakes when a batch has ended, makes a set of futures each time, and encodes a request field by
field. While a partition has no leader, it asks for metadata some 2,000 times a second. To go, it needs a sender that
waits for its accumulator alone, and for a while between two such requests, and what `produce_message.py` says.
"""

import asyncio
from collections import defaultdict
from typing import Any

from aiokafka.errors import KafkaError, OutOfOrderSequenceNumber, ProducerFenced
from aiokafka.producer.sender import Sender, SendProduceReqHandler

from penstock.producer.aiokafka_internals.produce_message import ProduceMessage


class LeanSender(Sender):  # type: ignore[misc]  # aiokafka has no type information
    """Takes the place of a sender that aiokafka has made and not started yet. One request at a time to each broker."""

    _failure: BaseException | None = None  # of a request, with which the sender ends
    _may_ask = True  # for leaders

    async def _sender_routine(self) -> None:
        """Called by `start`. Sends what waits, until cancelled."""
        sending: set[asyncio.Task[None]] = set()
        waiting = self._message_accumulator
        try:
            while self._failure is None:
                await self._maybe_wait_for_pid()
                batches, is_leader_unknown = waiting.drain_by_nodes(self._in_flight, self._muted_partitions)
                for node_id, of_node in batches.items():
                    self._in_flight.add(node_id)
                    self._muted_partitions.update(of_node)
                    task = asyncio.create_task(self._send_produce_req(node_id, of_node))
                    sending.add(task)
                    task.add_done_callback(sending.discard)
                    task.add_done_callback(self._on_sent)
                if is_leader_unknown:
                    self._ask_for_leaders()
                await waiting.waiter()
            raise self._failure
        except asyncio.CancelledError:
            for task in tuple(sending):
                await task
        except (ProducerFenced, OutOfOrderSequenceNumber):
            raise
        except Exception as error:
            raise KafkaError(f"{error!r} in the sender. This is a bug.") from error

    def _ask_for_leaders(self) -> None:
        """Of batches that wait for one. Wakes the routine with the answer, and when it may ask again."""
        if self._may_ask:
            self._may_ask = False
            self.client.force_metadata_update().add_done_callback(self._wake)
            asyncio.get_running_loop().call_later(self._retry_backoff, self._ask_again)

    def _ask_again(self) -> None:
        self._may_ask = True
        self._wake()

    def _on_sent(self, task: asyncio.Task[None]) -> None:
        """The broker is free: send what has come for it, or comes again, meanwhile."""
        failure = None if task.cancelled() else task.exception()
        self._failure = self._failure or failure
        if failure is not None or self._message_accumulator._batches:
            self._wake()

    def _wake(self, *_: object) -> None:
        self._message_accumulator._wakeup(self._message_accumulator.waiter())

    def _fail_all(self, task: asyncio.Task[None]) -> None:
        """Called when the routine has ended. aiokafka's fails where there are no transactions."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._message_accumulator.fail_all(error)

    async def _send_produce_req(self, node_id: Any, batches: dict[Any, Any]) -> None:
        await _Handler(self, batches).do(node_id)
        self._in_flight.remove(node_id)
        self._muted_partitions.difference_update(batches)


class _Handler(SendProduceReqHandler):  # type: ignore[misc]  # as above
    def create_request(self) -> ProduceMessage:
        topics: defaultdict[str, list[tuple[int, bytes]]] = defaultdict(list)
        for source, batch in self._batches.items():
            topics[source.topic].append((source.partition, batch.get_data_buffer()))
        return ProduceMessage(self._sender._acks, self._sender._request_timeout_ms, list(topics.items()))
