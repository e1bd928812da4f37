"""Names of partitions in log events."""

from collections.abc import Collection, Sequence

from aiokafka import TopicPartition


def name(source: TopicPartition) -> str:
    """Topic and partition, such as requests-7."""
    return f"{source.topic}-{source.partition}"


def names(sources: Collection[TopicPartition]) -> dict[str, str]:
    """Topic -> its partitions, such as 0-7,9."""
    by_topic: dict[str, list[int]] = {}
    for source in sorted(sources):
        by_topic.setdefault(source.topic, []).append(source.partition)
    return {topic: _ranges(partitions) for topic, partitions in by_topic.items()}


def _ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers, briefly: 0-7,9."""
    firsts = [n for n in numbers if n - 1 not in numbers]
    lasts = [n for n in numbers if n + 1 not in numbers]
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in zip(firsts, lasts, strict=True))
