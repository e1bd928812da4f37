"""Jobs over tables of Iceberg, made by pyiceberg: the rows are those of its own scan, or the job is refused."""

import gzip
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fastavro
import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from obstore.store import S3Store
from pyarrow.fs import FileSystem, LocalFileSystem, SubTreeFileSystem
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import ListType, LongType, StringType

from penstock.producer.files import iceberg_table
from tests.ops.test_cli_file_jobs import CARDS, InstantClient, penstock
from tests.ops.test_cli_file_jobs import instant as instant  # a client that answers
from tests.ops.test_cli_object_jobs import server as server
from tests.ops.test_cli_object_jobs import store as store

SCHEMA = pa.schema([("id", pa.int32()), ("text", pa.string()), ("shop", pa.string())])


def some_rows(first: int, end: int) -> pa.Table:
    rows = [{"id": number, "text": CARDS[number], "shop": f"00{number % 3}"} for number in range(first, end)]
    return pa.Table.from_pylist(rows, SCHEMA)


def catalog_at(tmp_path: Path, warehouse: str, **settings: str) -> SqlCatalog:
    catalog = SqlCatalog("tests", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=warehouse, **settings)
    catalog.create_namespace("shop")
    return catalog


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[SqlCatalog]:
    catalog = catalog_at(tmp_path, f"file://{tmp_path}/lake")
    yield catalog
    catalog.close()


@pytest.fixture
def table(catalog: SqlCatalog) -> Table:
    """24 rows in two files, of which three are then deleted."""
    table = catalog.create_table("shop.cards", SCHEMA)
    for first in (0, 12):
        table.append(some_rows(first, first + 12))
    table.delete("id in (1, 5, 20)")
    return hinted(table)


def hinted(table: Table) -> Table:
    """The table, whose directory says which of its files of metadata is the present one."""
    name = Path(table.metadata_location).name
    (folder_of(table) / "metadata" / "version-hint.text").write_text(name.removesuffix(".metadata.json"))
    return table


def folder_of(table: Table) -> Path:
    return Path(table.location().removeprefix("file://"))


def snapshot_of(table: Table) -> int:
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return snapshot.snapshot_id


def sorted_rows(rows: pa.Table, table: Table) -> list[dict[str, Any]]:
    columns = [field.name for field in table.schema().fields]
    return sorted(rows.select(columns).to_pylist(), key=lambda row: int(row["id"]))


def assert_read(table: Table, source: str | Path, target: Path) -> None:
    code, said, _ = penstock("classify", source, target)
    assert (code, f"Reading version {snapshot_of(table)} of {source}." in said) == (0, True), said
    assert sorted_rows(pq.read_table(target), table) == sorted_rows(table.scan().to_arrow(), table)


def assert_refused(source: str | Path, says: str, target: Path) -> None:
    code, said, _ = penstock("classify", source, target)
    assert (code, says in said) == (2, True), said
    assert not target.exists()


def test_the_rows_are_those_of_the_present_snapshot(tmp_path: Path, table: Table) -> None:
    assert_read(table, folder_of(table), tmp_path / "out.parquet")
    assert pq.read_metadata(tmp_path / "out.parquet").num_rows == 21


def test_a_file_of_metadata_is_its_table_at_that_time(tmp_path: Path, table: Table) -> None:
    then = table.metadata_location.removeprefix("file://")
    assert_read(table, then, tmp_path / "out.parquet")
    table.append(some_rows(24, 30))
    assert penstock("classify", then, tmp_path / "then.parquet")[0] == 0
    assert (tmp_path / "then.parquet").read_bytes() == (tmp_path / "out.parquet").read_bytes()
    assert_read(table, table.metadata_location.removeprefix("file://"), tmp_path / "now.parquet")


def test_rows_that_were_overwritten_are_gone(tmp_path: Path, table: Table) -> None:
    table.overwrite(some_rows(24, 30))
    assert_read(hinted(table), folder_of(table), tmp_path / "out.parquet")
    assert pq.read_metadata(tmp_path / "out.parquet").num_rows == 6


def test_partitions_give_no_columns_of_their_own(tmp_path: Path, catalog: SqlCatalog) -> None:
    """Their columns are in the files, with the types of the table: 001 is no integer."""
    table = catalog.create_table("shop.cards", SCHEMA)
    with table.update_spec() as spec:
        spec.add_field("shop", IdentityTransform(), "branch")
    table.append(some_rows(0, 12))
    assert any("branch=001" in str(file) for file in folder_of(table).rglob("*.parquet"))
    assert_read(hinted(table), folder_of(table), tmp_path / "out.parquet")
    assert pq.read_schema(tmp_path / "out.parquet").names[:3] == SCHEMA.names
    assert "branch" not in pq.read_schema(tmp_path / "out.parquet").names
    with table.update_spec() as spec:
        spec.remove_field("branch")
        spec.add_identity("id")
    table.append(some_rows(12, 20))
    table.delete("shop = '002'")
    assert_read(hinted(table), folder_of(table), tmp_path / "evolved.parquet")


class TestContinuation:
    def test_a_job_is_continued_with_the_snapshot_with_which_it_began(
        self, tmp_path: Path, table: Table, instant: type[InstantClient]
    ) -> None:
        began = snapshot_of(table)
        assert penstock("classify", folder_of(table), tmp_path / "undisturbed.parquet")[0] == 0
        instant.num_answered, instant.interrupt_at = 0, 14
        assert penstock("classify", folder_of(table), tmp_path / "out.parquet")[0] == 130
        instant.num_answered, instant.interrupt_at = 0, None
        table.append(some_rows(24, 30))
        table.delete("id = 3")
        with table.update_schema() as schema:
            schema.add_column("price", LongType())
        hinted(table)
        code, said, _ = penstock("classify", folder_of(table), tmp_path / "out.parquet")
        assert (code, f"Reading version {began} of {folder_of(table)}." in said) == (0, True), said
        assert "finished rows" in said
        assert (tmp_path / "out.parquet").read_bytes() == (tmp_path / "undisturbed.parquet").read_bytes()

    @pytest.mark.parametrize(("is_expired", "says"), [(True, "has lost version"), (False, "cannot be read")])
    def test_a_snapshot_that_is_gone_is_read_anew_if_it_is_asked_for(
        self, tmp_path: Path, table: Table, instant: type[InstantClient], is_expired: bool, says: str
    ) -> None:
        began = table.current_snapshot()
        assert began is not None
        instant.interrupt_at = 14
        assert penstock("classify", folder_of(table), tmp_path / "out.parquet")[0] == 130
        instant.num_answered, instant.interrupt_at = 0, None
        table.delete("id = 3")
        if is_expired:
            table.maintenance.expire_snapshots().by_id(began.snapshot_id).commit()
        else:
            Path(began.manifest_list.removeprefix("file://")).unlink()
        hinted(table)
        assert_refused(folder_of(table), says, tmp_path / "out.parquet")
        assert penstock("classify", folder_of(table), tmp_path / "out.parquet", "--restart")[0] == 0
        assert pq.read_metadata(tmp_path / "out.parquet").num_rows == 20


class TestPlainFiles:
    """What a table's files are without its log: rows that were deleted, beside those that took their place."""

    @pytest.mark.parametrize("has_library", [True, False])
    @pytest.mark.parametrize(
        "source", ["lake", "lake/shop", "lake/**/*.parquet", "lake/shop/cards/data", "lake/shop/cards/data/*.parquet"]
    )
    def test_they_are_not_read(
        self, tmp_path: Path, table: Table, monkeypatch: pytest.MonkeyPatch, source: str, has_library: bool
    ) -> None:
        if not has_library:
            monkeypatch.setattr(iceberg_table, "find_spec", lambda name: None)
        says = f"{folder_of(table)} is an Iceberg table, whose log says which files are its rows. Name it itself."
        assert_refused(tmp_path / source, says, tmp_path / "out.parquet")

    def test_they_are_not_read_by_another_name_of_their_directory(
        self, tmp_path: Path, table: Table, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "link").symlink_to(folder_of(table) / "data")
        assert_refused(tmp_path / "link", "is an Iceberg table, whose log", tmp_path / "out.parquet")
        monkeypatch.chdir(folder_of(table) / "data")
        assert_refused(".", "is an Iceberg table, whose log", tmp_path / "out.parquet")

    @pytest.mark.parametrize("name", ["", "metadata/{}"])
    def test_without_its_library_a_table_is_refused(
        self, tmp_path: Path, table: Table, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        monkeypatch.setattr(iceberg_table, "find_spec", lambda name: None)
        source = folder_of(table) / name.format(Path(table.metadata_location).name)
        assert_refused(source, "which needs pyiceberg: pip install 'penstock[iceberg]'", tmp_path / "out.parquet")

    def test_one_that_is_named_itself_is_a_file(self, tmp_path: Path, table: Table) -> None:
        (first, *_) = sorted(folder_of(table).rglob("*.parquet"))
        assert penstock("classify", first, tmp_path / "out.parquet")[0] == 0


def rewrite_avro(path: str, change: Callable[[dict[str, Any]], object]) -> None:
    file = Path(path.removeprefix("file://"))
    with file.open("rb") as content:
        reader = fastavro.reader(content)
        records: list[Any] = list(reader)
        schema, facts = reader.writer_schema, {k: v for k, v in reader.metadata.items() if not k.startswith("avro.")}
    assert schema is not None
    for record in records:
        change(record)
    with file.open("wb") as content:
        fastavro.writer(content, schema, records, metadata=facts)


def rewrite_metadata(table: Table, **facts: object) -> None:
    file = Path(table.metadata_location.removeprefix("file://"))
    file.write_text(json.dumps(json.loads(file.read_text()) | facts))


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({"content": 1}, "with position deletes beside its files: its files do not hold its rows as they are"),
        ({"content": 2}, "with equality deletes beside its files"),
        ({"file_format": "AVRO"}, "with files of AVRO"),
        ({"file_format": "ORC"}, "with files of ORC"),
        ({"key_metadata": b"key"}, "with encryption"),
        ({"file_path": "hdfs://names/cards.parquet"}, "hdfs://names/cards.parquet is in a store that is not read"),
        ({"file_path": "file://other/cards.parquet"}, "is not a file of this machine"),
        ({"file_path": "/none/cards.parquet"}, "has lost cards.parquet"),
    ],
)
def test_files_that_do_not_hold_the_rows_are_refused(
    tmp_path: Path, table: Table, facts: dict[str, object], says: str
) -> None:
    snapshot = table.current_snapshot()
    assert snapshot is not None
    (manifest, *_) = snapshot.manifests(table.io)
    rewrite_avro(manifest.manifest_path, lambda entry: entry["data_file"].update(facts))
    assert_refused(folder_of(table), says, tmp_path / "out.parquet")


def test_a_newer_format_is_refused(tmp_path: Path, table: Table) -> None:
    rewrite_metadata(table, **{"format-version": 3, "next-row-id": 0})
    assert_refused(folder_of(table), "is an Iceberg table with format version 3", tmp_path / "out.parquet")


class TestColumns:
    def test_files_without_a_column_that_was_added_have_nulls(
        self, tmp_path: Path, table: Table, instant: type[InstantClient]
    ) -> None:
        with table.update_schema() as schema:
            schema.add_column("price", LongType())
        table.append(some_rows(24, 27).append_column("price", pa.array([7, None, 9])))
        with table.update_schema() as schema:
            schema.add_column("tags", ListType(9, StringType(), False))
            schema.add_column("town", StringType())
        instant.interrupt_at = 14
        table.append(some_rows(27, 30).append_column("town", pa.array(["Rome", None, "Oslo"])))
        assert penstock("classify", folder_of(hinted(table)), tmp_path / "out.parquet")[0] == 130
        instant.num_answered, instant.interrupt_at = 0, None
        assert_read(table, folder_of(table), tmp_path / "out.parquet")
        names = ["id", "text", "shop", "price", "tags", "town", "label"]
        assert pq.read_schema(tmp_path / "out.parquet").names[:7] == names
        assert pq.read_table(tmp_path / "out.parquet")["town"].null_count == 25

    @pytest.mark.parametrize("change", ["add", "rename", "drop", "promote", "move"])
    @pytest.mark.parametrize("is_written_since", [True, False])
    def test_files_with_other_columns_than_the_table_are_refused(
        self, tmp_path: Path, table: Table, change: str, is_written_since: bool
    ) -> None:
        with table.update_schema(allow_incompatible_changes=True) as schema:
            match change:
                case "add":
                    schema.add_column("price", LongType())
                    schema.move_first("price")
                case "rename":
                    schema.rename_column("shop", "branch")
                case "drop":
                    schema.delete_column("shop")
                case "promote":
                    schema.update_column("id", LongType())
                case _:
                    schema.move_first("text")
        if is_written_since:
            arrow = table.schema().as_arrow()
            table.append(pa.table({field.name: pa.nulls(1, field.type) for field in arrow}, arrow))
        says = "was written before columns changed" if is_written_since else "columns have changed since rows were last"
        assert_refused(folder_of(hinted(table)), says, tmp_path / "out.parquet")

    def test_a_column_that_a_file_may_leave_to_its_partition_is_not_null(self, tmp_path: Path, table: Table) -> None:
        with table.update_schema() as schema:
            schema.add_column("town", StringType())
        with table.update_spec() as spec:
            spec.add_identity("town")
        table.append(some_rows(24, 27).append_column("town", pa.array(["Rome", None, "Oslo"])))
        assert_refused(folder_of(hinted(table)), "and the table id, text, shop, town", tmp_path / "out.parquet")

    def test_a_column_that_took_the_name_of_another_does_not_have_its_values(
        self, tmp_path: Path, table: Table
    ) -> None:
        with table.update_schema(allow_incompatible_changes=True) as schema:
            schema.delete_column("shop")
        with table.update_schema() as schema:
            schema.add_column("shop", StringType())
        table.append(some_rows(24, 30))
        assert_refused(
            folder_of(hinted(table)),
            "by name, id and type it has id, text, shop, and the table id, text, shop",
            tmp_path / "out.parquet",
        )


class TestMetadata:
    def test_the_present_one_is_not_guessed(self, tmp_path: Path, table: Table) -> None:
        folder = folder_of(table)
        (folder / "metadata" / "version-hint.text").unlink()
        assert_refused(
            folder, "files of metadata, of which its catalog knows the present one", tmp_path / "out.parquet"
        )

    def test_metadata_by_the_name_that_compressed_ones_had_is_not_passed_over(
        self, tmp_path: Path, table: Table
    ) -> None:
        """The older file, read alone, has rows that were deleted since."""
        present = Path(table.metadata_location.removeprefix("file://"))
        old = sorted(present.parent.glob("*.metadata.json"))[-2]
        for other in set(present.parent.glob("*.metadata.json")) - {present, old}:
            other.unlink()
        (present.parent / "version-hint.text").unlink()
        present.with_name(f"{present.name}.gz").write_bytes(gzip.compress(present.read_bytes()))
        present.unlink()
        assert_refused(folder_of(table), "with 2 files of metadata", tmp_path / "out.parquet")

    def test_a_hint_that_is_older_than_its_directory_is_refused(self, tmp_path: Path, table: Table) -> None:
        table.append(some_rows(24, 30))
        assert_refused(folder_of(table), "version-hint.text says", tmp_path / "out.parquet")

    @pytest.mark.parametrize("compressed", ["", ".gz"])
    def test_a_hint_may_be_a_number(self, tmp_path: Path, table: Table, compressed: str) -> None:
        """As Hadoop's tables have it."""
        folder = folder_of(table) / "metadata"
        present = Path(table.metadata_location.removeprefix("file://"))
        content = present.read_bytes()
        present.unlink()
        named = folder / f"v12{compressed}.metadata.json"
        named.write_bytes(gzip.compress(content) if compressed else content)
        (folder / "version-hint.text").write_text("12\n")
        assert_read(table, folder_of(table), tmp_path / "out.parquet")

    def test_a_table_that_was_moved_or_copied_is_refused(self, tmp_path: Path, table: Table) -> None:
        copy = shutil.copytree(folder_of(table), tmp_path / "copy")
        assert_refused(copy, f"is of a table at {table.location()}", tmp_path / "out.parquet")
        folder_of(table).rename(tmp_path / "moved")
        assert_refused(tmp_path / "moved", "A table that was moved or copied is not read", tmp_path / "out.parquet")

    @pytest.mark.parametrize("content", ["", "{}", "[]", '{"format-version": 9}'])
    def test_one_that_cannot_be_read_is_refused(self, tmp_path: Path, table: Table, content: str) -> None:
        Path(table.metadata_location.removeprefix("file://")).write_text(content)
        assert_refused(folder_of(table), "the metadata of the Iceberg table cannot be read", tmp_path / "out.parquet")

    def test_a_table_without_rows_is_refused(self, tmp_path: Path, catalog: SqlCatalog) -> None:
        empty = catalog.create_table("shop.none", SCHEMA)
        assert_refused(folder_of(empty), "without a snapshot, and so without rows", tmp_path / "out.parquet")
        empty.append(some_rows(0, 3))
        empty.delete("id >= 0")
        assert_refused(folder_of(hinted(empty)), "has no rows in version", tmp_path / "out.parquet")

    def test_a_damaged_file_is_told(self, tmp_path: Path, table: Table) -> None:
        for file in folder_of(table).rglob("*.parquet"):
            file.write_bytes(b"none")
        assert_refused(folder_of(table), "is not a Parquet file that can be read", tmp_path / "out.parquet")


class LocalBucket(PyArrowFileIO):
    """Objects as files, which moto has not taken of pyarrow's uploads in parts."""

    def _initialize_fs(self, scheme: str, netloc: str | None = None) -> FileSystem:
        return SubTreeFileSystem(self.properties["root"], LocalFileSystem())


def test_a_table_in_a_store_of_objects(tmp_path: Path, store: S3Store, instant: type[InstantClient]) -> None:
    local = {"py-io-impl": f"{__name__}.LocalBucket", "root": str(tmp_path / "s3")}
    for name in ("data", "metadata"):
        (tmp_path / "s3" / "rows" / "lake" / "shop" / "cards" / name).mkdir(parents=True)
    catalog = catalog_at(tmp_path, "s3://rows/lake", **local)
    table = catalog.create_table("shop.cards", SCHEMA)
    table.append(some_rows(0, 12))
    table.delete("id in (1, 5)")
    for file in (tmp_path / "s3" / "rows").rglob("*.*"):
        obstore.put(store, str(file.relative_to(tmp_path / "s3" / "rows")), file)
    for source in ("lake", "lake/shop/cards/data", "lake/shop/*/*/*.parquet", "lake/shop/cards/data/*.parquet"):
        assert_refused(f"s3://rows/{source}", "s3://rows/lake/shop/cards is an Iceberg", tmp_path / "out.parquet")
    assert_refused("s3://rows/lake/shop/cards", "Name that file", tmp_path / "out.parquet")
    instant.interrupt_at = 8
    assert penstock("classify", table.metadata_location, tmp_path / "out.parquet")[0] == 130
    instant.num_answered, instant.interrupt_at = 0, None
    assert_read(table, table.metadata_location, tmp_path / "out.parquet")
    obstore.put(store, "lake/shop/cards/metadata/version-hint.text", Path(table.metadata_location).name.encode())
    assert_read(table, "s3://rows/lake/shop/cards", tmp_path / "hinted.parquet")
    catalog.close()
