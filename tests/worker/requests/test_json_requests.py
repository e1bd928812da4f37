"""JSON requests in the worker: what they may leave out, the form of their rejections, and the size of their replies."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from penstock.engine.types import ModelInfo
from penstock.engine.vector_rows import join_sparse, join_vectors
from penstock.producer.errors import InvalidRequest, PenstockError
from penstock.producer.prompts import Prompts
from penstock.producer.wire.codec import encode_request
from penstock.producer.wire.headers import request_headers
from penstock.producer.wire.messages import Options, Request
from penstock.worker.replies.reply import encode_replies
from penstock.worker.requests.preparation import RequestPreparer
from penstock.worker.requests.record import PendingRecord
from penstock.worker.requests.reply_bounds import ReplyBounds
from penstock.worker.requests.request import PendingRequest, Rejection
from penstock.worker.requests.validation import RequestValidator

LONGEST = np.float32(-1.23381615e-05)  # the most digits that a float32 has
LABELS = ('quoted "label"', "\x01\x02\x03", "é" * 20)
HEAD_BYTES = 512
MakeRecord = Callable[..., Any]


def model(*tasks: str, **changes: Any) -> ModelInfo:
    info = ModelInfo("tiny", "r1", "float32", "cpu", 100, 1000, frozenset(tasks), 40, LABELS, token_dim=3)
    return replace(info, **changes)


def validate(info: ModelInfo, record: Any, max_reply_bytes: int = 100_000, **given: Any) -> PendingRequest | Rejection:
    settings = {"reply_topics": "penstock.*", "slo_s": None, "max_sequences": 4096} | given
    validator = RequestValidator(info, ReplyBounds(info, max_reply_bytes), Prompts(), **settings)
    pending = PendingRecord(record, (record.topic, record.partition), from_bulk_topic=False)
    requests, rejections = validator.validate([pending], 100.0, 1e9)
    return requests[0] if requests else rejections[0]


@pytest.mark.parametrize(
    ("tasks", "natural"),
    [
        ({"embed"}, "embed"),
        ({"embed", "embed_sparse", "embed_tokens", "embed_all"}, "embed"),
        ({"embed_sparse"}, "embed_sparse"),
        ({"classify", "embed"}, "classify"),
        ({"classify", "embed", "entail"}, "classify"),
        ({"token_classify", "embed"}, "token_classify"),
    ],
)
def test_the_model_and_the_task_of_its_head_may_be_left_out(
    make_record: MakeRecord, tasks: set[str], natural: str
) -> None:
    request = validate(model(*tasks), make_record(b'{"text": "a text"}'))
    assert isinstance(request, PendingRequest)
    assert request.address.is_json
    assert (request.message.model, request.message.task, request.message.text) == ("tiny", natural, ("a text",))


def test_a_pair_is_reranked_by_a_model_of_one_label(make_record: MakeRecord) -> None:
    request = validate(model("classify", "embed", "rerank"), make_record(b'{"text": [["query", "document"]]}'))
    assert isinstance(request, PendingRequest)
    assert request.message.task == "rerank"


def test_the_reply_to_a_msgpack_request_is_msgpack(make_record: MakeRecord) -> None:
    request = validate(model("embed"), make_record(encode_request(Request("tiny", "embed", text=("a",)))))
    assert isinstance(request, PendingRequest)
    assert not request.address.is_json


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (b'{"text": 5}', "invalid_request"),
        (b'{"text": "\xff"}', "invalid_request"),
        (b'{"text": "a", "model": "huge"}', "unknown_model"),
        (b'{"text": "a", "task": "generate"}', "unsupported_task"),
    ],
)
def test_a_rejected_json_request_is_answered_in_json(make_record: MakeRecord, value: bytes, code: str) -> None:
    rejection = validate(model("embed"), make_record(value))
    assert isinstance(rejection, Rejection)
    assert rejection.address is not None
    assert rejection.address.is_json
    assert rejection.error.code == code


def test_so_is_one_that_is_late_and_whose_value_is_not_read(make_record: MakeRecord) -> None:
    late = request_headers(b"id", "penstock.replies", 0, 1)
    rejection = validate(model("embed"), make_record(b"{", headers=late))
    assert isinstance(rejection, Rejection)
    assert rejection.address is not None
    assert (rejection.address.is_json, rejection.error.code) == (True, "expired")


def test_without_a_reply_topic_a_json_request_is_not_answered(make_record: MakeRecord) -> None:
    rejection = validate(model("embed"), make_record(b'{"text": "a"}', headers=[]))
    assert isinstance(rejection, Rejection)
    assert rejection.address is None


SIZES: list[tuple[str, Options]] = [
    ("embed", Options()),
    ("embed", Options(dtype="float16")),
    ("embed", Options(dtype="binary")),
    ("embed_sparse", Options()),
    ("embed_tokens", Options()),
    ("embed_all", Options()),
    ("classify", Options()),
    ("classify", Options(top_k=2)),
    ("classify", Options(top_k=0)),
    ("token_classify", Options()),
    ("token_classify", Options(top_k=0)),
]


def longest_row(task: str, num_tokens: int) -> Any:
    """A result of the engine with the most digits."""
    vector, tokens = np.full(40, LONGEST), np.full((num_tokens, 3), LONGEST)
    match task:
        case "embed_sparse":
            return join_sparse(np.zeros(0, np.int64), np.zeros(0, np.float32))
        case "embed_tokens":
            return tokens
        case "embed_all":
            return join_vectors(vector, tokens, join_sparse(np.zeros(0, np.int64), np.zeros(0, np.float32)))
        case "classify":
            return np.full(3, LONGEST)
        case "token_classify":
            return np.full((num_tokens, 3), LONGEST)
    return vector


async def answered(
    make_record: MakeRecord, task: str, options: Options, num_rows: int, max_reply_bytes: int
) -> bytes | PenstockError:
    """The reply to a request of rows of two tokens each, or why it is refused."""
    info = model(task)
    given = {name: value for name, value in options._asdict().items() if value != getattr(Options(), name)}
    body = {"task": task, "tokens": [[1, 2]] * num_rows, "opts": given}
    one = validate(info, make_record(json.dumps(body).encode()), max_reply_bytes)
    if isinstance(one, Rejection):
        return one.error
    preparer = RequestPreparer(info, ReplyBounds(info, max_reply_bytes), None, has_cache=False)
    blocks, rejections = await preparer.prepare([one])
    if rejections:
        return rejections[0].error
    for block in blocks:
        block.settle([longest_row(task, length) for length in block.lengths])
    return encode_replies([one], info, None, 0.0)[0]


@pytest.mark.parametrize(("task", "options"), SIZES)
async def test_a_json_reply_that_is_foreseen_to_fit_does_so(
    make_record: MakeRecord, task: str, options: Options
) -> None:
    most = 20_000
    accepted, refused = 0, 4096
    while refused - accepted > 1:
        number = (accepted + refused) // 2
        found = await answered(make_record, task, options, number, most)
        if isinstance(found, InvalidRequest):
            refused = number
        else:
            assert isinstance(found, bytes)
            accepted = number
            assert len(found) <= most + HEAD_BYTES
    assert accepted > 5
    whole = await answered(make_record, task, options, accepted, most)
    assert isinstance(whole, bytes)
    if task != "embed_sparse":
        assert len(whole) > most // 3  # a bound that is not far off
    assert len(json.loads(whole)["rows"]) == accepted


def test_a_json_reply_that_is_larger_than_foreseen_is_refused(make_record: MakeRecord) -> None:
    """Of generated text one can only guess how much JSON escapes."""
    info = model("embed")
    request = validate(info, make_record(b'{"tokens": [1]}'))
    assert isinstance(request, PendingRequest)
    (refused,) = ReplyBounds(info, 1000).refused([request], [b"x" * 2000])
    assert "1,000" in refused.error.message
