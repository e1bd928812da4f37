"""A dead letter as an operator sees it: where it lies, what it is of, and why."""

import base64
import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

from penstock.ops.cli.terminal import BadUsage
from penstock.producer.aiokafka_internals.record_batches import UNREADABLE_BATCH
from penstock.producer.errors import PenstockError
from penstock.producer.wire import headers as names
from penstock.producer.wire.codec import decode_request
from penstock.producer.wire.joint_letters import LetterRecord, decode_letter_records, is_joint
from penstock.producer.wire.json_codec import is_json
from penstock.producer.wire.messages import Request
from penstock.producer.wire.topics import bulk_topic, dead_letter_topic
from penstock.worker.kafka.kafka_record import NO_TOPIC_ID
from penstock.worker.requests.record import place_key

_BULK = "bulk:"
_SHOWN_CHARS = 500
_LEFT_OUT = re.compile("penstock-(value|headers|key)-left-out-(bytes|sha256)")


@dataclass(slots=True)
class LocalRecord:
    """A record that is made here, with the attributes of aiokafka's that are read: a `KafkaRecord`."""

    topic: str
    partition: int
    offset: int
    timestamp: int  # Unix time, ms
    key: bytes | None
    value: bytes | None
    headers: names.Headers


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A letter of one original, read by its headers. Letters of other writers lack some of them."""

    record: Any  # aiokafka's; of a record that stands for several originals, one of them in the form of a letter alone
    headers: dict[str, bytes]
    id: str  # its position: partition:offset, and bulk: before it if its request came by the bulk topic

    @classmethod
    def all_of(cls, record: Any, *, bulk: bool) -> Iterator[Self]:
        """The letters in a record of one of the two dead-letter topics; they share its id."""
        originals = [record]
        if is_joint(record.headers):
            with contextlib.suppress(PenstockError):  # one that cannot be read is one letter, with an obstacle
                originals = [_alone(record, one) for one in decode_letter_records(record.value)]
        for original in originals:
            yield cls.of(original, bulk=bulk)

    @classmethod
    def of(cls, record: Any, *, bulk: bool) -> Self:
        """Read a record of one of the two dead-letter topics."""
        return cls(record, dict(record.headers), f"{_BULK * bulk}{record.partition}:{record.offset}")

    @property
    def code(self) -> str:
        """The error code, by which letters are chosen."""
        return self._text(names.ERROR_CODE) or "unknown"

    @property
    def source(self) -> str:
        """Topic, partition and offset of the original."""
        return self._text(names.SOURCE)

    @property
    def position(self) -> tuple[str, int, int] | None:
        """The same as values; None if the letter does not say it."""
        topic, *numbers = (self.headers.get(name) for name in (names.DLQ_TOPIC, names.DLQ_PARTITION, names.DLQ_OFFSET))
        partition, offset = map(_number, numbers)
        if topic is None or partition is None or offset is None:
            return None
        return topic.decode(errors="replace"), partition, offset

    @property
    def topic_id(self) -> bytes:
        """The id of its original's topic, as its worker knew it; `NO_TOPIC_ID` if the letter does not say it."""
        return names.parse_topic_id(self.headers.get(names.SOURCE_TOPIC_ID)) or NO_TOPIC_ID

    @property
    def original_key(self) -> bytes | None:
        """The key of its original. The letter of one without a key has a made one."""
        if self.position is None:
            return self.record.key  # type: ignore[no-any-return]  # aiokafka's
        original = LocalRecord(*self.position, self.sent_ms, None, None, ())
        return None if self.record.key == place_key(original, self.topic_id) else self.record.key

    @property
    def is_bulk(self) -> bool:
        """Whether its original was read from the bulk topic."""
        return self.id.startswith(_BULK)

    @property
    def sent_ms(self) -> int:
        """Timestamp of its original, or else its own."""
        sent_ms = _number(self.headers.get(names.SOURCE_TIMESTAMP_MS))
        return int(self.record.timestamp) if sent_ms is None else sent_ms

    @property
    def obstacle(self) -> str:
        """The reason why its original cannot be sent again or answered; empty if it can."""
        if any(_LEFT_OUT.fullmatch(name) for name in self.headers):
            return "part of the original was left out"
        if is_joint(self.record.headers):
            return "the records that it stands for cannot be read"
        if UNREADABLE_BATCH in self.headers:
            return "it stands for a batch that could not be read"
        if self.position is None:
            return "it does not say where its original was read"
        if dead_letter_topic(self.position[0]) != self.record.topic:
            return "it names another topic than the one whose letters lie here"
        return ""

    @property
    def original_headers(self) -> list[tuple[str, bytes]]:
        """The headers of its original."""
        return names.original_headers(self.record.headers)

    def summary(self) -> dict[str, Any]:
        """Everything but key, value and the original's headers."""
        return {
            "id": self.id,
            "source": self.source,
            "code": self.code,
            "message": self._text(names.ERROR_MESSAGE),
            "type": self._text(names.ERROR_TYPE),
            "attempts": _number(self.headers.get(names.ERROR_ATTEMPTS)),
            "worker": self._text(names.ERROR_WORKER),
            "group": self._text(names.DLQ_GROUP),
            "written_ms": self.record.timestamp,
            "sent_ms": _number(self.headers.get(names.SOURCE_TIMESTAMP_MS)),
            "replays": names.num_replays(self.record.headers),
            "value_bytes": len(self.record.value or b""),
        }

    def details(self) -> dict[str, Any]:
        """The summary, and the original: its key, its headers, its value, and the request that it holds."""
        return self.summary() | {
            "key": _base64(self.record.key),
            "headers": [[name, _readable(value)] for name, value in self.original_headers],
            "value": _base64(self.record.value),
            "request": _request(self.record.value),
        }

    def _text(self, name: str) -> str:
        return (self.headers.get(name) or b"").decode(errors="replace")


def _alone(record: Any, one: LetterRecord) -> Any:
    """One of the originals of a joint letter, in the form of a letter of its own."""
    shared = dict(record.headers)
    topic, partition = shared.get(names.DLQ_TOPIC, b""), shared.get(names.DLQ_PARTITION, b"")
    headers = [
        *one.headers,
        (names.ERROR_CODE, one.code.encode()),
        (names.ERROR_MESSAGE, one.message.encode()),
        (names.ERROR_TYPE, one.type.encode()),
        (names.ERROR_ATTEMPTS, b"%d" % one.attempts),
        (names.ERROR_WORKER, shared.get(names.ERROR_WORKER, b"")),
        (names.SOURCE, b"%s-%s-%d" % (topic, partition, one.offset)),
        (names.SOURCE_TIMESTAMP_MS, b"%d" % one.timestamp),
        (names.SOURCE_TOPIC_ID, shared.get(names.SOURCE_TOPIC_ID, b"")),
        (names.DLQ_TOPIC, topic),
        (names.DLQ_PARTITION, partition),
        (names.DLQ_OFFSET, b"%d" % one.offset),
        (names.DLQ_GROUP, shared.get(names.DLQ_GROUP, b"")),
    ]
    return LocalRecord(record.topic, record.partition, record.offset, record.timestamp, one.key, one.value, headers)


def parse_id(text: str) -> tuple[bool, int, int]:
    """Whether bulk, partition and offset of a letter's id. Raises BadUsage."""
    matched = re.fullmatch(r"(bulk:)?(\d{1,9}):(\d{1,18})", text)
    if matched is None:
        raise BadUsage(f"An id is PARTITION:OFFSET or bulk:PARTITION:OFFSET, as `dlq ls` prints it. Given: {text}")
    return matched[1] is not None, int(matched[2]), int(matched[3])


def letters_topic(topic: str, *, bulk: bool) -> str:
    """The dead-letter topic of a request topic, or of its bulk topic."""
    return dead_letter_topic(bulk_topic(topic) if bulk else topic)


def _request(value: bytes | None) -> dict[str, Any] | str:
    """The request in a value, the beginning of one in JSON, or why it holds none."""
    if value is not None and is_json(value):
        return {"json": _short(value.decode(errors="replace"))}
    try:
        request: Request = decode_request(value)
    except PenstockError as error:
        return error.message
    shown: dict[str, Any] = {"model": request.model, "task": request.task, "sequences": request.num_sequences}
    if request.text is not None:
        shown["text"] = _short(request.text)
    return shown


def _short(text: Any) -> Any:
    return text[:_SHOWN_CHARS] if isinstance(text, str) else [_short(part) for part in text]


def _number(raw: bytes | None) -> int | None:
    return int(raw) if raw is not None and raw.isdigit() and len(raw) < 20 else None


def _base64(raw: bytes | None) -> str | None:
    return None if raw is None else base64.b64encode(raw).decode()


def _readable(raw: bytes | None) -> str | None:
    """Text as it is, other bytes as base64:…"""
    if raw is None:
        return None
    text = raw.decode(errors="replace")
    return text if text.isprintable() and "\N{REPLACEMENT CHARACTER}" not in text else f"base64:{_base64(raw)}"
