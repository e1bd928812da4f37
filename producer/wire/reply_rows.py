"""Encoding of a reply's rows, one kind for each task. Part of the wire format; see WIRE.md."""

import itertools
import struct
import sys
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np

from penstock.producer.errors import InvalidRequest
from penstock.producer.wire.messages import (
    BIT_DTYPES,
    DTYPES,
    FINISHES,
    Classification,
    Generation,
    Reply,
    TokenTable,
    Vector,
)
from penstock.producer.wire.sequence_codec import decode_emissions, decode_lens, emission_items
from penstock.producer.wire.vector_tables import SparseTable, TokenVectorTable

LITTLE_ENDIAN = sys.byteorder == "little"
ELEMENTS = (*DTYPES, *BIT_DTYPES.values())  # of vectors in a reply
_ELEMENTS = {name: np.dtype(name).newbyteorder("<") for name in ELEMENTS}
_UINT16, _UINT32 = np.dtype("<u2"), np.dtype("<u4")
_DTYPE_NAMES = {np.dtype(name): name for name in ELEMENTS}  # dtype.name costs microseconds


def row_items(reply: Reply) -> dict[str, Any]:
    """The fields of a reply's map for `n` and its rows."""
    if reply.sparse is not None or reply.token_vectors is not None:
        return _table_items(reply)
    if reply.vectors is not None:
        return {"n": len(reply.vectors), **_matrix_items(reply.vectors)}
    if reply.classes is not None:
        labels, scores = [row.labels for row in reply.classes], [row.scores for row in reply.classes]
        return {"n": len(reply.classes), "labels": labels, "scores": scores}
    if reply.scores is not None:
        return {"n": len(reply.scores), "scores": reply.scores}
    if reply.tokens is not None:
        return {"n": len(reply.tokens.lens), **_token_items(reply.tokens)}
    if reply.generations is not None:
        return {"n": len(reply.generations), **_generation_items(reply.generations)}
    if reply.emissions is not None:
        return emission_items(reply.emissions)
    raise TypeError("A reply needs rows. This is a bug.")


def dtype_name(matrix: Vector) -> str:
    """One of ELEMENTS."""
    return _DTYPE_NAMES[matrix.dtype]


def sign_bits(matrix: Vector, dtype: str) -> Vector:
    """[n, D] to [n, ceil(D / 8)]: whether each value is positive, the first in the highest bit, zeros behind the last.

    As sentence-transformers' `quantize_embeddings` has them: "ubinary" uint8, "binary" int8, which is 128 less.
    """
    bits = np.packbits(matrix > 0, axis=-1)
    return bits if dtype == "ubinary" else (bits ^ 128).view(np.int8)


def matrix_bytes(matrix: Vector) -> bytes:
    """The elements of an array, row after row, little-endian."""
    return (matrix if LITTLE_ENDIAN else matrix.byteswap()).tobytes()


def decode_rows(body: Mapping[str, Any], n: int) -> dict[str, Any]:
    """The fields of `Reply` that hold its `n` rows, decided by the record's keys.

    Raises InvalidRequest. Nothing is allocated before the sizes agree.
    """
    if "sparse" in body or "token_vectors" in body:
        return _decode_tables(body, n)
    if "emitted" in body:
        return {"emissions": decode_emissions(body, n)}
    if "ids" in body:
        return {"generations": _decode_generations(body, n)}
    if "lens" in body:
        return {"tokens": _decode_token_table(body, n)}
    if "data" in body:
        return {"vectors": _decode_matrix(body, n, ELEMENTS)}
    if "labels" in body:
        return {"classes": _decode_classes(body, n)}
    return {"scores": _decode_scores(body, n)}


def is_int(value: object) -> TypeGuard[int]:
    """True for an integer that is not a bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def _table_items(reply: Reply) -> dict[str, Any]:
    items: dict[str, Any] = {} if reply.vectors is None else _matrix_items(reply.vectors)
    n = 0
    if (sparse := reply.sparse) is not None:
        n, items["sparse"] = len(sparse.lens), _sparse_items(sparse)
    if (tokens := reply.token_vectors) is not None:
        n, items["token_vectors"] = len(tokens.lens), {"lens": _lens(tokens.lens), **_matrix_items(tokens.matrix)}
    return {"n": n, **items}


def _sparse_items(table: SparseTable) -> dict[str, Any]:
    return {
        "lens": _lens(table.lens),
        "ids": table.ids.astype(_UINT32, copy=False).tobytes(),
        "dtype": dtype_name(table.weights),
        "weights": matrix_bytes(table.weights),
    }


def _decode_tables(body: Mapping[str, Any], n: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if "data" in body:
        found["vectors"] = _decode_matrix(body, n, DTYPES)
    if "sparse" in body:
        found["sparse"] = _decode_sparse(body["sparse"], n)
    if "token_vectors" in body:
        found["token_vectors"] = _decode_token_vectors(body["token_vectors"], n)
    return found


def _decode_sparse(table: object, n: int) -> SparseTable:
    if not isinstance(table, dict):
        raise InvalidRequest("`sparse` must be a map.")
    ids, dtype, weights = table.get("ids"), table.get("dtype"), table.get("weights")
    lengths = decode_lens(table.get("lens"), n, "sparse.lens")
    count = sum(lengths)
    if not isinstance(ids, bytes) or len(ids) != 4 * count:
        raise InvalidRequest("`sparse.ids` must be bytes of as many little-endian uint32 as `lens` add up to.")
    if not isinstance(dtype, str) or dtype not in DTYPES or not isinstance(weights, bytes):
        raise InvalidRequest(f"`sparse.weights` must be bytes and `dtype` one of {', '.join(DTYPES)}.")
    element = _ELEMENTS[dtype]
    if len(weights) != element.itemsize * count:
        raise InvalidRequest("`sparse.weights` must be as many as `lens` add up to.")
    return SparseTable(tuple(lengths), np.frombuffer(ids, _UINT32), np.frombuffer(weights, element))


def _decode_token_vectors(table: object, n: int) -> TokenVectorTable:
    if not isinstance(table, dict):
        raise InvalidRequest("`token_vectors` must be a map.")
    lengths = _decode_token_lens(table.get("lens"), n, "token_vectors.lens")
    return TokenVectorTable(tuple(lengths), _decode_matrix(table, sum(lengths), DTYPES, "token_vectors."))


def _decode_token_lens(lens: object, n: int, name: str = "lens") -> list[int]:
    lengths = decode_lens(lens, n, name)
    if 0 in lengths:
        raise InvalidRequest(f"Row {lengths.index(0)} has no tokens.")
    return lengths


def _lens(lens: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(lens)}I", *lens)


def _matrix_items(matrix: Vector) -> dict[str, Any]:
    return {"shape": matrix.shape, "dtype": dtype_name(matrix), "data": matrix_bytes(matrix)}


def _token_items(tokens: TokenTable) -> dict[str, Any]:
    items = {
        "names": tokens.names,
        "lens": _lens(tokens.lens),
        "classes": tokens.classes.astype(_UINT16, copy=False).tobytes(),
        **_matrix_items(tokens.scores),
    }
    if tokens.spans is not None:
        items["spans"] = tokens.spans.astype(_UINT32, copy=False).tobytes()
    return items


def _generation_items(rows: Sequence[Generation]) -> dict[str, Any]:
    tokens = [token for row in rows for token in row.tokens]
    items: dict[str, Any] = {
        "lens": _lens([len(row.tokens) for row in rows]),
        "ids": struct.pack(f"<{len(tokens)}I", *tokens),
        "finish": [row.finish for row in rows],
    }
    if rows[0].text is not None:
        items["text"] = [row.text for row in rows]
    return items


def _decode_generations(body: Mapping[str, Any], n: int) -> tuple[Generation, ...]:
    ids, finish, text = body.get("ids"), body.get("finish"), body.get("text")
    lengths = decode_lens(body.get("lens"), n)
    if not isinstance(ids, bytes) or len(ids) != 4 * sum(lengths):
        raise InvalidRequest("`ids` must be bytes of as many little-endian uint32 as `lens` add up to.")
    if not isinstance(finish, list) or len(finish) != n or not all(_is_finish(one) for one in finish):
        raise InvalidRequest(f"`finish` must be a list of n of {', '.join(FINISHES)}.")
    if text is not None and not (isinstance(text, list) and len(text) == n and all(isinstance(t, str) for t in text)):
        raise InvalidRequest("`text` must be a list of n strings.")
    remaining = iter(np.frombuffer(ids, dtype=_UINT32).tolist())
    rows = zip(lengths, finish, [None] * n if text is None else text, strict=True)
    return tuple([Generation(tuple(itertools.islice(remaining, num)), why, said) for num, why, said in rows])


def _is_finish(value: object) -> bool:
    return isinstance(value, str) and value in FINISHES


def _decode_matrix(body: Mapping[str, Any], num_rows: int, dtypes: Sequence[str], prefix: str = "") -> Any:
    data, shape, dtype = body.get("data"), body.get("shape"), body.get("dtype")
    if not isinstance(dtype, str) or dtype not in dtypes or not isinstance(data, bytes):
        raise InvalidRequest(f"`{prefix}data` must be bytes and `dtype` one of {', '.join(dtypes)}.")
    element = _ELEMENTS[dtype]
    dim = shape[1] if isinstance(shape, list) and len(shape) == 2 and shape[0] == num_rows else None
    if not is_int(dim) or dim < 1 or num_rows * dim * element.itemsize != len(data):
        raise InvalidRequest(f"`{prefix}shape` must be [{num_rows}, at least 1] and agree with `data`.")
    return np.frombuffer(data, dtype=element).reshape(num_rows, dim)


def _decode_token_table(body: Mapping[str, Any], n: int) -> TokenTable:
    names, classes, spans = body.get("names"), body.get("classes"), body.get("spans")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InvalidRequest("`names` must be a list of strings.")
    lengths = _decode_token_lens(body.get("lens"), n)
    scores = _decode_matrix(body, sum(lengths), DTYPES)
    if not isinstance(classes, bytes) or len(classes) != 2 * scores.size:
        raise InvalidRequest("`classes` must be bytes of a little-endian uint16 for each score.")
    indices = np.frombuffer(classes, dtype=_UINT16)
    if indices.max() >= len(names):
        raise InvalidRequest(f"`classes` must be indices into `names`, below {len(names)}. Given: {indices.max()}")
    if spans is not None and (not isinstance(spans, bytes) or len(spans) != 8 * len(scores)):
        raise InvalidRequest("`spans` must be bytes of two little-endian uint32 a token.")
    return TokenTable(
        names=tuple(names),
        lens=tuple(lengths),
        classes=indices.reshape(scores.shape),
        scores=scores,
        spans=None if spans is None else np.frombuffer(spans, dtype=_UINT32).reshape(-1, 2),
    )


def _decode_scores(body: Mapping[str, Any], n: int) -> tuple[float, ...]:
    scores = body.get("scores")
    if not isinstance(scores, list) or len(scores) != n or not all(_is_number(score) for score in scores):
        raise InvalidRequest("`scores` must be a list of n numbers, or, with `labels`, of n rows.")
    return tuple([float(score) for score in scores])


def _decode_classes(body: Mapping[str, Any], n: int) -> tuple[Classification, ...]:
    labels, scores = body.get("labels"), body.get("scores")
    if not isinstance(labels, list) or not isinstance(scores, list) or not len(labels) == len(scores) == n:
        raise InvalidRequest("`labels` and `scores` must be lists of n rows.")
    return tuple([_decode_class(*row) for row in zip(labels, scores, strict=True)])


def _decode_class(labels: object, scores: object) -> Classification:
    if not isinstance(labels, list) or not isinstance(scores, list) or not 1 <= len(labels) == len(scores):
        raise InvalidRequest("A row of `labels` and `scores` must be two lists of one length, at least 1.")
    if not all(isinstance(label, str) for label in labels) or not all(_is_number(score) for score in scores):
        raise InvalidRequest("`labels` must hold strings and `scores` numbers.")
    return Classification(tuple(labels), tuple([float(score) for score in scores]))


def _is_number(value: object) -> bool:
    return isinstance(value, float) or is_int(value)
