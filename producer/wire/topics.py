"""Names of the topics that client and worker meet on."""

import os
import re
from pathlib import Path

REPLY_TOPIC = "penstock.replies"
REPLY_TOPIC_PATTERN = r"penstock\.replies(\..+)?"
_MOST_CHARS = 249  # of Kafka's


def check_topic(name: str | None) -> str | None:
    """A topic's name, or None for the default. A ValueError, for settings, whose library makes its own error of it."""
    return _checked(name, _MOST_CHARS)


def check_request_topic(name: str | None) -> str | None:
    """The same of a request topic, beside which others will stand."""
    return _checked(name, _MOST_CHARS - len(dead_letter_topic(bulk_topic(""))))


def check_served_name(name: str | None) -> str | None:
    """A model's name in requests, for which its topics must have room, or None for the default."""
    most = _MOST_CHARS - len(dead_letter_topic(bulk_topic(request_topic(""))))
    if name is not None and not (1 <= len(name) <= most and "/" not in name):
        raise ValueError(f"must be 1 to {most} characters, without slashes")
    return name


def served_name_of(model: str) -> str:
    """The served name that a checkpoint's path or id leads to, by the rule of workers; of a name, the name itself."""
    return Path(os.path.abspath(model)).name if "/" in model or model in (".", "..") else model


def _checked(name: str | None, most: int) -> str | None:
    if name is None or (re.fullmatch(rf"[a-zA-Z0-9._-]{{1,{most}}}", name) and name not in (".", "..")):
        return name
    raise ValueError(f"must be 1 to {most} letters, digits, dots, underscores and dashes")


def request_topic(model: str) -> str:
    """The request topic of a model: every character Kafka does not allow in a topic name becomes a dash."""
    return "penstock.requests." + re.sub(r"[^a-zA-Z0-9._-]", "-", model)


def bulk_topic(topic: str) -> str:
    """The topic beside a request topic whose requests are all of class `bulk`."""
    return topic + ".bulk"


def dead_letter_topic(topic: str) -> str:
    """Where records that could not be processed go, with their original bytes and headers and the reason."""
    return topic + ".dead-letter"
