"""Every decoder of this project: samples that it reads, and the errors that it may raise for others."""

import json
import random
import struct
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from io import BytesIO
from pathlib import Path

import numpy as np
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy
from aiokafka.record.util import calc_crc32c

from penstock.cache import rows
from penstock.producer.errors import BackendError, InvalidRequest
from penstock.producer.files.table_reader import TableError, open_reader
from penstock.producer.transport.batches import Bounds, unpack
from penstock.producer.wire import codec
from penstock.producer.wire.headers import parse_address, parse_deadline_ms, parse_is_bulk
from penstock.producer.wire.messages import Classification, Options, Reply, Request, join_tokens
from penstock.scheduler.costs.table import CorruptTable, CostTable
from penstock.worker.kafka import commit_metadata, fetch_messages
from penstock.worker.kafka.lenient_batches import LenientRecords
from penstock.worker.supervision.control import Report, read_report
from tests.fuzz.mutations import mutated_bytes, mutated_json, mutated_msgpack

Mutate = Callable[[random.Random, Sequence[bytes]], bytes]

_HEADER_NAMES = ("kafka_replyTopic", "kafka_replyPartition", "kafka_correlationId", "penstock-deadline-ms")
_KEY = b"k" * 32
_BATCH_BOUNDS = Bounds(batch_bytes=1 << 20, batch_items=1 << 16, total_bytes=1 << 20, total_items=1 << 16)
_FOLDER = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path(tempfile.gettempdir())
_CODECS = (0, 1, 2, 3, 4)


@dataclass(frozen=True)
class Decoder:
    """One way in. `decode` returns, or raises one of `errors`; anything else is a fault."""

    name: str
    samples: Sequence[bytes]
    decode: Callable[[bytes], object]
    errors: tuple[type[Exception], ...] = ()
    mutations: Sequence[Mutate] = (mutated_bytes,)


def _headers(value: bytes) -> None:
    """Header values are the input's parts between line breaks."""
    headers = dict(zip((*_HEADER_NAMES, "penstock-class"), value.split(b"\n"), strict=False))
    for parse in (parse_address, parse_deadline_ms, parse_is_bulk):
        try:
            parse(headers)
        except InvalidRequest:
            continue


def _metadata(value: bytes) -> None:
    finished = commit_metadata.decode(1000, value.decode("latin-1"))
    if finished and not 1000 <= min(finished) <= max(finished) < 1000 + 8 * 4096:
        raise AssertionError(f"offsets out of range: {min(finished)} to {max(finished)}")


def _report(value: bytes) -> None:
    report = read_report(value)
    wanted = {field.name: getattr(Report(), field.name) for field in fields(Report)} | {"metrics_port": 1}
    for name, default in wanted.items():
        if report is not None and not isinstance(getattr(report, name), type(default) | None):
            raise AssertionError(f"{name} is {getattr(report, name)!r}")


def _cache_row(value: bytes) -> None:
    if rows._unseal(_KEY, value) not in (None, b"an answer"):
        raise AssertionError("a value that was never stored")


def _cost_table(value: bytes) -> None:
    try:
        data = json.loads(value)
    except (ValueError, RecursionError):  # the file's reader finds no table then
        return
    table = CostTable.from_dict(data)
    if not table.seconds(100, 1000, 20, 5) >= 0:
        raise AssertionError("negative seconds")


def _table(extension: str) -> Callable[[bytes], None]:
    def read(value: bytes) -> None:
        path = _FOLDER / f"penstock-fuzz.{extension}"
        path.write_bytes(value)
        with open_reader(path, "text") as reader:
            for block in reader:
                if not all(isinstance(text, str | InvalidRequest | BackendError) for text in block.texts):
                    raise AssertionError(f"{block.texts}")

    return read


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


def _batch(compression: int) -> bytes:
    builder = _DefaultRecordBatchBuilderPy(2, compression, 0, -1, -1, -1, 1 << 20)
    for index in range(4):
        builder.append(index, 0, b"key", b"value" * 20, [("name", b"header")])
    return bytes(builder.build())


def _fetch_answer() -> bytes:
    records = _batch(0)
    partition = struct.pack(">ihqqqiii", 3, 0, 9, 9, 0, -1, -1, len(records)) + records
    return struct.pack(">ihii", 0, 0, 0, 1) + struct.pack(">h", 5) + b"topic" + struct.pack(">i", 1) + partition


def _requests() -> list[bytes]:
    ids = join_tokens([np.arange(1, 9, dtype=np.uint32), np.array([5], np.uint32)])
    texts = ("one", "two", ("left", "right"))
    return [
        codec.encode_request(Request("m", "embed", ids)),
        codec.encode_request(Request("m", "embed", None, texts, Options(pooling="mean", normalize=True, dimensions=8))),
        codec.encode_request(Request("m", "classify", None, texts, Options(top_k=3, truncate=True))),
        codec.encode_request(Request("m", "rerank", None, (("query", "document"),))),
        codec.encode_request(Request("m", "token_classify", None, ("one",))),
    ]


def _replies() -> list[bytes]:
    vectors = np.arange(8, dtype=np.float32).reshape(2, 4)
    classes = (Classification(("a", "b"), (0.75, 0.25)),)
    replies = [Reply("m", "r", vectors=vectors), Reply("m", "r", vectors=vectors.astype(np.float16))]
    replies += [Reply("m", "r", classes=classes), Reply("m", "r", scores=(0.5, 2.0))]
    errors = [BackendError("broken"), InvalidRequest("wrong", {0: InvalidRequest("this one")})]
    return [*map(codec.encode_reply, replies), *map(codec.encode_error, errors)]


_COST_TABLE = {
    **{"padded": False, "floor_s": 1e-4, "alpha_s": 1e-4, "beta_s": 1e-6, "gamma_s": 1e-9},
    **{"sizes": [1.0, 8.0], "lengths": [4.0, 64.0], "factors": [[1.0, 1.1], [0.9, 1.0]]},
    "samples": [[8, 64, 8, 1, 1e-3]],
}
_REPORT = {
    **{
        "phase": "joined",
        "device": "cpu",
        "metrics_port": 9000,
        "group_id": "g",
        "member_id": "m",
        "failure": "",
    },
    "failure_is_of_device": False,
}

DECODERS = (
    Decoder("request", _requests(), codec.decode_request, (InvalidRequest,), (mutated_bytes, mutated_msgpack)),
    Decoder("reply", _replies(), codec.decode_reply, (InvalidRequest,), (mutated_bytes, mutated_msgpack)),
    Decoder("headers", [b"penstock.replies\n\0\0\0\1\nid\n1767225600000\nbulk", b"r\n\n\n0\nonline"], _headers),
    Decoder(
        "commit metadata",
        [commit_metadata.encode(7, {7 + n for n in chosen}).encode() for chosen in ([1], [1, 9, 300], range(5000))],
        _metadata,
        (ValueError,),
    ),
    Decoder("control socket", [json.dumps(_REPORT).encode()], _report, (), (mutated_bytes, mutated_json)),
    Decoder("cache row", [rows.seal(_KEY, b"an answer")], _cache_row),
    Decoder(
        "cost table", [json.dumps(_COST_TABLE).encode()], _cost_table, (CorruptTable,), (mutated_bytes, mutated_json)
    ),
    Decoder(
        "CSV", [b'id,text\n1,one\n2,"two, or\nthree"\n', b'text\n"a ""quoted"" word"\n'], _table("csv"), (TableError,)
    ),
    Decoder(
        "JSONL",
        [b'{"text": "one", "id": 1}\n{"text": "two"}\n', b'{"text": "\\ud83d\\ude00"}\n'],
        _table("jsonl"),
        (TableError,),
    ),
    Decoder(
        "fetch answer",
        [_fetch_answer()],
        lambda value: fetch_messages._Answer.decode(BytesIO(value)),
        (struct.error, UnicodeDecodeError),
    ),
    Decoder("record batch", [_batch(compression) for compression in _CODECS], _batches, (CorruptRecordException,)),
)
