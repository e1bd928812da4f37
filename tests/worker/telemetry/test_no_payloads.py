"""No line of the log holds a part of a payload, whatever goes wrong with it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any

import msgpack
import pytest
import structlog
from aiokafka.errors import KafkaError, MessageSizeTooLargeError, TopicAuthorizationFailedError

from penstock.engine import NullEngine
from penstock.engine.cells.contract import Cell, CellSpec, StateSpec
from penstock.engine.cells.errors import InvalidGraph
from penstock.engine.cells.graph import GraphBuilder
from penstock.engine.cells.models.model import CellModel, take_count
from penstock.engine.errors import InvalidOption
from penstock.engine.generation_options import GenerationOptions
from penstock.engine.types import BatchOutput, PackedBatch
from penstock.producer.aiokafka_internals.lenient_records import UNREADABLE
from penstock.producer.aiokafka_internals.record_batches import UNREADABLE_BATCH
from penstock.producer.errors import InvalidRequest, PenstockError
from penstock.producer.transport.outbox import OutRecord
from penstock.producer.wire.codec import encode_request
from penstock.producer.wire.generation import read_generation
from penstock.producer.wire.headers import request_headers
from penstock.producer.wire.messages import Options, Request, join_tokens
from penstock.producer.wire.sequence_codec import decode_fields
from penstock.worker.replies import dead_letters
from penstock.worker.requests.record_fields import unquoted_reason
from penstock.worker.telemetry.logs import configure_logs
from penstock.worker.worker import Worker
from tests.worker.test_worker import A, FakeConsumer, FakeOutbox, kafka, make_worker, outbox, polled

__all__ = ["kafka", "outbox"]  # fixtures

CANARY = "canary"
TEXT = f"the {CANARY} is private"
IDS = [7, 4_000_000]
FAILING = 13
HEADERS = request_headers(b"id", "penstock.replies", 0, None)


class FailingEngine(NullEngine):
    """Fails on sequences with one token."""

    def run(self, batch: PackedBatch) -> BatchOutput:
        if FAILING in batch.token_ids:
            raise ValueError("this token")
        return super().run(batch)


class FailingTokenizer:
    """Quotes the text in its error, as a `UnicodeError` does."""

    def __init__(self) -> None:
        from penstock.producer.languages import Languages
        from penstock.producer.prompts import Prompts
        from penstock.producer.tokenizer_files import SpecialFrame

        self.prompts, self.languages, self.frame = Prompts(), Languages(), SpecialFrame()

    async def encode_async(self, texts: Sequence[str], **_: Any) -> Any:
        raise UnicodeEncodeError("utf-8", "".join(texts), 0, 1, "not allowed")


class RefusingOutbox(FakeOutbox):
    """Refuses replies and dead letters, each time for another reason."""

    errors = (MessageSizeTooLargeError(), TopicAuthorizationFailedError("penstock.replies"), None)

    def put(self, topic: str, _: int | None, records: Sequence[OutRecord]) -> None:
        for record in records:
            error: KafkaError | None = self.errors[len(self.sent) % len(self.errors)]
            self.sent.append((topic, None))
            asyncio.get_running_loop().call_soon(record.done, [record], error)


def records(make_record: Callable[..., Any]) -> Iterator[Any]:
    """Requests with the canary in each field that can hold it, valid and not."""
    values: list[bytes | None] = [
        None,
        TEXT.encode(),
        msgpack.packb(TEXT),
        msgpack.packb([TEXT]),
        msgpack.packb({"v": TEXT}),
        msgpack.packb({"v": 1, "model": "tiny", "task": "embed", "text": TEXT}),
        msgpack.packb({"v": 1, "model": "tiny", "task": "embed", "text": [TEXT, 7]}),
        msgpack.packb({"v": 1, "model": "tiny", "task": TEXT, "text": [TEXT]}),
        msgpack.packb({"v": 1, "model": "tiny", "task": "embed", "text": [TEXT], "opts": TEXT}),
        msgpack.packb({"v": 1, "model": "tiny", "task": "embed", "text": [TEXT], "opts": {"truncate": TEXT}}),
        msgpack.packb({"v": 1, "model": "tiny", "task": "embed", "ids": TEXT, "lens": TEXT.encode()}),
        b"\x81\xa4text" + TEXT.encode() + b"\xff",
        encode_request(Request(TEXT, "embed", text=(TEXT,))),
        encode_request(Request("tiny", "embed", text=(TEXT,))),
        encode_request(Request("tiny", "embed", text=(TEXT * 20_000,))),
        encode_request(Request("tiny", "embed", text=(TEXT,), options=Options(prompt_name=TEXT))),
        encode_request(Request("tiny", "embed", tokens=join_tokens([IDS]))),
        encode_request(Request("tiny", "embed", tokens=join_tokens([[1], [FAILING, 2]]))),
        encode_request(Request("tiny", "embed", tokens=join_tokens([[1, 2]]))),
    ]
    for offset, value in enumerate(values):
        yield make_record(value, offset=offset, key=TEXT.encode(), headers=HEADERS)
    bad_headers: tuple[list[tuple[str, bytes]], ...] = (
        [],
        [("kafka_replyTopic", TEXT.encode())],
        [("kafka_replyTopic", CANARY.encode())],  # a name, and outside of the allow-list
        [*HEADERS, ("kafka_replyPartition", TEXT.encode())],
        [*HEADERS, ("penstock-class", TEXT.encode())],
        [(UNREADABLE_BATCH, TEXT.encode())],
        [(UNREADABLE, TEXT.encode())],
        [*HEADERS, ("penstock-deadline-ms", TEXT.encode())],
    )
    for offset, headers in enumerate(bad_headers, len(values)):
        yield make_record(encode_request(Request("tiny", "embed", text=(TEXT,))), offset=offset, headers=headers)


@pytest.fixture(autouse=True)
def uncached_loggers(restore_logging: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stages' loggers must not keep this configuration: they are those of the other tests."""
    configure = structlog.configure
    uncached = {"cache_logger_on_first_use": False}
    monkeypatch.setattr(structlog, "configure", lambda **given: configure(**(given | uncached)))


@pytest.fixture
async def worker(kafka: FakeConsumer, outbox: FakeOutbox, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Worker]:
    monkeypatch.setattr(dead_letters, "_RETRY_S", 0.001)
    async with make_worker(kafka, FailingEngine(name="tiny"), tokenizer=FailingTokenizer()) as worker:
        yield worker


@pytest.mark.parametrize("log_format", ["json", "console"])
@pytest.mark.parametrize("answers_are_refused", [False, True])
async def test_the_canary_is_in_no_line(
    answers_are_refused: bool,
    log_format: str,
    worker: Worker,
    kafka: FakeConsumer,
    outbox: FakeOutbox,
    make_record: Callable[..., Any],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if answers_are_refused:
        monkeypatch.setattr(FakeOutbox, "put", RefusingOutbox.put)
        monkeypatch.setattr(FakeOutbox, "errors", RefusingOutbox.errors, raising=False)
    kafka.script = [polled(one) for one in records(make_record)]
    assert A.topic == next(records(make_record)).topic
    configure_logs(log_format, "debug")
    assert await worker.run() == 0
    logged = capsys.readouterr().err
    assert CANARY not in logged
    expected = {"request_refused", "tokenizer_failed", "sequence_failed", "stopped"}
    expected |= {"reply_undeliverable", "error_reply_undeliverable"} if answers_are_refused else set()
    assert [event for event in expected if event not in logged] == []
    assert str(IDS[1]) not in logged


def unfold(request: Mapping[str, Any], graph: GraphBuilder) -> None:
    graph.add("cell", token=[int(request["text"])])


CELL = Cell(CellSpec("cell", (StateSpec("sum", 1),), ("token",)), lambda states, inputs: (states, {}))


@pytest.mark.parametrize(
    "reject",
    [
        lambda: CellModel.of([CELL], unfold).unfold({"text": TEXT}),
        lambda: take_count({"max_tokens": TEXT}, "max_tokens"),
        lambda: GenerationOptions.of({"decoder_start_token_id": 0, "temperature": TEXT}),
        lambda: GenerationOptions.of({"decoder_start_token_id": 0, "bad_words_ids": [TEXT]}),
        lambda: read_generation({TEXT: 1}),
        lambda: decode_fields([{TEXT: None}]),
    ],
)
def test_what_fields_and_options_hold_is_in_the_reply_and_not_in_the_log(reject: Callable[[], object]) -> None:
    with pytest.raises((InvalidGraph, InvalidOption, InvalidRequest)) as caught:
        reject()
    error = PenstockError(str(caught.value))
    assert CANARY in error.message
    assert CANARY not in unquoted_reason(error)
