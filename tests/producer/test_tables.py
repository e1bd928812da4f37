"""Tables: what goes in comes out, in order, with its results; what is broken is a row's error and ends no job."""

import csv
import datetime
import json
import os
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.producer.answer_stream import Result
from penstock.producer.errors import BackendError, PenstockError
from penstock.producer.files import (
    JobOutput,
    TableError,
    count_rows,
    csv_reader,
    jsonl_reader,
    open_reader,
    parquet_reader,
)
from penstock.producer.files.row_blocks import BLOCK_ROWS
from penstock.producer.wire.messages import Classification, Options
from tests.examples import examples
from tests.producer.table_files import read_table, write_table


def read_texts(path: Path, column: str = "text") -> list[Any]:
    with open_reader(path, column) as reader:
        return [text for block in reader for text in block.texts]


def shown(texts: list[Any]) -> list[str]:
    return [f"! {text.message}" if isinstance(text, PenstockError) else str(text) for text in texts]


def classify(text: Any) -> Result:
    return text if isinstance(text, PenstockError) else Classification((f"a{text[:3]}", "b"), (0.75, 0.25))


def embed(text: Any) -> Result:
    return text if isinstance(text, PenstockError) else np.array([len(text), 0.5], dtype=np.float32)


def embed_signs(text: Any) -> Result:
    return text if isinstance(text, PenstockError) else np.array([len(text), -128], dtype=np.int8)


def run(source: Path, target: Path, task: str = "classify", column: str = "text", **options: Any) -> None:
    answer = {"classify": classify, "embed": embed_signs if "options" in options else embed}[task]
    with open_reader(source, column) as reader, JobOutput(target, task, **options).open(reader) as writer:
        for block in reader:
            writer.write(block, [answer(text) for text in block.texts])


def csv_rows(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


cells = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@settings(max_examples=examples(60))
@given(rows=st.lists(st.tuples(cells, cells), min_size=1, max_size=8))
def test_csv_comes_back_cell_by_cell(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]]) -> None:
    folder = tmp_path_factory.mktemp("csv")
    with (folder / "in.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("text", "more"), *rows])
    run(folder / "in.csv", folder / "out.csv")
    header, *written = csv_rows(folder / "out.csv")
    assert header == ["text", "more", "label", "score", "error"]
    assert written == [[text, more, f"a{text[:3]}", "0.75", ""] for text, more in rows]
    assert count_rows(folder / "in.csv") == len(rows)


def test_broken_csv_rows_keep_their_place_and_say_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_reader, "MAX_ROW_CHARS", 131_072)
    source = tmp_path / "in.csv"
    long = b"x" * 140_000
    source.write_bytes(
        b'\xef\xbb\xbfid,text\r\n1,good\r\n2\r\n\r\n3,bad \xff byte\r\n4,"two\r\nlines"\r\n5,six,7\r\n6,'
        + long
        + b"\r\n7,last\r\n"
    )
    run(source, tmp_path / "out.csv")
    _, *rows = csv_rows(tmp_path / "out.csv")
    assert [row[:2] for row in rows] == [
        ["1", "good"],
        ["2", ""],
        ["3", "bad \ufffd byte"],
        ["4", "two\r\nlines"],
        ["5", "six"],
        ["6", "x" * (131_073 - len("6,"))],
        ["7", "last"],
    ]
    assert [row[2] for row in rows] == ["agoo", "", "", "atwo", "", "", "alas"]
    assert [row[4] for row in rows] == [
        "",
        "invalid_request: Line 3 has 1 fields; the header has 2.",
        "invalid_request: Line 5 holds bytes that are not UTF-8.",
        "",
        "invalid_request: Line 8 has 3 fields; the header has 2.",
        "invalid_request: Line 9 is not CSV: row of more than 131,072 characters, or 2,097,152 lines.",
        "",
    ]
    assert count_rows(source) == 7


BROKEN_QUOTES = {
    "never closed": ('3,"cut off', "unexpected end of data. A quote that it opens is not closed as it should be"),
    "two in one file": (
        '3,"cut off\n4,my card 4\n5,"cut again',
        "',' expected after '\"'. A quote that it",
    ),
    "closed in mid-field of a later row": ('3,"so called\n4,my card 4\n5,again "ok" then', "',' expected after '\"'"),
    "closed in mid-field of its own": ('3,"so" called', "',' expected after '\"'"),
}


@pytest.mark.parametrize("kind", BROKEN_QUOTES)
def test_a_row_whose_quotes_are_broken_swallows_no_other(tmp_path: Path, kind: str) -> None:
    broken, reason = BROKEN_QUOTES[kind]
    good = [f"{number},my card {number}" for number in range(1, 10)]
    lines = ["id,text", *good[:2], *broken.split("\n")]
    lines += good[len(lines) - 1 :]
    source = tmp_path / "in.csv"
    source.write_text("\n".join(lines) + "\n")
    run(source, tmp_path / "out.csv")
    _, *rows = csv_rows(tmp_path / "out.csv")
    assert [row[0] for row in rows] == [str(number) for number in range(1, 10)]
    assert rows[2][4].startswith(f"invalid_request: Line 4 is not CSV: {reason}")
    failed = {"two in one file": ["3", "5"]}.get(kind, ["3"])
    assert [row[0] for row in rows if row[4]] == failed
    assert all(row[2] for row in rows if row[0] not in failed)
    assert count_rows(source) == 9


# A row may hold anything, but for what would close an open quote of an earlier one as if it were meant.
starting_plainly = st.text('ab,"\r\n', max_size=6).map("a".__add__)


@settings(max_examples=examples(200))
@given(
    rows=st.lists(st.tuples(starting_plainly, starting_plainly), min_size=1, max_size=8),
    places=st.sets(st.integers(0, 8), min_size=1),
    cut=st.sampled_from(['x,"cut', '"cut', 'x,"cu"t', 'x,"cut\r']),
)
def test_broken_quotes_cost_their_own_line_and_no_other_row(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]], places: set[int], cut: str
) -> None:
    source = tmp_path_factory.mktemp("csv") / "in.csv"
    with source.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        writer.writerow(("text", "more"))
        for place in range(9):
            if place in places:
                file.write(cut + "\n")
            if place < len(rows):
                writer.writerow(rows[place])
    texts = read_texts(source)
    assert [text for text in texts if isinstance(text, str)] == [text for text, _ in rows]
    assert sum(isinstance(text, PenstockError) for text in texts) == len(places)
    assert count_rows(source) == len(texts) == len(rows) + len(places)


@pytest.mark.parametrize("bound", ["MAX_ROW_CHARS", "MAX_ROW_LINES"])
def test_an_open_quote_is_given_up_in_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    monkeypatch.setattr(csv_reader, bound, 10_000)
    limits = "10,000 characters, or 2,097,152" if bound == "MAX_ROW_CHARS" else "67,108,864 characters, or 10,000"
    source = tmp_path / "in.csv"
    source.write_text('id,text\n1,"open\n' + "".join(f"{number},text {number}\n" for number in range(2, 50_000)))
    texts = read_texts(source, "id")
    assert shown(texts[:2]) == [
        f"! Line 2 is not CSV: row of more than {limits} lines. A quote that it opens is not closed as it should be; "
        "the lines after it are read as separate rows.",
        "2",
    ]
    assert texts[1:] == [str(number) for number in range(2, 50_000)]


@pytest.mark.slow
@pytest.mark.parametrize("extension", ["csv", "jsonl"])
def test_a_cell_of_50_mb_costs_no_other_column(tmp_path: Path, extension: str) -> None:
    source, target = tmp_path / f"in.{extension}", tmp_path / f"out.{extension}"
    large = "<p>" + "x" * 50_000_000
    rows = [{"id": "7", "html": large, "text": "Where is my card?"}, {"id": "8", "html": "<p>", "text": "Lost"}]
    run(write_table(source, rows), target)
    written = read_table(target)
    assert [{name: row[name] for name in rows[0]} for row in written] == rows
    assert [row["label"] for row in written] == ["aWhe", "aLos"]


def test_broken_lines_of_json_keep_their_place_and_say_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl_reader, "MAX_LINE_BYTES", 200_000)
    source = tmp_path / "in.jsonl"
    lines = [
        b'\xef\xbb\xbf{"text": "good", "n": 12345678901234567890, "deep": {"a": [1, null]}}',
        b"not json",
        b"",
        b'["text"]',
        b'{"other": 1}',
        b'{"text": 5}',
        b'{"text": "\xff"}',
        b"[" * 100_000,
        b'{"text": "' + b"x" * 200_000 + b'"}',
        b'{"text": "half \\ud83d"}',
        b'{"text": "last"}',
    ]
    source.write_bytes(b"\n".join(lines))
    run(source, tmp_path / "out.jsonl")
    rows = read_table(tmp_path / "out.jsonl")
    assert rows[0] == {**json.loads(lines[0][3:]), "label": "agoo", "score": 0.75, "error": None}
    assert rows[1] == {
        "line": "not json",
        "label": None,
        "score": None,
        "error": "invalid_request: Line 2 is not JSON: Expecting value: line 1 column 1 (char 0).",
    }
    assert [(row["error"] or "")[17:50] for row in rows[2:7]] == [
        "Line 4 holds a list; an object wa",
        "Line 5 has no key 'text'.",
        "Line 6: 'text' is not a string.",
        "Line 7 holds bytes that are not U",
        "Line 8 is not JSON: maximum recur",
    ]
    assert rows[7]["error"] == "invalid_request: Line 9 is over 200,000 bytes."
    assert rows[8]["text"] == "half \ud83d"
    assert rows[9]["label"] == "alas"
    assert len(rows) == count_rows(source) == 10


def test_parquet_keeps_its_types_and_metadata(tmp_path: Path) -> None:
    table = pa.table(
        {
            "when": pa.array([1, None, 3], pa.timestamp("ns", tz="UTC")),
            "text": pa.array(["one", None, "three"]).dictionary_encode(),
            "nested": pa.array([{"a": [1]}, None, {"a": []}]),
            "raw": pa.array([b"\x00", b"", None]),
        }
    ).replace_schema_metadata({"from": "a test"})
    pq.write_table(table, tmp_path / "in.parquet")
    run(tmp_path / "in.parquet", tmp_path / "out.parquet", "embed")
    written = pq.read_table(tmp_path / "out.parquet")
    assert written.select(table.column_names).equals(pq.read_table(tmp_path / "in.parquet"))
    assert written.schema.metadata[b"from"] == b"a test"
    assert written.schema.field("embedding").type == pa.list_(pa.float32(), 2)
    assert written.column("embedding").to_pylist() == [[3.0, 0.5], None, [5.0, 0.5]]
    assert written.column("error").to_pylist() == [None, "invalid_request: The column 'text' is null.", None]
    assert count_rows(tmp_path / "in.parquet") == 3


@pytest.mark.parametrize("dtype", ["binary", "int8"])
def test_parquet_of_signs_and_of_bytes_has_lists_of_int8(tmp_path: Path, dtype: str) -> None:
    pq.write_table(pa.table({"text": ["one", None, "three"]}), tmp_path / "in.parquet")
    run(tmp_path / "in.parquet", tmp_path / "out.parquet", "embed", options=Options(dtype=dtype))
    written = pq.read_table(tmp_path / "out.parquet")
    assert written.schema.field("embedding").type == pa.list_(pa.int8(), 2)
    assert written.column("embedding").to_pylist() == [[3, -128], None, [5, -128]]


@pytest.mark.parametrize("extension", ["csv", "jsonl"])
def test_signs_are_integers_in_text(tmp_path: Path, extension: str) -> None:
    target = tmp_path / f"out.{extension}"
    run(write_table(tmp_path / "in.csv", [{"text": "one"}]), target, "embed", options=Options(dtype="binary"))
    assert "[3, -128]" in target.read_text(encoding="utf-8")


def unchecked(values: list[bytes | None], kind: pa.DataType) -> pa.Array:
    """Strings that were never looked at, as careless writers of Parquet leave them."""
    raw = pa.array(values, pa.large_binary() if pa.types.is_large_string(kind) else pa.binary())
    if pa.types.is_dictionary(kind):
        places = pa.array([None if value is None else place for place, value in enumerate(values)], kind.index_type)
        return pa.DictionaryArray.from_arrays(places, unchecked([value or b"" for value in values], kind.value_type))
    if pa.types.is_string_view(kind):
        return raw.cast(pa.binary_view()).view(kind)
    return pa.Array.from_buffers(kind, len(raw), raw.buffers())


KINDS = [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("extension", ["csv", "jsonl", "parquet"])
def test_parquet_whose_strings_are_not_utf8_keeps_its_other_rows(
    tmp_path: Path, kind: pa.DataType, extension: str
) -> None:
    texts = unchecked([b"one", b"\xff two", None, b"four", b"five"], kind)
    others = unchecked([b"a", b"b", b"c", b"d\xfe", None], kind)
    tags = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3, 4, 5], pa.int32()), others)
    schema = pa.schema([("text", kind), ("other", kind), ("tags", pa.list_(kind))])
    batch = pa.RecordBatch.from_arrays([texts, others, tags], schema=schema)
    with pq.ParquetWriter(tmp_path / "in.parquet", schema) as writer:
        writer.write_batch(batch)
    assert shown(read_texts(tmp_path / "in.parquet")) == [
        "one",
        "! Row 2 holds bytes that are not UTF-8.",
        "! The column 'text' is null.",
        "! Row 4 holds bytes that are not UTF-8.",
        "five",
    ]
    run(tmp_path / "in.parquet", tmp_path / f"out.{extension}")
    if extension == "jsonl":
        rows = read_table(tmp_path / "out.jsonl")
        assert [row["text"] for row in rows] == ["one", "\ufffd two", None, "four", "five"]
        assert [row["tags"] for row in rows] == [["a"], ["b"], ["c"], None, [None]]
        assert [row["label"] for row in rows] == ["aone", None, None, None, "afiv"]
    elif extension == "csv":
        assert [row[1] for row in csv_rows(tmp_path / "out.csv")] == ["other", "a", "b", "c", "d\ufffd", ""]
    else:
        written = pq.read_table(tmp_path / "out.parquet")
        assert written.column("other").cast(pa.binary()).to_pylist() == [b"a", b"b", b"c", b"d\xfe", None]
        assert written.column("label").to_pylist() == ["aone", None, None, None, "afiv"]


def test_a_parquet_row_is_counted_over_blocks(tmp_path: Path) -> None:
    texts: list[bytes | None] = [b"text"] * (2 * BLOCK_ROWS)
    texts[BLOCK_ROWS + 2] = b"\xff"
    pq.write_table(pa.table({"text": unchecked(texts, pa.string())}), tmp_path / "in.parquet")
    [error] = [text for text in read_texts(tmp_path / "in.parquet") if isinstance(text, PenstockError)]
    assert error.message == f"Row {BLOCK_ROWS + 3} holds bytes that are not UTF-8."


def test_parquet_becomes_csv_and_jsonl(tmp_path: Path) -> None:
    day = datetime.datetime(2024, 5, 17, 12, 30)
    table = pa.table({"text": ["a,b"], "at": [day], "price": [Decimal("1.50")], "tags": [["x", "y"]], "raw": [b"\xff"]})
    pq.write_table(table, tmp_path / "in.parquet")
    run(tmp_path / "in.parquet", tmp_path / "out.csv", "embed")
    run(tmp_path / "in.parquet", tmp_path / "out.jsonl", "embed")
    [[*_], row] = csv_rows(tmp_path / "out.csv")
    assert row[:4] == ["a,b", "2024-05-17 12:30:00.000000", "1.50", '["x", "y"]']
    assert json.loads(row[5]) == [3.0, 0.5]
    [line] = read_table(tmp_path / "out.jsonl")
    assert line == {
        "text": "a,b",
        "at": "2024-05-17 12:30:00.000000",
        "price": "1.50",
        "tags": ["x", "y"],
        "raw": "ff",
        "embedding": [3.0, 0.5],
        "error": None,
    }


OUT_OF_RANGE = "<value out of range: 2147483647>"
NO_PYTHON_VALUE = {  # of Parquet, with what is written for it
    "nested nanoseconds": (pa.array([[1], None], pa.list_(pa.timestamp("ns"))), ["1970-01-01 00:00:00.000000001"]),
    "nested days": (
        pa.array([{"at": 2**31 - 1}, None], pa.struct([("at", pa.date32())])),
        {"at": OUT_OF_RANGE},
    ),
    "days": (pa.array([2**31 - 1, None], pa.date32()), OUT_OF_RANGE),
    "nested decimals": (pa.array([[Decimal("1.50")], None], pa.list_(pa.decimal128(5, 2), 1)), ["1.50"]),
    "named times": (
        pa.array([[("at", 1)], None], pa.map_(pa.string(), pa.time64("ns"))),
        [["at", "00:00:00.000000001"]],
    ),
    "a dictionary": (pa.array([1, None], pa.timestamp("ns")).dictionary_encode(), "1970-01-01 00:00:00.000000001"),
    "an unknown time zone": (pa.array([1, None], pa.timestamp("ns", "Nowhere/At_all")), None),
}


@pytest.mark.parametrize("kind", NO_PYTHON_VALUE)
def test_parquet_whose_values_python_cannot_hold_is_written_as_text(tmp_path: Path, kind: str) -> None:
    values, written = NO_PYTHON_VALUE[kind]
    pq.write_table(pa.table({"text": ["one", "two"], "value": values}), tmp_path / "in.parquet")
    run(tmp_path / "in.parquet", tmp_path / "out.jsonl")
    assert [(row["value"], row["label"]) for row in read_table(tmp_path / "out.jsonl")] == [
        (written, "aone"),
        (None, "atwo"),
    ]
    run(tmp_path / "in.parquet", tmp_path / "out.csv")
    assert [row[2] for row in csv_rows(tmp_path / "out.csv")] == ["label", "aone", "atwo"]


def test_bytes_are_written_in_hexadecimal(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["one"], "raw": [b"\xff\x00"], "deep": [[b"\xff"]]}), tmp_path / "in.parquet")
    run(tmp_path / "in.parquet", tmp_path / "out.csv")
    assert csv_rows(tmp_path / "out.csv")[1][1:3] == ["ff00", '["ff"]']


@pytest.mark.parametrize(
    ("line", "says"),
    [("5", "a number"), ("1.5", "a number"), ('"x"', "a string"), ("true", "a boolean"), ("null", "null")],
)
def test_a_line_that_holds_no_object_says_what_it_holds(tmp_path: Path, line: str, says: str) -> None:
    (tmp_path / "in.jsonl").write_text(line)
    assert shown(read_texts(tmp_path / "in.jsonl")) == [f"! Line 1 holds {says}; an object was expected."]


@pytest.mark.parametrize("begin", ["", "\ufeff"])
def test_the_objects_of_lines_keep_their_text(tmp_path: Path, begin: str) -> None:
    own = [
        '{"text": "one", "n": 1e400, "deep": [{"n":-1e999}, NaN, -0.0,  1.0000000000000000001], "é": "\\u00e9\\ud800"',
        '{"text": "one", "twice": 1, "twice": 12345678901234567890123 ',
        '{"text": NaN',
        '{"text": "one", "n": %s' % ("9" * 5000),
    ]
    (tmp_path / "in.jsonl").write_text(begin + "".join(f"  {line}}} \r\n" for line in own) + "{}\n")
    run(tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    good = ', "label": "aone", "score": 0.75, "error": null}'
    bad = '"label": null, "score": null, "error": "invalid_request: Line '
    assert (tmp_path / "out.jsonl").read_text().split("\n") == [
        own[0] + good,
        own[1] + good,
        own[2] + f", {bad}3: 'text' is not a string.\"}}",
        own[3] + good,
        f"{{{bad}5 has no key 'text'.\"}}",
        "",
    ]


def test_numbers_that_json_has_no_word_for_are_written_as_text(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["one"], "n": [float("nan")]}), tmp_path / "in.parquet")
    run(tmp_path / "in.parquet", tmp_path / "of_parquet.jsonl")
    assert '"n": "NaN"' in (tmp_path / "of_parquet.jsonl").read_text()


def test_csv_becomes_parquet(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("text,n\none,1\ntwo\n")
    run(tmp_path / "in.csv", tmp_path / "out.parquet", options=Options(top_k=2))
    assert pq.read_table(tmp_path / "out.parquet").to_pylist() == [
        {
            "text": "one",
            "n": "1",
            "label": "aone",
            "score": 0.75,
            "labels": ["aone", "b"],
            "scores": [0.75, 0.25],
            "error": None,
        },
        {
            "text": "two",
            "n": "",
            "label": None,
            "score": None,
            "labels": None,
            "scores": None,
            "error": "invalid_request: Line 3 has 1 fields; the header has 2.",
        },
    ]


def test_a_block_in_which_every_row_failed_becomes_parquet_beside_others(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("text,n\n" + "one,1\n" * BLOCK_ROWS + "two\n")
    run(tmp_path / "in.csv", tmp_path / "out.parquet", "embed")
    rows = pq.read_table(tmp_path / "out.parquet")
    assert rows.schema.field("embedding").type == pa.list_(pa.float32(), 2)
    assert rows.column("embedding").to_pylist() == [[3, 0.5]] * BLOCK_ROWS + [None]


@pytest.mark.parametrize("row_group_size", [10, 5])
def test_parquet_with_categories_in_lists_and_structs_is_read(tmp_path: Path, row_group_size: int) -> None:
    words = pa.array(["x", "y"] * 5).dictionary_encode()
    tags = pa.ListArray.from_arrays(np.arange(11, dtype=np.int32), words)
    pairs = pa.StructArray.from_arrays([words, tags], ["word", "tags"])
    table = pa.table({"text": ["one"] * 10, "tags": tags, "pairs": pairs})
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=row_group_size)
    run(tmp_path / "in.parquet", tmp_path / "out.jsonl")
    assert [row["tags"] for row in read_table(tmp_path / "out.jsonl")] == [["x"], ["y"]] * 5


@pytest.mark.parametrize("extension", ["csv", "jsonl", "parquet"])
def test_many_blocks_keep_their_order(tmp_path: Path, extension: str) -> None:
    count = 3 * BLOCK_ROWS + 7
    rows = [{"text": f"text {number}"} for number in range(count)]
    source = write_table(tmp_path / f"in.{extension}", rows)
    with open_reader(source, "text") as reader:
        assert [len(block.texts) for block in reader] == [BLOCK_ROWS] * 3 + [7]
    run(source, tmp_path / f"out.{extension}", "embed")
    assert read_texts(tmp_path / f"out.{extension}") == [row["text"] for row in rows]


@pytest.mark.parametrize("extension", ["csv", "jsonl", "parquet"])
def test_large_rows_make_small_blocks(tmp_path: Path, extension: str) -> None:
    source = write_table(tmp_path / f"in.{extension}", [{"text": "x" * 100_000}] * 200)
    with open_reader(source, "text") as reader:
        sizes = [sum(map(len, block.texts)) for block in reader]  # type: ignore[arg-type]  # all rows are good
    assert sum(sizes) == 20_000_000
    assert max(sizes) < 9_000_000


def test_few_large_rows_of_parquet_are_decoded_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_reader, "_BATCH_BYTES", 100_000)
    other = [f"{row:05}" * 2000 for row in range(100)]
    pq.write_table(pa.table({"text": ["a"] * 100, "other": other}), tmp_path / "in.parquet")
    with open_reader(tmp_path / "in.parquet", "text") as reader:
        sizes = [len(block.texts) for block in reader]
    assert sum(sizes) == 100
    assert max(sizes) <= 10


def test_large_rows_of_parquet_after_many_short_ones_are_decoded_few_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mean length of the file's rows says nothing of those of a row group."""
    monkeypatch.setattr(parquet_reader, "_BATCH_BYTES", 100_000)
    schema = pa.schema([("text", pa.string())])
    with pq.ParquetWriter(tmp_path / "in.parquet", schema) as file:
        for texts in (["a"] * 3000, ["b"] * 1000, [f"{row:05}" * 2000 for row in range(100)]):
            file.write_table(pa.table({"text": texts}, schema))
    with open_reader(tmp_path / "in.parquet", "text") as reader:
        blocks = [[len(str(text)) for text in block.texts] for block in reader]
    assert sum(map(len, blocks)) == 4100
    assert max(map(sum, blocks)) <= 100_000
    assert [len(block) for block in blocks[:8]] == [512] * 7 + [416]  # of several row groups


def test_a_large_object_in_json_makes_a_small_block(tmp_path: Path) -> None:
    lines = [json.dumps({"text": "a", "deep": {"list": ["x" * 100_000]}})] * 200
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    with open_reader(tmp_path / "in.jsonl", "text") as reader:
        assert max(len(block.texts) for block in reader) < 100


def test_a_column_of_a_results_name_is_kept(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("text,label,penstock_label\none,mine,too\n")
    run(tmp_path / "in.csv", tmp_path / "out.csv")
    assert csv_rows(tmp_path / "out.csv") == [
        ["text", "label", "penstock_label", "penstock_penstock_label", "score", "error"],
        ["one", "mine", "too", "aone", "0.75", ""],
    ]
    (tmp_path / "in.jsonl").write_text('{"text": "one", "label": "mine"}\n{"text": "two"}\n')
    run(tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    first, second = read_table(tmp_path / "out.jsonl")
    assert (first["label"], first["penstock_label"], second["label"]) == ("mine", "aone", "atwo")


def test_an_engines_error_is_its_rows_error(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("text\none\ntwo\n")
    with (
        open_reader(tmp_path / "in.csv", "text") as reader,
        JobOutput(tmp_path / "out.csv", "embed").open(reader) as writer,
    ):
        for block in reader:
            writer.write(block, [np.array([1.0], dtype=np.float16), BackendError("The engine failed.")])
    assert csv_rows(tmp_path / "out.csv")[1:] == [["one", "[1.0]", ""], ["two", "", "backend: The engine failed."]]


def test_the_output_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("text\none\n")
    with open_reader(tmp_path / "in.csv", "text") as reader:
        writer = JobOutput(tmp_path / "out.csv", "embed").open(reader)
        assert not (tmp_path / "out.csv").exists()
        with pytest.raises(KeyboardInterrupt), writer:
            raise KeyboardInterrupt
    assert [path.name for path in tmp_path.iterdir()] == ["in.csv"]


def test_an_output_that_exists_is_refused_unless_asked_for(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("text\none\n")
    (tmp_path / "out.csv").write_text("precious")
    with pytest.raises(TableError, match=r"out\.csv exists already"):
        run(tmp_path / "in.csv", tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text() == "precious"
    run(tmp_path / "in.csv", tmp_path / "out.csv", overwrite=True)
    run(tmp_path / "in.csv", tmp_path / "in.csv", overwrite=True)
    assert csv_rows(tmp_path / "out.csv") == csv_rows(tmp_path / "in.csv")


@pytest.mark.parametrize("name", ["in.csv", "in.jsonl", "in.parquet"])
def test_a_named_pipe_is_refused(tmp_path: Path, name: str) -> None:
    """An input is read twice, to count its rows. Each reader of a pipe took lines that the other one lacked."""
    os.mkfifo(tmp_path / name)
    says = rf"{name} is no file that can be read twice. Pipe csv or jsonl to standard input \(-, with --format\)."
    with pytest.raises(TableError, match=says):
        open_reader(tmp_path / name, "text")


def test_an_output_that_is_a_directory_is_refused_before_the_first_row(tmp_path: Path) -> None:
    """With `overwrite` all rows were computed, and then their file could not get its name."""
    (tmp_path / "in.csv").write_text("text\none\n")
    (tmp_path / "out.csv").mkdir()
    for overwrite in (False, True):
        with (
            open_reader(tmp_path / "in.csv", "text") as reader,
            pytest.raises(TableError, match=r"out\.csv is a directory\. Name the file to write\."),
        ):
            JobOutput(tmp_path / "out.csv", "embed", overwrite=overwrite).open(reader)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.csv", "out.csv"]


def test_an_output_made_by_another_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("text\none\n")
    with (
        pytest.raises(TableError, match="exists already"),
        open_reader(tmp_path / "in.csv", "text") as reader,
        JobOutput(tmp_path / "out.csv", "embed").open(reader),
    ):
        (tmp_path / "out.csv").write_text("precious")
    assert (tmp_path / "out.csv").read_text() == "precious"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"", "is empty: a line of column names was expected"),
        ("a.csv", b"one,two\n1,2\n", "has no column 'text'. Its columns: one, two"),
        ("a.csv", b"text,text\n1,2\n", "more than one column 'text'"),
        ("a.csv", "text\none\n".encode("utf-16"), "does not begin with column names in UTF-8"),
        ("a.jsonl", b"\n\n", "has no rows"),
        ("a.parquet", b"text", "is not a Parquet file"),
        ("a.txt", b"text", "must be one of .csv, .jsonl, .parquet"),
    ],
)
def test_a_file_that_is_no_table_says_what_is_wrong(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TableError) as caught:
        open_reader(tmp_path / name, "text")
    assert message in str(caught.value)


def test_a_parquet_file_whose_column_names_are_not_utf8_says_so(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["one"], "other": ["two"]}), path, store_schema=False)
    path.write_bytes(path.read_bytes().replace(b"other", b"othe\xff"))
    with pytest.raises(TableError, match="is not a Parquet file that can be read"):
        open_reader(path, "text")


def test_parquet_without_texts_says_what_is_wrong(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": [1]}), tmp_path / "numbers.parquet")
    with pytest.raises(TableError, match="column 'text' holds int64; strings were expected"):
        open_reader(tmp_path / "numbers.parquet", "text")


def test_parquet_that_breaks_off_says_so(tmp_path: Path) -> None:
    path = tmp_path / "in.parquet"
    texts = [f"{number} {number * 7919 % 1009}" for number in range(20_000)]
    pq.write_table(pa.table({"text": texts}), path, row_group_size=5000, use_dictionary=False, compression="zstd")
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 2000] = b"\xff" * 2000
    path.write_bytes(content)
    with pytest.raises(TableError, match="is damaged"):
        read_texts(path)


def test_missing_paths_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(TableError, match=r"in\.csv cannot be read: No such file"):
        open_reader(tmp_path / "in.csv", "text")
    (tmp_path / "in.csv").write_text("text\none\n")
    (tmp_path / "in.jsonl").write_text('{"text": "one"}')
    with open_reader(tmp_path / "in.csv", "text") as reader:
        with pytest.raises(TableError, match=r"out\.csv cannot be written: No such file"):
            JobOutput(tmp_path / "missing" / "out.csv", "embed").open(reader)
        with pytest.raises(TableError, match=r"must be one of \.csv"):
            JobOutput(tmp_path / "out.xlsx", "embed").open(reader)
    with open_reader(tmp_path / "in.jsonl", "text") as reader, pytest.raises(TableError, match=r"write a \.jsonl file"):
        JobOutput(tmp_path / "out.csv", "embed").open(reader)


@pytest.mark.parametrize("extension", ["csv", "jsonl"])
def test_rows_of_text_are_estimated_from_its_bytes(tmp_path: Path, extension: str) -> None:
    paths = [tmp_path / f"{name}.{extension}" for name in ("one", "two")]
    for path in paths:
        write_table(path, [{"text": "x" * 50}] * 4000)
    with open_reader(paths, "text") as reader:
        assert reader.estimated_rows is None
        estimates = [reader.estimated_rows or 0 for _ in reader]
    assert all(7_000 < estimate < 8_100 for estimate in estimates[3:])
    assert estimates[-1] == 8_000


def test_a_text_file_too_large_to_read_twice_has_no_count(tmp_path: Path) -> None:
    with (tmp_path / "in.csv").open("wb") as file:
        file.truncate((1 << 30) + 1)  # sparse
    assert count_rows(tmp_path / "in.csv") is None


def test_without_pyarrow_a_parquet_file_names_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.producer.files.table_reader.find_spec", lambda name: None)
    with pytest.raises(TableError, match=r"pip install 'penstock\[parquet\]'"):
        open_reader(tmp_path / "in.parquet", "text")


def test_a_key_that_no_line_has_ends_a_job_as_a_missing_column_does(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text('not json\n{"body": "a", "id": 1}\n{"body": "b"}\n')
    with pytest.raises(TableError, match=r"no line of the first 2 has the key 'text'. Keys: body, id\."):
        open_reader(path, "text")
    path.write_text('{"body": "a"}\n{"text": "b"}\n')
    with open_reader(path, "text") as reader:
        [block] = reader
    assert [isinstance(text, str) for text in block.texts] == [False, True]
