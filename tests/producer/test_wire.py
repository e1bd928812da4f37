"""Golden vectors hold the bytes, property tests the promise: a value or InvalidRequest, nothing else."""

import json
import re
import tracemalloc
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.producer.errors import (
    BackendError,
    EmptyInput,
    InvalidRequest,
    Overloaded,
    PenstockError,
    TooLong,
    UnsupportedTask,
)
from penstock.producer.wire import codec as wire
from penstock.producer.wire import messages
from penstock.producer.wire.codec import (
    decode_reply,
    decode_request,
    encode_error,
    encode_reply,
    encode_request,
)
from penstock.producer.wire.headers import content_key
from penstock.producer.wire.messages import (
    DTYPES,
    POOLINGS,
    TASKS,
    Classification,
    ErrorReply,
    Generation,
    Options,
    Reply,
    Request,
    TokenTable,
    join_tokens,
)
from penstock.producer.wire.sequence_codec import MAX_DEPTH, EmissionColumn, EmissionTable
from penstock.producer.wire.vector_tables import SparseTable, TokenVectorTable

VECTORS = {v["name"]: v for v in json.loads((Path(__file__).parent / "golden" / "vectors.json").read_text())}
PAGE = (Path(wire.__file__).parent / "WIRE.md").read_text()

REQUESTS = {
    "request-text": Request("m", "embed", text=("hello",)),
    "request-ids": Request("bge-small", "embed", tokens=join_tokens([[101, 7592, 102], [101, 102]])),
    "request-pairs": Request("m", "classify", text=(("premise", "hypothesis"), "single é")),
    "request-rerank": Request("m", "rerank", text=(("query", "document"), ("query", "dé"))),
    "request-token-classify": Request("m", "token_classify", text=("Ada sings",), options=Options(top_k=2)),
    "request-labels": Request(
        "m",
        "classify",
        text=("My card was stolen!",),
        options=Options(labels=("billing", "fraud é"), multi_label=True, template="It is about {}."),
    ),
    "request-options": Request("m", "embed", text=("hello",), options=Options("mean", False, True, 3, "float16")),
    "request-sparse": Request(
        "m", "embed_sparse", text=("hello",), options=Options(top_k=2, dtype="float16", prompt_name="query")
    ),
    "request-prompt-name": Request("m", "embed", text=("hello",), options=Options(prompt_name="query")),
    "request-prompt": Request("m", "embed", text=("hello",), options=Options(prompt="query: ")),
    "request-dimensions": Request("m", "embed", tokens=join_tokens([[101, 102]]), options=Options(dimensions=256)),
    "request-stream": Request("m", "generate", text=("hello",), options=Options(stream=True)),
    "request-generate": Request(
        "m",
        "generate",
        text=("hello",),
        options=Options(
            truncate=True,
            generation=(("do_sample", True), ("max_new_tokens", 5), ("seed", 7), ("suppress_tokens", (3, 4))),
        ),
    ),
    "request-languages": Request(
        "m",
        "generate",
        text=("hello",),
        options=Options(generation=(("source_language", "eng_Latn"), ("target_language", "fra_Latn"))),
    ),
    "request-sequence": Request(
        "m",
        "sequence",
        sequences=({"tokens": [5, 300, 7], "merges": [[0, 1], [3, 2]]}, {"tokens": [1], "max_tokens": 5, "name": "é"}),
    ),
}
REPLIES = {
    "reply-float32": Reply(
        "m",
        "main",
        vectors=np.array([[0.5, -1.0]], dtype=np.float32),
        cached=1,
        timing={"queue": 1.5},
        batch={"size": 2, "tokens": 5, "trigger": "timeout"},
    ),
    "reply-float16": Reply("m", "main", vectors=np.array([[0.5], [-1.0]], dtype=np.float16)),
    "reply-ubinary": Reply("m", "main", vectors=np.array([[255, 1]], dtype=np.uint8)),
    "reply-sparse": Reply(
        "m",
        "main",
        sparse=SparseTable((2, 0, 1), np.array([7, 300, 1], np.uint32), np.array([0.5, 1.25, 2.0], np.float16)),
    ),
    "reply-token-vectors": Reply(
        "m",
        "main",
        token_vectors=TokenVectorTable((2, 1), np.array([[0.5, -1.0], [1.0, 0.0], [0.25, 2.0]], np.float32)),
    ),
    "reply-all": Reply(
        "m",
        "main",
        vectors=np.array([[0.5, -1.0]], np.float32),
        sparse=SparseTable((1,), np.array([7], np.uint32), np.array([0.5], np.float32)),
        token_vectors=TokenVectorTable((2,), np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], np.float32)),
    ),
    "reply-scores": Reply("m", "main", scores=(0.75, -1.5)),
    "reply-tokens": Reply(
        "m",
        "main",
        tokens=TokenTable(
            names=("O", "PER"),
            lens=(3, 1),
            classes=np.array([[0, 1], [1, 0], [0, 1], [1, 0]], np.uint16),
            scores=np.array([[1.0, 0.0], [0.75, 0.25], [0.5, 0.5], [0.875, 0.125]], np.float16),
            spans=np.array([[0, 0], [0, 3], [0, 0], [0, 2]], np.uint32),
        ),
    ),
    "reply-tokens-of-ids": Reply(
        "m", "main", tokens=TokenTable(("O",), (1,), np.zeros((1, 1), np.uint16), np.ones((1, 1), np.float32), None)
    ),
    "reply-generations": Reply("m", "main", generations=(Generation((5, 6, 1), "stop"), Generation((7,), "length"))),
    "reply-partial": Reply("m", "main", generations=(Generation((5,), "partial", "h"),)),
    "reply-generations-of-text": Reply("m", "main", generations=(Generation((5, 1), "stop", "hé"),)),
    "reply-emissions": Reply(
        "m",
        "main",
        emissions=EmissionTable(
            2,
            {
                "scores": EmissionColumn(np.array([[0.5, 0.25], [1.0, 0.0]], np.float32), (1, 1)),
                "token": EmissionColumn(np.array([[7], [-1], [2]], np.int32), (3, 0)),
            },
        ),
    ),
    "reply-classes": Reply("m", "main", classes=(Classification(("joy", "fear"), (0.75, 0.25)),)),
}
ERRORS = {
    "error-retriable": Overloaded("Try later."),
    "error-rows": TooLong("Sequence 1 has 600 tokens.", {1: TooLong("Given: 600")}),
}


def golden(name: str) -> bytes:
    return bytes.fromhex(VECTORS[name]["hex"])


def assert_same_request(left: Request, right: Request) -> None:
    assert (left.model, left.task, left.text, left.options) == (right.model, right.task, right.text, right.options)
    assert msgpack.packb(left.sequences) == msgpack.packb(right.sequences)  # bytes, as NaN is not itself
    assert (left.tokens is None) == (right.tokens is None)
    if left.tokens is not None and right.tokens is not None:
        assert left.tokens.lens == right.tokens.lens
        np.testing.assert_array_equal(left.tokens.ids, right.tokens.ids)


def assert_same_reply(left: Reply, right: Reply) -> None:
    meta = [
        (r.model, r.revision, r.classes, r.scores, r.generations, r.cached, r.timing, r.batch) for r in (left, right)
    ]
    assert meta[0] == meta[1]
    assert_same_array(left.vectors, right.vectors)
    for table, arrays in (("sparse", ("ids", "weights")), ("token_vectors", ("matrix",))):
        one, other = getattr(left, table), getattr(right, table)
        assert (one is None) == (other is None)
        if one is not None:
            assert one.lens == other.lens
            for array in arrays:
                assert_same_array(getattr(one, array), getattr(other, array))
    assert (left.emissions is None) == (right.emissions is None)
    if left.emissions is not None and right.emissions is not None:
        assert left.emissions.columns.keys() == right.emissions.columns.keys()
        for name, column in left.emissions.columns.items():
            assert column.lens == right.emissions.columns[name].lens
            assert_same_array(column.values, right.emissions.columns[name].values)
    assert (left.tokens is None) == (right.tokens is None)
    if left.tokens is not None and right.tokens is not None:
        assert (left.tokens.names, left.tokens.lens) == (right.tokens.names, right.tokens.lens)
        for name in ("classes", "scores", "spans"):
            assert_same_array(getattr(left.tokens, name), getattr(right.tokens, name))


def assert_same_array(left: Any, right: Any) -> None:
    assert (left is None) == (right is None)
    if left is not None:
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(left, right)


class TestGolden:
    def test_every_vector_is_checked(self) -> None:
        assert VECTORS.keys() == REQUESTS.keys() | REPLIES.keys() | ERRORS.keys()

    @pytest.mark.parametrize("name", REQUESTS)
    def test_request(self, name: str) -> None:
        assert encode_request(REQUESTS[name]).hex() == golden(name).hex()
        assert_same_request(decode_request(golden(name)), REQUESTS[name])

    @pytest.mark.parametrize("name", REPLIES)
    def test_reply(self, name: str) -> None:
        assert encode_reply(REPLIES[name]).hex() == golden(name).hex()
        decoded = decode_reply(golden(name))
        assert isinstance(decoded, Reply)
        assert_same_reply(decoded, REPLIES[name])

    @pytest.mark.parametrize("name", ERRORS)
    def test_error(self, name: str) -> None:
        assert encode_error(ERRORS[name]).hex() == golden(name).hex()
        decoded = decode_reply(golden(name))
        assert isinstance(decoded, ErrorReply)
        raised = decoded.exception()
        assert (type(raised), raised.message) == (type(ERRORS[name]), ERRORS[name].message)
        assert decoded.retriable == ERRORS[name].retriable

    def test_error_rows_come_back_as_exceptions(self) -> None:
        decoded = decode_reply(golden("error-rows"))
        assert isinstance(decoded, ErrorReply)
        raised = decoded.exception()
        assert isinstance(raised, InvalidRequest)
        assert {index: (row.code, row.message) for index, row in raised.rows.items()} == {1: ("too_long", "Given: 600")}

    @pytest.mark.parametrize("name", VECTORS)
    def test_hex_says_what_the_vector_shows(self, name: str) -> None:
        """`value` is the same record for a reader: bytes as "hex:…", read by nothing but a MessagePack parser."""
        assert _readable(msgpack.unpackb(golden(name))) == VECTORS[name]["value"]


def _readable(value: Any) -> Any:
    if isinstance(value, bytes):
        return "hex:" + value.hex()
    if isinstance(value, list):
        return [_readable(item) for item in value]
    if isinstance(value, dict):
        return {key: _readable(item) for key, item in value.items()}
    return value


class TestPage:
    """WIRE.md says what the code does."""

    def test_worked_example_is_the_golden_request(self) -> None:
        block = PAGE.split("```")[1]
        assert _hex_column(block) == VECTORS["request-text"]["hex"]
        assert content_key(golden("request-text")).hex() in PAGE

    def test_worked_example_is_the_start_of_the_golden_reply(self) -> None:
        assert VECTORS["reply-float32"]["hex"].startswith(_hex_column(PAGE.split("```")[3]))

    def test_bounds(self) -> None:
        assert wire.MAX_RECORD_BYTES == 4 * 2**20
        assert "at most 4 MiB and 4096 sequences" in PAGE
        assert wire.MAX_SEQUENCES == 4096
        assert (wire.MAX_REPLY_BYTES, wire.MAX_LABELS) == (64 * 2**20, 65_536)
        assert "at most 64 MiB, 4096 rows and 65,536 labels" in PAGE
        assert f"up to {wire.MAX_ROW_ERRORS} of" in PAGE

    def test_every_option_and_choice_is_named(self) -> None:
        for name in (*Options._fields, *messages.POOLINGS, *messages.DTYPES, *messages.TASKS):
            assert f"`{name}`" in PAGE

    def test_client_is_valid_python(self) -> None:
        compile(PAGE.split("```python")[1].split("```")[0], "WIRE.md", "exec")


def _hex_column(block: str) -> str:
    """The bytes of an annotated dump: all hex groups of a line up to its comment."""
    found = [re.match(r"\s*((?:[0-9a-f]{2,}\s+)+)", line) for line in block.splitlines()]
    return "".join("".join(match.group(1).split()) for match in found if match)


def refused(body: object, reason: type[PenstockError] = InvalidRequest) -> str:
    with pytest.raises(reason) as caught:
        decode_request(body if isinstance(body, bytes) else msgpack.packb(body))
    assert caught.value.code == reason.code
    return caught.value.message


GOOD = {"v": 1, "model": "m", "task": "embed", "text": ["hello"]}


@pytest.mark.parametrize(
    ("record", "says"),
    [
        (b"\xc1", "The record is not a msgpack map within the size bounds: a byte that msgpack does not know."),
        (b"\x80\x80", "The record is not a msgpack map within the size bounds: unpack(b) received extra data."),
        (b"\x05", "The record must be a msgpack map. Given: 5"),
        (b"\x90", "The record must be a msgpack map. Given: a list"),
    ],
)
def test_bytes_that_are_no_map_are_told_as_what_they_are(record: bytes, says: str) -> None:
    assert refused(record) == says


class TestRefusals:
    """Each refusal names the field and says what was expected."""

    @pytest.mark.parametrize(
        ("change", "says"),
        [
            ({"v": 2}, "`v` must be 1. Given: 2"),
            ({"v": True}, "`v` must be 1. Given: True"),
            ({"v": 1.0}, "`v` must be 1. Given: 1.0"),
            ({"v": [1]}, "`v` must be 1. Given: a list"),
            ({"model": ""}, "`model` is missing"),
            ({"model": b"m"}, "`model` is missing or not a non-empty string"),
            ({"text": 7}, "`text` must be a string, or a list"),
            ({"text": ["a", 7]}, "`text` item 1 must be a string or a pair"),
            ({"text": [["a", "b", "c"]]}, "`text` item 0 must be"),
            ({"ids": b"\0\0\0\0", "lens": b"\1\0\0\0"}, "exactly one of `text` and `ids`"),
            ({"opts": []}, "`opts` must be a map"),
            ({"opts": {"pooling": "median"}}, "`opts.pooling` must be one of cls, mean, max, last. Given: 'median'"),
            ({"opts": {"pooling": ["mean"]}}, "Given: a list"),
            ({"opts": {"normalize": 1}}, "`opts.normalize` must be true or false"),
            ({"opts": {"truncate": None}}, "`opts.truncate`"),
            ({"opts": {"top_k": -1}}, "`opts.top_k` must be a count"),
            ({"opts": {"top_k": True}}, "`opts.top_k`"),
            ({"opts": {"dtype": "float64"}}, "`opts.dtype` must be one of float32, float16"),
            ({"opts": {"prompt": 7}}, "`opts.prompt` must be a string of at most 1024 characters. Given: 7"),
            ({"opts": {"prompt": "x" * 1025}}, "`opts.prompt` must be a string of at most 1024 characters"),
            ({"opts": {"prompt_name": ["query"]}}, "`opts.prompt_name` must be a string"),
            ({"opts": {"prompt": "a", "prompt_name": "b"}}, "at most one of `prompt_name` and `prompt`"),
            ({"task": "classify", "opts": {"prompt": ""}}, "`prompt` is an option of `rerank` and of embeddings"),
            ({"task": "embed_sparse", "opts": {"pooling": "cls"}}, "`pooling` is an option of `embed`, not of"),
            ({"task": "embed_tokens", "opts": {"normalize": False}}, "`normalize` is an option of `embed`, not of"),
            ({"task": "embed_tokens", "opts": {"top_k": 8}}, "`top_k` is an option of labels and of sparse"),
            ({"task": "embed_all", "opts": {"dimensions": 8}}, "`dimensions` is an option of `embed`, not of"),
            ({"task": "embed_all", "opts": {"dtype": "ubinary"}}, "is for the vectors of `embed`, not for `embed_all`"),
            ({"task": "classify", "opts": {"dimensions": 8}}, "`dimensions` is an option of `embed`"),
            ({"opts": {"dimensions": 0}}, "`opts.dimensions` must be a count, at least 1. Given: 0"),
            ({"opts": {"dimensions": True}}, "`opts.dimensions`"),
        ],
    )
    def test_field(self, change: dict[str, Any], says: str) -> None:
        assert says in refused({**GOOD, **change})

    @pytest.mark.parametrize(
        ("ids", "lens", "says"),
        [
            (b"\0" * 4, None, "must both be bytes"),
            (None, b"\1\0\0\0", "must both be bytes"),
            (b"\0" * 3, b"\1\0\0\0", "must both be bytes of little-endian uint32"),
            (b"\0" * 4, b"\2\0\0\0", "`lens` add up to 2, but `ids` holds 1"),
            (b"\0" * 4, b"\xff\xff\xff\xff" * 2, "`lens` add up to 8589934590"),
            (b"", b"\1\0\0\0" * 4097, "at most 4096 sequences. Given: 4097"),
        ],
    )
    def test_tokens(self, ids: bytes | None, lens: bytes | None, says: str) -> None:
        assert says in refused({"v": 1, "model": "m", "task": "embed", "ids": ids, "lens": lens})

    @pytest.mark.parametrize("opts", [{"prompt": ""}, {"prompt_name": "query"}])
    def test_token_ids_take_no_prompt(self, opts: dict[str, str]) -> None:
        ids = {"ids": b"\1\0\0\0", "lens": b"\1\0\0\0"}
        says = refused({"v": 1, "model": "m", "task": "embed", **ids, "opts": opts})
        assert says == f"`{next(iter(opts))}` needs texts: token ids are tokenized already, prompt included."

    @pytest.mark.parametrize("text", [[], "", " \n", ["a", " "], [["a", ""]]])
    def test_empty_text(self, text: object) -> None:
        refused({**GOOD, "text": text}, EmptyInput)

    @pytest.mark.parametrize("lens", [b"", b"\0\0\0\0"])
    def test_empty_tokens(self, lens: bytes) -> None:
        refused({"v": 1, "model": "m", "task": "embed", "ids": b"", "lens": lens}, EmptyInput)

    def test_unknown_task(self) -> None:
        says = refused({**GOOD, "task": "summarize"}, UnsupportedTask)
        assert f"one of {', '.join(TASKS)}. Given: 'summarize'" in says

    def test_rerank_takes_pairs_only(self) -> None:
        with pytest.raises(InvalidRequest, match="For `rerank`, `text` item 1 must be a pair of strings") as caught:
            decode_request(msgpack.packb({**GOOD, "task": "rerank", "text": [["a", "b"], "c", ["d", "e"], "f"]}))
        assert set(caught.value.rows) == {1, 3}
        ids = {"ids": b"\1\0\0\0", "lens": b"\1\0\0\0"}
        assert "`rerank` needs `text`" in refused({"v": 1, "model": "m", "task": "rerank", **ids})

    @pytest.mark.parametrize(
        ("sequences", "says"),
        [
            (None, "`sequence` needs `sequences`, a list of maps"),
            ({"tokens": [1]}, "`sequence` needs `sequences`, a list of maps"),
            ([[1, 2]], "`sequences` item 0 must be a map"),
            ([{"tokens": [1]}, {"tokens": None}], "Sequence 1: a field must hold numbers, strings and booleans"),
            ([{"tokens": b"\1"}], "must hold numbers"),
            ([{"tokens": [[{"a": 1}]]}], "must hold numbers"),
            ([{"tokens": [[[[[1]]]]]}], "has lists more than 4 deep"),
            ([{b"tokens": [1]}], "a field's name must be a string"),
            (
                [{"a": [0] * 4096}] * 17,
                "the fields of a record hold at most 65,536 items. Given: field 'a'",
            ),
            ([{"a": [[0] * 4095] * 17}], "at most 65,536 items"),
        ],
    )
    def test_fields_of_sequences(self, sequences: object, says: str) -> None:
        assert says in refused({"v": 1, "model": "m", "task": "sequence", "sequences": sequences})

    @pytest.mark.parametrize("sequences", [[], [{}]])
    def test_no_sequence(self, sequences: object) -> None:
        refused({"v": 1, "model": "m", "task": "sequence", "sequences": sequences}, EmptyInput)

    def test_lists_four_deep_are_read(self) -> None:
        fields = {"deep": [[[[1, "a"], [2.5, True]]]], "wide": [0] * 4096}
        assert decode_request(encode_request(Request("m", "sequence", sequences=(fields,)))).sequences == (fields,)

    def test_token_classify_takes_no_pairs(self) -> None:
        with pytest.raises(
            InvalidRequest, match="For `token_classify`, `text` item 0 must be a single string"
        ) as caught:
            decode_request(msgpack.packb({**GOOD, "task": "token_classify", "text": [["a", "b"], "c"]}))
        assert set(caught.value.rows) == {0}

    def test_no_value(self) -> None:
        with pytest.raises(InvalidRequest, match="no value"):
            decode_request(None)

    def test_unknown_keys_are_ignored(self) -> None:
        later = {**GOOD, "adapter": {"name": "x"}, "opts": {"top_k": 2, "new": [1]}}
        assert decode_request(msgpack.packb(later)).options == Options(top_k=2)

    def test_half_a_surrogate_pair_is_the_callers_fault(self) -> None:
        with pytest.raises(InvalidRequest, match="UTF-8") as caught:
            encode_request(Request("m", "embed", text=("good", "\ud83d", ("good", "\udc00"))))
        assert set(caught.value.rows) == {1, 2}

    @pytest.mark.parametrize("ids", [[-1], [2**32], [0.5], [[1, 2]], ["a"]])
    def test_join_tokens(self, ids: list[Any]) -> None:
        with pytest.raises(InvalidRequest, match="Sequence 1"):
            join_tokens([[1], ids])

    def test_join_nothing(self) -> None:
        with pytest.raises(EmptyInput):
            join_tokens([])
        with pytest.raises(EmptyInput):
            join_tokens([[1], []])


DEEP = 10_000
HOSTILE = {
    "deep list": b"\x91" * DEEP + b"\xc0",
    "deep map": b"\x81\xa1a" * DEEP + b"\xc0",
    "deep within the parser's reach": b"\x91" * 900 + b"\xc0",
    "huge array": b"\xdd\xff\xff\xff\xff",
    "huge map": b"\xdf\xff\xff\xff\xff",
    "huge bytes": b"\xc6\xff\xff\xff\xff",
    "huge string": b"\xdb\xff\xff\xff\xff",
    "huge extension": b"\xc9\xff\xff\xff\xff\x01",
    "map with a list key": b"\x81\x90\x01",
    "map with a map key": b"\x81\x80\x01",
    "map with a nan key": b"\x81\xca\x7f\xc0\x00\x00\x01",
    "timestamp": msgpack.packb(msgpack.Timestamp(1, 2)),
    "bad timestamp": b"\xc7\x03\xff\x00\x00\x00",
    "nan": b"\xca\x7f\xc0\x00\x00",
    "not UTF-8": b"\xa2\xff\xfe",
    "bytes that are not UTF-8": b"\xc4\x02\xff\xfe",
}
REQUEST_FIELDS = ("v", "model", "task", "text", "ids", "lens", "opts", "opts.pooling", "opts.top_k", "opts.dtype", "x")
SEQUENCE_FIELDS = ("task", "sequences", "opts")
REPLY_FIELDS = (
    *("v", "ok", "model", "revision", "n", "shape", "dtype", "data", "labels", "scores", "timing", "batch"),
    *("names", "lens", "classes", "spans"),
)
ERROR_FIELDS = ("error", "error.code", "error.message", "error.retriable", "error.rows")


def with_raw(body: dict[str, Any], path: str, raw: bytes) -> bytes:
    """`body` as MessagePack, with the field at `path` replaced by raw bytes that no encoder would write."""
    marker = "a place that is filled in below"
    outer, _, inner = path.partition(".")
    changed = {**body, outer: {**body.get(outer, {}), inner: marker} if inner else marker}
    packed: bytes = msgpack.packb(changed)
    return packed.replace(msgpack.packb(marker), raw)


class TestHostile:
    """Values that no encoder would write, alone and in place of each field. tests/fuzz has random ones."""

    def test_alone(self) -> None:
        for raw in HOSTILE.values():
            with pytest.raises(InvalidRequest):
                decode_request(raw)
            with pytest.raises(InvalidRequest):
                decode_reply(raw)

    @pytest.mark.parametrize("kind", HOSTILE)
    def test_in_a_request(self, kind: str) -> None:
        for body, fields in ((GOOD, REQUEST_FIELDS), (msgpack.unpackb(golden("request-sequence")), SEQUENCE_FIELDS)):
            for path in fields:
                request_or_refusal(with_raw(body, path, HOSTILE[kind]))

    @pytest.mark.parametrize("kind", HOSTILE)
    def test_in_the_fields_of_a_sequence(self, kind: str) -> None:
        marker = "a place that is filled in below"
        for field in ("tokens", "x"):
            sequences = [{"tokens": [1], field: marker}, {"tokens": [1, 2, marker]}]
            packed = msgpack.packb({**GOOD, "task": "sequence", "sequences": sequences})
            request_or_refusal(packed.replace(msgpack.packb(marker), HOSTILE[kind]))

    @pytest.mark.parametrize("kind", HOSTILE)
    def test_in_a_reply(self, kind: str) -> None:
        paths = [
            (f"reply-{name}", path) for name in ("float32", "classes", "scores", "tokens") for path in REPLY_FIELDS
        ]
        paths += [("reply-emissions", path) for path in ("emitted", "emitted.token", "n")]
        paths += [("reply-all", f"{name}{column}") for name, columns in TABLES.items() for column in ("", *columns)]
        for name, path in (*paths, *(("error-rows", path) for path in ERROR_FIELDS)):
            reply_or_refusal(with_raw(msgpack.unpackb(golden(name)), path, HOSTILE[kind]))

    @pytest.mark.parametrize("kind", HOSTILE)
    def test_in_a_column_of_emissions(self, kind: str) -> None:
        body = msgpack.unpackb(golden("reply-emissions"))
        for path in ("lens", "shape", "dtype", "data"):
            column = with_raw(body["emitted"]["token"], path, HOSTILE[kind])
            reply_or_refusal(with_raw(body, "emitted.token", column))


def request_or_refusal(value: bytes) -> None:
    try:
        request = decode_request(value)
    except InvalidRequest:
        return
    assert request.num_sequences >= 1
    assert_same_request(decode_request(encode_request(request)), request)


def reply_or_refusal(value: bytes) -> None:
    try:
        reply = decode_reply(value)
    except InvalidRequest:
        return
    if isinstance(reply, ErrorReply):
        assert isinstance(reply.exception(), PenstockError)
    else:
        found = {name for name in FIELDS.values() if getattr(reply, name) is not None}
        assert len(found) == 1 or found <= {"vectors", "sparse", "token_vectors"}
        for task, name in FIELDS.items():
            if name in found:
                assert len(reply.rows(task)) >= 1
                continue
            with pytest.raises(BackendError, match="rows of the wrong kind"):
                reply.rows(task)


TABLES = {
    "sparse": (".lens", ".ids", ".dtype", ".weights"),
    "token_vectors": (".lens", ".shape", ".dtype", ".data"),
}
FIELDS = {
    "embed": "vectors",
    "embed_sparse": "sparse",
    "embed_tokens": "token_vectors",
    "classify": "classes",
    "rerank": "scores",
    "token_classify": "tokens",
    "generate": "generations",
    "sequence": "emissions",
}
LISTS = b"\x81\xa1x\xdc\x10\x00"  # a map whose only value is a list of 4096 that follow


@pytest.mark.slow
class TestMemory:
    """Decoding an untrusted record takes at most a small multiple of its size, whatever it declares."""

    @pytest.mark.parametrize(
        "value",
        [
            b"\xdd\x00\x3f\xff\xf0" + b"\x80" * (2**22 - 16),
            LISTS + (b"\xdc\x03\xfc" + b"\x80" * 1020) * 4096,
            LISTS + (b"\xdc\x01\x54" + b"\xa2ab" * 340) * 4096,
            LISTS + (b"\xdc\x00\xaa" + b"\xd6\xff\xff\xff\xff\xff" * 170) * 4096,
            LISTS + b"\xdc\x10\x00" * 1000,
            LISTS + (b"\xdc\x10\x00" + b"\xc0" * 1020) * 4096,
        ],
        ids=["empty maps", "lists of maps", "lists of strings", "lists of timestamps", "deep wide lists", "cut lists"],
    )
    def test_hostile_record(self, value: bytes) -> None:
        assert len(value) <= wire.MAX_RECORD_BYTES
        tracemalloc.start()
        try:
            with pytest.raises(InvalidRequest):
                decode_request(value)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 100 * 2**20

    def test_too_large(self) -> None:
        with pytest.raises(InvalidRequest, match="4,194,305 bytes; at most 4,194,304"):
            decode_request(b"\x80" * (wire.MAX_RECORD_BYTES + 1))

    def test_the_largest_records_are_read(self) -> None:
        pairs = Request("m", "classify", text=(("a", "b"),) * wire.MAX_SEQUENCES)
        assert decode_request(encode_request(pairs)).num_sequences == wire.MAX_SEQUENCES
        row = Classification(("a",), (1.0,))
        reply = decode_reply(encode_reply(Reply("m", "r", classes=(row,) * wire.MAX_SEQUENCES)))
        assert isinstance(reply, Reply)
        assert reply.classes == (row,) * wire.MAX_SEQUENCES

    @pytest.mark.parametrize(
        ("change", "says"),
        [
            ({"names": ["O", 7]}, "`names` must be a list of strings"),
            ({"names": ["O"]}, "below 1. Given: 1"),
            ({"names": []}, "below 0"),
            ({"lens": b"\4\0\0\0"}, "`lens` must be bytes of n"),
            ({"lens": b"\4\0\0\0\0\0\0\0"}, "Row 1 has no tokens"),
            ({"lens": b"\xff" * 8}, "`shape` must be \\[8589934590, at least 1\\]"),
            ({"n": 1, "lens": b"\xff" * 4, "shape": [2**32 - 1, 2**63]}, "agree with `data`"),
            ({"shape": [4, 1]}, "agree with `data`"),
            ({"classes": b"\0" * 15}, "`classes` must be bytes"),
            ({"classes": None}, "`classes` must be bytes"),
            ({"spans": b"\0" * 31}, "`spans` must be bytes"),
            ({"spans": [[0, 1]]}, "`spans` must be bytes"),
            ({"n": 4097, "lens": b"\1\0\0\0" * 4097}, "1 to 4096"),
        ],
    )
    def test_token_tables_whose_sizes_disagree_are_refused(self, change: dict[str, Any], says: str) -> None:
        with pytest.raises(InvalidRequest, match=says):
            decode_reply(msgpack.packb({**msgpack.unpackb(golden("reply-tokens")), **change}))

    @pytest.mark.parametrize(
        ("change", "says"),
        [
            ({"lens": b"\3\0\0\0"}, "lens` must be bytes of n"),
            ({"lens": b"\xff" * 8}, r"must be \[8589934590, at least 1\]"),
            ({"shape": [3, 2]}, "agree with `data`"),
            ({"shape": [3, 0]}, "agree with `data`"),
            ({"shape": [3, 2**62]}, "agree with `data`"),
            ({"shape": [True, 1]}, "agree with `data`"),
            ({"dtype": "float16"}, "one of float32, int32"),
            ({"dtype": None}, "one of float32, int32"),
            ({"data": "text"}, "`data` must be bytes"),
        ],
    )
    def test_emissions_whose_sizes_disagree_are_refused(self, change: dict[str, Any], says: str) -> None:
        body = msgpack.unpackb(golden("reply-emissions"))
        body["emitted"]["token"] |= change
        with pytest.raises(InvalidRequest, match=says):
            decode_reply(msgpack.packb(body))

    @pytest.mark.parametrize(
        ("table", "change", "says"),
        [
            ("sparse", {"lens": b""}, "`sparse.lens` must be bytes of n"),
            ("sparse", {"lens": b"\xff" * 4}, "`sparse.ids` must be bytes of as many"),
            ("sparse", {"ids": b"\0" * 3}, "`sparse.ids` must be bytes of as many"),
            ("sparse", {"dtype": "int8"}, "`sparse.weights` must be bytes and `dtype` one of float32, float16"),
            ("sparse", {"weights": [0.5]}, "`sparse.weights` must be bytes"),
            ("sparse", {"dtype": "float16"}, "`sparse.weights` must be as many"),
            ("token_vectors", {"lens": b"\0" * 4}, "Row 0 has no tokens"),
            ("token_vectors", {"lens": b"\xff" * 4}, r"`token_vectors.shape` must be \[4294967295, at least 1\]"),
            ("token_vectors", {"shape": [2, 2**62]}, "agree with `data`"),
            ("token_vectors", {"dtype": "ubinary"}, "`token_vectors.data` must be bytes and `dtype` one of"),
        ],
    )
    def test_sparse_and_token_vectors_whose_sizes_disagree_are_refused(
        self, table: str, change: dict[str, Any], says: str
    ) -> None:
        body = msgpack.unpackb(golden("reply-all"))
        body[table] |= change
        with pytest.raises(InvalidRequest, match=says):
            decode_reply(msgpack.packb(body))
        with pytest.raises(InvalidRequest, match=f"`{table}` must be a map"):
            decode_reply(msgpack.packb({**body, "token_vectors": [], table: []}))

    def test_replies_without_rows_or_columns_are_refused(self) -> None:
        for shape in ([0, 2**63], [1, 0], [0, 0]):
            body = {"v": 1, "ok": True, "model": "m", "revision": "r", "n": shape[0], "shape": shape}
            with pytest.raises(InvalidRequest):
                decode_reply(msgpack.packb({**body, "dtype": "float32", "data": b""}))


def _depth(value: object) -> int:
    return 1 + max(map(_depth, value), default=0) if isinstance(value, list) else 0


TEXT = st.text(st.characters(codec="utf-8"), min_size=1).filter(lambda s: bool(s.strip()))
TEXTS = st.lists(TEXT | st.tuples(TEXT, TEXT), min_size=1, max_size=5).map(tuple)
TOKENS = st.lists(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=5), min_size=1, max_size=5).map(join_tokens)
OPTIONS = st.builds(
    lambda *given: Options(*given),  # by the class itself, hypothesis would draw the other fields too
    st.sampled_from((None, *POOLINGS)),
    st.sampled_from((None, True, False)),
    st.booleans(),
    st.integers(0, 1_000_000),
    st.sampled_from(DTYPES),
)
SINGLES = st.lists(TEXT, min_size=1, max_size=5).map(tuple)
PAIRS = st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=5).map(tuple)
PROMPTED = st.builds(
    lambda name, dimensions: Options(prompt_name=name, dimensions=dimensions),
    st.none() | TEXT,
    st.none() | st.integers(1, 1_000_000),
) | st.builds(lambda prompt: Options(prompt=prompt), st.just("") | TEXT)
LABELLED = st.builds(
    lambda labels, ends, multi_label: Options(
        labels=tuple(labels), template=ends and "{}".join(ends), multi_label=multi_label
    ),
    st.lists(TEXT, min_size=1, max_size=4, unique=True),
    st.none() | st.tuples(*[st.text(st.characters(codec="utf-8", exclude_characters="{}"), max_size=5)] * 2),
    st.booleans(),
)
FIELD = st.recursive(
    st.integers(-(2**63), 2**64 - 1) | st.floats() | st.booleans() | st.text(st.characters(codec="utf-8"), max_size=5),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=8,
).filter(lambda value: _depth(value) <= MAX_DEPTH)
FIELDS_OF_SEQUENCES = st.lists(st.dictionaries(TEXT, FIELD, min_size=1, max_size=3), min_size=1, max_size=3).map(tuple)
VECTOR_TASKS = sorted(messages.EMBEDDING_TASKS - {"embed"})
VECTOR_OPTIONS = st.builds(
    lambda top_k, dtype, prompt: Options(top_k=top_k, dtype=dtype, prompt=prompt),
    st.none() | st.integers(0, 9),
    st.sampled_from(DTYPES),
    st.none() | TEXT,
)
TASKS_OF_TOKENS = sorted({*TASKS} - {"rerank", "sequence", *VECTOR_TASKS})
VALID_REQUESTS = (
    st.builds(Request, TEXT, st.sampled_from(TASKS_OF_TOKENS), tokens=TOKENS, options=OPTIONS)
    | st.builds(Request, TEXT, st.sampled_from(["embed", "classify"]), text=TEXTS, options=OPTIONS)
    | st.builds(Request, TEXT, st.just("embed"), text=TEXTS, options=PROMPTED)
    | st.builds(Request, TEXT, st.sampled_from(VECTOR_TASKS), text=TEXTS, options=VECTOR_OPTIONS).filter(
        lambda request: request.task != "embed_tokens" or request.options.top_k is None
    )
    | st.builds(Request, TEXT, st.just("rerank"), text=PAIRS, options=OPTIONS)
    | st.builds(Request, TEXT, st.just("token_classify"), text=SINGLES, options=OPTIONS)
    | st.builds(Request, TEXT, st.just("classify"), text=SINGLES, options=LABELLED)
    | st.builds(Request, TEXT, st.just("sequence"), sequences=FIELDS_OF_SEQUENCES)
)
VECTORS_ARRAY = st.builds(
    lambda rows, dim, dtype, seed: np.random.default_rng(seed).standard_normal((rows, dim)).astype(dtype),
    st.integers(1, 4),
    st.integers(1, 4),
    st.sampled_from(DTYPES),
    st.integers(0, 100),
)
CLASS_ROWS = st.lists(st.tuples(st.text(max_size=5), st.floats(allow_nan=False)), min_size=1, max_size=4).map(
    lambda row: Classification(tuple(label for label, _ in row), tuple(score for _, score in row))
)
META = {
    "cached": st.integers(0, 9),
    "timing": st.dictionaries(st.text(max_size=5), st.floats(allow_nan=False), max_size=3),
    "batch": st.dictionaries(st.text(max_size=5), st.integers(0, 99) | st.text(max_size=5), max_size=3),
}


def token_table(lens: list[int], k: int, names: list[str], dtype: str, has_spans: bool, seed: int) -> TokenTable:
    rng, total = np.random.default_rng(seed), sum(lens)
    return TokenTable(
        names=tuple(names),
        lens=tuple(lens),
        classes=rng.integers(0, len(names), (total, k), dtype=np.uint16),
        scores=rng.random((total, k)).astype(dtype),
        spans=rng.integers(0, 2**32, (total, 2), dtype=np.uint32) if has_spans else None,
    )


TOKEN_TABLES = st.builds(
    token_table,
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
    st.integers(1, 3),
    st.lists(st.text(max_size=5), min_size=1, max_size=4),
    st.sampled_from(DTYPES),
    st.booleans(),
    st.integers(0, 100),
)
EMISSIONS = st.builds(
    lambda lens, width, dtype: EmissionTable(
        len(lens), {"a": EmissionColumn(np.arange(sum(lens) * width, dtype=dtype).reshape(-1, width), tuple(lens))}
    ),
    st.lists(st.integers(0, 3), min_size=1, max_size=4),
    st.integers(1, 3),
    st.sampled_from(["float32", "int32"]),
)


def vector_reply(lens: list[tuple[int, int]]) -> Reply:
    sparse, tokens = ([one[side] for one in lens] for side in (0, 1))
    weights = np.linspace(0.5, 1.0, sum(sparse), dtype=np.float16)
    return Reply(
        "m",
        "r",
        vectors=np.ones((len(lens), 2), np.float32),
        sparse=SparseTable(tuple(sparse), np.arange(sum(sparse), dtype=np.uint32), weights),
        token_vectors=TokenVectorTable(tuple(tokens), np.ones((sum(tokens), 3), np.float32)),
    )


SCORES = st.lists(st.floats(allow_nan=False), min_size=1, max_size=4).map(tuple)
VALID_REPLIES = (
    st.builds(Reply, TEXT, TEXT, vectors=VECTORS_ARRAY, **META)
    | st.builds(Reply, TEXT, TEXT, classes=st.lists(CLASS_ROWS, min_size=1, max_size=3).map(tuple), **META)
    | st.builds(Reply, TEXT, TEXT, scores=SCORES, **META)
    | st.builds(Reply, TEXT, TEXT, tokens=TOKEN_TABLES, **META)
    | st.builds(Reply, TEXT, TEXT, emissions=EMISSIONS, **META)
    | st.builds(vector_reply, st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3)), min_size=1, max_size=3))
)


class TestProperties:
    @given(VALID_REQUESTS)
    def test_request_round_trip(self, request_: Request) -> None:
        encoded = encode_request(request_)
        assert_same_request(decode_request(encoded), request_)
        assert encode_request(decode_request(encoded)) == encoded

    @given(VALID_REPLIES)
    def test_reply_round_trip(self, reply: Reply) -> None:
        decoded = decode_reply(encode_reply(reply))
        assert isinstance(decoded, Reply)
        assert_same_reply(decoded, reply)
