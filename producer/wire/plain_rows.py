"""Rows of replies as values that JSON has: in replies to JSON requests, in files of results, in enriched records."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import orjson

from penstock.producer.wire.messages import Classification, Generation, Row, TokenClass
from penstock.producer.wire.sequence_codec import Emitted
from penstock.producer.wire.vector_tables import SparseVector, TextVectors

PlainRow = Any  # dicts by name, lists, strings, numbers of Python; numpy's arrays, and float32 of numpy


def plain_row(task: str, row: Row) -> PlainRow:
    """The answer to one sequence, for `plain_json` and its like. WIRE.md describes it for each task.

    Vectors stay arrays, and floating-point numbers float32: JSON then has the fewest digits that tell them apart.
    """
    return _PLAIN[task](row)


def plain_json(value: Any) -> bytes:
    """A value of plain rows, strings and Python's numbers as JSON. Numbers that are not finite become null."""
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)


def _numbers(vector: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    """Signs and steps of a byte stay integers."""
    return np.ascontiguousarray(vector, np.float32 if vector.dtype.kind == "f" else vector.dtype.newbyteorder("="))


def _sparse(row: SparseVector) -> PlainRow:
    return {"indices": _numbers(row.ids), "values": _numbers(row.weights)}


def _all_vectors(row: TextVectors) -> PlainRow:
    return {"embedding": _numbers(row.vector), "token_embeddings": _numbers(row.tokens), **_sparse(row.sparse)}


def _classes(row: Classification) -> PlainRow:
    """The best label; where there are several, all of them too, as two lists."""
    best = {"label": row.label, "score": np.float32(row.score)}
    if len(row.labels) == 1:
        return best
    return {**best, "labels": list(row.labels), "scores": np.array(row.scores, np.float32)}


def _tokens(row: list[TokenClass]) -> PlainRow:
    return [
        _classes(token) | ({} if token.start is None else {"start": token.start, "end": token.end}) for token in row
    ]


def _generation(row: Generation) -> PlainRow:
    text = {} if row.text is None else {"text": row.text}
    return {**text, "finish": row.finish, "tokens": list(row.tokens)}


def _emissions(row: Mapping[str, Emitted]) -> PlainRow:
    return {name: _numbers(values) for name, values in row.items()}


_PLAIN: dict[str, Callable[[Any], PlainRow]] = {
    "classify": _classes,
    "embed": _numbers,
    "embed_all": _all_vectors,
    "embed_sparse": _sparse,
    "embed_tokens": _numbers,
    "generate": _generation,
    "rerank": np.float32,
    "sequence": _emissions,
    "token_classify": _tokens,
}
