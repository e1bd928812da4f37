"""Replies with sparse vectors and vectors of tokens, from rows of the engine and of the cache."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from penstock.engine.types import ModelInfo
from penstock.engine.vector_rows import join_sparse, join_vectors
from penstock.producer.errors import InvalidRequest
from penstock.producer.wire.codec import decode_reply
from penstock.producer.wire.messages import Options, Reply
from penstock.worker.replies.reply import encode_replies
from penstock.worker.requests.reply_bounds import ReplyBounds
from penstock.worker.requests.sequence_block import SequenceBlock

MakeSequences = Callable[..., list[SequenceBlock]]

SPARSE = [
    join_sparse(np.array([3, 70, 30_000]), np.array([0.5, 2.0, 0.5], np.float32)),
    np.empty(0, np.float32),  # of a text without a word that the model knows
    join_sparse(np.array([4]), np.array([1.25], np.float32)),
]
TOKENS = [np.arange(6, dtype=np.float32).reshape(3, 2), np.ones((1, 2), np.float32), np.zeros((2, 2), np.float32)]
VECTORS = [np.full(4, index, np.float32) for index in range(3)]


@pytest.fixture
def info(info: ModelInfo) -> ModelInfo:
    return replace(info, token_dim=2)


def rows_of(
    make_sequences: MakeSequences, info: ModelInfo, task: str, results: list[np.ndarray], options: Options
) -> list[Any]:
    sequences = make_sequences(*[[index] for index in range(len(results))], task=task, options=options)
    for sequence, row in zip(sequences, results, strict=True):
        sequence.settle([row])
    reply = decode_reply(encode_replies([sequences[0].request], info, None, 0.0)[0])
    assert isinstance(reply, Reply)
    return list(reply.rows(task))


def assert_sparse(rows: list[Any], expected: list[dict[int, float]], dtype: str) -> None:
    assert [list(zip(row.ids.tolist(), row.weights.tolist(), strict=True)) for row in rows] == [
        list(row.items()) for row in expected
    ]
    assert {str(row.weights.dtype) for row in rows} == {dtype}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    ("top_k", "first"),
    [
        (None, {3: 0.5, 70: 2.0, 30_000: 0.5}),
        (0, {3: 0.5, 70: 2.0, 30_000: 0.5}),
        (1, {70: 2.0}),
        (2, {3: 0.5, 70: 2.0}),  # of equal weights the lower id
        (9, {3: 0.5, 70: 2.0, 30_000: 0.5}),
    ],
)
def test_a_sparse_vector_has_its_largest_weights_by_id(
    info: ModelInfo, make_sequences: MakeSequences, top_k: int | None, first: dict[int, float], dtype: str
) -> None:
    options = Options(top_k=top_k, dtype=dtype)
    assert_sparse(rows_of(make_sequences, info, "embed_sparse", SPARSE, options), [first, {}, {4: 1.25}], dtype)
    joined = [join_vectors(*row) for row in zip(VECTORS, TOKENS, SPARSE, strict=True)]
    every = rows_of(make_sequences, info, "embed_all", joined, options)
    assert_sparse([row.sparse for row in every], [first, {}, {4: 1.25}], dtype)
    for row, vector, tokens in zip(every, VECTORS, TOKENS, strict=True):
        assert row.vector.dtype == row.tokens.dtype == dtype
        np.testing.assert_array_equal(row.vector, vector)
        np.testing.assert_array_equal(row.tokens, tokens)


@pytest.mark.parametrize("flat", [False, True], ids=["from the engine", "from the cache"])
def test_each_text_has_the_vectors_of_its_tokens(info: ModelInfo, make_sequences: MakeSequences, flat: bool) -> None:
    results = [matrix.ravel() if flat else matrix for matrix in TOKENS]
    rows = rows_of(make_sequences, info, "embed_tokens", results, Options(dtype="float16"))
    assert {str(row.dtype) for row in rows} == {"float16"}
    for row, matrix in zip(rows, TOKENS, strict=True):
        np.testing.assert_array_equal(row, matrix)


def test_a_sparse_reply_that_is_too_large_is_the_error_of_its_record_alone(
    info: ModelInfo, make_sequences: MakeSequences
) -> None:
    """How many ids a text has is known only when they are there."""
    large = join_sparse(np.arange(1000), np.ones(1000, np.float32))
    sequences = [
        make_sequences([1], task="embed_sparse", options=options)[0] for options in (Options(), Options(top_k=9))
    ]
    for one in sequences:
        one.settle([large])
    requests = [one.request for one in sequences]
    bounds = ReplyBounds(info, 4000)
    for request in requests:
        bounds.check_sequences(request.message, is_json=False)
    [refused] = bounds.refused(requests, encode_replies(requests, info, None, 0.0))
    assert refused.record is requests[0].record
    assert isinstance(refused.error, InvalidRequest)
    assert "would exceed 4,000 bytes" in refused.error.message
    assert [request.is_failed for request in requests] == [True, False]
