"""Decoders of what comes from Kafka: requests, replies, headers, commits, fetches, batches, dead letters."""

import json
import struct
from collections.abc import Callable, Mapping
from io import BytesIO
from types import SimpleNamespace
from typing import Any

import numpy as np
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecordBatchBuilder, _DefaultRecordBatchBuilderPy
from aiokafka.record.util import calc_crc32c
from aiokafka.structs import TopicPartition
from structlog.testing import capture_logs

from penstock.engine import NullEngine
from penstock.ops.cli.dead_letters.dead_letter import DeadLetter
from penstock.ops.cli.dead_letters.dlq import written_utc
from penstock.ops.cli.dead_letters.replayer import ReplayOptions, headers_again
from penstock.ops.logs.text import printable
from penstock.producer.aiokafka_internals import fetch_messages
from penstock.producer.aiokafka_internals.decompression import BombError, CorruptError, decompress
from penstock.producer.aiokafka_internals.flexible_request import compact
from penstock.producer.aiokafka_internals.lenient_records import LenientRecords
from penstock.producer.aiokafka_internals.record_batches import UnpackBounds, unpack
from penstock.producer.aiokafka_internals.topic_ids import TopicIds
from penstock.producer.errors import BackendError, InvalidRequest
from penstock.producer.prompts import Prompts
from penstock.producer.wire import codec
from penstock.producer.wire.headers import num_replays, parse_address, parse_deadline_ms, parse_is_bulk
from penstock.producer.wire.messages import Classification, Generation, Options, Reply, Request, join_tokens
from penstock.producer.wire.sequence_codec import EmissionColumn, EmissionTable
from penstock.producer.wire.vector_tables import SparseTable, TokenVectorTable
from penstock.worker.kafka.kafka_record import NO_TOPIC_ID
from penstock.worker.kafka.progress import commit_metadata, committed_progress
from penstock.worker.kafka.progress.offsets import PartitionProgress
from penstock.worker.kafka.progress.owner_marker import OwnerMarker
from penstock.worker.requests.record import PendingRecord
from penstock.worker.requests.reply_bounds import ReplyBounds
from penstock.worker.requests.validation import RequestValidator
from tests.fuzz.decoder import Decoder
from tests.fuzz.mutations import mutated_bytes, mutated_msgpack

_HEADER_NAMES = ("kafka_replyTopic", "kafka_replyPartition", "kafka_correlationId", "penstock-deadline-ms")
_BATCH_BOUNDS = UnpackBounds(batch_bytes=1 << 20, batch_items=1 << 16, total_bytes=1 << 20, total_items=1 << 16)
_CODECS = (0, 1, 2, 3, 4)
_GENERATION = (("bad_words_ids", ((1, 2), (3,))), ("do_sample", True), ("eos_token_id", (1,)), ("top_p", 0.5))
_AGAIN = ReplayOptions(60.0, "penstock.replies.elsewhere", 1, 3, False)
_INFO = NullEngine(name="m").info
_VALIDATOR = RequestValidator(
    _INFO, ReplyBounds(_INFO, 10_000), Prompts(), reply_topics=".*", slo_s=None, max_sequences=8
)


def _headers(value: bytes) -> None:
    """Header values are the input's parts between line breaks."""
    headers = dict(zip((*_HEADER_NAMES, "penstock-class"), value.split(b"\n"), strict=False))
    for parse in (parse_address, parse_deadline_ms, parse_is_bulk):
        try:
            parse(headers)
        except InvalidRequest:
            continue


def _metadata(value: bytes) -> None:
    _, finished = commit_metadata.decode(1000, value.decode("latin-1"))
    if finished and not 1000 <= min(finished) <= max(finished) < 1000 + 8 * 4096:
        raise AssertionError(f"offsets out of range: {min(finished)} to {max(finished)}")


def _progress(value: bytes) -> None:
    """As a worker reads the last owner's commit. No error: what cannot be read is ignored."""
    source = TopicPartition("t", 0)
    with capture_logs():
        progress = committed_progress._decode(source, NO_TOPIC_ID, 1000, value.decode("latin-1"))
        taken = committed_progress._taken_over(source, progress, 1500, lambda source, found: None)
    is_of_another_topic = progress == PartitionProgress(0, topic_id=NO_TOPIC_ID)
    if not is_of_another_topic and (progress.offset != 1000 or any(one < 1000 for one in progress.beyond)):
        raise AssertionError(f"{progress}")
    if taken.marker is not None and not (0 < taken.marker.deaths <= 999 and taken.marker.until <= 1500):
        raise AssertionError(f"{taken}")


def _batches(value: bytes) -> None:
    """As the worker reads what a fetch brought; half of the inputs get a right checksum."""
    if len(value) > 21 and value[-1] % 2:
        value = value[:17] + calc_crc32c(value[21:]).to_bytes(4, "big") + value[21:]
    records = LenientRecords(unpack(value, _BATCH_BOUNDS).data)
    while records.has_next():
        batch = records.next_batch()
        if batch is None or not batch.validate_crc():
            return
        for record in batch:
            str(record)


def _compressed(value: bytes) -> None:
    """The first byte says which codec."""
    if len(decompress(value[0] % 6 if value else 0, memoryview(value)[1:], _BATCH_BOUNDS.batch_bytes)) > 1 << 20:
        raise AssertionError("more than the bound")


def _record(value: bytes) -> Any:
    """A record: eight bytes of timestamp, a line for the key and for each header, and the value behind the last."""
    key, *lines = value[8:].split(b"\n") if len(value) > 8 else [b"", b""]
    headers: list[tuple[str, bytes | None]] = []
    for line in lines[:-1]:
        name, found, content = line.partition(b"=")
        headers.append((name.decode(errors="replace"), content if found else None))
    ms = int.from_bytes(value[:8], "big", signed=True)
    place = {"topic": "t.dead-letter", "partition": 3, "offset": 17}
    return SimpleNamespace(**place, timestamp=ms, key=key or None, value=lines[-1] if lines else None, headers=headers)


def _dead_letter(value: bytes) -> None:
    """As `penstock dlq` lists, shows and chooses a letter."""
    letter = DeadLetter.of(_record(value), bulk=len(value) % 2 == 0)
    summary = letter.summary()
    json.dumps(letter.details())
    shown = [printable(str(one)) for one in (*summary.values(), letter.code, letter.obstacle)]
    if not all(text.isprintable() for text in (*shown, written_utc(summary["written_ms"]))):
        raise AssertionError(f"{shown}")
    if not letter.obstacle and letter.position is None:
        raise AssertionError("a letter without a position may be sent again")


def _sent_again(value: bytes) -> None:
    """As `penstock replay` sends a record again: any record can be encoded, is counted, and has the new address."""
    headers = _record(value).headers
    again = headers_again(headers, ("t", 0, 1), _AGAIN)
    found = dict(again)
    if num_replays(again) != min(num_replays(headers) + 1, 999_999_999) or not found["penstock-replay-of"]:
        raise AssertionError(f"{again}")
    address = parse_address(found)
    if (address.topic, address.partition) != ("penstock.replies.elsewhere", 1) or not parse_deadline_ms(found):
        raise AssertionError(f"{again}")
    DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 20).append(0, 0, b"", b"", again)


def _validated(value: bytes) -> None:
    """The validate stage: each record becomes a request or a rejection."""
    record = _record(value)
    requests, rejections = _VALIDATOR.validate([PendingRecord(record, ("t", 0), False)], 100.0, 1.7e9)
    if len(requests) + len(rejections) != 1:
        raise AssertionError(f"{requests} {rejections}")


_TOPIC, _TOPIC_ID = "topic", b"a topic's id, 16"


def _batch(compression: int) -> bytes:
    builder = _DefaultRecordBatchBuilderPy(2, compression, 0, -1, -1, -1, 1 << 20)
    for index in range(4):
        builder.append(index, 0, b"key", b"value" * 20, [("name", b"header")])
    return bytes(builder.build())


def _fetched(value: bytes) -> None:
    asked = fetch_messages.FetchMessage(
        500, 1, 1 << 20, 0, partition_bytes=1 << 20, offsets={_TOPIC: {3: 0}}, topic_ids=TopicIds()
    )
    asked.ids[_TOPIC] = _TOPIC_ID
    asked.prepare({asked.API_KEY: (4, 18)}).RESPONSE_TYPE.decode(BytesIO(value))


def _fetch_answer() -> bytes:
    records = _batch(0)
    head = struct.pack(">ihqqqBi", 3, 0, 9, 9, 0, 0, -1)
    partition = head + compact(len(records)) + records + b"\0"
    return struct.pack(">ihi", 0, 0, 0) + compact(1) + _TOPIC_ID + compact(1) + partition + b"\0\0"


def _requests() -> list[bytes]:
    ids = join_tokens([np.arange(1, 9, dtype=np.uint32), np.array([5], np.uint32)])
    texts = ("one", "two", ("left", "right"))
    return [
        codec.encode_request(Request("m", "embed", ids)),
        codec.encode_request(Request("m", "embed", None, texts, Options(pooling="mean", normalize=True, dimensions=8))),
        codec.encode_request(Request("m", "embed_sparse", None, texts, Options(top_k=3, prompt="a: "))),
        codec.encode_request(Request("m", "classify", None, texts, Options(top_k=3, truncate=True))),
        codec.encode_request(Request("m", "classify", None, ("one",), Options(labels=("a", "b"), template="{}!"))),
        codec.encode_request(Request("m", "rerank", None, (("query", "document"),))),
        codec.encode_request(Request("m", "token_classify", None, ("one",))),
        codec.encode_request(Request("m", "generate", ids, None, Options(generation=_GENERATION))),
        codec.encode_request(Request("m", "sequence", sequences=({"tokens": [1, 2], "merges": [[0, 1]]}, {"a": 0.5}))),
    ]


def _replies() -> list[bytes]:
    vectors = np.arange(8, dtype=np.float32).reshape(2, 4)
    classes = (Classification(("a", "b"), (0.75, 0.25)),)
    replies = [Reply("m", "r", vectors=vectors), Reply("m", "r", vectors=vectors.astype(np.float16))]
    replies.append(Reply("m", "r", vectors=np.arange(96, dtype=np.float32).reshape(1, 96)))  # its head is read once
    replies += [Reply("m", "r", classes=classes), Reply("m", "r", scores=(0.5, 2.0))]
    sparse = SparseTable((1, 0), np.array([7], np.uint32), np.array([0.5], np.float32))
    token_vectors = TokenVectorTable((1, 2), np.ones((3, 4), np.float16))
    replies.append(Reply("m", "r", vectors=vectors, sparse=sparse, token_vectors=token_vectors))
    generations = (Generation((5, 1), "stop", "text"), Generation((), "length", ""))
    replies.append(Reply("m", "r", generations=generations))
    columns = {"scores": EmissionColumn(vectors, (1, 1)), "token": EmissionColumn(np.ones((3, 1), np.int32), (3, 0))}
    replies.append(Reply("m", "r", emissions=EmissionTable(2, columns)))
    errors = [BackendError("broken"), InvalidRequest("wrong", {0: InvalidRequest("this one")})]
    return [*map(codec.encode_reply, replies), *map(codec.encode_error, errors)]


def _reply(value: bytes) -> None:
    """A reply whose head is known reads as any other, and what is wrong with it is told in the same words."""
    if _shown(codec.decode_reply, value) != (unpacked := _shown(codec._decode_reply, value)):
        raise AssertionError(unpacked)


def _shown(decode: Callable[[bytes], object], value: bytes) -> str:
    try:
        return repr(decode(value))
    except InvalidRequest as error:
        return error.message


def _record_bytes(headers: Mapping[str, bytes], value: bytes) -> bytes:
    lines = [b"key", *(name.encode() + b"=" + content for name, content in headers.items()), value]
    return (1_767_225_600_000).to_bytes(8, "big") + b"\n".join(lines)


_ADDRESS = {"kafka_replyTopic": b"r", "kafka_replyPartition": b"\0\0\0\1", "kafka_correlationId": b"id"}
_ORIGINAL = {**_ADDRESS, "penstock-deadline-ms": b"1767225600000", "traceparent": b"00-1-2-01"}
_LETTER = {
    **{**_ORIGINAL, "penstock-error-code": b"backend", "penstock-error-message": "failé".encode()},
    **{"penstock-error-type": b"builtins.ValueError", "penstock-error-attempts": b"3", "penstock-source": b"t-0-12"},
    **{"penstock-error-worker": b"w", "penstock-source-timestamp-ms": b"1767225600000", "penstock-replays": b"2"},
    **{"__dlq.errors.topic": b"t", "__dlq.errors.partition": b"0", "__dlq.errors.offset": b"12"},
    **{"__dlq.errors.group": b"g", "__dlq.errors.delivery.count": b"3", "penstock-replay-of": b"t-0-1"},
}
_LEFT_OUT = {**_LETTER, "penstock-value-left-out-bytes": b"9000000", "penstock-unreadable-batch": b"a bomb"}
_TEXT_REQUEST = codec.encode_request(Request("m", "embed", None, ("one", "two"), Options(truncate=True)))
_LETTERS = [_record_bytes(headers, _TEXT_REQUEST) for headers in (_LETTER, _LEFT_OUT)]
_MARKS = [OwnerMarker(2, 1200, (1003, 1004), True), OwnerMarker()]

WIRE = (
    Decoder("request", _requests(), codec.decode_request, (InvalidRequest,), (mutated_bytes, mutated_msgpack)),
    Decoder("reply", _replies(), _reply, (), (mutated_bytes, mutated_msgpack)),
    Decoder("headers", [b"penstock.replies\n\0\0\0\1\nid\n1767225600000\nbulk", b"r\n\n\n0\nonline"], _headers),
    Decoder(
        "validated record",
        [_record_bytes(_ORIGINAL, value) for value in [*_requests(), b'{"text": "one"}']],
        _validated,
    ),
    Decoder(
        "commit metadata",
        [
            commit_metadata.encode(NO_TOPIC_ID, 7, {7 + n for n in chosen}).encode()
            for chosen in ([1], [1, 9, 300], range(5000))
        ],
        _metadata,
        (ValueError,),
    ),
    Decoder(
        "committed progress",
        [
            f"{beyond}{mark.text()}".encode()
            for mark in _MARKS
            for beyond in ("", commit_metadata.encode(NO_TOPIC_ID, 0, {1, 9}))
        ],
        _progress,
    ),
    Decoder(
        "fetch answer",
        [_fetch_answer()],
        _fetched,
        (struct.error, IndexError, UnicodeDecodeError),
    ),
    Decoder("record batch", [_batch(compression) for compression in _CODECS], _batches, (CorruptRecordException,)),
    Decoder(
        "compressed data",
        [bytes([compression]) + _batch(compression)[61:] for compression in _CODECS[1:]],
        _compressed,
        (BombError, CorruptError),
    ),
    Decoder("dead letter", _LETTERS, _dead_letter),
    Decoder("replayed record", _LETTERS, _sent_again),
)
