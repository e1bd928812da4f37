"""Jobs over files on the command line, with a client that answers at once in place of Kafka."""

import asyncio
import io
import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from penstock.cache import CostKey, CostTables
from penstock.ops.cli.jobs import file_job_command
from penstock.ops.cli.jobs.job_settings import FileJobSettings
from penstock.ops.cli.main import app
from penstock.producer import client
from penstock.producer.answer_stream import Result
from penstock.producer.errors import BackendError, UnsupportedTask
from penstock.producer.files import parquet_reader, part_writer, row_blocks
from penstock.producer.one_revision import OneRevision
from penstock.producer.wire.messages import Classification, Reply, Text
from penstock.scheduler import CostTable
from penstock.scheduler.costs.cost import PackedCost
from penstock.scheduler.costs.table import Sample
from penstock.worker.batching.startup_costs import MeasuredCosts
from tests.producer.table_files import read_table, write_table


class InstantClient:
    """Answers each text with its first word as label, or a pair with its length. Two texts are errors."""

    num_answered = 0
    revisions: tuple[str, ...] = ("v1",)  # of the calls; the last one of all further ones
    interrupt_at: int | None = None
    timeout_s = 0.0  # of a call

    def __init__(self, *, bulk: bool, on_reply: Callable[[Reply, int], object], **settings: Any) -> None:
        self._on_reply = on_reply
        type(self).timeout_s = settings["timeout_s"]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def map(self, task: str, texts: Sequence[Text], *, revision: OneRevision, **options: Any) -> list[Result]:
        type(self).num_answered += len(texts)
        now, *later = self.revisions
        type(self).revisions = tuple(later) or (now,)
        revision.check("m", now)
        if self.interrupt_at is not None and self.num_answered > self.interrupt_at:
            raise KeyboardInterrupt
        self._on_reply(Reply("m", "v1", cached=len(texts) // 2, batch={"request_tokens": 2 * len(texts)}), len(texts))
        return [self._answer(text) for text in texts]

    def _answer(self, text: Text) -> Result:
        if text == "burst":
            return BackendError("The engine failed.")
        if text == "untrained":
            return UnsupportedTask("'m' can embed.")
        return Classification((text.split()[0],), (0.5,)) if isinstance(text, str) else float(len(text[0] + text[1]))


async def no_fault(settings: FileJobSettings) -> str:
    return ""


@pytest.fixture(autouse=True)
def instant(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[InstantClient]:
    for name in list(os.environ):
        if name.startswith("PENSTOCK_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(row_blocks, "BLOCK_ROWS", 4)
    monkeypatch.setattr(part_writer, "PART_ROWS", 8)
    monkeypatch.setattr(part_writer, "PART_S", float("inf"))
    fresh = type("Fresh", (InstantClient,), {})
    monkeypatch.setattr(client, "Client", fresh)
    monkeypatch.setattr(file_job_command, "missing_fleet", no_fault)
    return fresh


def penstock(command: str, *args: str | Path, given: bytes | None = None) -> tuple[int, str, bytes]:
    """Exit code, stderr and stdout."""
    all_args = [command, "--model", "m", *map(str, args)]
    result = CliRunner().invoke(app, all_args, prog_name="penstock", env={"NO_COLOR": "1"}, input=given)
    return result.exit_code, result.stderr, result.stdout_bytes


def write_rows(path: Path, *texts: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("text\n" + "".join(f"{text}\n" for text in texts))
    return path


CARDS = tuple(f"card {number}" for number in range(30))


def test_rows_wait_for_hours_or_as_long_as_they_may(tmp_path: Path, instant: type[InstantClient]) -> None:
    source = write_rows(tmp_path / "in.csv", *CARDS)
    penstock("classify", source, tmp_path / "a.csv")
    assert instant.timeout_s >= 3600
    penstock("classify", source, tmp_path / "b.csv", "--timeout-s", "7")
    assert instant.timeout_s == 7


def test_a_row_whose_labels_are_all_cached_is_one_cached_row(tmp_path: Path) -> None:
    source, labels = write_rows(tmp_path / "in.csv", *CARDS[:8]), ("--labels", "a,b")
    _, said, _ = penstock("classify", source, tmp_path / "out.csv", *labels, "--report", tmp_path / "report.json")
    assert "From the workers' cache: 25% of the answers" in said  # 4 of 16 pairs
    assert json.loads((tmp_path / "report.json").read_text())["last_run"]["cached_rows"] == 2


class TestContinuation:
    def test_an_interrupted_job_says_how_to_continue_and_does(
        self, tmp_path: Path, instant: type[InstantClient]
    ) -> None:
        source = write_rows(tmp_path / "in.csv", *CARDS)
        target = tmp_path / "out.csv"
        instant.interrupt_at = 20
        code, said, _ = penstock("classify", source, target)
        assert code == 130
        assert f"16 finished rows are kept in {target}.parts. The same command continues after them." in said
        instant.num_answered, instant.interrupt_at = 0, None
        code, said, _ = penstock("classify", source, target, "--report", tmp_path / "report.json")
        assert code == 0
        assert "Continuing after 16 finished rows." in said
        assert "30 rows (16 of earlier runs), 0 failed, " in said
        assert instant.num_answered == 14
        report = json.loads((tmp_path / "report.json").read_text())
        last_run = report.pop("last_run")
        assert (last_run["resumed_rows"], last_run["answered_rows"], last_run["cached_rows"]) == (16, 14, 7)
        assert last_run["tokens"] == 28
        assert last_run["tokens_per_s"] > 0
        assert " tokens/s: " in said
        assert report == {
            "rows": 30,
            "failed": 0,
            "errors": {},
            "labels": {"card": 30},
            "lengths": {"8": 30},
            "vector_lengths": [],
        }

    def test_a_job_without_a_finished_part_says_that_nothing_was_written(
        self, tmp_path: Path, instant: type[InstantClient]
    ) -> None:
        instant.interrupt_at = 0
        code, said, _ = penstock("classify", write_rows(tmp_path / "in.csv", *CARDS), tmp_path / "out.csv")
        assert code == 130
        assert "out.csv was not written." in said
        assert not (tmp_path / "out.csv.parts").exists()

    def test_another_revision_of_the_model_ends_the_job_and_its_continuation(
        self, tmp_path: Path, instant: type[InstantClient]
    ) -> None:
        source, target = write_rows(tmp_path / "in.csv", *CARDS), tmp_path / "out.csv"
        instant.revisions = (*["v1"] * 5, "v2")
        code, said, _ = penstock("classify", source, target)
        assert code == 1
        assert "mixed_revisions: Two revisions of the model 'm' answered" in said
        assert "'v1' and 'v2'" in said
        assert f"finished rows are kept in {target}.parts" in said
        assert "--restart discards them; --allow-mixed-revisions adds rows of others." in said
        code, said, _ = penstock("classify", source, target)
        assert code == 1
        assert "'v1' and 'v2'" in said
        assert not target.exists()
        code, said, _ = penstock("classify", source, target, "--allow-mixed-revisions")
        assert code == 0
        assert len(target.read_text().splitlines()) == 31

    def test_a_job_to_standard_output_ends_at_another_revision(self, instant: type[InstantClient]) -> None:
        instant.revisions = ("v1", "v2")
        given = b"text\n" + b"card\n" * 9
        code, said, _ = penstock("classify", "-", "-", "--format", "csv", given=given)
        assert code == 1
        assert "'v1' and 'v2'" in said
        instant.revisions = ("v1", "v2")
        code, _, out = penstock("classify", "-", "-", "--format", "csv", "--allow-mixed-revisions", given=given)
        assert code == 0
        assert len(out.splitlines()) == 10

    def test_restart(self, tmp_path: Path, instant: type[InstantClient]) -> None:
        source, target = write_rows(tmp_path / "in.csv", *CARDS), tmp_path / "out.csv"
        instant.interrupt_at = 20
        penstock("classify", source, target)
        instant.num_answered, instant.interrupt_at = 0, None
        code, said, _ = penstock("classify", source, target, "--truncate")
        assert code == 2
        assert "To discard them give --restart" in said
        assert penstock("classify", source, target, "--truncate", "--restart")[0] == 0
        assert instant.num_answered == 30


class TestErrors:
    @pytest.mark.parametrize("options", [("--max-errors", "2"), ("--fail-fast",)])
    def test_too_many_end_the_job(self, tmp_path: Path, options: tuple[str, ...]) -> None:
        texts = ["card", "card", "card", "burst"] * 3
        code, said, _ = penstock("classify", write_rows(tmp_path / "in.csv", *texts), tmp_path / "out.csv", *options)
        assert code == 1
        failed = "1 row failed:" if options == ("--fail-fast",) else "3 rows failed. The first is"
        first = f"{failed} row 4 (in.csv, line 5): backend: The engine failed."
        assert f"{first} More are allowed with a higher --max-errors." in said
        assert ("8 finished rows are kept" in said) == (options != ("--fail-fast",))
        assert not (tmp_path / "out.csv").exists()

    def test_the_first_failed_row_of_several_files_is_named(self, tmp_path: Path) -> None:
        for name, second in (("a", "card"), ("b", "burst")):
            for extension in ("jsonl", "parquet"):
                write_table(tmp_path / f"{name}.{extension}", [{"text": "card"}, {"text": second}])
        for extension, place in (("jsonl", "b.jsonl, line 2"), ("parquet", "b.parquet, row 2")):
            paths = [tmp_path / f"{name}.{extension}" for name in ("a", "b", "out")]
            code, said, _ = penstock("classify", *paths, "--fail-fast")
            assert code == 1
            assert f"1 row failed: row 4 ({place}): backend: The engine failed." in said

    def test_an_error_from_standard_input_is_named(self) -> None:
        given = b'{"text": "card"}\n{"text": ""}\n'
        code, said, _ = penstock("classify", "-", "-", "--format", "jsonl", "--fail-fast", given=given)
        assert code == 1
        assert "1 row failed: row 2 (standard input, line 2): empty: The text is empty." in said

    def test_a_job_that_ends_in_its_first_part_keeps_its_finished_rows(
        self, tmp_path: Path, instant: type[InstantClient]
    ) -> None:
        source, target = write_rows(tmp_path / "in.csv", *["card"] * 5, "burst", "card"), tmp_path / "out.csv"
        code, said, _ = penstock("classify", source, target, "--fail-fast")
        assert code == 1
        assert f"4 finished rows are kept in {target}.parts." in said
        instant.num_answered = 0
        code, said, _ = penstock("classify", source, target)
        assert (code, instant.num_answered) == (1, 3)
        assert "7 rows (4 of earlier runs), 1 failed" in said

    def test_as_many_as_allowed_do_not(self, tmp_path: Path) -> None:
        source = write_rows(tmp_path / "in.csv", "card", "burst", "burst")
        code, said, _ = penstock("classify", source, tmp_path / "out.csv", "--max-errors", "2")
        assert code == 1
        assert "3 rows, 2 failed" in said
        assert "Errors: backend 2" in said

    def test_a_fleet_that_cannot_do_the_task_ends_the_job(self, tmp_path: Path) -> None:
        source = write_rows(tmp_path / "in.csv", *CARDS, "untrained")
        code, said, _ = penstock("classify", source, tmp_path / "out.csv")
        assert code == 2
        assert said.startswith("Error: unsupported_task: 'm' can embed.\n24 finished rows are kept")
        assert not (tmp_path / "out.csv").exists()

    @pytest.mark.parametrize(("report", "fault"), [("no/report.json", "there is no directory"), ("", "is a directory")])
    def test_a_report_that_cannot_be_written_is_found_first(self, tmp_path: Path, report: str, fault: str) -> None:
        source = write_rows(tmp_path / "in.csv", "card")
        code, said, _ = penstock("classify", source, tmp_path / "out.csv", "--report", tmp_path / report)
        assert code == 2
        assert fault in said
        assert not (tmp_path / "out.csv").exists()

    def test_a_report_that_does_not_fit_on_its_disk_is_named(self, tmp_path: Path) -> None:
        source = write_rows(tmp_path / "in.csv", "card")
        code, said, _ = penstock("classify", source, tmp_path / "out.csv", "--report", "/dev/full")
        assert code == 1
        assert said.endswith("Error: --report /dev/full cannot be written: No space left on device.\n")
        assert (tmp_path / "out.csv").exists()

    @pytest.mark.parametrize("more", [(), ("--dry-run",)])
    @pytest.mark.parametrize("report", ["in.csv", "data/in.csv", "out.csv", "link.csv"])
    def test_a_report_over_the_input_or_the_output_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, report: str, more: tuple[str, ...]
    ) -> None:
        monkeypatch.chdir(tmp_path)
        for source in ("in.csv", "data/in.csv"):
            write_rows(tmp_path / source, "card")
        (tmp_path / "link.csv").symlink_to("in.csv")
        before = (tmp_path / "in.csv").read_bytes()
        code, said, _ = penstock("classify", "in.csv", "data", "out.csv", "--report", report, *more)
        assert code == 2
        assert f"--report {report} is a file of the job; name another." in said
        assert (tmp_path / "in.csv").read_bytes() == (tmp_path / "data" / "in.csv").read_bytes() == before
        assert not (tmp_path / "out.csv").exists()


class TestInputs:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        folder = tmp_path / "data"
        write_rows(folder / "b.csv", "fee", "fee")
        write_rows(folder / "a.csv", "card", " ")
        (folder / "_SUCCESS.csv").write_text("")
        (folder / "notes.txt").write_text("of no table")
        return folder

    @pytest.mark.parametrize("given", [("data",), ("data/*.csv",), ("data/a.csv", "data/b.csv")])
    def test_several_files_become_one(
        self, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, given: tuple[str, ...]
    ) -> None:
        monkeypatch.chdir(tmp_path)
        code, said, _ = penstock("classify", *given, "data/out.csv")
        assert code == 1, said
        assert (folder / "out.csv").read_text().splitlines() == [
            "text,label,score,error",
            "card,card,0.5,",
            " ,,,empty: The text is empty.",
            "fee,fee,0.5,",
            "fee,fee,0.5,",
        ]

    @pytest.mark.parametrize("spelled", ["data/../data", "data/../data/*.csv"])
    def test_the_output_is_no_input_however_it_is_spelled(
        self, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, spelled: str
    ) -> None:
        monkeypatch.chdir(tmp_path)
        for _ in range(2):
            penstock("classify", "--overwrite", spelled, "data/out.csv")
            assert len((folder / "out.csv").read_text().splitlines()) == 5

    def test_the_error_of_a_row_names_its_file(self, tmp_path: Path, folder: Path) -> None:
        (folder / "b.csv").write_text("text\nfee,2\n")
        penstock("classify", folder, tmp_path / "out.csv")
        last = (tmp_path / "out.csv").read_text().splitlines()[-1]
        assert last == "fee,,,invalid_request: b.csv: Line 2 has 2 fields; the header has 1."

    def test_an_interrupted_job_over_a_directory_continues(
        self, tmp_path: Path, instant: type[InstantClient], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("a", "b", "c"):
            write_rows(tmp_path / "data" / f"{name}.csv", *CARDS[:7])
        instant.interrupt_at = 17
        assert penstock("classify", tmp_path / "data", tmp_path / "data" / "out.csv")[0] == 130
        instant.num_answered, instant.interrupt_at = 0, None
        assert penstock("classify", tmp_path / "data", tmp_path / "data" / "out.csv")[0] == 0
        assert instant.num_answered < 21
        assert len((tmp_path / "data" / "out.csv").read_text().splitlines()) == 22

    @pytest.mark.parametrize(
        ("given", "says"),
        [
            (("data", "data/other.jsonl"), "The files are of several formats: .csv, .jsonl. Give those of one."),
            (("data/a.csv", "other.csv"), "other.csv has other columns, or columns of other types, than data/a.csv."),
            (("empty",), "empty holds no table (.csv, .jsonl, .parquet)."),
            (("data/*.parquet",), "data/*.parquet matches no table"),
            (("-", "data/a.csv", "--format", "csv"), "Standard input is read alone, as csv or jsonl."),
            (("-",), "Standard input and output have no extension: give --format."),
        ],
    )
    def test_inputs_at_fault(
        self, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, given: tuple[str, ...], says: str
    ) -> None:
        (tmp_path / "empty").mkdir()
        (tmp_path / "other.csv").write_text("text,more\na,b\n")
        (folder / "other.jsonl").write_text('{"text": "a"}\n')
        monkeypatch.chdir(tmp_path)
        code, said, _ = penstock("classify", *given, "out.csv")
        assert code == 2
        assert says in said

    @pytest.mark.parametrize("given", ["data", "data/**/*.parquet"])
    @pytest.mark.parametrize("extension", ["csv", "parquet"])
    def test_directories_of_partitions_give_columns(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, extension: str
    ) -> None:
        """As pyarrow.dataset has them, in the order of the paths. Hidden directories are no data."""
        for number, folder in enumerate(("lang=de/day=3", "lang=en/day=21", "lang=a%20b/day=x", "_temporary/day=1")):
            (tmp_path / "data" / folder).mkdir(parents=True)
            pq.write_table(pa.table({"text": [f"card {number}"]}), tmp_path / "data" / folder / "part.parquet")
        monkeypatch.chdir(tmp_path)
        code, said, _ = penstock("classify", given, f"out.{extension}")
        assert code == 0, said
        assert [
            (row["text"], row["lang"], row["day"], row["label"]) for row in read_table(Path(f"out.{extension}"))
        ] == [
            ("card 2", "a b", "x", "card"),
            ("card 0", "de", "3", "card"),
            ("card 1", "en", "21", "card"),
        ]

    def test_a_partition_is_of_integers_or_null_and_a_column_of_the_file_is_kept(self, tmp_path: Path) -> None:
        for folder in ("day=3", "day=__HIVE_DEFAULT_PARTITION__"):
            (tmp_path / "id=9" / folder).mkdir(parents=True)
            pq.write_table(
                pa.table({"id": pa.array([5], pa.int32()), "text": ["card"]}), tmp_path / "id=9" / folder / "a.parquet"
            )
        code, said, _ = penstock("classify", tmp_path, tmp_path / "out.parquet")
        assert code == 0, said
        written = pq.read_table(tmp_path / "out.parquet")
        assert written.schema.names == ["id", "text", "day", "label", "score", "error"]
        assert written.select(["id", "day"]).to_pylist() == [{"id": 5, "day": 3}, {"id": 5, "day": None}]
        assert written.schema.field("day").type == pa.int32()

    def test_a_partition_of_another_type_than_the_files_column_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "id=9").mkdir()
        pq.write_table(pa.table({"id": ["x"], "text": ["card"]}), tmp_path / "id=9" / "a.parquet")
        code, said, _ = penstock("classify", tmp_path, tmp_path / "out.parquet")
        assert code == 2
        assert "The columns that directories give to" in said

    def test_a_table_with_a_log_is_no_directory_of_files(self, tmp_path: Path) -> None:
        (tmp_path / "metadata").mkdir()
        (tmp_path / "metadata" / "v1.metadata.json").write_text("{}")
        pq.write_table(pa.table({"text": ["removed since"]}), tmp_path / "part.parquet")
        code, said, _ = penstock("classify", tmp_path, tmp_path / "out.parquet")
        assert code == 2
        assert "v1.metadata.json: the metadata of the Iceberg table cannot be read" in said

    def test_parquet_files_of_other_types(self, tmp_path: Path) -> None:
        pq.write_table(pa.table({"text": ["a"], "n": [1]}), tmp_path / "a.parquet")
        pq.write_table(pa.table({"text": ["a"], "n": ["1"]}), tmp_path / "b.parquet")
        code, said, _ = penstock("classify", tmp_path / "a.parquet", tmp_path / "b.parquet", tmp_path / "out.parquet")
        assert code == 2
        assert "columns of other types" in said


class TestDeltaTables:
    @pytest.fixture
    def table(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """Three versions: 24 rows in files of 12, of which the last one deletes three."""
        monkeypatch.setattr(parquet_reader, "BLOCK_ROWS", 4)
        for rows in (CARDS[:12], CARDS[12:24]):
            deltalake.write_deltalake(tmp_path / "cards", pa.table({"text": rows}), mode="append")
        deltalake.DeltaTable(tmp_path / "cards").delete("text in ('card 1', 'card 5', 'card 20')")
        return tmp_path / "cards"

    def test_the_rows_are_those_of_the_present_version(self, tmp_path: Path, table: Path) -> None:
        code, said, _ = penstock("classify", table, tmp_path / "out.parquet")
        assert (code, f"Reading version 2 of {table}." in said) == (0, True), said
        written = pq.read_table(tmp_path / "out.parquet")
        assert sorted(written["text"].to_pylist()) == sorted({*CARDS[:24]} - {"card 1", "card 5", "card 20"})

    def test_a_job_is_continued_with_the_version_with_which_it_began(
        self, tmp_path: Path, table: Path, instant: type[InstantClient]
    ) -> None:
        assert penstock("classify", table, tmp_path / "undisturbed.parquet")[0] == 0
        instant.num_answered, instant.interrupt_at = 0, 20
        assert penstock("classify", table, tmp_path / "out.parquet")[0] == 130
        instant.num_answered, instant.interrupt_at = 0, None
        deltalake.write_deltalake(table, pa.table({"text": CARDS[24:]}), mode="append")
        deltalake.DeltaTable(table).delete("text = 'card 3'")
        code, said, _ = penstock("classify", table, tmp_path / "out.parquet")
        assert (code, f"Reading version 2 of {table}." in said) == (0, True), said
        assert (tmp_path / "out.parquet").read_bytes() == (tmp_path / "undisturbed.parquet").read_bytes()
        code, said, _ = penstock("classify", table, tmp_path / "new.parquet")
        assert (code, f"Reading version 4 of {table}." in said) == (0, True), said
        assert pq.read_metadata(tmp_path / "new.parquet").num_rows == 26

    def test_a_version_whose_files_are_gone_is_read_anew_if_it_is_asked_for(
        self, tmp_path: Path, table: Path, instant: type[InstantClient]
    ) -> None:
        instant.interrupt_at = 20
        assert penstock("classify", table, tmp_path / "out.parquet")[0] == 130
        instant.num_answered, instant.interrupt_at = 0, None
        deltalake.DeltaTable(table).delete("text = 'card 3'")
        deltalake.DeltaTable(table).vacuum(0, dry_run=False, enforce_retention_duration=False)
        code, said, _ = penstock("classify", table, tmp_path / "out.parquet")
        assert (code, "version 2 has lost part-" in said) == (2, True), said
        assert penstock("classify", table, tmp_path / "out.parquet", "--restart")[0] == 0
        assert pq.read_metadata(tmp_path / "out.parquet").num_rows == 20

    def test_deleted_rows_are_never_read_as_live(self, tmp_path: Path, table: Path) -> None:
        """As Spark deletes them: a file stays, with a vector of the rows of it that are gone."""
        log = table / "_delta_log"
        [added] = [
            json.loads(line)["add"]
            for line in (log / f"{1:020}.json").read_text().splitlines()
            if "add" in json.loads(line)
        ]
        vector = {
            "storageType": "i",
            "pathOrInlineDv": "wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L",
            "sizeInBytes": 40,
            "cardinality": 6,
        }
        features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
        actions = [
            {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}},
            {"add": added | {"deletionVector": vector}},
        ]
        (log / f"{3:020}.json").write_text("\n".join(map(json.dumps, actions)))
        code, said, _ = penstock("classify", table, tmp_path / "out.parquet")
        assert (code, "is a Delta table with deletionVectors: its files do not hold its rows" in said) == (2, True)

    def test_files_without_a_column_of_the_table_are_refused(self, tmp_path: Path, table: Path) -> None:
        column = deltalake.schema.Field("shop", deltalake.schema.PrimitiveType("string"))
        deltalake.DeltaTable(table).alter.add_columns(column)
        code, said, _ = penstock("classify", table, tmp_path / "out.parquet")
        assert (code, "was written before shop changed" in said) == (2, True), said

    def test_a_table_by_partitions_is_refused(self, tmp_path: Path) -> None:
        """Whose columns have the types of its log, and not those that the names of directories look like."""
        rows = pa.table({"text": ["card"], "shop": ["007"]})
        deltalake.write_deltalake(tmp_path / "cards", rows, partition_by=["shop"])
        code, said, _ = penstock("classify", tmp_path / "cards", tmp_path / "out.parquet")
        assert (code, "is a Delta table with partitions by shop" in said) == (2, True)

    def test_a_log_that_cannot_be_read_is_refused(self, tmp_path: Path, table: Path) -> None:
        (table / "_delta_log" / f"{3:020}.json").write_text("{")
        code, said, _ = penstock("classify", table, tmp_path / "out.parquet")
        assert (code, "the Delta log cannot be read" in said) == (2, True), said

    def test_a_log_of_a_checkpoint_alone_tells_the_rows(self, tmp_path: Path, table: Path) -> None:
        import deltalake

        deltalake.DeltaTable(table).create_checkpoint()
        for commit in (table / "_delta_log").glob("*.json"):
            commit.unlink()
        assert penstock("classify", table, tmp_path / "out.parquet")[0] == 0
        assert pq.read_metadata(tmp_path / "out.parquet").num_rows == 21

    @pytest.mark.parametrize("source", ["lake", "lake/**/*.parquet", "lake/*/*.parquet"])
    def test_files_of_a_table_below_a_directory_are_not_read_without_its_log(
        self, tmp_path: Path, table: Path, source: str
    ) -> None:
        (tmp_path / "lake").mkdir()
        table.rename(tmp_path / "lake" / "cards")
        code, said, _ = penstock("classify", tmp_path / source, tmp_path / "out.parquet")
        assert (code, f"{tmp_path / 'lake' / 'cards'} is a Delta table" in said) == (2, True), said

    def test_a_directory_may_have_a_name_with_spaces(self, tmp_path: Path, table: Path) -> None:
        spaced = table.rename(tmp_path / "my cards #1")
        assert penstock("classify", spaced, tmp_path / "out.parquet")[0] == 0
        assert pq.read_metadata(tmp_path / "out.parquet").num_rows == 21

    def test_a_directory_whose_name_would_be_read_as_that_of_another_is_refused(
        self, tmp_path: Path, table: Path
    ) -> None:
        """deltalake (1.6) opens c%61rds as cards."""
        copy = shutil.copytree(table, tmp_path / "c%61rds")
        code, said, _ = penstock("classify", copy, tmp_path / "out.parquet")
        assert (code, "deltalake takes % for an escape" in said) == (2, True), said

    def test_a_damaged_file_is_told(self, tmp_path: Path, table: Path) -> None:
        for file in table.glob("*.parquet"):
            file.write_bytes(b"none")
        code, said, _ = penstock("classify", table, tmp_path / "out.parquet")
        assert (code, "is not a Parquet file that can be read" in said) == (2, True), said


class TestStandardStreams:
    def test_from_one_to_the_other(self) -> None:
        code, said, out = penstock("classify", "-", "-", "--format", "jsonl", given=b'{"text": "card"}\n{"text": ""}\n')
        assert code == 1
        assert [json.loads(line)["label"] for line in out.splitlines()] == ["card", None]
        assert "2 rows, 1 failed" in said

    @pytest.mark.parametrize(
        ("form", "given", "says"),
        [
            ("csv", "", "Standard input is empty: a line of column names was expected."),
            ("csv", "\xff\n", "Standard input does not begin with column names in UTF-8."),
            ("csv", "a,b\n", "Standard input has no column 'text'. Its columns: a, b."),
            ("csv", "text,text\n", "Standard input has more than one column 'text'."),
            ("jsonl", "\n", "Standard input has no rows."),
        ],
    )
    def test_a_fault_of_standard_input_names_it(self, form: str, given: str, says: str) -> None:
        code, said, _ = penstock("classify", "-", "-", "--format", form, given=given.encode("latin-1"))
        assert code == 2
        assert f"Error: {says}" in said

    def test_an_interrupted_job_from_standard_input_keeps_nothing(
        self, tmp_path: Path, instant: type[InstantClient]
    ) -> None:
        instant.interrupt_at = 20
        given = "\n".join(("text", *CARDS)).encode()
        code, said, _ = penstock("classify", "-", tmp_path / "out.csv", "--format", "csv", given=given)
        assert code == 130
        assert "out.csv was not written." in said
        assert not (tmp_path / "out.csv.parts").exists()

    def test_a_closed_standard_output_is_no_bug(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        class Closed(io.BytesIO):
            def write(self, content: Any) -> int:
                raise BrokenPipeError(32, "Broken pipe")

        class Out:
            buffer = Closed()

        class System:
            stdout = Out()

        monkeypatch.setattr(file_job_command, "sys", System)
        source = write_rows(tmp_path / "in.csv", "card")
        code, said, _ = penstock("classify", source, "-", "--format", "jsonl")
        assert code == 1
        assert "Standard output cannot be written: Broken pipe." in said

    def test_a_full_disk_is_no_invalid_input(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(number: int) -> None:
            raise OSError(28, "No space left on device")

        source = write_rows(tmp_path / "in.csv", *CARDS)
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            code, said, _ = penstock("classify", source, tmp_path / "out.csv")
        assert code == 1
        assert "out.csv cannot be written: No space left on device." in said
        assert penstock("classify", source, tmp_path / "missing" / "out.csv")[0] == 2

    @pytest.mark.parametrize("extension", ["csv", "parquet"])
    @pytest.mark.parametrize("command", ["classify", "embed"])
    def test_no_rows_are_an_output_without_rows(self, tmp_path: Path, extension: str, command: str) -> None:
        source, target = tmp_path / f"in.{extension}", tmp_path / f"out.{extension}"
        if extension == "csv":
            source.write_text("id,text\n")
        else:
            pq.write_table(pa.table({"id": pa.array([], pa.int8()), "text": pa.array([], pa.string())}), source)
        code, said, _ = penstock(command, source, target, "--dry-run")
        assert (code, said.splitlines()[0]) == (0, "0 rows, 0 without a text that can be sent")
        code, said, _ = penstock(command, source, target)
        assert code == 0, said
        assert "0 rows, 0 failed" in said
        added = ["label", "score", "error"] if command == "classify" else ["embedding", "error"]
        if extension == "csv":
            assert target.read_bytes() == ",".join(["id", "text", *added]).encode() + b"\r\n"
        else:
            assert pq.read_table(target).schema.names == ["id", "text", *added]
            assert pq.read_metadata(target).num_rows == 0
        assert not (tmp_path / f"out.{extension}.parts").exists()

    def test_parquet_is_no_stream(self, tmp_path: Path) -> None:
        code, said, _ = penstock("classify", write_rows(tmp_path / "in.csv", "card"), "-", "--format", "parquet")
        assert code == 2
        assert "--format" in said


class TestOpenAi:
    REQUEST = '{"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": {"model": "m", "input": "card"}}\n'

    def test_a_batch_file_without_its_format_says_which(self, tmp_path: Path) -> None:
        (tmp_path / "in.jsonl").write_text(self.REQUEST)
        code, said, _ = penstock("embed", tmp_path / "in.jsonl", tmp_path / "out.jsonl")
        assert code == 2
        assert "OpenAI's batch files need --format openai." in said

    @pytest.mark.parametrize("command", ["classify", "generate", "rerank"])
    def test_other_commands_have_no_endpoint(self, tmp_path: Path, command: str) -> None:
        (tmp_path / "in.jsonl").write_text(self.REQUEST)
        code, said, _ = penstock(command, tmp_path / "in.jsonl", tmp_path / "out.jsonl", "--format", "openai")
        assert code == 2
        assert f"for the task embed, and not for {command}: of its endpoints, /v1/embeddings alone" in said
        assert not (tmp_path / "out.jsonl").exists()

    def test_a_dry_run_counts_inputs(self, tmp_path: Path) -> None:
        source = tmp_path / "in.jsonl"
        source.write_text(self.REQUEST * 2 + self.REQUEST.replace('"a"', '"b"').replace('"card"', '["card", "a fee"]'))
        code, said, _ = penstock("embed", source, tmp_path / "out.jsonl", "--format", "openai", "--dry-run")
        assert code == 0
        assert said.splitlines()[:2] == [
            "3 rows, 1 without a text that can be sent",
            "Characters: up to 4: 2, up to 8: 1",
        ]

    def test_from_standard_input_to_standard_output(self) -> None:
        given = self.REQUEST.replace("card", " ").encode()
        code, said, out = penstock("embed", "-", "-", "--format", "openai", given=given)
        assert code == 1, said
        assert json.loads(out)["response"]["body"]["error"]["message"] == "The text is empty."


class TestRerank:
    @pytest.mark.parametrize("extension", ["csv", "jsonl", "parquet"])
    def test_scores_of_pairs(self, tmp_path: Path, extension: str) -> None:
        rows = [{"query": "a", "passage": "bb"}, {"query": " ", "passage": "bb"}, {"query": "aa", "passage": "bb"}]
        source, target = write_table(tmp_path / f"in.{extension}", rows), tmp_path / f"out.{extension}"
        code, said, _ = penstock("rerank", source, target, "--document-column", "passage")
        assert code == 1, said
        written = read_table(target)
        assert list(written[0]) == ["query", "passage", "score", "error"]
        assert [row["score"] and float(row["score"]) for row in written] == [
            3.0,
            "" if extension == "csv" else None,
            4.0,
        ]
        assert written[1]["error"] == "empty: The text is empty."

    def test_without_files(self) -> None:
        code, said, _ = penstock("rerank")
        assert code == 2
        assert said == "Error: Give a file to read and a file to write.\n"


class TestDryRun:
    def test_without_a_cost_table(self, tmp_path: Path, instant: type[InstantClient]) -> None:
        source = write_rows(tmp_path / "in.csv", *CARDS, "x" * 100, "card,2")
        code, said, _ = penstock("classify", source, tmp_path / "out.csv", "--dry-run")
        assert code == 0
        path = tmp_path / "cache" / "penstock" / "costs.sqlite"
        assert said.splitlines() == [
            "32 rows, 1 without a text that can be sent",
            "Characters: up to 8: 30, up to 128: 1",
            f"No time is estimated: {path} has no cost table of 'm'. "
            "penstock calibrate --model CHECKPOINT --served-name m measures one.",
        ]
        assert instant.num_answered == 0
        assert not (tmp_path / "out.csv.parts").exists()

    def test_with_one(self, tmp_path: Path) -> None:
        second_a_batch = CostTable(PackedCost(1.0, 0.0, 0.0, 0.0), samples=(Sample.of([8, 8], 1.0),))
        costs = MeasuredCosts(second_a_batch, (), 1.0, 1.0, max_sequences=4, max_tokens=1024)
        tables = CostTables(tmp_path / "cache" / "penstock" / "costs.sqlite")
        for model in ("models/m", "other"):
            key = CostKey("a processor", model, "v1", "float32", "penstock")
            assert asyncio.run(tables.put(key, costs.to_dict()))
        source = write_rows(tmp_path / "in.csv", *CARDS[:28])
        _, said, _ = penstock("classify", source, tmp_path / "out.csv", "--dry-run")
        assert said.splitlines()[2:] == [
            "About 0:00:07 on one worker like a processor, float32, at 4 characters a token"
        ]

    @pytest.mark.parametrize("output", ["out.xlsx", "in.csv", "old.csv", "missing/out.csv"])
    def test_what_a_run_refuses_is_refused(self, tmp_path: Path, output: str) -> None:
        source = write_rows(tmp_path / "in.csv", *CARDS)
        (tmp_path / "old.csv").write_text("of another")
        code, said, _ = penstock("classify", source, tmp_path / output, "--dry-run")
        assert code == 2
        assert "rows" not in said
        assert penstock("classify", source, tmp_path / output)[0] == 2
        assert sorted(path.name for path in tmp_path.iterdir()) == ["in.csv", "old.csv"]
        if (tmp_path / output).exists():
            assert penstock("classify", source, tmp_path / output, "--dry-run", "--overwrite")[0] == 0

    def test_an_interrupted_job(self, tmp_path: Path, instant: type[InstantClient]) -> None:
        source, target = write_rows(tmp_path / "in.csv", *CARDS), tmp_path / "out.csv"
        instant.interrupt_at = 20
        penstock("classify", source, target)
        code, said, _ = penstock("classify", source, target, "--dry-run")
        assert code == 0
        assert "16 rows are finished; a run would continue after them." in said
        code, said, _ = penstock("classify", source, target, "--dry-run", "--truncate")
        assert code == 2
        assert "To discard them give --restart" in said

    def test_a_file_at_fault(self, tmp_path: Path) -> None:
        code, said, _ = penstock("classify", tmp_path / "in.csv", tmp_path / "out.csv", "--dry-run")
        assert code == 2
        assert "No such file" in said


class TestLocal:
    def test_without_java_one_sentence_says_so(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, instant: type[InstantClient]
    ) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.delenv("JAVA_HOME", raising=False)
        source = write_rows(tmp_path / "in.csv", "a")
        code, said, _ = penstock("classify", "--local", "--model", "org/m", source, tmp_path / "out.csv")
        assert code == 1
        assert "Error: A real Kafka broker cannot run here: Java 17 or newer is not installed" in said
        assert instant.num_answered == 0
        assert [path.name for path in tmp_path.iterdir()] == ["in.csv"]

    def test_another_broker_contradicts_it(self, tmp_path: Path) -> None:
        source = write_rows(tmp_path / "in.csv", "a")
        servers = ("--bootstrap-servers", "127.0.0.1:1")
        code, said, _ = penstock("classify", "--local", *servers, source, tmp_path / "out.csv")
        assert code == 2
        assert "--local starts its own Kafka: leave out --bootstrap-servers." in said

    def test_files_at_fault_are_found_before_anything_starts(self, tmp_path: Path) -> None:
        code, said, _ = penstock("classify", "--local", tmp_path / "in.csv", tmp_path / "out.csv")
        assert code == 2
        assert "Starting" not in said
