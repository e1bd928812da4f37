"""From a record's rows to its reply."""

from collections.abc import Callable

import numpy as np
import pytest

from penstock.engine.types import ModelInfo
from penstock.producer.messages import Options
from penstock.producer.wire import decode_reply, encode_reply
from penstock.worker.inflight import Row
from penstock.worker.replies import make_reply

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
