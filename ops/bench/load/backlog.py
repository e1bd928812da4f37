"""A backlog of records on one topic, and how fast a contestant makes the records of another topic of it.

All contestants are measured alike: librdkafka writes the records at once, and reads what comes of them.
"""

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # without saying so

from penstock.ops.bench.common.processes import ProcessFailed, read_cpu_s
from penstock.ops.bench.load.load_bench import say
from penstock.ops.bench.load.records import Headers
from penstock.ops.kafka import KafkaBroker

PARTITIONS = 4
_WARM_SHARE = 0.1  # of the outputs, before the clock starts
_AT_ONCE, _LEAST_READS, _POLL_S, _PATIENCE_S = 2000, 20, 0.2, 240.0  # the last until a contestant has loaded its model
_READER = {"group.id": "bench.reader", "enable.auto.commit": False, "isolation.level": "read_committed"}


class Sent(NamedTuple):
    """A record of a backlog."""

    key: bytes
    value: bytes
    headers: Headers = ()


class Backlog:
    """One contestant's input topic and output topic, which it has already joined."""

    def __init__(
        self,
        name: str,
        broker: KafkaBroker,
        topics: tuple[str, str],
        records: Sequence[Sent],
        processes: Callable[[], Mapping[str, int]],
        partitions: int = PARTITIONS,
    ) -> None:
        """`processes`: process ids of the contestant now, by label. `partitions`: of each topic."""
        self._name, self._broker, self._topics = name, broker, topics
        self._records, self._processes, self._partitions = records, processes, partitions

    def measure(self) -> dict[str, Any]:
        """Write the records, and read as many; returns the rate of all but the first, and what they cost.

        The first are those that were made when a tenth had been read: the output topic tells, as a reader that starts
        late finds some that wait for it. If that is all of them, the clock starts with the first that is written.
        Raises ProcessFailed if they do not come.
        """
        source, output = self._topics
        reader = Consumer({"bootstrap.servers": self._broker.bootstrap_servers, **_READER})
        try:
            places = [TopicPartition(output, number) for number in range(self._partitions)]
            for place in places:  # known before anything is written, however slow the machine is
                place.offset = _end(reader, place)
            reader.assign(places)
            begun = time.perf_counter(), self._cpu_s()
            self._write(source)
            found = self._read(reader, places, begun)
        finally:
            reader.close()
        costs = ", ".join(f"{name} {cost:.1f} µs" for name, cost in found["cpu_us"].items())
        say(f"{self._name}: {found['records_per_s']:,.0f} records/s of {found['output_bytes']:,.0f} bytes; {costs}")
        return found

    def _write(self, topic: str) -> None:
        producer = Producer({"bootstrap.servers": self._broker.bootstrap_servers, "linger.ms": 20})
        for number, (key, value, headers) in enumerate(self._records):
            producer.produce(topic, value, key, headers=list(headers), partition=number % self._partitions)
            if number % _AT_ONCE == 0:
                producer.poll(0)
        producer.flush()

    def _read(
        self, reader: Consumer, places: Sequence[TopicPartition], begun: tuple[float, dict[str, float]]
    ) -> dict[str, Any]:
        """`begun`: the time and the processor seconds before the first was written."""
        count, num_read, num_bytes, num_made = len(self._records), 0, 0, 0
        started, before = time.perf_counter(), self._cpu_s()
        heard, at_once = started, max(1, min(_AT_ONCE, count // _LEAST_READS))
        while num_read < count:
            messages = reader.consume(min(at_once, count - num_read), _POLL_S)
            if wrong := [one.error() for one in messages if one.error() is not None]:
                raise KafkaException(wrong[0])
            now = time.perf_counter()
            heard = now if messages else heard
            if now - heard > _PATIENCE_S:
                raise ProcessFailed(f"{self._name}: {num_read} of {count} records came.")
            num_read += len(messages)
            num_bytes += sum([len(one.value() or b"") for one in messages])
            if not num_made and num_read >= _WARM_SHARE * count:
                started, before = now, self._cpu_s()
                num_made = sum([_end(reader, place) - place.offset for place in places])
        if num_made >= count:
            num_made, (started, before) = 0, begun
        num, after = count - num_made, self._cpu_s()
        return {
            "records_per_s": num / (time.perf_counter() - started),
            "output_bytes": num_bytes / count,
            "cpu_us": {name: (after[name] - used_s) / num * 1e6 for name, used_s in before.items()},
        }

    def _cpu_s(self) -> dict[str, float]:
        """Processor seconds of the contestant, the broker and the reader."""
        theirs = read_cpu_s(self._processes()).values()
        others = {"broker": self._broker.pid or os.getpid(), "reader": os.getpid()}
        return {"contestant": sum(theirs), **read_cpu_s(others)}


def _end(reader: Consumer, place: TopicPartition) -> int:
    """Offset of the partition's next record."""
    return int(reader.get_watermark_offsets(place, _PATIENCE_S)[1])


def create_topics(broker: KafkaBroker, topics: Sequence[str], partitions: int = PARTITIONS) -> None:
    """New topics. Blocks."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for created in admin.create_topics([NewTopic(topic, partitions, 1) for topic in topics]).values():
        created.result()


def json_records(texts: Sequence[str]) -> list[Sent]:
    """One text a record, in the field `text`."""
    return [Sent(key_of(n), json.dumps({"id": str(n), "text": text}).encode()) for n, text in enumerate(texts)]


def key_of(number: int) -> bytes:
    """The key of a record by its place."""
    return b"%d" % number
