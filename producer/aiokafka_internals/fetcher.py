"""The choice of the next fetch: what is asked for, in which order, and when.

Online and bulk records share one consumer, so that one member has both partitions of a number. A broker answers a fetch
in the order of its partitions, up to the fetch size: a bulk backlog takes only the bytes that online records leave.
Bulk is not starved: while online records wait in the worker, their topic is paused.

A turn of the worker (a fetch, a batch, a produce request) takes the event loop some two milliseconds, whatever it
brings. A broker that is asked again at once answers with a few records, and small turns keep the loop busy. So at a
high rate a fetch that has brought several records is followed by the next one a little later, counted from when it was
sent. One that has brought fewer, and any at a low rate, which turns cannot keep busy, is followed at once.

aiokafka reports nowhere that it goes on elsewhere than at the position of a partition. Here `jumped` is told.

A partition may bring half a million records at once. Each poll hands out a part of them, and what the other partitions
have brought; its broker is asked for the others meanwhile.

aiokafka (0.14) asks again at once, in the order of a dictionary, and hands out a partition's records whole. While a
partition has no leader, it asks for metadata some 3,000 times a second. To go, it needs priorities of topics, a least
time between fetches and between such requests, and a callback for positions that are reset.
"""

import math
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from aiokafka import TopicPartition
from aiokafka.consumer.fetcher import Fetcher, FetchResult

from penstock.producer.aiokafka_internals.bounded_fetch import is_paused
from penstock.producer.aiokafka_internals.fetch_messages import (
    INCONSISTENT_TOPIC_ID,
    OUT_OF_RANGE,
    UNKNOWN_TOPIC,
    UNKNOWN_TOPIC_ID,
    FetchMessage,
)
from penstock.producer.aiokafka_internals.fetch_session import FetchSession, Offsets
from penstock.producer.aiokafka_internals.led_partitions import NO_LEADER, Leaders, LedPartitions
from penstock.producer.aiokafka_internals.topic_ids import NO_TOPIC_ID, TopicIds

# Five members on an H100 at 8,000 requests/s, medians of three: p50 8.8 ms with 3.1 cores of members. With 4 ms from 3
# records on: 9.1 ms, 4.6 cores. With 4 ms from 4 records and 1,500/s on: 12.0 ms, 5.1 cores.
_PACE_S = 0.006
_SEVERAL = 3  # records
_LOW_PER_S = 500  # records; below, a member's turns do not fill its loop, and a pace would only add latency
_LATELY = 8  # fetches, over which the rate is taken
# Of a poll: as many records as a worker validates, or rejects, in some 40 ms, shared by the partitions that have any.
_POLL_RECORDS = 1024
_LEAST_RECORDS = 32  # of a partition

_Asked = tuple[float, int]  # when a broker was asked, and the number of records handed out by then

# Requests by broker, partitions without a position by broker, seconds until the next look, whether to ask for leaders,
# futures of resumes.
_Actions = tuple[list[tuple[int, FetchMessage]], dict[int, list[TopicPartition]], float, bool, list[Any]]


class LeanFetcher(Fetcher):  # type: ignore[misc]  # aiokafka has no type information
    """aiokafka's fetcher with another choice of what to do next. It is asked twice for each fetch."""

    def begin(
        self, topic_ids: TopicIds, jumped: Callable[[TopicPartition, int, int], None], *, pace_s: float = _PACE_S
    ) -> None:
        """Called when aiokafka has made the fetcher and its tasks have not run yet.

        `jumped` is told a partition, the offset that was asked for and is not there, and where it is read on.
        `pace_s`: from one fetch to the next at a high rate.
        """
        self._pace_s = pace_s
        self._topic_ids = topic_ids
        self._jumped = jumped
        self._num_records = 0  # handed out so far
        self._leaders = Leaders()
        self._leaders_asked_at = -math.inf
        self._out_of_range: dict[TopicPartition, int] = {}  # offsets that were asked for, and that logs do not have
        self._asked: defaultdict[int, deque[_Asked]] = defaultdict(lambda: deque(maxlen=_LATELY))  # by broker

    def _get_actions_per_node(self, assignment: Any) -> _Actions:
        """Fetch from each broker of which nothing is on its way or waits to be handed out."""
        held, paced = self._held(), self._paced(time.monotonic())
        timeout_s = min([self._fetcher_timeout, *map(max, held.values()), *paced.values()])
        if len(self._in_flight) > len(self._pending_tasks):
            timeout_s = 0.0  # a fetch has ended in this turn of the loop; the next turn marks its broker as free
        busy = held.keys() | paced.keys() | self._in_flight
        return self._actions(self._leaders.of(assignment, self._client.cluster), busy, timeout_s)

    async def _proc_fetch_request(self, assignment: Any, node_id: int, request: FetchMessage) -> bool:
        """Fetch, and wake the reader at once. Returns false: the fetch routine, which runs later, need not do it."""
        self._asked[node_id].append((time.monotonic(), self._num_records))
        if await super()._proc_fetch_request(assignment, node_id, request):
            for waiter in self._fetch_waiters:
                self._notify(waiter)
        for fault in request.faults:
            if not assignment.active:  # the next one has read the ids anew
                break
            if fault.error in (UNKNOWN_TOPIC, UNKNOWN_TOPIC_ID, INCONSISTENT_TOPIC_ID):
                if request.ids[fault.topic] != NO_TOPIC_ID:  # else it is read by its name, and once it is there again
                    self._topic_ids.note_unknown(fault.topic)
            elif fault.error == OUT_OF_RANGE:
                self._out_of_range[TopicPartition(fault.topic, fault.partition)] = fault.offset
        return False

    async def _update_fetch_positions(self, assignment: Any, node_id: int, tps: Any) -> bool:
        """Find the beginnings of logs that do not have the positions of their partitions."""
        needs_wakeup = bool(await super()._update_fetch_positions(assignment, node_id, tps))
        for source in self._out_of_range.keys() & tps:
            state = assignment.state_value(source)
            if state.has_valid_position:
                self._jumped(source, self._out_of_range.pop(source), state.position)
        return needs_wakeup

    async def fetched_records(
        self,
        partitions: Any,
        timeout: float = 0,  # noqa: ASYNC109  # the name that aiokafka gives it
        max_records: int | None = None,
    ) -> Any:
        """Called by `getmany`, with the timeout in seconds. Makes no task and no set of futures in order to wait."""
        found = await self._take(partitions, max_records)
        if found or not timeout:
            return found
        waiter = self._create_fetch_waiter()
        timer = self._loop.call_later(timeout, self._notify, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
        return await self._take(partitions, max_records)

    async def _take(self, partitions: Any, max_records: int | None) -> Any:
        found = await self._take_parts(partitions, max_records)
        self._num_records += sum(map(len, found.values()))
        return found

    async def _take_parts(self, partitions: Any, max_records: int | None) -> dict[TopicPartition, list[Any]]:
        """Some records of each partition, those with few first, so that one with very many holds up no other.

        Those of paused partitions stay: aiokafka would discard them, and fetch and unpack a large batch again. An error
        of one partition is raised by the next call if others have brought records.
        """
        if self._subscriptions.reassignment_in_progress:
            await self._subscriptions.wait_for_assignment()
        waiting = [source for source in self._records if not partitions or source in partitions]
        share = max(_LEAST_RECORDS, (max_records or _POLL_RECORDS) // max(1, len(waiting)))
        found: dict[TopicPartition, list[Any]] = {}
        for source in waiting:
            fetched = self._records[source]
            if not isinstance(fetched, FetchResult):
                if not found:
                    self._forget_fetched(source)
                    fetched.check_raise()
            elif not is_paused(fetched):
                records = fetched.getall(share)
                if fetched.has_more():
                    fetched._backoff = 0  # its broker is asked for other partitions
                else:
                    self._forget_fetched(source)
                if records:
                    found[source] = records
        return dict(sorted(found.items(), key=lambda item: len(item[1])))

    def _forget_fetched(self, source: TopicPartition) -> None:
        del self._records[source]
        self._notify(self._wait_consume_future)

    def _paced(self, now: float) -> dict[int, float]:
        """Brokers to ask again a little later -> seconds until then."""
        waits = {
            node: asked[-1][0] + self._pace_s - now for node, asked in self._asked.items() if self._is_busy(asked, now)
        }
        return {node: wait_s for node, wait_s in waits.items() if wait_s > 0}

    def _is_busy(self, asked: Sequence[_Asked], now: float) -> bool:
        """Whether the last answer had several records, and records have come at a high rate lately."""
        (since, first), (_, last) = asked[0], asked[-1]
        is_several = self._num_records - last >= _SEVERAL
        return is_several and self._num_records - first >= _LOW_PER_S * (now - since)

    def _held(self) -> dict[int, list[float]]:
        """Brokers whose last answer was not handed out yet -> seconds for which the others of its partitions wait."""
        held: dict[int, list[float]] = defaultdict(list)
        for source, fetched in self._records.items():
            if isinstance(fetched, FetchResult) and is_paused(fetched):
                continue
            if wait_s := fetched.calculate_backoff():
                held[self._client.cluster.leader_for_partition(source)].append(wait_s)
        return held

    def _actions(self, leaders: Mapping[int, LedPartitions], busy: Collection[int], timeout_s: float) -> _Actions:
        requests: list[tuple[int, FetchMessage]] = []
        unset: dict[int, list[TopicPartition]] = {}
        resumed: list[Any] = []
        asks_for_leaders = False
        for node in leaders.keys() - busy:
            found = leaders[node].fetchable(self._records, self._topic_ids.is_unknown)
            resumed += found.resumed
            if node == NO_LEADER:
                asks_for_leaders = bool(found.offsets) and self._may_ask_for_leaders(time.monotonic())
            elif found.unset:
                unset[node] = found.unset
            elif found.offsets:
                requests.append((node, self._request(found.offsets, leaders[node].session)))
        return requests, unset, timeout_s, asks_for_leaders, resumed

    def _may_ask_for_leaders(self, now: float) -> bool:
        """At once, and then once a back-off: a partition has no leader for as long as all of its brokers are away."""
        is_due: bool = now - self._leaders_asked_at >= self._retry_backoff
        if is_due:
            self._leaders_asked_at = now
        return is_due

    def _request(self, offsets: Offsets, session: FetchSession) -> FetchMessage:
        return FetchMessage(
            *(self._fetch_max_wait_ms, self._fetch_min_bytes, self._fetch_max_bytes, self._isolation_level),
            partition_bytes=self._max_partition_fetch_bytes,
            rack_id=self._client_rack or "",
            offsets=offsets,
            topic_ids=self._topic_ids,
            session=session,
        )
