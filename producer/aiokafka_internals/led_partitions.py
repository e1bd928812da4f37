"""The partitions of an assignment by the broker that leads them, and what to ask it for.

aiokafka (0.14) looks up the leader and the state of each partition anew before each fetch. `fetcher.py` says what it
would need.
"""

import random
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from aiokafka import TopicPartition

from penstock.producer.aiokafka_internals.fetch_session import FetchSession, Offsets
from penstock.producer.wire.topics import bulk_topic

NO_LEADER = -1
_BULK = bulk_topic("")

_Partition = tuple[int, Any]  # with its state


class Fetchable(NamedTuple):
    """The partitions that a broker can be asked for now."""

    offsets: Offsets
    unset: list[TopicPartition]  # partitions without a position
    resumed: list[Any]  # futures of paused topics, of one partition each: a topic is resumed as a whole


class LedPartitions:
    """Of one broker: online topics before bulk ones."""

    def __init__(self, session: FetchSession) -> None:
        self.session = session
        self._topics: dict[str, list[_Partition]] = {}

    def add(self, source: TopicPartition, state: Any) -> None:
        """Topics are asked for in the order of their first partitions."""
        self._topics.setdefault(source.topic, []).append((source.partition, state))

    def fetchable(self, waiting: Collection[TopicPartition], is_unknown: Callable[[str], bool]) -> Fetchable:
        """All but what waits to be handed out, and topics of unknown ids."""
        found = Fetchable({}, [], [])
        for topic, partitions in self._topics.items():
            if is_unknown(topic):
                continue
            start = random.randrange(len(partitions))  # so that none is always last
            asked = {
                number: state._position
                for number, state in partitions[start:] + partitions[:start]
                if not state._paused or state._position is None
            }
            if len(asked) < len(partitions):
                found.resumed.append(next(state.resume_fut for _, state in partitions if state._paused))
            for source in waiting:
                if source.topic == topic:
                    asked.pop(source.partition, None)
            if None in asked.values():
                found.unset.extend([TopicPartition(topic, number) for number, at in asked.items() if at is None])
            if asked:
                found.offsets[topic] = asked
        return found


class Leaders:
    """The brokers that lead the partitions of the present assignment."""

    def __init__(self) -> None:
        self._led: dict[int, LedPartitions] = {}
        self._sessions: dict[int, FetchSession] = {}
        self._assignment: Any = None
        self._metadata: Any = None

    def of(self, assignment: Any, cluster: Any) -> dict[int, LedPartitions]:
        """Partitions by broker; those of no known one are at `NO_LEADER`."""
        if self._assignment is not assignment:
            for session in self._sessions.values():
                session.leave()
        if self._assignment is not assignment or self._metadata is not cluster._partitions:  # replaced as a whole
            self._assignment, self._metadata, self._led = assignment, cluster._partitions, {}
            for source in sorted(assignment.tps, key=_is_bulk):
                leader = cluster.leader_for_partition(source)
                self._led_by(NO_LEADER if leader is None else leader).add(source, assignment.state_value(source))
        return self._led

    def _led_by(self, broker: int) -> LedPartitions:
        if broker not in self._led:
            self._led[broker] = LedPartitions(self._sessions.setdefault(broker, FetchSession()))
        return self._led[broker]


def _is_bulk(source: TopicPartition) -> bool:
    topic: str = source.topic
    return topic.endswith(_BULK)
