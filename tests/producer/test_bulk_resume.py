"""Resumed jobs: killed at any moment and run again, a job redoes no finished row and gives the same bytes."""

import json
import os
import resource
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.producer.answer_stream import Result
from penstock.producer.errors import MixedRevisions, PenstockError
from penstock.producer.files import (
    JobOutput,
    PartWriter,
    TableError,
    join_parts,
    open_reader,
    parquet_reader,
    row_blocks,
)
from penstock.producer.files import part_writer as parts
from penstock.producer.files.job_report import JobReport
from penstock.producer.files.part_directory import PartDirectory
from penstock.producer.wire.messages import Classification, Options
from tests.producer.table_files import write_table

NUM_ROWS = 30
EXTENSIONS = ("csv", "jsonl", "parquet")


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 4 rows, parts of 8, row groups of 16: 30 rows are 4 parts. Nothing waits for the disk."""
    monkeypatch.setattr(os, "fsync", lambda number: None)
    monkeypatch.setattr(row_blocks, "BLOCK_ROWS", 4)
    monkeypatch.setattr(parquet_reader, "BLOCK_ROWS", 4)
    monkeypatch.setattr(parts, "PART_ROWS", 8)
    monkeypatch.setattr(parts, "PART_S", float("inf"))
    monkeypatch.setattr(join_parts, "ROW_GROUP_ROWS", 16)


def make_input(path: Path, num_rows: int = NUM_ROWS) -> Path:
    texts = [f"text {number}" if number % 7 else None for number in range(num_rows)]
    return write_table(path, [{"id": number, "text": text} for number, text in enumerate(texts)])


def embed(text: Any) -> Result:
    if isinstance(text, PenstockError):
        return text
    return np.array([len(text), 0.5], dtype=np.float32)


def classify(text: Any) -> Result:
    return text if isinstance(text, PenstockError) else Classification((f"of {text}",), (0.5,))


def run(
    source: Path,
    target: Path,
    task: str = "embed",
    *,
    after: int = NUM_ROWS,
    set_up: Callable[[PartWriter], object] = lambda writer: None,
    **options: Any,
) -> int:
    """Run a job, interrupted after so many rows. Returns the number of rows that it answered."""
    answer = {"embed": embed, "classify": classify}[task]
    answered = 0
    column = options.pop("column", "text")
    with open_reader(source, column) as reader, JobOutput(target, task, **options).open(reader) as writer:
        set_up(writer)
        for block in reader:
            if answered >= after:
                raise KeyboardInterrupt
            writer.write(block, [answer(text) for text in block.texts])
            answered += len(block.texts)
    return answered


def interrupt(source: Path, target: Path, *args: Any, after: int = 20, **options: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(source, target, *args, after=after, **options)


class Killed(BaseException):
    """The end of the process at a call of the operating system."""


class Kernel:
    """Counts calls that change the disk, and ends the process at one of them: from then on every call fails."""

    CALLS = ("mkdir", "fsync", "replace", "unlink", "rmdir")

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.num_calls = 0
        self.kill_at: float | None = None  # number of the call; a half is after it
        self.is_killed = False
        self._open = Path.open
        for name in self.CALLS:
            monkeypatch.setattr(os, name, self._wrapped(getattr(os, name)))
        monkeypatch.setattr(Path, "open", self._wrapped(Path.open))

    def _wrapped(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **options: Any) -> Any:
            self._live(self.num_calls)
            done = call(*args, **options)
            self.num_calls += 1
            if call is not self._open:  # a dead process has no open file
                self._live(self.num_calls - 0.5)
            return done

        return wrapped

    def _live(self, now: float) -> None:
        self.is_killed |= self.kill_at is not None and now >= self.kill_at
        if self.is_killed:
            raise Killed


@pytest.mark.slow
@pytest.mark.parametrize("extension", EXTENSIONS)
def test_killed_anywhere_and_run_again_a_job_gives_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, extension: str
) -> None:
    source = make_input(tmp_path / f"in.{extension}")
    whole = tmp_path / f"whole.{extension}"
    kernel = Kernel(monkeypatch)
    run(source, whole)
    num_calls = kernel.num_calls
    assert num_calls > 40
    assert sorted(path.name for path in tmp_path.iterdir()) == [source.name, whole.name]

    redone = set()
    for half_calls in range(2 * num_calls):
        target = tmp_path / f"{half_calls}.{extension}"
        kernel.num_calls, kernel.kill_at = 0, half_calls / 2
        with pytest.raises(Killed):
            run(source, target)
        kernel.kill_at, kernel.is_killed = None, False
        manifest = target.with_name(f"{target.name}.parts") / "manifest.json"
        if target.exists() and not manifest.exists():  # it had only an empty directory to remove
            assert target.read_bytes() == whole.read_bytes()
            continue
        finished = json.loads(manifest.read_text())["report"]["rows"] if manifest.exists() else 0
        assert run(source, target) == NUM_ROWS - finished
        assert target.read_bytes() == whole.read_bytes(), half_calls
        assert not manifest.parent.exists()
        redone.add(NUM_ROWS - finished)
    assert redone == {30, 22, 14, 6, 0}


@pytest.mark.parametrize("extension", EXTENSIONS)
def test_interrupted_again_and_again_a_job_gives_the_same_bytes(tmp_path: Path, extension: str) -> None:
    source = make_input(tmp_path / f"in.{extension}")
    run(source, tmp_path / f"whole.{extension}", "classify", options=Options(top_k=0))
    target = tmp_path / f"out.{extension}"
    for _ in range(3):
        interrupt(source, target, "classify", after=8, options=Options(top_k=0))
        interrupt(source, target, "classify", after=4, options=Options(top_k=0))  # less than a part
        assert not target.exists()
    assert run(source, target, "classify", options=Options(top_k=0)) == 6
    assert target.read_bytes() == (tmp_path / f"whole.{extension}").read_bytes()


def test_a_report_counts_the_rows_of_all_runs(tmp_path: Path) -> None:
    source, target = make_input(tmp_path / "in.parquet"), tmp_path / "out.csv"
    interrupt(source, target)
    reports = []
    run(source, target, set_up=lambda writer: reports.append(writer.report))
    assert reports == [JobReport(30, 5, Counter(invalid_request=5), Counter(), Counter({8: 25}), {2})]


class TestRefusals:
    @pytest.fixture
    def source(self, tmp_path: Path) -> Path:
        source = tmp_path / "in.csv"
        source.write_text("text,other\n" + "one,two\n" * NUM_ROWS)
        return source

    @pytest.mark.parametrize(
        ("task", "options", "says"),
        [
            ("classify", {}, "its task is 'embed', and now it is 'classify'."),
            ("embed", {"column": "other"}, r"its columns is \['text'\], and now it is \['other'\]."),
            ("embed", {"model": "large"}, "its model is '', and now it is 'large'."),
            ("embed", {"options": Options(prompt="q: ")}, r"its options is {}, and now it is {'prompt': 'q: '}."),
        ],
    )
    def test_another_job(self, tmp_path: Path, source: Path, task: str, options: dict[str, Any], says: str) -> None:
        interrupt(source, tmp_path / "out.csv")
        with pytest.raises(TableError, match=rf"out.csv.parts is of another job: {says}") as caught:
            run(source, tmp_path / "out.csv", task, **options)
        assert str(caught.value).endswith(
            "It holds 16 finished rows. To discard them give --restart; to keep them write to another file."
        )
        assert run(source, tmp_path / "out.csv", task, restart=True, **options) == NUM_ROWS

    def test_another_input(self, tmp_path: Path, source: Path) -> None:
        interrupt(source, tmp_path / "out.csv")
        other = tmp_path / "other.csv"
        other.write_bytes(source.read_bytes())
        with pytest.raises(TableError, match=rf"its input is {source}, and now it is {other}."):
            run(other, tmp_path / "out.csv")

    def test_a_changed_input(self, tmp_path: Path, source: Path) -> None:
        interrupt(source, tmp_path / "out.csv")
        source.write_text(source.read_text() + "three,four\n")
        with pytest.raises(TableError, match=rf"{source} has changed since it began."):
            run(source, tmp_path / "out.csv")

    @pytest.mark.parametrize("content", ["", "{}", "[]", '{"report": {"lengths": 1}}', "\xff"])
    def test_a_damaged_manifest(self, tmp_path: Path, source: Path, content: str) -> None:
        interrupt(source, tmp_path / "out.csv")
        (tmp_path / "out.csv.parts" / "manifest.json").write_text(content, encoding="latin-1")
        with pytest.raises(TableError, match=r"is not the manifest of a bulk job. To begin anew give --restart."):
            run(source, tmp_path / "out.csv")
        assert run(source, tmp_path / "out.csv", restart=True) == NUM_ROWS

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("job", 5),
            ("job", {"inputs": [5]}),
            ("revision", 7),
            ("parts", "ab"),
            ("parts", ["a", "b"]),
            ("output", "out.csv"),
            ("report", {"rows": float("inf")}),
            ("report", {"errors": {"empty": "many"}}),
            ("report", {"vector_lengths": 3}),
        ],
    )
    def test_a_manifest_of_other_types(self, tmp_path: Path, source: Path, key: str, value: Any) -> None:
        interrupt(source, tmp_path / "out.csv")
        manifest = tmp_path / "out.csv.parts" / "manifest.json"
        data = json.loads(manifest.read_text())
        data[key] = {**data[key], **value} if isinstance(value, dict) else value
        manifest.write_text(json.dumps(data))
        with pytest.raises(TableError, match=r"is not the manifest of a bulk job. To begin anew give --restart."):
            run(source, tmp_path / "out.csv")
        assert run(source, tmp_path / "out.csv", restart=True) == NUM_ROWS

    def test_a_part_that_was_removed(self, tmp_path: Path, source: Path) -> None:
        interrupt(source, tmp_path / "out.csv")
        (tmp_path / "out.csv.parts" / "part-000001").unlink()
        with pytest.raises(TableError, match=r"part-000001 was removed or changed."):
            run(source, tmp_path / "out.csv")

    def test_another_process(self, tmp_path: Path, source: Path) -> None:
        with open_reader(source, "text") as reader, JobOutput(tmp_path / "out.csv", "embed").open(reader) as writer:
            with open_reader(source, "text") as other, pytest.raises(TableError, match="Another process writes"):
                JobOutput(tmp_path / "out.csv", "embed").open(other)
            for block in reader:
                writer.write(block, [embed(text) for text in block.texts])
        assert (tmp_path / "out.csv").exists()

    def test_another_revision_of_the_model(self, tmp_path: Path, source: Path) -> None:
        def answered_by(*revisions: str) -> Callable[[PartWriter], None]:
            def set_up(writer: PartWriter) -> None:
                for revision in revisions:
                    writer.revision.check("m", revision)

            return set_up

        target = tmp_path / "out.csv"
        interrupt(source, target, model="m", set_up=answered_by("v1"))
        with pytest.raises(MixedRevisions, match=r"model 'm' .*'v1' and 'v2'"):
            run(source, target, model="m", set_up=answered_by("v2"))
        with pytest.raises(MixedRevisions):  # a worker of each
            run(source, target, model="m", set_up=answered_by("v1", "v2"))
        assert run(source, target, model="m", set_up=answered_by("v1")) == 14

    def test_another_revision_that_is_allowed(self, tmp_path: Path, source: Path) -> None:
        target = tmp_path / "out.csv"
        interrupt(source, target, model="m", set_up=lambda writer: writer.revision.check("m", "v1"))
        assert (
            run(
                source,
                target,
                model="m",
                allow_mixed_revisions=True,
                set_up=lambda writer: writer.revision.check("m", "v2"),
            )
            == 14
        )


def test_a_job_whose_first_part_is_unfinished_leaves_nothing(tmp_path: Path) -> None:
    source = make_input(tmp_path / "in.csv")
    interrupt(source, tmp_path / "out.csv", after=4)
    assert [path.name for path in tmp_path.iterdir()] == ["in.csv"]


def test_an_interrupt_right_after_the_first_part_is_saved_costs_no_finished_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = make_input(tmp_path / "in.csv"), tmp_path / "out.csv"
    add_part = PartDirectory.add_part

    def interrupted(directory: PartDirectory) -> None:
        add_part(directory)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(PartDirectory, "add_part", interrupted)
        interrupt(source, target)
    assert run(source, target) == NUM_ROWS - 8
    assert [path.name for path in tmp_path.iterdir()] == ["in.csv", "out.csv"]


@pytest.mark.parametrize("num_calls", range(4))
def test_a_first_part_that_cannot_be_saved_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_calls: int
) -> None:
    source, target = make_input(tmp_path / "in.csv"), tmp_path / "out.csv"
    calls = iter([None] * num_calls)  # of fsync: four a part

    def full(number: int) -> None:
        if next(calls, number) is not None:
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(TableError, match=r"out.csv cannot be written: No space left on device."):
            run(source, target)
    assert [path.name for path in tmp_path.iterdir()] == ["in.csv"]


def test_a_job_over_a_file_whose_name_is_not_utf8_continues(tmp_path: Path) -> None:
    source, target = make_input(tmp_path / os.fsdecode(b"in\xff.csv")), tmp_path / os.fsdecode(b"out\xff.csv")
    interrupt(source, target)
    assert run(source, target) == NUM_ROWS - 16


def test_files_of_others_in_the_directory_are_kept(tmp_path: Path) -> None:
    source = make_input(tmp_path / "in.csv")
    (tmp_path / "out.csv.parts").mkdir()
    (tmp_path / "out.csv.parts" / "notes.txt").write_text("precious")
    run(source, tmp_path / "out.csv")
    assert [path.name for path in (tmp_path / "out.csv.parts").iterdir()] == ["notes.txt"]


def test_an_output_that_appears_meanwhile_costs_no_finished_row(tmp_path: Path) -> None:
    source, target = make_input(tmp_path / "in.csv"), tmp_path / "out.csv"
    with pytest.raises(TableError, match="exists already"):
        run(source, target, set_up=lambda writer: target.write_text("precious"))
    assert target.read_text() == "precious"
    assert run(source, target, overwrite=True) == 0
    assert target.read_bytes() != b"precious"


@pytest.mark.parametrize("extension", EXTENSIONS)
def test_a_full_disk_keeps_the_finished_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, extension: str) -> None:
    source, target = make_input(tmp_path / f"in.{extension}"), tmp_path / f"out.{extension}"
    calls = iter([None] * 9)  # of fsync: four a part

    def full(number: int) -> None:
        if next(calls, number) is not None:
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(TableError, match=rf"out.{extension} cannot be written: No space left on device."):
            run(source, target)
    assert run(source, target) == NUM_ROWS - 16


@contextmanager
def files_of_at_most(num_bytes: int) -> Iterator[None]:
    """A write beyond so many bytes of a file fails, and so does the flush of what is buffered: as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.slow
@pytest.mark.parametrize("extension", EXTENSIONS)
def test_wherever_a_file_is_too_large_for_the_disk_a_job_says_so_and_continues(tmp_path: Path, extension: str) -> None:
    source, whole = make_input(tmp_path / f"in.{extension}"), tmp_path / f"whole.{extension}"
    run(source, whole)
    for number, num_bytes in enumerate(range(0, whole.stat().st_size, 100)):
        target = tmp_path / f"{number}.{extension}"
        with (
            files_of_at_most(num_bytes),
            pytest.raises(TableError, match=f"^{target} cannot be written: File too large.$"),
        ):
            run(source, target)
        run(source, target)
        assert target.read_bytes() == whole.read_bytes()


class TestVectorsInParquet:
    @pytest.fixture
    def source(self, tmp_path: Path) -> Path:
        return make_input(tmp_path / "in.parquet")

    def test_of_one_length_are_lists_of_fixed_size(self, tmp_path: Path, source: Path) -> None:
        run(source, tmp_path / "out.parquet")
        written = pq.read_table(tmp_path / "out.parquet")
        assert written.schema.field("embedding").type == pa.list_(pa.float32(), 2)
        vectors = written.column("embedding").to_pylist()
        assert [row for row, vector in enumerate(vectors) if vector is None] == [0, 7, 14, 21, 28]
        assert vectors[1] == [6.0, 0.5]
        metadata = pq.read_metadata(tmp_path / "out.parquet")
        assert [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)] == [16, 14]

    def test_of_several_lengths_are_lists(self, tmp_path: Path, source: Path) -> None:
        def of_several(text: Any) -> Result:
            return text if isinstance(text, PenstockError) else np.zeros(len(text), dtype=np.float16)

        with open_reader(source, "text") as reader, JobOutput(tmp_path / "out.parquet", "embed").open(reader) as writer:
            for block in reader:
                writer.write(block, [of_several(text) for text in block.texts])
        written = pq.read_table(tmp_path / "out.parquet")
        assert written.schema.field("embedding").type == pa.list_(pa.float32())
        assert written.column("embedding").to_pylist()[6:9] == [[0.0] * 6, None, [0.0] * 6]


@pytest.fixture
def spare_columns(tmp_path: Path) -> Path:
    """A Parquet file with columns of nested and dictionary types, whose dictionaries differ by row group."""
    kinds = {"nested": [{"a": [number]} for number in range(8)], "raw": [b"\x00", None] * 4}
    with pq.ParquetWriter(tmp_path / "in.parquet", _table(0, kinds).schema) as writer:
        for group in range(4):
            writer.write_table(_table(group, kinds))
    return tmp_path / "in.parquet"


def _table(group: int, kinds: dict[str, Any]) -> pa.Table:
    names = pa.array([f"{group} {row % 3}" for row in range(8)]).dictionary_encode()
    return pa.table({"text": names, **kinds})


def test_a_continued_job_has_the_columns_of_its_partition(tmp_path: Path) -> None:
    (tmp_path / "day=3").mkdir()
    source, whole, target = make_input(tmp_path / "day=3" / "in.parquet"), *(tmp_path / f"{n}.parquet" for n in "ab")
    run(source, whole)
    interrupt(source, target)
    run(source, target)
    assert target.read_bytes() == whole.read_bytes()
    assert pq.read_table(target).column("day").to_pylist() == [3] * NUM_ROWS


def test_nested_and_dictionary_columns_come_back(spare_columns: Path) -> None:
    target = spare_columns.with_name("out.parquet")
    interrupt(spare_columns, target)
    run(spare_columns, target)
    given = pq.read_table(spare_columns)
    assert pq.read_table(target).select(given.column_names).to_pylist() == given.to_pylist()
    assert pq.read_schema(target).field("text").type == given.schema.field("text").type
