"""The partition of a key, by the rule of Kafka's own clients. aiokafka's hash is not among its public names."""

from aiokafka.partitioner import murmur2

_POSITIVE = 0x7FFFFFFF


def default_partition(key: bytes, num_partitions: int) -> int:
    """Where Kafka's producers put a record with this key."""
    found: int = (murmur2(key) & _POSITIVE) % num_partitions
    return found
