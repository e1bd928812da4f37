"""Names of the topics that client and worker meet on."""

import re

REPLY_TOPIC = "penstock.replies"
REPLY_TOPIC_PATTERN = r"penstock\.replies(\..+)?"


def request_topic(model: str) -> str:
    """The request topic of a model: every character Kafka does not allow in a topic name becomes a dash."""
    return "penstock.requests." + re.sub(r"[^a-zA-Z0-9._-]", "-", model)


def bulk_topic(topic: str) -> str:
    """The topic beside a request topic whose requests are all of class `bulk`."""
    return topic + ".bulk"


def dead_letter_topic(topic: str) -> str:
    """Where records that could not be processed go, with their original bytes and headers and the reason."""
    return topic + ".dead-letter"
