"""The validate stage: which records become requests, which are rejected, and with which error."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

from penstock.engine.int8_ranges import read_int8_ranges
from penstock.engine.types import ModelInfo
from penstock.producer.aiokafka_internals.lenient_records import UNREADABLE
from penstock.producer.errors import (
    Cancelled,
    EmptyInput,
    InvalidRequest,
    Overloaded,
    PenstockError,
    TooLong,
    UnknownModel,
    UnsupportedTask,
)
from penstock.producer.prompts import Prompts
from penstock.producer.wire.codec import encode_request
from penstock.producer.wire.headers import ReplyAddress, request_headers
from penstock.producer.wire.messages import Options, Request, Text, join_tokens
from penstock.producer.wire.topics import REPLY_TOPIC_PATTERN
from penstock.worker.requests.deadline_errors import ArrivedLate
from penstock.worker.requests.record import PendingRecord
from penstock.worker.requests.reply_bounds import ReplyBounds
from penstock.worker.requests.request import PendingRequest
from penstock.worker.requests.validation import MAX_TEXT_BYTES, RequestValidator


def u32(*numbers: int) -> bytes:
    return np.array(numbers, "<u4").tobytes()


def make_validator(
    info: ModelInfo,
    *,
    max_reply_bytes: int = 1024,
    prompts: Prompts | None = None,
    **changes: Any,
) -> RequestValidator:
    given = {"reply_topics": ".*", "slo_s": None, "max_sequences": 16}
    return RequestValidator(info, ReplyBounds(info, max_reply_bytes), prompts or Prompts(), **given | changes)


@pytest.fixture
def validator(info: ModelInfo) -> RequestValidator:
    return make_validator(info, reply_topics=REPLY_TOPIC_PATTERN)


def pending(record: Any, *, bulk_topic: bool = False) -> PendingRecord:
    return PendingRecord(record, (record.topic, record.partition), bulk_topic)


def accept(
    validator: RequestValidator, record: Any, now: float = 0.0, unix_now: float = 0.0, *, bulk_topic: bool = False
) -> PendingRequest:
    """The request of one record; raises the error of its rejection."""
    requests, rejections = validator.validate([pending(record, bulk_topic=bulk_topic)], now, unix_now)
    for rejection in rejections:
        raise rejection.error
    [request] = requests
    return request


def body(**changes: Any) -> bytes:
    fields = {"v": 1, "model": "tiny", "task": "embed", "ids": u32(1, 2, 3), "lens": u32(2, 1)} | changes
    return bytes(msgpack.packb({name: value for name, value in fields.items() if value is not ...}))


BAD_VALUES: dict[str, tuple[bytes | None, type[PenstockError], str]] = {
    "a tombstone": (None, InvalidRequest, "no value"),
    "no bytes": (b"", InvalidRequest, "no value"),
    "not msgpack": (b"\xc1 not msgpack", InvalidRequest, "msgpack"),
    "JSON that is no object": (b"[1, 2]", InvalidRequest, "msgpack"),
    "not a map": (msgpack.packb([1, 2]), InvalidRequest, "must be a msgpack map"),
    "unknown version": (body(v=2), InvalidRequest, "`v` must be 1"),
    "no version": (body(v=...), InvalidRequest, "`v` must be 1"),
    "no model": (body(model=...), InvalidRequest, "`model`"),
    "no task": (body(task=...), InvalidRequest, "`task`"),
    "no input": (body(ids=..., lens=...), InvalidRequest, "exactly one of `text` and `ids`"),
    "two inputs": (body(text="a"), InvalidRequest, "exactly one of `text` and `ids`"),
    "ids without lens": (body(lens=...), InvalidRequest, "`ids` and `lens`"),
    "unknown model": (body(model="huge"), UnknownModel, "'tiny'.*'huge'"),
    "unknown task": (body(task="sing"), UnsupportedTask, "'sing'"),
    "empty text": (body(ids=..., lens=..., text=""), EmptyInput, "empty"),
    "blank text": (body(ids=..., lens=..., text=["a", " \n"]), EmptyInput, "Text 1 is empty"),
    "no texts": (body(ids=..., lens=..., text=[]), EmptyInput, "no sequence"),
    "zero ids": (body(lens=u32(3, 0)), EmptyInput, "Sequence 1 has zero ids"),
    "no sequences": (body(ids=b"", lens=b""), EmptyInput, "no sequence"),
    "lens that do not add up": (body(lens=u32(2, 2)), InvalidRequest, "add up to 4, but `ids` holds 3"),
    "lens that overflow 32 bits": (body(lens=u32(0xFFFFFFFF, 4)), InvalidRequest, "add up"),
    "half an id": (body(ids=b"\0" * 11), InvalidRequest, "uint32"),
    "text that is not UTF-8": (body(ids=..., lens=..., text="?").replace(b"?", b"\xff"), InvalidRequest, "UTF-8"),
    "too many sequences": (body(ids=u32(*[1] * 17), lens=u32(*[1] * 17)), InvalidRequest, "at most 16 .* Given: 17"),
    "a million sequences": (
        body(ids=u32(*[1] * 1_000_000)[: 3 << 20], lens=u32(*[1] * 1_000_000)[: 3 << 18]),
        InvalidRequest,
        "at most",
    ),
    "five megabytes": (body(ids=bytes(5_000_000)), InvalidRequest, "bytes; at most 4,194,304"),
    "an unknown pooling": (body(opts={"pooling": "median"}), InvalidRequest, "`opts.pooling`"),
    "a rerank of ids": (body(task="rerank"), InvalidRequest, "`rerank` needs `text`"),
    "a rerank of a single text": (
        body(task="rerank", ids=..., lens=..., text=["a"]),
        InvalidRequest,
        "item 0 must be a pair",
    ),
    "tokens of a pair": (
        body(task="token_classify", ids=..., lens=..., text=[["a", "b"]]),
        InvalidRequest,
        "item 0 must be a single",
    ),
    "a rerank by a model that cannot": (
        body(task="rerank", ids=..., lens=..., text=[["a", "b"]]),
        UnsupportedTask,
        r"'tiny' can classify or embed\. Asked for: 'rerank'",
    ),
    "an extension type": (body(model=msgpack.ExtType(1, b"x")), InvalidRequest, "extension"),
}


@pytest.mark.parametrize("name", BAD_VALUES)
def test_each_bad_value_has_its_error(validator: RequestValidator, make_record: Callable[..., Any], name: str) -> None:
    value, expected, words = BAD_VALUES[name]
    with pytest.raises(expected, match=words) as rejected:
        accept(validator, make_record(value))
    assert type(rejected.value) is expected


def test_a_task_that_the_model_cannot_do_is_rejected(info: ModelInfo, make_record: Callable[..., Any]) -> None:
    embedder = ModelInfo("tiny", "r", "float32", "cpu", 100, 8, frozenset({"embed"}), 4, ())
    validator = make_validator(embedder)
    with pytest.raises(UnsupportedTask, match=r"can embed\. Asked for: 'classify'"):
        accept(validator, make_record(body(task="classify")))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (Options(), ("q: a", ("q: b", "c"))),
        (Options(prompt_name="passage"), ("p: a", ("p: b", "c"))),
        (Options(prompt="x "), ("x a", ("x b", "c"))),
        (Options(prompt=""), ("a", ("b", "c"))),
    ],
)
def test_the_prompt_is_prepended_to_each_text(
    info: ModelInfo, make_record: Callable[..., Any], options: Options, expected: tuple[Text, ...]
) -> None:
    validator = make_validator(info, prompts=Prompts({"passage": "p: "}, default="q: "))
    request = Request("tiny", "embed", text=("a", ("b", "c")), options=options)
    assert accept(validator, make_record(encode_request(request))).message.text == expected


def test_an_unknown_prompt_is_rejected_with_the_known_ones(info: ModelInfo, make_record: Callable[..., Any]) -> None:
    request = Request("tiny", "embed", text=("a",), options=Options(prompt_name="passage"))
    with pytest.raises(UnsupportedTask, match=r"no such prompt\. Its prompts: document, query\. Given: 'passage'"):
        accept(make_validator(info), make_record(encode_request(request)))


def test_a_text_with_its_prompt_is_bounded_like_any_text(info: ModelInfo, make_record: Callable[..., Any]) -> None:
    at_most = MAX_TEXT_BYTES
    for prompt, words in (("", None), ("p", f"Given: {at_most + 1:,}")):
        request = Request("tiny", "embed", text=("a" * at_most,), options=Options(prompt=prompt))
        if words is None:
            accept(make_validator(info), make_record(encode_request(request)))
            continue
        with pytest.raises(TooLong, match=words):
            accept(make_validator(info), make_record(encode_request(request)))


def test_only_lengths_that_the_model_was_trained_for_are_accepted(
    info: ModelInfo, make_record: Callable[..., Any]
) -> None:
    def accept_cut(model: ModelInfo, dimensions: int) -> PendingRequest:
        request = Request("tiny", "embed", tokens=join_tokens([[1]]), options=Options(dimensions=dimensions))
        return accept(make_validator(model), make_record(encode_request(request)))

    trained = replace(info, dimensions=(2, 4))
    assert accept_cut(trained, 2).message.options.dimensions == 2
    with pytest.raises(UnsupportedTask, match=r"`opts.dimensions` must be 2, 4\. Given: 3"):
        accept_cut(trained, 3)
    with pytest.raises(UnsupportedTask, match=r"states no lengths.*any_dimensions is off"):
        accept_cut(info, 4)


def test_any_length_up_to_the_models_is_accepted_where_the_setting_says_so(
    info: ModelInfo, make_record: Callable[..., Any]
) -> None:
    def accept_cut(dimensions: int) -> PendingRequest:
        request = Request("tiny", "embed", tokens=join_tokens([[1]]), options=Options(dimensions=dimensions))
        return accept(make_validator(info, any_dimensions=True), make_record(encode_request(request)))

    for dimensions in (1, info.dim - 1, info.dim):
        assert accept_cut(dimensions).message.options.dimensions == dimensions
    with pytest.raises(UnsupportedTask, match=f"must be at most {info.dim}. Given: {info.dim + 1}"):
        accept_cut(info.dim + 1)


def test_cut_vectors_count_with_their_own_length(info: ModelInfo, make_record: Callable[..., Any]) -> None:
    validator = make_validator(replace(info, dimensions=(2, 4)), max_sequences=1000)  # 1,024 bytes of float32
    for dimensions, fits in ((2, 128), (4, 64)):
        for n in (fits, fits + 1):
            options = Options(dimensions=dimensions)
            request = Request("tiny", "embed", tokens=join_tokens([[1]] * n), options=options)
            if n == fits:
                accept(validator, make_record(encode_request(request)))
                continue
            with pytest.raises(InvalidRequest, match=f"at most {fits} sequences"):
                accept(validator, make_record(encode_request(request)))


def test_a_reply_that_would_be_too_large_is_rejected_with_the_number_that_fits(
    info: ModelInfo, make_record: Callable[..., Any]
) -> None:
    validator = make_validator(info, max_sequences=1000)  # 64 rows of 4 floats

    def accept_embed(n: int, dtype: str) -> None:
        request = Request("tiny", "embed", tokens=join_tokens([[1]] * n), options=Options(dtype=dtype))
        accept(validator, make_record(encode_request(request)))

    accept_embed(64, "float32")
    accept_embed(128, "float16")
    with pytest.raises(InvalidRequest, match="at most 64 sequences"):
        accept_embed(65, "float32")


def test_scores_of_pairs_are_bounded_too(make_record: Callable[..., Any]) -> None:
    info = ModelInfo("tiny", "r", "float32", "cpu", 100, 8, frozenset({"rerank"}), 4, ("score",))
    validator = make_validator(info, max_sequences=1000)

    def accept_pairs(n: int) -> None:
        request = Request("tiny", "rerank", text=(("a", "b"),) * n)
        accept(validator, make_record(encode_request(request)))

    accept_pairs(1024 // 9)
    with pytest.raises(InvalidRequest, match="at most 113 sequences"):
        accept_pairs(1024 // 9 + 1)


def test_an_accepted_record_knows_where_it_came_from_and_how_long_it_waited(
    validator: RequestValidator, make_record: Callable[..., Any]
) -> None:
    record = make_record(body(), offset=7, timestamp=1_000)
    request = accept(validator, record, 50.0, 1.25)
    assert request.record.original is record
    assert (request.num_missing, request.results) == (2, [None, None])
    assert (request.times.arrived, request.times.arrived_unix_ms) == (50.0, 1250.0)
    assert request.deadline is None


def test_a_deadline_moves_from_the_wall_clock_to_the_workers(
    validator: RequestValidator, make_record: Callable[..., Any]
) -> None:
    record = make_record(body(), headers=request_headers(b"id", "penstock.replies", 0, 12_500))
    request = accept(validator, record, 100.0, 10.0)
    assert request.deadline == pytest.approx(102.5)
    with pytest.raises(ArrivedLate, match="500 ms before"):
        accept(validator, record, 100.0, 13.0)
    with pytest.raises(ArrivedLate, match=r"had passed years \(it is given in milliseconds since 1970\) before"):
        accept(validator, record, 100.0, 1.8e9)  # it was given in seconds


def test_the_value_of_an_expired_record_is_not_decoded(
    validator: RequestValidator, make_record: Callable[..., Any]
) -> None:
    record = make_record(b"not msgpack", headers=request_headers(b"id", "penstock.replies", 0, 12_500))
    with pytest.raises(ArrivedLate):
        accept(validator, record, 100.0, 13.0)
    with pytest.raises(InvalidRequest, match="msgpack"):
        accept(validator, record, 100.0, 12.0)


def test_the_workers_objective_is_the_default_deadline_of_online_requests_alone(
    info: ModelInfo, make_record: Callable[..., Any]
) -> None:
    validator = make_validator(info, slo_s=0.5)
    own = request_headers(b"id", "penstock.replies", 0, 12_500)

    def deadline(validator: RequestValidator, *, bulk_topic: bool = False, **changes: Any) -> float | None:
        return accept(validator, make_record(body(), **changes), 100.0, 10.0, bulk_topic=bulk_topic).deadline

    assert deadline(validator) == pytest.approx(100.5)
    assert deadline(validator, headers=own) == pytest.approx(102.5)
    assert deadline(validator, bulk_topic=True) is None
    assert deadline(make_validator(info)) is None


CLASSES = [
    (False, None, False),
    (False, b"online", False),
    (False, b"bulk", True),
    (True, None, True),
    (True, b"online", True),
]


@pytest.mark.parametrize(("bulk_topic", "header", "bulk"), CLASSES)
def test_the_class_is_the_headers_and_the_bulk_topic_makes_everything_bulk(
    validator: RequestValidator, make_record: Callable[..., Any], bulk_topic: bool, header: bytes | None, bulk: bool
) -> None:
    headers = make_record().headers + ([] if header is None else [("penstock-class", header)])
    assert accept(validator, make_record(body(), headers=headers), bulk_topic=bulk_topic).bulk == bulk


@pytest.mark.parametrize("header", [b"", b"BULK", b"batch", b"\xff" * 99])
def test_an_unknown_class_is_rejected_on_either_topic(
    validator: RequestValidator, make_record: Callable[..., Any], header: bytes
) -> None:
    record = make_record(body(), headers=[*make_record().headers, ("penstock-class", header)])
    for bulk_topic in (False, True):
        with pytest.raises(InvalidRequest, match="`penstock-class` must be `online` or `bulk`"):
            accept(validator, record, bulk_topic=bulk_topic)


def test_a_cancellation_is_rejected_at_the_address_of_its_request(
    validator: RequestValidator, make_record: Callable[..., Any]
) -> None:
    """Its value is not read, and its deadline does not matter."""
    headers = [*make_record().headers, ("penstock-deadline-ms", b"1"), ("penstock-cancel", b"")]
    record = pending(make_record(b"not decoded", headers=headers))
    requests, [rejection] = validator.validate([record], 100.0, 100.0)
    assert not requests
    assert isinstance(rejection.error, Cancelled)
    assert rejection.address is not None
    assert rejection.address.topic == "penstock.replies"


def test_a_record_that_would_wait_beyond_its_deadline_is_rejected_by_its_headers(
    info: ModelInfo, make_record: Callable[..., Any]
) -> None:
    own = [*make_record().headers, ("penstock-deadline-ms", b"12500")]
    damaged = [*make_record().headers, ("penstock-deadline-ms", b"soon")]  # validation says so when its turn comes
    records = [
        pending(make_record(b"not decoded", headers=headers)) for headers in (own, make_record().headers, damaged)
    ]

    def late(validator: RequestValidator, wait_s: float) -> list[PendingRecord]:
        rejections = validator.reject_late(records, 100.0, 10.0, wait_s)
        assert all(isinstance(rejection.error, Overloaded) for rejection in rejections)
        return [rejection.record for rejection in rejections]

    assert late(make_validator(info), 2.0) == []
    assert late(make_validator(info), 3.0) == records[:1]
    assert late(make_validator(info, slo_s=1.0), 2.0) == records[1:2]


@pytest.mark.parametrize("deadline", [b"soon", b"-5", b"1e9", b"9" * 16, b""])
def test_a_deadline_that_is_no_time_is_rejected(
    validator: RequestValidator, make_record: Callable[..., Any], deadline: bytes
) -> None:
    headers = [*make_record().headers, ("penstock-deadline-ms", deadline)]
    with pytest.raises(InvalidRequest, match="penstock-deadline-ms"):
        accept(validator, make_record(body(), headers=headers))


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ([], "cannot be answered"),
        ([("kafka_replyTopic", b"")], "cannot be answered"),
        ([("kafka_replyTopic", None)], "cannot be answered"),
        ([("kafka_replyTopic", b"payments")], "outside this worker's allow-list"),
        ([("kafka_replyTopic", b"penstock.repliesX")], "outside this worker's allow-list"),
        ([("kafka_replyTopic", b"penstock.requests.tiny")], "outside this worker's allow-list"),
        ([("kafka_replyTopic", b"penstock.replies\n")], "not a topic name"),
        ([("kafka_replyTopic", b"\xff\xfe")], "not a topic name"),
        ([("kafka_replyTopic", b"penstock.replies"), ("kafka_replyPartition", b"1")], "big-endian int32"),
        ([("kafka_replyTopic", b"penstock.replies"), ("kafka_replyPartition", b"\xff" * 4)], "negative"),
    ],
)
def test_an_address_that_may_not_be_answered_is_rejected(
    validator: RequestValidator, make_record: Callable[..., Any], headers: list[tuple[str, bytes]], words: str
) -> None:
    [rejection] = validator.validate([pending(make_record(body(), headers=headers))], 0.0, 0.0)[1]
    assert type(rejection.error) is InvalidRequest
    assert re.search(words, rejection.error.message)
    assert rejection.address is None


def test_an_address_keeps_what_the_answer_must_carry(
    validator: RequestValidator, make_record: Callable[..., Any]
) -> None:
    headers = [*request_headers(b"\x00\xff", "penstock.replies.team-a", 3, None), ("traceparent", b"00-1-2-01")]
    address = accept(validator, make_record(body(), headers=headers)).address
    assert address == ReplyAddress("penstock.replies.team-a", 3, b"\x00\xff", b"00-1-2-01")


def test_a_rejection_goes_to_the_address_and_stops_no_other_record(
    validator: RequestValidator, make_record: Callable[..., Any]
) -> None:
    records = [pending(make_record(value)) for value in (body(), b"", body(model="huge"), body())]
    requests, rejections = validator.validate(records, 0.0, 0.0)
    assert [request.record for request in requests] == [records[0], records[3]]
    assert [rejection.record for rejection in rejections] == records[1:3]
    assert [type(rejection.error) for rejection in rejections] == [InvalidRequest, UnknownModel]
    assert [rejection.address for rejection in rejections] == [ReplyAddress("penstock.replies", 0, b"id", None)] * 2


def test_an_unreadable_header_name_is_the_reason_with_an_address_and_without(
    validator: RequestValidator, make_record: Any
) -> None:
    addressed = make_record(body(), headers=[*make_record().headers, (UNREADABLE, b"1")])
    without = make_record(body(), headers=[(UNREADABLE, b"penstock.replies")])
    _, rejections = validator.validate([pending(record) for record in (addressed, without)], 0.0, 0.0)
    assert all("headers could not be read" in rejection.error.message for rejection in rejections)
    assert [rejection.address is None for rejection in rejections] == [False, True]


@pytest.mark.parametrize("text", ["x" * 1000, ("short", "\n" * 4100 + "where is my card")])
def test_how_long_a_text_is_only_the_tokenizer_tells(
    make_record: Callable[..., Any], info: ModelInfo, text: Any
) -> None:
    validator = make_validator(replace(info, max_tokens=8, tasks=frozenset({"embed", "rerank"})))
    task = "embed" if isinstance(text, str) else "rerank"
    for truncate in (False, True):
        value = body(ids=..., lens=..., task=task, text=[text], opts={"truncate": truncate})
        assert accept(validator, make_record(value)).message.text == (text,)


@pytest.mark.parametrize("truncate", [False, True])
def test_a_text_of_more_bytes_than_the_bound_is_rejected(
    make_record: Callable[..., Any], info: ModelInfo, truncate: bool
) -> None:
    """A megabyte of text keeps a core busy for more than a second."""
    validator = make_validator(replace(info, tasks=frozenset({"embed"})))
    most = "é" * (MAX_TEXT_BYTES // 2)
    value = body(ids=..., lens=..., text=["good", most], opts={"truncate": truncate})
    assert accept(validator, make_record(value)).message.text == ("good", most)
    value = body(ids=..., lens=..., text=["good", most + "e"], opts={"truncate": truncate})
    with pytest.raises(TooLong, match=r"at most 1,048,576 bytes of UTF-8\. Given: 1,048,577") as caught:
        accept(validator, make_record(value))
    assert list(caught.value.rows) == [1]


def test_vectors_of_one_byte_a_value_need_ranges_and_are_not_cut(
    info: ModelInfo, make_record: Callable[..., Any], tmp_path: Path
) -> None:
    def accept_int8(model: ModelInfo, **options: Any) -> PendingRequest:
        request = Request("tiny", "embed", tokens=join_tokens([[1]]), options=Options(dtype="int8", **options))
        return accept(make_validator(model), make_record(encode_request(request)))

    with pytest.raises(UnsupportedTask, match=r"'int8' needs the ranges .* setting int8_ranges"):
        accept_int8(info)
    np.save(tmp_path / "ranges.npy", np.array([[0.0] * info.dim, [1.0] * info.dim]))
    model = replace(info, dimensions=(2, info.dim), int8_ranges=read_int8_ranges(tmp_path / "ranges.npy", info.dim))
    assert accept_int8(model, dimensions=info.dim).message.options.dtype == "int8"
    with pytest.raises(UnsupportedTask, match=r"the worker's ranges are of these\. Given: `opts.dimensions` 2"):
        accept_int8(model, dimensions=2)
