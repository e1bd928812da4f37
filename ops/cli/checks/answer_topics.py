"""Samples of the answers in a route's output topic, in bounded memory."""

from contextlib import aclosing
from functools import partial
from typing import Any

from penstock.ops.cli.dead_letters.topic_reader import TopicReader
from penstock.ops.parity.answer_files import Done
from penstock.ops.parity.answer_places import FieldPlace, read_json
from penstock.ops.parity.keyed_sample import KeyedSample, SampledRecord
from penstock.ops.parity.recorded_answers import NotComparable, Unanswered
from penstock.producer.aiokafka_internals.record_batches import UNREADABLE_BATCH
from penstock.producer.wire.headers import MODEL, REVISION, SOURCE
from penstock.worker.routes.revision_field import model_text


async def num_partitions(reader: TopicReader, topic: str) -> int:
    """Of a topic. Raises KafkaUnreachable, KafkaRefused, and NotComparable if there is none."""
    found = await reader.num_partitions(topic)
    if found is None:
        raise NotComparable(f"There is no topic {topic}. A file is named with its extension, .jsonl or .parquet.")
    return found


async def sample_topic(
    reader: TopicReader, topic: str, partitions: int, place: FieldPlace, size: int, done: Done
) -> KeyedSample:
    """Read a topic once, up to its present ends.

    Raises KafkaUnreachable and KafkaRefused; NotComparable for a record that has no key.
    """
    sample = KeyedSample(topic, size)
    ends = [await reader.end(topic, partition) for partition in range(partitions)]
    before, total = 0, sum(ends)
    for partition, end in enumerate(ends):
        async with aclosing(reader.records(topic, partition, last=end - 1)) as records:
            async for record in records:
                _offer(sample, record, place)
                done(before + record.offset + 1, total)
        before += end
    return sample


def _offer(sample: KeyedSample, record: Any, place: FieldPlace) -> None:
    headers = {name: value or b"" for name, value in record.headers}
    at = f"{record.topic}-{record.partition}-{record.offset}"
    source = headers.get(SOURCE, b"")
    if UNREADABLE_BATCH in headers:
        raise NotComparable(
            f"A batch that ends with {at} cannot be read: {headers[UNREADABLE_BATCH].decode(errors='replace')}."
        )
    if record.key is None and not source:
        raise NotComparable(f"{at} has neither a key nor the header {SOURCE}, by which records are paired.")
    key = b"source " + source if record.key is None else b"key " + record.key
    sample.offer(key, partial(_record, record, at, place, headers))


def _record(record: Any, at: str, place: FieldPlace, headers: dict[str, bytes]) -> SampledRecord:
    answer: Any = Unanswered("is a tombstone", is_tombstone=True)
    inputs = b""
    model, revision = [headers.get(name, b"").decode(errors="replace") for name in (MODEL, REVISION)]
    try:
        if record.value is not None:
            answer, inputs = place.read(read_json(record.value), model_text(model, revision))
    except NotComparable as error:
        answer = error.kept()
    return SampledRecord(
        at,
        answer,
        inputs,
        source=headers.get(SOURCE, b""),
        model=model,
        revision=revision,
        partition=record.partition,
        timestamp_ms=record.timestamp,
    )
