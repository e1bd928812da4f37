"""JSON requests and replies: golden records as WIRE.md describes them, and typed errors for all else."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.producer.errors import EmptyInput, InvalidRequest, PenstockError, TooLong, UnsupportedTask
from penstock.producer.wire.codec import encode_request
from penstock.producer.wire.json_codec import (
    Defaults,
    decode_json_request,
    encode_json_error,
    encode_json_reply,
    is_json,
)
from penstock.producer.wire.messages import (
    Classification,
    Generation,
    Options,
    Reply,
    Request,
    TokenTable,
    join_tokens,
)
from penstock.producer.wire.vector_tables import SparseTable, TokenVectorTable

GOLDEN = json.loads((Path(__file__).parent / "golden" / "json_records.json").read_text())
DEFAULTS = Defaults("m", "embed")

REQUESTS = {
    "request-text": Request("m", "embed", text=("hello",)),
    "request-texts": Request("m", "embed", text=("hello", "héllo")),
    "request-whole": Request("other", "classify", text=(("premise", "hypothesis"), "single")),
    "request-tokens": Request("m", "embed", tokens=join_tokens([[101, 7592, 102], [101, 102]])),
    "request-tokens-of-one": Request("m", "embed", tokens=join_tokens([[101, 7592, 102]])),
    "request-options": Request("m", "embed", text=("hello",), options=Options("mean", truncate=True, dimensions=256)),
    "request-labels": Request(
        "m", "classify", text=("My card was stolen!",), options=Options(labels=("billing", "fraud"), top_k=0)
    ),
    "request-generate": Request(
        "m", "generate", text=("hello",), options=Options(generation=(("max_new_tokens", 5),), stream=True)
    ),
    "request-sequence": Request("m", "sequence", sequences=({"tokens": [5, 300], "merges": [[0, 1]]},)),
    "request-nulls": Request("m", "embed", text=("hello",)),
    "request-repeated-name": Request("m", "embed", text=("second",)),
}
NOTES: dict[str, Any] = {"cached": 1, "timing": {"queue": 1.5}, "batch": {"size": 2, "request_tokens": 5}}
HALF = np.array([[0.1, -1.0]], np.float32)
REPLIES = {
    "reply-embed": ("embed", Reply("m", "main", vectors=HALF, **NOTES)),
    "reply-binary": ("embed", Reply("m", "main", vectors=np.array([[-128, 5]], np.int8))),
    "reply-sparse": (
        "embed_sparse",
        Reply("m", "main", sparse=SparseTable((2, 0), np.array([7, 300], np.uint32), np.array([0.1, 2], np.float32))),
    ),
    "reply-token-vectors": (
        "embed_tokens",
        Reply("m", "main", token_vectors=TokenVectorTable((1,), HALF)),
    ),
    "reply-all": (
        "embed_all",
        Reply(
            "m",
            "main",
            vectors=HALF,
            sparse=SparseTable((1,), np.array([7], np.uint32), np.array([0.1], np.float32)),
            token_vectors=TokenVectorTable((1,), HALF),
        ),
    ),
    "reply-classify": ("classify", Reply("m", "main", classes=(Classification(("good",), (0.75,)),))),
    "reply-classify-several": (
        "classify",
        Reply("m", "main", classes=(Classification(("good", "bad"), (0.75, 0.25)),)),
    ),
    "reply-rerank": ("rerank", Reply("m", "main", scores=(0.75, -1.5))),
    "reply-token-classify": (
        "token_classify",
        Reply(
            "m",
            "main",
            tokens=TokenTable(
                ("O", "PER"),
                (2,),
                np.array([[0], [1]], np.uint16),
                np.array([[1.0], [0.75]], np.float32),
                np.array([[0, 0], [0, 3]], np.uint32),
            ),
        ),
    ),
    "reply-generate": ("generate", Reply("m", "main", generations=(Generation((5, 1), "stop", "hé"),))),
}
ERRORS: dict[str, PenstockError] = {
    "error": InvalidRequest("`text` must be a string."),
    "error-rows": TooLong("Sequence 1: too long.", {1: TooLong("too long.")}),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_golden_request_is_read(name: str) -> None:
    value = GOLDEN[name].encode()
    assert is_json(value)
    read, expected = decode_json_request(value, DEFAULTS), REQUESTS[name]
    assert encode_request(read) == encode_request(expected)


@pytest.mark.parametrize("name", REPLIES)
def test_a_golden_reply_is_written(name: str) -> None:
    assert encode_json_reply(*REPLIES[name]).decode() == GOLDEN[name]


@pytest.mark.parametrize("name", ERRORS)
def test_a_golden_error_is_written(name: str) -> None:
    assert encode_json_error(ERRORS[name]).decode() == GOLDEN[name]


def test_every_golden_record_has_its_test() -> None:
    assert GOLDEN.keys() == REQUESTS.keys() | REPLIES.keys() | ERRORS.keys()


@given(st.dictionaries(st.text(), st.booleans(), max_size=70))
def test_no_msgpack_map_begins_as_a_json_object(fields: dict[str, bool]) -> None:
    assert not is_json(msgpack.packb(fields))


@pytest.mark.parametrize("value", [None, b"", b"   ", b"[1]", b'"text"', b"\x7b"[:0], b" [", b"\xef\xbb\xbf{}"])
def test_other_values_are_no_json_objects(value: bytes | None) -> None:
    assert not is_json(value)


def test_space_before_the_object_is_allowed() -> None:
    assert is_json(b'\r\n\t {"text": "hello"}')


BAD: dict[str, tuple[bytes, type[PenstockError], str]] = {
    "cut": (b'{"text": "hel', InvalidRequest, "not one"),
    "two objects": (b'{"text": "a"} {"text": "b"}', InvalidRequest, "not one"),
    "no UTF-8": (b'{"text": "\xff"}', InvalidRequest, "UTF-8"),
    "half a surrogate pair": (b'{"text": "\\ud800"}', InvalidRequest, "surrogate"),
    "NaN": (b'{"text": "a", "opts": {"top_k": NaN}}', InvalidRequest, "not one"),
    "Infinity": (b'{"text": "a", "opts": {"top_k": 1e999}}', InvalidRequest, "infinity"),
    "too deep": (b'{"text": ' + b"[" * 10_000, InvalidRequest, "not one"),
    "too large": (b'{"text": "' + b"a" * (4 << 20) + b'"}', InvalidRequest, "4,194,304"),
    "no text": (b"{}", InvalidRequest, "`text` and `tokens`"),
    "text and tokens": (b'{"text": "a", "tokens": [1]}', InvalidRequest, "`text` and `tokens`"),
    "null text": (b'{"text": null}', InvalidRequest, "`text` and `tokens`"),
    "number as text": (b'{"text": 5}', InvalidRequest, "`text` must be"),
    "number in texts": (b'{"text": ["a", 5]}', InvalidRequest, "`text` item 1"),
    "null in texts": (b'{"text": ["a", null]}', InvalidRequest, "`text` item 1"),
    "three texts for a pair": (b'{"text": [["a", "b", "c"]]}', InvalidRequest, "`text` item 0"),
    "empty text": (b'{"text": ""}', EmptyInput, "Text 0"),
    "no texts": (b'{"text": []}', EmptyInput, "`text`"),
    "too many texts": (b'{"text": [' + b'"a",' * 4096 + b'"a"]}', InvalidRequest, "at most 4096"),
    "too many sequences": (b'{"tokens": [' + b"[1]," * 4096 + b"[1]]}", InvalidRequest, "at most 4096"),
    "bytes' names": (b'{"ids": [1, 2], "lens": [2]}', InvalidRequest, "`tokens`"),
    "tokens that are no list": (b'{"tokens": "1 2"}', InvalidRequest, "`tokens` must be"),
    "token of text": (b'{"tokens": [[1], ["2"]]}', InvalidRequest, "`tokens` item 1"),
    "token of a fraction": (b'{"tokens": [1.5]}', InvalidRequest, "`tokens` item 0"),
    "token that is true": (b'{"tokens": [[true]]}', InvalidRequest, "`tokens` item 0"),
    "lists and numbers": (b'{"tokens": [[1], 2]}', InvalidRequest, "`tokens` item 1"),
    "negative token": (b'{"tokens": [[-1]]}', InvalidRequest, "Sequence 0"),
    "token over 32 bits": (b'{"tokens": [[4294967296]]}', InvalidRequest, "Sequence 0"),
    "no tokens": (b'{"tokens": []}', EmptyInput, "`tokens`"),
    "zero tokens": (b'{"tokens": [[1], []]}', EmptyInput, "Sequence 1"),
    "number as model": (b'{"text": "a", "model": 5}', InvalidRequest, "`model`"),
    "number as task": (b'{"text": "a", "task": 5}', InvalidRequest, "`task`"),
    "unknown task": (b'{"text": "a", "task": "sing"}', UnsupportedTask, "`task`"),
    "other version": (b'{"text": "a", "v": 2}', InvalidRequest, "`v`"),
    "version as text": (b'{"text": "a", "v": "1"}', InvalidRequest, "`v`"),
    "options that are no object": (b'{"text": "a", "opts": []}', InvalidRequest, "`opts`"),
    "option of another type": (b'{"text": "a", "opts": {"truncate": 1}}', InvalidRequest, "`opts.truncate`"),
    "option of another task": (b'{"text": "a", "opts": {"stream": true}}', InvalidRequest, "`stream`"),
    "sequences that are text": (b'{"task": "sequence", "text": "a"}', InvalidRequest, "`sequences`"),
    "null in a field": (b'{"task": "sequence", "sequences": [{"a": null}]}', InvalidRequest, "Sequence 0"),
}


@pytest.mark.parametrize("name", BAD)
def test_each_bad_request_has_its_error_which_names_the_field(name: str) -> None:
    value, kind, words = BAD[name]
    assert is_json(value)
    with pytest.raises(kind) as raised:
        decode_json_request(value, DEFAULTS)
    assert words in str(raised.value)


@pytest.mark.parametrize(
    "item", [b"[],", b"{},", b'{"a":1},', b'"ab":1,', b'"ab",', b'[[[[[[""]]]]]],', b'"\\"[{:",[],']
)
def test_memory_is_bounded_before_a_value_is_parsed(item: bytes) -> None:
    open_, close = (b"{", b"}") if b'"ab":' in item else (b"[", b"]")
    value = b'{"x": ' + open_ + item * (4_000_000 // len(item)) + item[:-1] + close + b"}"
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest, match="more than"):
            decode_json_request(value, DEFAULTS)
        assert tracemalloc.get_traced_memory()[1] < 40_000_000
    finally:
        tracemalloc.stop()


def test_a_long_text_of_brackets_and_colons_is_read() -> None:
    text = '[{"a": 1}], ' * 20_000
    assert decode_json_request(json.dumps({"text": text}).encode(), DEFAULTS).text == (text,)
