"""From a record's rows to its reply."""

from collections.abc import Callable

import numpy as np
import pytest

from penstock.engine.types import ModelInfo
from penstock.producer.wire.codec import decode_reply, encode_reply
from penstock.producer.wire.messages import Options
from penstock.worker.replies.reply import make_reply
from penstock.worker.requests.record import Row

MakeRows = Callable[..., list[Row]]


def vector(*numbers: float) -> np.ndarray:
    return np.array(numbers, np.float32)


def test_rows_stand_in_the_requests_order_whatever_order_they_came_in(info: ModelInfo, make_rows: MakeRows) -> None:
    rows = make_rows([1], [2], [3])
    assert [rows[index].settle(vector(index, 0, 0, 0)) for index in (2, 0, 1)] == [False, False, True]
    reply = make_reply(rows[0].owner, info)
    assert reply.vectors is not None
    assert reply.vectors[:, 0].tolist() == [0, 1, 2]
    assert (reply.model, reply.revision) == ("tiny", "r1")


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_vectors_travel_in_the_dtype_that_was_asked_for(info: ModelInfo, make_rows: MakeRows, dtype: str) -> None:
    [row] = make_rows([1], options=Options(dtype=dtype))
    row.settle(vector(0.5, -1, 0.1, 65504))
    reply = decode_reply(encode_reply(make_reply(row.owner, info)))
    assert reply.vectors is not None  # type: ignore[union-attr]  # not an ErrorReply
    assert reply.vectors.dtype == dtype  # type: ignore[union-attr]  # not an ErrorReply
    np.testing.assert_array_equal(reply.vectors, [vector(0.5, -1, 0.1, 65504).astype(dtype)])  # type: ignore[union-attr]  # not an ErrorReply


@pytest.mark.parametrize(
    ("top_k", "labels"),
    [(1, ["blue"]), (2, ["blue", "red"]), (0, ["blue", "red", "green"]), (9, ["blue", "red", "green"])],
)
def test_labels_are_the_best_first(info: ModelInfo, make_rows: MakeRows, top_k: int, labels: list[str]) -> None:
    [row] = make_rows([1], task="classify", options=Options(top_k=top_k))
    row.settle(vector(0.25, 0.125, 0.625))
    reply = make_reply(row.owner, info)
    assert reply.classes is not None
    assert list(reply.classes[0].labels) == labels
    assert list(reply.classes[0].scores) == [0.625, 0.25, 0.125][: len(labels)]


def test_equal_scores_keep_the_models_order(info: ModelInfo, make_rows: MakeRows) -> None:
    [row] = make_rows([1], task="classify", options=Options(top_k=0))
    row.settle(vector(0.5, 0.5, 0.5))
    reply = make_reply(row.owner, info)
    assert reply.classes is not None
    assert reply.classes[0].labels == info.labels


def test_scores_of_pairs_are_numbers_in_the_requests_order(info: ModelInfo, make_rows: MakeRows) -> None:
    first, second = make_rows([1], [2], task="rerank")
    second.settle(vector(-1.5))
    first.settle(vector(0.25))
    assert make_reply(first.owner, info).scores == (0.25, -1.5)


@pytest.mark.parametrize(("top_k", "kept"), [(1, 1), (2, 2), (0, 3), (9, 3)])
@pytest.mark.parametrize("flat", [False, True], ids=["from the engine", "from the cache"])
def test_tokens_have_their_labels_and_places(
    info: ModelInfo, make_rows: MakeRows, top_k: int, kept: int, flat: bool
) -> None:
    first, second = make_rows([1, 2], [3], task="token_classify", options=Options(top_k=top_k, dtype="float16"))
    first.owner.spans = [np.array([[0, 1], [2, 3]], np.uint32), np.array([[0, 0]], np.uint32)]
    scores = np.array([[0.25, 0.125, 0.625], [0.5, 0.5, 0.0]], np.float32)
    second.settle(vector(0.0, 1.0, 0.0))
    first.settle(scores.ravel() if flat else scores)
    tokens = make_reply(first.owner, info).tokens
    assert tokens is not None
    assert (tokens.names, tokens.lens) == (info.labels, (2, 1))
    assert tokens.classes.tolist() == [row[:kept] for row in ([2, 0, 1], [0, 1, 2], [1, 0, 2])]
    assert tokens.scores.tolist() == [row[:kept] for row in ([0.625, 0.25, 0.125], [0.5, 0.5, 0.0], [1.0, 0.0, 0.0])]
    assert tokens.scores.dtype == np.float16
    assert tokens.spans is not None
    assert tokens.spans.tolist() == [[0, 1], [2, 3], [0, 0]]


def test_a_reply_before_its_rows_is_a_bug(info: ModelInfo, make_rows: MakeRows) -> None:
    rows = make_rows([1], [2])
    rows[0].settle(vector(1, 2, 3, 4))
    with pytest.raises(RuntimeError, match="This is a bug"):
        make_reply(rows[0].owner, info)


def test_a_row_settled_twice_is_a_bug(make_rows: MakeRows) -> None:
    rows = make_rows([1], [2])
    rows[0].settle(vector(1, 2, 3, 4))
    with pytest.raises(RuntimeError, match="This is a bug"):
        rows[0].settle(vector(1, 2, 3, 4))
