"""The worker's door: what is let in, what is refused, and with which error."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.types import ModelInfo
from penstock.producer.errors import (
    BadTokenId,
    EmptyInput,
    InvalidRequest,
    PenstockError,
    TooLong,
    UnknownModel,
    UnsupportedTask,
)
from penstock.producer.wire.codec import encode_reply, encode_request
from penstock.producer.wire.headers import ReplyAddress, request_headers
from penstock.producer.wire.messages import Options, Request, join_tokens
from penstock.producer.wire.topics import REPLY_TOPIC_PATTERN
from penstock.worker.batching.deadline_errors import ArrivedLate
from penstock.worker.kafka.header_names import UNREADABLE
from penstock.worker.replies.reply import make_reply
from penstock.worker.requests.record import rows_of
from penstock.worker.requests.validation import Intake

ADDRESS = ReplyAddress("penstock.replies", 0, b"id", None)


def u32(*numbers: int) -> bytes:
    return np.array(numbers, "<u4").tobytes()


def make_intake(info: ModelInfo, **changes: Any) -> Intake:
    given = {"reply_topics": ".*", "bulk_topic": "b", "slo_s": None, "max_sequences": 16, "max_reply_bytes": 1024}
    return Intake(info, **given | changes)


@pytest.fixture
def intake(info: ModelInfo) -> Intake:
    return make_intake(info, reply_topics=REPLY_TOPIC_PATTERN)


def body(**changes: Any) -> bytes:
    fields = {"v": 1, "model": "tiny", "task": "embed", "ids": u32(1, 2, 3), "lens": u32(2, 1)} | changes
    return bytes(msgpack.packb({name: value for name, value in fields.items() if value is not ...}))


BAD_VALUES: dict[str, tuple[bytes | None, type[PenstockError], str]] = {
    "a tombstone": (None, InvalidRequest, "no value"),
    "no bytes": (b"", InvalidRequest, "no value"),
    "not msgpack": (b"\xc1 not msgpack", InvalidRequest, "msgpack"),
    "JSON": (b'{"v": 1}', InvalidRequest, "msgpack"),
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
def test_each_bad_value_has_its_error(intake: Intake, make_record: Callable[..., Any], name: str) -> None:
    value, expected, words = BAD_VALUES[name]
    with pytest.raises(expected, match=words) as refused:
        intake.accept(make_record(value), ADDRESS, 0.0, 0.0)
    assert type(refused.value) is expected


def test_a_model_refuses_a_task_it_cannot_do(info: ModelInfo, make_record: Callable[..., Any]) -> None:
    embedder = ModelInfo("tiny", "r", "float32", "cpu", 100, 8, frozenset({"embed"}), 4, ())
    intake = make_intake(embedder)
    with pytest.raises(UnsupportedTask, match=r"can embed\. Asked for: 'classify'"):
        intake.accept(make_record(body(task="classify")), ADDRESS, 0.0, 0.0)


def test_a_reply_that_would_be_too_large_is_refused_with_the_number_that_fits(
    info: ModelInfo, make_record: Callable[..., Any]
) -> None:
    intake = make_intake(info, max_sequences=1000)  # 64 rows of 4 floats

    def accept(n: int, dtype: str) -> None:
        request = Request("tiny", "embed", tokens=join_tokens([[1]] * n), options=Options(dtype=dtype))
        intake.accept(make_record(encode_request(request)), ADDRESS, 0.0, 0.0)

    accept(64, "float32")
    accept(128, "float16")
    with pytest.raises(InvalidRequest, match="at most 64 sequences"):
        accept(65, "float32")


def tagger(num_labels: int) -> ModelInfo:
    labels = tuple(f"{n:05}" for n in range(num_labels))
    return ModelInfo("tiny", "r", "float32", "cpu", 100, 1000, frozenset({"rerank", "token_classify"}), 4, labels)


@pytest.mark.parametrize(
    ("options", "num_labels", "bytes_a_token"),
    [
        (Options(dtype="float32"), 1, 6),
        (Options(dtype="float16"), 1, 4),
        (Options(top_k=0), 3, 18),
        (Options(top_k=2, dtype="float16"), 2, 8),
        (Options(), 30, 120),
    ],
)
def test_tokens_are_counted_before_they_are_classified(
    make_record: Callable[..., Any], options: Options, num_labels: int, bytes_a_token: int
) -> None:
    """Bounded by what is sent, or by the scores of all labels, which wait in memory until the record is complete."""
    info = tagger(num_labels)
    intake = make_intake(info, max_reply_bytes=4000)
    at_most = (4000 - 10 * num_labels - 2 * 4) // bytes_a_token

    def reply_bytes(num_tokens: int) -> int:
        lengths = [num_tokens // 2, num_tokens - num_tokens // 2]
        tokens = join_tokens([[1] * n for n in lengths])
        request = Request("tiny", "token_classify", tokens=tokens, options=options)
        owner = intake.accept(make_record(encode_request(request)), ADDRESS, 0.0, 0.0)
        for row in rows_of(owner, intake.sequences_from_tokens(request, tokens)):
            row.settle(np.ones((len(row.token_ids), num_labels), np.float32))
        return len(encode_reply(make_reply(owner, info)))

    assert reply_bytes(at_most) < 4000 + 256  # what every reply has: names of fields, timing
    with pytest.raises(
        InvalidRequest, match=rf"{at_most + 1:,} tokens would exceed 4,000 .* at most {at_most:,} tokens"
    ):
        reply_bytes(at_most + 1)


def test_what_is_cut_does_not_count(make_record: Callable[..., Any]) -> None:
    intake = make_intake(replace(tagger(1), max_tokens=8))
    request = tokens_of([1] * 1000, task="token_classify", truncate=True)
    assert sequences(intake, request) == [[1] * 8]


def test_labels_that_16_bits_cannot_name_are_refused() -> None:
    intake = make_intake(tagger(65_537), max_reply_bytes=1 << 30)
    with pytest.raises(UnsupportedTask, match=r"65,537 labels; a reply can name 65,536"):
        sequences(intake, tokens_of([1], task="token_classify"))


def test_scores_of_pairs_are_bounded_too(make_record: Callable[..., Any]) -> None:
    intake = make_intake(tagger(1), max_sequences=1000)

    def accept(n: int) -> None:
        request = Request("tiny", "rerank", text=(("a", "b"),) * n)
        intake.accept(make_record(encode_request(request)), ADDRESS, 0.0, 0.0)

    accept(1024 // 9)
    with pytest.raises(InvalidRequest, match="at most 113 sequences"):
        accept(1024 // 9 + 1)


def test_an_accepted_record_knows_where_it_came_from_and_how_long_it_waited(
    intake: Intake, make_record: Callable[..., Any]
) -> None:
    record = make_record(body(), offset=7, timestamp=1_000)
    inflight = intake.accept(record, ADDRESS, 50.0, 1.25)
    assert inflight.record is record
    assert (inflight.missing, inflight.rows) == (2, [None, None])
    assert inflight.timing_ms["queue"] == 250.0
    assert inflight.deadline is None


def test_a_deadline_moves_from_the_wall_clock_to_the_workers(intake: Intake, make_record: Callable[..., Any]) -> None:
    record = make_record(body(), headers=request_headers(b"id", "penstock.replies", 0, 12_500))
    inflight = intake.accept(record, ADDRESS, 100.0, 10.0)
    assert inflight.deadline == pytest.approx(102.5)
    with pytest.raises(ArrivedLate, match="500 ms before"):
        intake.accept(record, ADDRESS, 100.0, 13.0)
    with pytest.raises(ArrivedLate, match=r"had passed years \(it is given in milliseconds since 1970\) before"):
        intake.accept(record, ADDRESS, 100.0, 1.8e9)  # it was given in seconds


def test_without_a_deadline_the_workers_objective_counts_for_online_requests_alone(
    info: ModelInfo, make_record: Callable[..., Any]
) -> None:
    intake = make_intake(info, slo_s=0.5)
    own = request_headers(b"id", "penstock.replies", 0, 12_500)
    assert intake.accept(make_record(body()), ADDRESS, 100.0, 10.0).deadline == pytest.approx(100.5)
    assert intake.accept(make_record(body(), headers=own), ADDRESS, 100.0, 10.0).deadline == pytest.approx(102.5)
    assert intake.accept(make_record(body(), topic="b"), ADDRESS, 100.0, 10.0).deadline is None
    assert make_intake(info).accept(make_record(body()), ADDRESS, 100.0, 10.0).deadline is None


@pytest.mark.parametrize(
    ("topic", "header", "bulk"),
    [
        ("requests", None, False),
        ("requests", b"online", False),
        ("requests", b"bulk", True),
        ("b", None, True),
        ("b", b"online", True),
    ],
)
def test_the_class_is_the_headers_and_all_is_bulk_that_comes_by_the_bulk_topic(
    intake: Intake, make_record: Callable[..., Any], topic: str, header: bytes | None, bulk: bool
) -> None:
    headers = [] if header is None else [("penstock-class", header)]
    assert intake.accept(make_record(body(), topic=topic, headers=headers), ADDRESS, 0.0, 0.0).bulk == bulk


@pytest.mark.parametrize("header", [b"", b"BULK", b"batch", b"\xff" * 99])
def test_a_class_that_is_none_is_refused_on_either_topic(
    intake: Intake, make_record: Callable[..., Any], header: bytes
) -> None:
    for topic in ("requests", "b"):
        with pytest.raises(InvalidRequest, match="`penstock-class` must be `online` or `bulk`"):
            intake.accept(make_record(body(), topic=topic, headers=[("penstock-class", header)]), ADDRESS, 0.0, 0.0)


@pytest.mark.parametrize("deadline", [b"soon", b"-5", b"1e9", b"9" * 16, b""])
def test_a_deadline_that_is_no_time_is_refused(
    intake: Intake, make_record: Callable[..., Any], deadline: bytes
) -> None:
    with pytest.raises(InvalidRequest, match="penstock-deadline-ms"):
        intake.accept(make_record(body(), headers=[("penstock-deadline-ms", deadline)]), ADDRESS, 0.0, 0.0)


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ([], "nowhere to answer"),
        ([("kafka_replyTopic", b"")], "nowhere to answer"),
        ([("kafka_replyTopic", None)], "nowhere to answer"),
        ([("kafka_replyTopic", b"payments")], "outside this worker's allow-list"),
        ([("kafka_replyTopic", b"penstock.repliesX")], "outside this worker's allow-list"),
        ([("kafka_replyTopic", b"penstock.requests.tiny")], "outside this worker's allow-list"),
        ([("kafka_replyTopic", b"penstock.replies\n")], "not a topic name"),
        ([("kafka_replyTopic", b"\xff\xfe")], "not a topic name"),
        ([("kafka_replyTopic", b"penstock.replies"), ("kafka_replyPartition", b"1")], "big-endian int32"),
        ([("kafka_replyTopic", b"penstock.replies"), ("kafka_replyPartition", b"\xff" * 4)], "negative"),
    ],
)
def test_an_address_that_may_not_be_answered_is_refused(
    intake: Intake, make_record: Callable[..., Any], headers: list[tuple[str, bytes]], words: str
) -> None:
    with pytest.raises(InvalidRequest, match=words):
        intake.address(make_record(headers=headers))


def test_an_address_keeps_what_the_answer_must_carry(intake: Intake, make_record: Callable[..., Any]) -> None:
    headers = [*request_headers(b"\x00\xff", "penstock.replies.team-a", 3, None), ("traceparent", b"00-1-2-01")]
    address = intake.address(make_record(headers=headers))
    assert address == ReplyAddress("penstock.replies.team-a", 3, b"\x00\xff", b"00-1-2-01")


def tokens_of(*sequences: list[int], truncate: bool = False, task: str = "embed") -> Request:
    return Request("tiny", task, tokens=join_tokens(sequences), options=Options(truncate=truncate))


def sequences(intake: Intake, request: Request) -> list[list[int]]:
    assert request.tokens is not None
    return [ids.tolist() for ids, _ in intake.sequences_from_tokens(request, request.tokens)]


def test_sequences_come_apart_where_lens_say(intake: Intake) -> None:
    assert sequences(intake, tokens_of([1, 2], [3], [4, 5, 6])) == [[1, 2], [3], [4, 5, 6]]
    assert sequences(intake, tokens_of([99])) == [[99]]


@pytest.mark.parametrize("bad", [100, 2**31, 2**32 - 1])
def test_ids_outside_the_vocabulary_are_named_by_their_sequences(intake: Intake, bad: int) -> None:
    with pytest.raises(BadTokenId, match=rf"Sequence 1 \(and 1 more\).*below 100. Given: {bad}") as refused:
        sequences(intake, tokens_of([0, 99], [1, bad], [3], [bad]))
    assert list(refused.value.rows) == [1, 3]
    assert all(type(error) is BadTokenId for error in refused.value.rows.values())


def test_sequences_that_are_too_long_are_named(intake: Intake) -> None:
    with pytest.raises(TooLong, match=r"Sequence 2: `inputs` must have at most 8 tokens\. Given: 9") as refused:
        sequences(intake, tokens_of([1] * 8, [2], [3] * 9))
    assert list(refused.value.rows) == [2]


def test_truncation_keeps_the_last_id(intake: Intake) -> None:
    long = list(range(20, 40))
    assert sequences(intake, tokens_of([1, 2], long, truncate=True)) == [[1, 2], [*long[:7], 39]]


def test_truncation_cuts_token_types_alike(intake: Intake) -> None:
    ids, types = np.arange(10, dtype=np.int32), np.array([0] * 5 + [1] * 5, np.int32)
    [(cut_ids, cut_types)] = intake.fit(tokens_of([1], truncate=True), [(ids, types)])
    assert cut_ids.tolist() == [0, 1, 2, 3, 4, 5, 6, 9]
    assert cut_types is not None
    assert cut_types.tolist() == [0, 0, 0, 0, 0, 1, 1, 1]


def test_a_text_without_any_token_is_refused(intake: Intake) -> None:
    """Some tokenizers add no special tokens and drop what they do not know."""
    nothing = np.array([], np.int32)
    with pytest.raises(EmptyInput, match="Sequence 1") as refused:
        intake.fit(tokens_of([1]), [(np.array([1], np.int32), None), (nothing, None)])
    assert list(refused.value.rows) == [1]


@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=16),
    truncate=st.booleans(),
    data=st.data(),
)
def test_every_sequence_is_let_in_whole_cut_to_fit_or_named(
    lengths: list[int], truncate: bool, data: st.DataObject
) -> None:
    info = ModelInfo("tiny", "r", "float32", "cpu", 100, 8, frozenset({"embed"}), 4, ())
    intake = make_intake(info)
    given_ids = [data.draw(st.lists(st.integers(0, 99), min_size=n, max_size=n)) for n in lengths]
    request = tokens_of(*given_ids, truncate=truncate)
    too_long = [index for index, n in enumerate(lengths) if n > 8]
    if too_long and not truncate:
        with pytest.raises(TooLong) as refused:
            sequences(intake, request)
        assert list(refused.value.rows) == too_long
    else:
        assert sequences(intake, request) == [ids if len(ids) <= 8 else [*ids[:7], ids[-1]] for ids in given_ids]


def test_a_header_name_that_cannot_be_read_is_the_reason_wherever_it_shows(intake: Intake, make_record: Any) -> None:
    addressed = make_record(body(), headers=[*make_record().headers, (UNREADABLE, b"1")])
    with pytest.raises(InvalidRequest, match="headers could not be read"):
        intake.accept(addressed, intake.address(addressed), now=0.0, unix_now=0.0)
    with pytest.raises(InvalidRequest, match="headers could not be read"):
        intake.address(make_record(body(), headers=[(UNREADABLE, b"penstock.replies")]))


@pytest.mark.parametrize("text", ["x" * 1000, ("short", "x" * 1000)])
def test_a_text_beyond_any_that_the_model_could_take_is_not_tokenized_to_be_refused_or_cut(
    make_record: Callable[..., Any], info: ModelInfo, text: Any
) -> None:
    """A megabyte of text keeps a core busy for more than a second, and all others wait."""
    info = replace(info, max_tokens=8, tasks=frozenset({"embed", "rerank"}))
    task = "embed" if isinstance(text, str) else "rerank"
    intake = make_intake(info)

    def accept(**options: Any) -> Request:
        good = "good" if isinstance(text, str) else ("good", "too")
        value = body(ids=..., lens=..., task=task, text=[good, text], opts=options)
        return intake.accept(make_record(value), ADDRESS, 0.0, 0.0).request

    with pytest.raises(TooLong, match=r"at most 256 characters.* Given: 1,000") as caught:
        accept()
    assert list(caught.value.rows) == [1]
    [_, cut] = accept(truncate=True).text or ()
    assert cut == ("x" * 256 if isinstance(text, str) else ("short", "x" * 256))
