"""The key of the answers to a record."""

import hashlib

from penstock.producer.wire.headers import position
from penstock.worker.kafka.kafka_record import KafkaRecord


def reply_key(record: KafkaRecord, replay_of: bytes | None = None) -> bytes:
    """The key of every answer to one record: a hash of its position, so that readers can drop duplicates.

    The answers to a replayed record have the key of the record that it repeats.
    """
    source = replay_of or position(record.topic, record.partition, record.offset)
    return hashlib.blake2b(source, digest_size=16).digest()
