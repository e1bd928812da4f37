"""`Client.map_rows`: rows of any source, in order and in bounded memory, each with its own result."""

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import numpy as np
import polars
import pyarrow as pa
import pytest

from penstock.producer import answer_stream
from penstock.producer.answer_stream import Result
from penstock.producer.client import Client
from penstock.producer.errors import InvalidRequest, PenstockError
from penstock.producer.one_revision import OneRevision
from penstock.producer.wire.messages import Options
from tests.producer.helpers import connected, refusing_x


class Lengths(Client):
    """Answers each text with its length, later texts first."""

    def __init__(self) -> None:
        super().__init__(model="m")
        self.calls: list[int] = []

    async def map(self, task: str, texts: Sequence[Any] | None = None, **_: Any) -> list[Any]:
        self.calls.append(len(texts or ()))
        for _turn in range(len(self.calls) % 5):
            await asyncio.sleep(0)
        return [np.array([sum(map(len, (text,) if isinstance(text, str) else text))]) for text in texts or ()]


async def answers(rows: Any, **options: Any) -> list[tuple[Any, int | str]]:
    return [(row, shown(result)) async for row, result in Lengths().map_rows("embed", rows, **options)]


def shown(result: Result) -> int | str:
    return result.message if isinstance(result, PenstockError) else int(result[0])  # type: ignore[index,arg-type]  # Lengths answers with arrays


async def test_texts_and_pairs_and_what_is_neither() -> None:
    assert await answers(["a", ("bb", "c"), 5, None, " ", ("a", 1)]) == [
        ("a", 1),
        (("bb", "c"), 3),
        (5, "A text must be a string or a pair of strings. Given: int"),
        (None, "A text must be a string or a pair of strings. Given: NoneType"),
        (" ", "The text is empty."),
        (("a", 1), "A text must be a string or a pair of strings. Given: tuple"),
    ]


async def test_mappings_come_back_whole() -> None:
    rows = [{"id": 1, "text": "a"}, {"id": 2}, "text"]
    assert await answers(rows, column="text") == [
        (rows[0], 1),
        (rows[1], "The row has no 'text'."),
        (rows[2], "A row must be a mapping with text. Given: str"),
    ]
    assert await answers([{"q": "a", "d": "bb"}], column=("q", "d")) == [({"q": "a", "d": "bb"}, 3)]


async def test_an_error_stands_beside_its_row_and_names_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected(monkeypatch, refusing_x) as (client, _):
        rows = client.map_rows("embed", ["a", " ", "x", "b", "x"])
        faults = [(row, result.message) async for row, result in rows if isinstance(result, PenstockError)]
    assert faults == [(" ", "The text is empty."), ("x", "Given: 600"), ("x", "Given: 600")]


TABLE = pa.table({"text": ["a", None, "ccc"] * 400, "other": ["x"] * 1200, "number": range(1200)})
RESULTS = [1, "A text must be a string or a pair of strings. Given: NoneType", 3] * 400
OF_TABLE = list(zip(TABLE.to_pylist(), RESULTS, strict=True))


class DataSet:
    """The part of a Hugging Face data set that is used; its indices are in another order than its table."""

    def with_format(self, name: str) -> "DataSet":
        assert name == "arrow"
        return self

    def iter(self, batch_size: int) -> Iterator[pa.Table]:
        return iter([TABLE.slice(start, batch_size) for start in range(0, 1200, batch_size)])


class Capsule:
    """Any object with Arrow's PyCapsule protocol."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return TABLE.__arrow_c_stream__(requested_schema)


@pytest.mark.parametrize(
    "rows",
    [TABLE, TABLE.combine_chunks().to_batches()[0], TABLE.to_reader(), Capsule(), DataSet(), polars.from_arrow(TABLE)],
    ids=lambda rows: type(rows).__name__,
)
async def test_tables(rows: Any) -> None:
    assert await answers(rows, column="text") == OF_TABLE


async def test_pairs_of_a_table() -> None:
    assert (await answers(TABLE, column=("text", "other")))[:3] == [
        ({"text": "a", "other": "x", "number": 0}, 2),
        ({"text": None, "other": "x", "number": 1}, "A text must be a string or a pair of strings. Given: tuple"),
        ({"text": "ccc", "other": "x", "number": 2}, 4),
    ]


async def test_a_value_that_python_cannot_hold_ends_no_table() -> None:
    far = pa.table({"text": ["a"], "at": pa.array([1 << 62], pa.timestamp("s"))})
    assert await answers(far, column="text") == [({"text": "a", "at": None}, 1)]


SERIES = [("a", 1), (None, "A text must be a string or a pair of strings. Given: NoneType"), ("ccc", 3)] * 400


@pytest.mark.parametrize("options", [{}, {"column": "text"}])
@pytest.mark.parametrize(
    "rows",
    [
        TABLE["text"],
        TABLE["text"].combine_chunks(),
        TABLE["text"].cast(pa.large_string()),
        TABLE["text"].dictionary_encode(),
        polars.from_arrow(TABLE["text"]),
    ],
    ids=lambda rows: type(rows).__name__,
)
async def test_one_dimension_is_texts(rows: Any, options: dict[str, Any]) -> None:
    assert await answers(rows, **options) == SERIES


async def test_numbers_in_one_dimension_fail_singly() -> None:
    says = "A text must be a string or a pair of strings. Given: int"
    assert await answers(pa.array([5, None])) == [(5, says), (None, says.replace("int", "NoneType"))]


class TestPandas:
    @pytest.fixture
    def pandas(self) -> Any:
        return pytest.importorskip("pandas")

    async def test_a_series_is_texts_of_any_type(self, pandas: Any) -> None:
        says = "A text must be a string or a pair of strings. Given: int"
        assert await answers(pandas.Series(["a", 5, "ccc"], index=[3, 4, 5])) == [("a", 1), (5, says), ("ccc", 3)]

    async def test_an_index_without_a_name_is_no_column(self, pandas: Any) -> None:
        frame = pandas.DataFrame({"text": ["a", "bb"]}, index=["x", "y"])
        assert await answers(frame, column="text") == [({"text": "a"}, 1), ({"text": "bb"}, 2)]
        frame.index = pandas.MultiIndex.from_tuples([("x", 1), ("y", 2)])
        assert await answers(frame, column="text") == [({"text": "a"}, 1), ({"text": "bb"}, 2)]
        frame.index = pandas.Index([7, 8], name="id")
        assert await answers(frame, column="text") == [({"text": "a", "id": 7}, 1), ({"text": "bb", "id": 8}, 2)]

    @pytest.mark.parametrize("ids", [[30, 10], [0, 1], [1, 0], range(5, 7)])
    async def test_an_index_with_a_name_is_a_column_whatever_its_values(self, pandas: Any, ids: Any) -> None:
        frame = pandas.DataFrame({"text": ["a", "bb"]}, index=pandas.Index(ids, name="id"))
        first, second = ids
        assert await answers(frame, column="text") == [
            ({"text": "a", "id": first}, 1),
            ({"text": "bb", "id": second}, 2),
        ]

    @pytest.mark.parametrize("values", [["a", 5], [{"k": 1}, [2]]])
    async def test_a_column_of_several_types_is_named(self, pandas: Any, values: list[Any]) -> None:
        frame = pandas.DataFrame({"text": ["a", "b"], "mixed": values})
        with pytest.raises(InvalidRequest) as caught:
            await answers(frame, column="text")
        assert (
            "The DataFrame cannot be read as an Arrow table: Conversion failed for column mixed" in caught.value.message
        )
        assert "Give each column one type, such as string, or leave it out." in caught.value.message

    async def test_columns_of_one_name(self, pandas: Any) -> None:
        frame = pandas.DataFrame([["a", "b"]], columns=["text", "text"])
        with pytest.raises(InvalidRequest, match="Duplicate column names found"):
            await answers(frame, column="text")


class TestDataSets:
    """Of Hugging Face."""

    @pytest.fixture
    def rows(self) -> Any:
        return pytest.importorskip("datasets").Dataset.from_dict({"id": [1, 2, 3], "text": ["a", "bb", "ccc"]})

    async def test_its_indices_order_it(self, rows: Any) -> None:
        shuffled = rows.select([2, 0])
        assert await answers(shuffled, column="text") == [({"id": 3, "text": "ccc"}, 3), ({"id": 1, "text": "a"}, 1)]

    @pytest.mark.parametrize("form", ["numpy", "pandas", "arrow"])
    async def test_a_format_changes_nothing(self, rows: Any, form: str) -> None:
        found = await answers(rows.with_format(form), column="text")
        assert found == await answers(rows, column="text")

    async def test_a_transform_makes_the_texts(self, rows: Any) -> None:
        rows.set_transform(lambda batch: {"text": [text * 2 for text in batch["text"]]})
        assert await answers(rows, column="text") == [
            ({"text": "aa"}, 2),
            ({"text": "bbbb"}, 4),
            ({"text": "cccccc"}, 6),
        ]
        with pytest.raises(InvalidRequest, match="`column` must name the column of the texts"):
            await answers(rows)

    async def test_a_stream_with_a_map(self, rows: Any) -> None:
        stream = rows.to_iterable_dataset().map(lambda row: {"text": row["text"] + "!"})
        assert [result for _, result in await answers(stream, column="text")] == [2, 3, 4]


@pytest.mark.parametrize(
    ("rows", "options", "says"),
    [
        ("a text", {}, "`rows` must be an iterable of rows, or a table. Given: str"),
        (5, {}, "Given: int"),
        (TABLE, {}, "`column` must name the column of the texts."),
        (TABLE, {"column": "title"}, "The table has no column 'title'. Its columns: text, other, number."),
    ],
)
async def test_what_is_no_source_of_rows_says_so(rows: Any, options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await answers(rows, **options)
    assert says in caught.value.message


async def test_any_number_of_rows_is_read_a_window_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_stream, "MOST_WINDOW_ROWS", 1500)
    read = 0

    def numbers() -> Iterator[str]:
        nonlocal read
        while True:
            read += 1
            yield str(read)

    rows = Lengths().map_rows("embed", numbers())
    for number in range(1, 5001):
        row, _ = await anext(rows)
        assert row == str(number)
        assert read <= number + 1500 + 2 * 512
    await rows.aclose()


async def test_an_async_source_may_wait_for_its_answers() -> None:
    answered = asyncio.Event()

    async def texts() -> AsyncIterator[str]:
        for length in range(1, 5):
            yield "x" * length
            await answered.wait()
            answered.clear()

    lengths = []
    async for _, result in Lengths().map_rows("embed", texts()):
        lengths.append(shown(result))
        answered.set()
    assert lengths == [1, 2, 3, 4]


async def test_the_error_of_a_source_is_raised() -> None:
    def texts() -> Iterator[str]:
        yield from ["a"] * 512
        raise RuntimeError("The source is broken.")

    with pytest.raises(RuntimeError, match="The source is broken"):
        await answers(texts())


async def test_options_reach_the_call() -> None:
    seen: list[Any] = []

    class Options_(Lengths):
        async def map(self, task: str, texts: Sequence[Any] | None = None, **given: Any) -> list[Any]:
            seen.append((task, given))
            return await super().map(task, texts)

    rows = Options_().map_rows("classify", ["a"], options=Options(top_k=3), timeout_s=7.0)
    assert [row async for row, _ in rows] == ["a"]
    [(task, given)] = seen
    assert isinstance(given.pop("revision"), OneRevision)
    assert (task, given) == ("classify", {"options": Options(top_k=3), "timeout_s": 7.0})


async def test_without_pyarrow_a_frame_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InvalidRequest, match=r"A DataFrame needs pyarrow.*pip install 'penstock\[parquet\]'"):
        await answers(polars.DataFrame({"text": ["a"]}), column="text")
