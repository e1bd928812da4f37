"""Requests of one service and every answer to each, read from its topics after a load."""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from penstock.ops.bench.contestants.faststream import ID_BYTES, REPLIES, REQUESTS
from penstock.ops.bench.load.records import Record, read_topics


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics of one service, and how their records name a request."""

    requests: str
    replies: str
    request_id: Callable[[Record], bytes]
    reply_id: Callable[[Record], bytes]


@dataclass(frozen=True, slots=True)
class Sent:
    """One request record. Unix times in seconds."""

    partition: int
    at: float


@dataclass(frozen=True, slots=True)
class Answer:
    """One reply record."""

    at: float
    key: bytes | None


@dataclass(frozen=True, slots=True)
class Transcript:
    """Requests, and the answers to each, by the request's id."""

    sent: Mapping[bytes, Sent]
    answers: Mapping[bytes, Sequence[Answer]]


def _correlation_id(record: Record) -> bytes:
    return dict(record.headers).get("kafka_correlationId", b"")


PENSTOCK_TOPICS = Topics("penstock.requests.bench", "penstock.replies", _correlation_id, _correlation_id)
PLAIN_TOPICS = Topics(
    REQUESTS,
    REPLIES,
    lambda record: json.loads(record.value or b"")["id"].encode(),
    lambda record: (record.value or b"")[:ID_BYTES],
)


def read_transcript(servers: str, topics: Topics, since: float) -> Transcript:
    """The requests that were sent from a Unix time on."""
    sent = {
        topics.request_id(record): Sent(record.partition, record.timestamp / 1e3)
        for record in read_topics(servers, [topics.requests])
        if record.timestamp / 1e3 >= since - 1e-3  # timestamps are whole milliseconds
    }
    answers: dict[bytes, list[Answer]] = {name: [] for name in sent}
    for record in read_topics(servers, [topics.replies]):
        name = topics.reply_id(record)
        if name in answers:
            answers[name].append(Answer(record.timestamp / 1e3, record.key))
    return Transcript(sent, answers)


def counts(transcript: Transcript) -> dict[str, int]:
    """Number of requests by the number of their answers, before and after a reader has dropped equal keys."""
    every = list(transcript.answers.values())
    return {
        "requests": len(transcript.sent),
        "unanswered": sum(not answers for answers in every),
        "answered_twice": sum(len(answers) > 1 for answers in every),
        "answers_too_many": sum(max(0, len(answers) - 1) for answers in every),
        "answered_twice_by_key": sum(len(_distinct(answers)) > 1 for answers in every),
    }


def recovery_s(transcript: Transcript, since: float, until: float) -> float:
    """Seconds from an event to when every partition has answered a request that was sent after it.

    `until`: the next event. Partitions that got no request between the two are left out. Infinite if one of the others
    answered none of these requests.
    """
    first: dict[int, float] = {}
    for name, sent in transcript.sent.items():
        if since <= sent.at < until:
            at = min((answer.at for answer in transcript.answers[name]), default=math.inf)
            first[sent.partition] = min(at, first.get(sent.partition, math.inf))
    return max(first.values(), default=math.inf) - since


def _distinct(answers: Iterable[Answer]) -> set[object]:
    """Answers that a reader sees that drops equal keys. Answers without a key are all different."""
    return {answer.key if answer.key is not None else id(answer) for answer in answers}
