"""Names of topics."""

import os
import re
from pathlib import Path

REPLY_TOPIC = "penstock.replies"
# Partitions of topics that a worker or a client creates. Every member of a consumer group needs one of each request
# topic; 60 are shared evenly by 1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30 or 60 members. A client reads one partition of
# replies and skips replies to others there.
NUM_PARTITIONS = 60
DEAD_LETTER_PARTITIONS = 8
REPLY_TOPIC_PATTERN = r"penstock\.replies(\..+)?"
_MOST_CHARS = 249  # Kafka's limit


def check_topic(name: str | None) -> str | None:
    """A topic's name, or None for the default. Raises ValueError, as pydantic's validators do."""
    return _checked(name, _MOST_CHARS)


def check_request_topic(name: str | None) -> str | None:
    """`check_topic` for a request topic, whose name is extended for its bulk and dead-letter topics."""
    return _checked(name, _MOST_CHARS - len(dead_letter_topic(bulk_topic(""))))


def check_served_name(name: str | None) -> str | None:
    """A model's served name, short enough for the names of its topics, or None for the default. Raises ValueError."""
    most = _MOST_CHARS - len(dead_letter_topic(bulk_topic(request_topic(""))))
    if name is not None and not (1 <= len(name) <= most and "/" not in name):
        raise ValueError(f"must be 1 to {most} characters, without slashes")
    return name


def served_name_of(model: str) -> str:
    """The served name of a checkpoint's path or id, by the workers' rule; a served name is returned unchanged."""
    return Path(os.path.abspath(model)).name if "/" in model or model in (".", "..") else model


def _checked(name: str | None, most: int) -> str | None:
    if name is None or (re.fullmatch(rf"[a-zA-Z0-9._-]{{1,{most}}}", name) and name not in (".", "..")):
        return name
    raise ValueError(f"must be 1 to {most} letters, digits, dots, underscores and dashes")


def request_topic(model: str) -> str:
    """The request topic of a model; characters that Kafka does not allow become dashes."""
    return "penstock.requests." + re.sub(r"[^a-zA-Z0-9._-]", "-", model)


def bulk_topic(topic: str) -> str:
    """The topic for bulk requests that belongs to a request topic."""
    return topic + ".bulk"


def replay_topic(topic: str) -> str:
    """The topic for records of a route's input topic that are to be enriched again."""
    return topic + ".replay"


def dead_letter_topic(topic: str) -> str:
    """The topic for records that could not be processed, with their original bytes, headers and the reason."""
    return topic + ".dead-letter"
