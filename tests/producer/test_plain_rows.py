"""Plain rows: every task's row as JSON, read by Python's own parser."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.producer.wire.messages import TASKS, Classification, Generation, Row, TokenClass
from penstock.producer.wire.plain_rows import plain_json, plain_row
from penstock.producer.wire.vector_tables import SparseVector, TextVectors

TENTH = np.array([0.1, -2.0], np.float32)
SPARSE = SparseVector(np.array([3, 70_000], np.uint32), TENTH)
ROWS: list[tuple[str, Row, Any]] = [
    ("embed", TENTH, [0.1, -2.0]),
    ("embed", TENTH.astype(np.float16), [0.099975586, -2.0]),
    ("embed", np.array([-128, 5], np.int8), [-128, 5]),
    ("embed_sparse", SPARSE, {"indices": [3, 70_000], "values": [0.1, -2.0]}),
    ("embed_sparse", SparseVector(SPARSE.ids[:0], TENTH[:0]), {"indices": [], "values": []}),
    ("embed_tokens", np.stack([TENTH, TENTH]), [[0.1, -2.0], [0.1, -2.0]]),
    (
        "embed_all",
        TextVectors(TENTH, TENTH[None], SPARSE),
        {"embedding": [0.1, -2.0], "token_embeddings": [[0.1, -2.0]], "indices": [3, 70_000], "values": [0.1, -2.0]},
    ),
    ("classify", Classification(("good",), (float(TENTH[0]),)), {"label": "good", "score": 0.1}),
    (
        "classify",
        Classification(("good", "bad"), (0.75, 0.25)),
        {"label": "good", "score": 0.75, "labels": ["good", "bad"], "scores": [0.75, 0.25]},
    ),
    ("rerank", float(TENTH[0]), 0.1),
    ("token_classify", [TokenClass(("PER",), (0.5,), 0, 3)], [{"label": "PER", "score": 0.5, "start": 0, "end": 3}]),
    ("token_classify", [TokenClass(("PER",), (0.5,))], [{"label": "PER", "score": 0.5}]),
    ("token_classify", [], []),
    ("generate", Generation((5, 2), "stop", "né"), {"text": "né", "finish": "stop", "tokens": [5, 2]}),
    ("generate", Generation((5,), "length"), {"finish": "length", "tokens": [5]}),
    ("sequence", {"token": np.array([[1], [2]], np.int32)}, {"token": [[1], [2]]}),
]


@pytest.mark.parametrize(("task", "row", "expected"), ROWS)
def test_a_row_is_plain_json(task: str, row: Row, expected: Any) -> None:
    assert json.loads(plain_json(plain_row(task, row))) == expected


def test_every_task_has_plain_rows() -> None:
    assert {task for task, _, _ in ROWS} == set(TASKS)


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1))
def test_floats_come_back_bit_for_bit_from_few_digits(values: list[float]) -> None:
    vector = np.array(values, np.float32)
    text = plain_json(plain_row("embed", vector))
    assert np.array(json.loads(text), np.float32).tobytes() == vector.tobytes()
    assert all(len(number) <= 16 for number in text[1:-1].split(b","))


def test_numbers_that_are_not_finite_are_null() -> None:
    vector = np.array([np.nan, np.inf, 1], np.float32)
    assert plain_json([plain_row("embed", vector), plain_row("rerank", float("nan"))]) == b"[[null,null,1.0],null]"


def test_a_view_of_columns_is_printed_as_a_copy() -> None:
    assert plain_json(plain_row("embed", np.arange(6, dtype=np.float32)[::2])) == b"[0.0,2.0,4.0]"
    assert plain_json(plain_row("embed", np.array([1.5], ">f4"))) == b"[1.5]"
