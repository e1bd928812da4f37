"""Bulk jobs over objects: a real S3 server, whose connections break, and the bytes of a job over local files."""

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import huggingface_hub
import obstore
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from obstore.store import S3Store

from penstock.producer.files import (
    JobOutput,
    TableError,
    object_path,
    object_store,
    open_reader,
    part_writer,
    row_blocks,
)
from penstock.producer.files.input_paths import input_paths
from penstock.producer.files.object_path import file_path
from penstock.producer.files.object_store import Bucket
from penstock.producer.files.row_blocks import StoreError
from penstock.producer.files.table_reader import count_rows
from penstock.producer.files.versioned_tables import table_versions
from tests.object_stores import Proxy, create_bucket, keys_of, s3_server, store_at
from tests.producer.table_files import write_table
from tests.producer.test_bulk_resume import EXTENSIONS, NUM_ROWS, Killed, embed, make_input, run
from tests.producer.test_bulk_resume import small_parts as small_parts  # for the jobs of this file too
from tests.producer.test_openai_batch import Vectors
from tests.producer.test_openai_batch import line as openai_line
from tests.producer.test_openai_batch import run_job as run_openai_job

SECRET = "not-to-be-shown"


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, int]]:
    with s3_server() as address:
        yield address


@pytest.fixture
def proxy(server: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """The way of the jobs to the server, which each test has for itself."""
    proxy = Proxy(server)
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.address)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setitem(object_store.RETRY, "max_retries", 3)
    object_store.open_store.cache_clear()
    yield proxy
    object_store.open_store.cache_clear()
    proxy.close()


@pytest.fixture
def store(server: tuple[str, int], proxy: Proxy) -> S3Store:
    """An empty bucket, seen by the test past the proxy."""
    create_bucket(server)
    store = store_at("http://{}:{}".format(*server))
    if keys := keys_of(store):
        obstore.delete(store, keys)
    return store


def given(store: S3Store, tmp_path: Path, extension: str, num_rows: int = NUM_ROWS) -> Path:
    """An input in the bucket."""
    source = make_input(tmp_path / f"in.{extension}", num_rows)
    obstore.put(store, f"data/in.{extension}", source)
    return file_path(f"s3://rows/data/in.{extension}")


def content(store: S3Store, key: str) -> bytes:
    return bytes(obstore.get(store, key).bytes())


def whole(tmp_path: Path, extension: str) -> bytes:
    """The bytes that an undisturbed job writes to a local file."""
    run(tmp_path / f"in.{extension}", tmp_path / f"whole.{extension}")
    return (tmp_path / f"whole.{extension}").read_bytes()


@pytest.mark.parametrize("extension", EXTENSIONS)
def test_a_job_over_objects_writes_the_bytes_of_one_over_files(tmp_path: Path, store: S3Store, extension: str) -> None:
    source, target = given(store, tmp_path, extension), file_path(f"s3://rows/deep/er/out.{extension}")
    assert run(source, target) == NUM_ROWS
    assert content(store, f"deep/er/out.{extension}") == whole(tmp_path, extension)
    assert keys_of(store) == [f"data/in.{extension}", f"deep/er/out.{extension}"]


class Writes:
    """Counts the writes to the store, and ends the process at one of them: from then on every one fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.num_calls = 0
        self.kill_at = float("inf")  # number of the call; a half is after it
        for name in ("upload", "replace", "delete"):
            monkeypatch.setattr(Bucket, name, self._wrapped(getattr(Bucket, name)))

    def _wrapped(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **options: Any) -> Any:
            if self.num_calls >= self.kill_at:
                raise Killed
            done = call(*args, **options)
            self.num_calls += 1
            if self.num_calls - 0.5 >= self.kill_at:
                raise Killed
            return done

        return wrapped


@pytest.mark.slow
@pytest.mark.parametrize("extension", EXTENSIONS)
def test_killed_at_any_write_and_continued_a_job_gives_the_same_bytes(
    tmp_path: Path, store: S3Store, monkeypatch: pytest.MonkeyPatch, extension: str
) -> None:
    """Nothing of the killed process is left on the disk: it may be another machine that continues."""
    source = given(store, tmp_path, extension)
    expected = whole(tmp_path, extension)
    writes = Writes(monkeypatch)
    run(source, file_path(f"s3://rows/out.{extension}"))
    num_calls = writes.num_calls
    assert num_calls >= 13
    redone = set()
    for half_calls in range(2 * num_calls):
        key = f"{half_calls}/out.{extension}"
        target = file_path(f"s3://rows/{key}")
        writes.num_calls, writes.kill_at = 0, half_calls / 2
        with pytest.raises(Killed):
            run(source, target)
        writes.kill_at = float("inf")
        manifest = f"{key}.parts/manifest.json"
        finished = json.loads(content(store, manifest))["report"]["rows"] if manifest in keys_of(store) else 0
        if key in keys_of(store) and not finished:  # all was done
            assert content(store, key) == expected
            continue
        assert run(source, target) == NUM_ROWS - finished
        assert content(store, key) == expected, half_calls
        assert [one for one in keys_of(store) if one.startswith(f"{half_calls}/")] == [key]
        redone.add(NUM_ROWS - finished)
    assert redone == {30, 22, 14, 6, 0}


class TestTwoProcesses:
    """Each runs the same job. What one does is between two blocks of the other."""

    @pytest.mark.parametrize("finished", [0, 1])
    def test_the_first_to_finish_a_part_continues(self, tmp_path: Path, store: S3Store, finished: int) -> None:
        """`finished`: parts of the one that ends."""
        source, target = given(store, tmp_path, "csv"), file_path("s3://rows/out.csv")

        def run_beside(source: Path, target: Path) -> None:
            with open_reader(source, "text") as reader, JobOutput(target, "embed").open(reader) as writer:
                for number, block in enumerate(reader):
                    if number == 2 * finished + 1:
                        with pytest.raises(KeyboardInterrupt):
                            run(source, target, after=12)
                    writer.write(block, [embed(text) for text in block.texts])

        with pytest.raises(TableError, match=r"^Another process writes s3://rows/out.csv.$"):
            run_beside(source, target)
        assert run(source, target) == NUM_ROWS - 8 * (finished + 1)
        assert content(store, "out.csv") == whole(tmp_path, "csv")
        assert keys_of(store) == ["data/in.csv", "out.csv"]

    def test_a_start_alone_ends_no_other_one(
        self, tmp_path: Path, store: S3Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source, target = given(store, tmp_path, "csv"), file_path("s3://rows/out.csv")
        with pytest.raises(KeyboardInterrupt):
            run(source, target, after=20)
        writes = Writes(monkeypatch)
        with pytest.raises(KeyboardInterrupt):
            run(source, target, after=0)
        assert writes.num_calls == 0

    def test_one_that_is_late_changes_no_output(self, tmp_path: Path, store: S3Store) -> None:
        source, target = given(store, tmp_path, "csv"), file_path("s3://rows/out.csv")
        with pytest.raises(TableError, match="Another process writes"):
            run(source, target, set_up=lambda writer: run(source, target))
        assert content(store, "out.csv") == whole(tmp_path, "csv")

    def test_a_write_whose_answer_was_lost_is_no_other_process(self, store: S3Store) -> None:
        bucket = Bucket("s3://rows")
        first = bucket.replace("manifest.json", b"1", None)
        assert first == bucket.replace("manifest.json", b"1", None)
        assert bucket.replace("manifest.json", b"2", None) is None
        second = bucket.replace("manifest.json", b"2", first)
        assert second
        assert second == bucket.replace("manifest.json", b"2", first)
        assert bucket.replace("manifest.json", b"3", first) is None


def test_an_upload_whose_last_answer_was_lost_is_done(tmp_path: Path, store: S3Store, proxy: Proxy) -> None:
    """Of a file of several chunks. The repeated request finds no upload that it could complete."""
    (tmp_path / "large").write_bytes(os.urandom(9 << 20))
    proxy.lost = b"<CompleteMultipartUploadRe"
    Bucket("s3://rows").upload("large", tmp_path / "large", "mark")
    assert proxy.lost == b""
    assert content(store, "large") == (tmp_path / "large").read_bytes()
    assert Bucket("s3://rows").mark_of("large") == "mark"


@pytest.mark.parametrize("extension", EXTENSIONS)
def test_a_connection_that_breaks_is_made_again(tmp_path: Path, store: S3Store, proxy: Proxy, extension: str) -> None:
    source, target = given(store, tmp_path, extension), file_path(f"s3://rows/out.{extension}")
    with open_reader(source, "text") as reader, JobOutput(target, "embed").open(reader) as writer:
        for block in reader:
            proxy.break_once(after_bytes=100)
            writer.write(block, [embed(text) for text in block.texts])
    assert proxy.num_broken > 3
    assert content(store, f"out.{extension}") == whole(tmp_path, extension)


@pytest.mark.slow
@pytest.mark.parametrize("extension", EXTENSIONS)
def test_a_store_that_is_lost_ends_the_job_which_continues_later(
    tmp_path: Path, store: S3Store, proxy: Proxy, extension: str
) -> None:
    """Lost after any number of bytes of its answers."""
    source = given(store, tmp_path, extension)
    expected = whole(tmp_path, extension)
    proxy.num_bytes = 0
    run(source, file_path(f"s3://rows/all/out.{extension}"))
    num_bytes = proxy.num_bytes
    for number in range(8):
        key = f"{number}/out.{extension}"
        proxy.bytes_left = num_bytes * number // 8
        with pytest.raises(
            StoreError, match=r"^s3://rows.*: the store does not answer as it should \(.*\)\.$"
        ) as caught:
            run(source, file_path(f"s3://rows/{key}"))
        assert SECRET not in "".join(traceback.format_exception(caught.value))
        proxy.bytes_left = float("inf")
        run(source, file_path(f"s3://rows/{key}"))
        assert content(store, key) == expected
        assert [one for one in keys_of(store) if one.startswith(f"{number}/")] == [key]


class TestRefusals:
    @pytest.fixture
    def source(self, tmp_path: Path, store: S3Store) -> Path:
        return given(store, tmp_path, "csv")

    def test_an_object_or_a_bucket_that_is_missing(self, source: Path) -> None:
        for url in ("s3://rows/none.csv", "s3://none/in.csv", "s3://none/in.parquet"):
            with pytest.raises(TableError, match=f"^{url} cannot be read: there is no such object or bucket.$"):
                open_reader(url, "text")
        with pytest.raises(
            TableError, match=r"^s3://none/out.csv cannot be written: there is no such object or bucket.$"
        ):
            run(source, file_path("s3://none/out.csv"))
        with pytest.raises(TableError, match=r"^s3://none: there is no such bucket\.$"):
            input_paths([file_path("s3://none/*.csv")], Path("out.csv"))

    @pytest.mark.parametrize(
        ("action", "key"), [("GetObject", "data/in.csv"), ("PutObject", "out.csv.parts/manifest.json")]
    )
    def test_a_store_that_denies_access(self, server: tuple[str, int], source: Path, action: str, key: str) -> None:
        create_bucket(server, denied=f"s3:{action}")
        try:
            with pytest.raises(TableError, match=f"^s3://rows/{key}: the store denies access") as caught:
                run(source, file_path("s3://rows/out.csv"))
            assert not isinstance(caught.value, StoreError)
            assert SECRET not in "".join(traceback.format_exception(caught.value))
        finally:
            create_bucket(server, denied="")

    def test_an_output_that_exists(self, source: Path, store: S3Store, tmp_path: Path) -> None:
        obstore.put(store, "out.csv", b"precious")
        target = file_path("s3://rows/out.csv")
        with pytest.raises(TableError, match=r"^s3://rows/out.csv exists already"):
            run(source, target)
        assert keys_of(store) == ["data/in.csv", "out.csv"]
        assert content(store, "out.csv") == b"precious"
        run(source, target, overwrite=True)
        assert content(store, "out.csv") == whole(tmp_path, "csv")

    def test_another_job_and_a_changed_input(self, source: Path, store: S3Store, tmp_path: Path) -> None:
        target = file_path("s3://rows/out.csv")
        with pytest.raises(KeyboardInterrupt):
            run(source, target, after=20)
        with pytest.raises(TableError, match=r"^s3://rows/out.csv.parts is of another job: its task is 'embed'"):
            run(source, target, "classify")
        obstore.put(store, "data/in.csv", content(store, "data/in.csv").replace(b"text 1\r", b"text 9\r"))
        with pytest.raises(TableError, match=r"s3://rows/data/in.csv has changed since it began. It holds 16 finished"):
            run(source, target)
        with open_reader(source, "text") as reader, pytest.raises(TableError, match="has changed since it began"):
            JobOutput(target, "embed").check(reader)
        assert run(source, target, restart=True) == NUM_ROWS

    def test_an_input_that_changes_while_it_is_read(self, source: Path, store: S3Store) -> None:
        with source.open("rb") as file:
            obstore.put(store, "data/in.csv", b"another")
            with pytest.raises(TableError, match=r"^s3://rows/data/in.csv has changed while it was read.$"):
                file.read(1)

    @pytest.mark.parametrize("damaged", [b"", b"{}", b"names"])
    def test_a_damaged_manifest(self, source: Path, store: S3Store, damaged: bytes) -> None:
        target, key = file_path("s3://rows/out.csv"), "out.csv.parts/manifest.json"
        with pytest.raises(KeyboardInterrupt):
            run(source, target, after=20)
        whole = json.loads(content(store, key))
        obstore.put(store, key, json.dumps({**whole, "names": []}).encode() if damaged == b"names" else damaged)
        with pytest.raises(
            TableError, match=r"^s3://rows/out.csv.parts/manifest.json is not the manifest .*--restart.$"
        ):
            run(source, target)
        assert run(source, target, restart=True) == NUM_ROWS
        assert keys_of(store) == ["data/in.csv", "out.csv"]

    def test_a_part_that_was_removed(self, source: Path, store: S3Store) -> None:
        with pytest.raises(KeyboardInterrupt):
            run(source, file_path("s3://rows/out.csv"), after=20)
        obstore.delete(store, next(key for key in keys_of(store) if "part-000001" in key))
        with pytest.raises(TableError, match=r"part-000001-\w+ was removed or changed."):
            run(source, file_path("s3://rows/out.csv"))

    @pytest.mark.parametrize(
        ("url", "says"),
        [
            (
                f"s3://key:{SECRET}@bucket/in.csv",
                "^The s3:// URL holds credentials. Give them in environment variables.$",
            ),
            (f"gs://{SECRET}@bucket/in.csv", "^The gs:// URL holds credentials."),
            ("s3://bucket", "is not the URL of an object: s3://bucket/key was expected"),
            ("s3:///in.csv", "is not the URL of an object"),
            ("s3://bucket/a//in.csv", "is not the URL of an object"),
            ("s3://bucket/a/../in.csv", "is not the URL of an object"),
        ],
    )
    def test_a_url_that_names_no_object(self, url: str, says: str) -> None:
        with pytest.raises(TableError, match=says) as caught:
            file_path(url)
        assert SECRET not in str(caught.value)

    @pytest.mark.parametrize("scheme", object_path.SCHEMES)
    def test_a_scheme_without_its_package(self, monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
        monkeypatch.setattr(object_store, "find_spec", lambda name: None)
        with pytest.raises(TableError, match=rf"^{scheme}:// needs .*: pip install 'penstock\[object-stores\]'$"):
            open_reader(f"{scheme}://another/in.csv", "text")


def test_a_folder_and_a_pattern(store: S3Store) -> None:
    for key in ("a/1.csv", "a/b/2.csv", "a/b/c/3.csv", "a/notes.txt", "a/_hidden.csv", "ab/4.csv", "a/b/[5].csv"):
        obstore.put(store, key, b"text\nhello\n")

    def found(url: str) -> list[str]:
        return [
            str(path).removeprefix("s3://rows/")
            for path in input_paths([file_path(url)], file_path("s3://rows/a/1.csv"))
        ]

    assert found("s3://rows/a") == ["a/b/2.csv", "a/b/[5].csv", "a/b/c/3.csv"]
    assert found("s3://rows/a/") == found("s3://rows/a/**/*.csv") == found("s3://rows/a")
    assert found("s3://rows/a/*/?.csv") == ["a/b/2.csv"]
    assert found("s3://rows/*/4.csv") == ["ab/4.csv"]
    with pytest.raises(TableError, match=r"^s3://rows/none/\*.csv matches no table"):
        found("s3://rows/none/*.csv")
    with pytest.raises(TableError, match=r"^s3://rows/none.csv cannot be read"):
        open_reader(input_paths([file_path("s3://rows/none.csv")], Path("out.csv")), "text")


@pytest.mark.parametrize("log", ["_delta_log/0.json", "metadata/v1.metadata.json"])
@pytest.mark.parametrize("given", ["a", "a/data", "a/data/b", "a/*/1.csv", "a/data/*.csv"])
def test_files_of_a_table_with_a_log_are_not_read_without_it(store: S3Store, log: str, given: str) -> None:
    obstore.put(store, f"a/data/{log}", b"{}")
    for key in ("a/data/1.csv", "a/data/b/2.csv"):
        obstore.put(store, key, b"text\nhello\n")
    with pytest.raises(TableError, match=r"^s3://rows/a/data is an? \w+ table, whose log says which files"):
        input_paths([file_path(f"s3://rows/{given}")], Path("out.csv"))
    (named,) = input_paths([file_path("s3://rows/a/data/1.csv")], Path("out.csv"))
    assert str(named) == "s3://rows/a/data/1.csv"


def test_rights_to_list_are_asked_for_where_there_are_files_to_find(
    store: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    obstore.put(store, "a/b/1.csv", b"text\nhello\n")
    listed, below = "a/b", Bucket.below

    def denied(bucket: Bucket, prefix: str) -> Any:
        if not listed or not prefix.startswith(listed):
            raise TableError("The store denies access.")
        return below(bucket, prefix)

    monkeypatch.setattr(Bucket, "below", denied)
    named, folder = file_path("s3://rows/a/b/1.csv"), file_path("s3://rows/a/b")
    assert input_paths([folder], Path("out.csv")) == [named]
    listed = ""
    assert table_versions([named], dict) == {}
    assert input_paths([named], Path("out.csv")) == [named]
    with pytest.raises(TableError, match="denies access"):
        table_versions([folder], dict)


def test_a_table_of_delta_is_refused(store: S3Store) -> None:
    obstore.put(store, "data/_delta_log/0.json", b"{}")
    with pytest.raises(TableError, match=r"^s3://rows/data is a Delta table in a store of objects, whose log is not"):
        table_versions([file_path("s3://rows/data")], dict)


@pytest.mark.parametrize("given", ["", "/*/*/*.parquet", "/**/*.parquet"])
def test_folders_of_partitions_give_the_rows_of_local_ones(tmp_path: Path, store: S3Store, given: str) -> None:
    keys = ("lang=de/day=3", "lang=a%20b/day=__HIVE_DEFAULT_PARTITION__", "_temporary/day=1", "_lang=x/day=4")
    for number, key in enumerate(keys):
        (tmp_path / "data" / key).mkdir(parents=True)
        part = write_table(tmp_path / "data" / key / "1.parquet", [{"text": f"card {number}"}])
        obstore.put(store, f"data/{key}/1.parquet", part)

    def rows(folder: Path) -> Any:
        with open_reader(input_paths([folder / given.lstrip("/")], Path("out.parquet")), "text") as reader:
            sources: list[Any] = [block.source for block in reader]
            return reader.schema, [row for source in sources for row in source.to_pylist()]

    schema, found = rows(file_path("s3://rows/data"))
    assert (schema, found) == rows(tmp_path / "data")
    assert {"text": "card 1", "lang": "a b", "day": None, "_lang": None} in found
    assert len(found) == 3


def num_parts(store: S3Store, output: str) -> int:
    return len(json.loads(content(store, f"{output}.parts/manifest.json"))["parts"])


def test_openais_batch_files_are_continued(tmp_path: Path, store: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_blocks, "BLOCK_ROWS", 4)
    monkeypatch.setattr(part_writer, "PART_ROWS", 4)
    run_openai_job(tmp_path, *[openai_line(str(number % 19), input="a" * (1 + number)) for number in range(25)])
    obstore.put(store, "batch/in.jsonl", tmp_path / "in.jsonl")
    for client in (Vectors(0), Vectors(3), Vectors(9, lambda: num_parts(store, "batch/out.jsonl") == 2)):
        with pytest.raises(KeyboardInterrupt):
            run_openai_job(file_path("s3://rows/batch"), client=client)
    assert run_openai_job(file_path("s3://rows/batch")).rows < 25  # the rest is kept
    assert content(store, "batch/out.jsonl") == (tmp_path / "out.jsonl").read_bytes()
    assert keys_of(store) == ["batch/in.jsonl", "batch/out.jsonl"]


MEASURED_JOB = """
import asyncio, resource, sys
import numpy as np
from penstock.producer.files import JobOutput, join_parts, object_store, open_reader, part_writer
from penstock.producer.files.file_job import run_bulk
from penstock.producer.files.input_paths import input_paths
from penstock.producer.files.object_path import file_path

part_writer.PART_ROWS, join_parts.ROW_GROUP_ROWS = 2048, 4096
object_store._CHUNK_BYTES = 5 << 20

class Instant:
    async def map(self, task, texts, **options):
        await asyncio.sleep(0)
        return [np.zeros(256, dtype=np.float32)] * len(texts)

async def run(source, target):
    with open_reader(source, "text") as reader, JobOutput(file_path(target), "embed").open(reader) as writer:
        await run_bulk(Instant(), "embed", reader, writer)

asyncio.run(run(*sys.argv[1:]))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10)
"""


@pytest.mark.slow
def test_eight_times_the_rows_take_no_more_memory(
    tmp_path: Path, store: S3Store, server: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the whole process, which differs by 110 MiB from run to run. The larger job has 215 MB of vectors more."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://{}:{}".format(*server))
    peaks_mib = []
    for num_rows in (30_000, 240_000):
        source = make_input(tmp_path / "in.parquet", num_rows)
        obstore.put(store, "in.parquet", source)
        job = [sys.executable, "-c", MEASURED_JOB, "s3://rows/in.parquet", f"s3://rows/{num_rows}.parquet"]
        peaks_mib.append(int(subprocess.run(job, capture_output=True, check=True, text=True).stdout))
    assert peaks_mib[1] < peaks_mib[0] + 160, peaks_mib


@pytest.mark.parametrize("extension", ["csv", "jsonl"])
def test_text_is_read_in_few_requests(tmp_path: Path, store: S3Store, proxy: Proxy, extension: str) -> None:
    """The server has a connection for each request."""
    source = given(store, tmp_path, extension, 20_000)
    assert source.stat().st_size > 300_000
    before = proxy.num_connections
    with open_reader(source, "text") as reader:
        assert sum(len(block.texts) for block in reader) == 20_000
    assert proxy.num_connections - before < 10


def test_rows_are_counted_where_that_reads_no_text(tmp_path: Path, store: S3Store) -> None:
    assert count_rows(given(store, tmp_path, "parquet")) == NUM_ROWS
    assert count_rows(given(store, tmp_path, "csv")) is None


class TestHuggingFace:
    @pytest.fixture
    def hub(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryFileSystem]:
        """A file system in memory in place of Hugging Face's: no other machine is asked."""
        hub = fsspec.filesystem("memory", skip_instance_cache=True)
        monkeypatch.setattr(huggingface_hub, "HfFileSystem", lambda: hub)
        object_store.open_store.cache_clear()
        yield hub
        object_store.open_store.cache_clear()
        hub.store.clear()

    def test_a_data_set_is_read(self, tmp_path: Path, hub: MemoryFileSystem) -> None:
        for extension in EXTENSIONS:
            source = make_input(tmp_path / f"in.{extension}")
            hub.pipe(f"datasets/one/cards@main/data/in.{extension}", source.read_bytes())
            (path,) = input_paths([file_path(f"hf://datasets/one/cards@main/**/*.{extension}")], tmp_path / "out")
            assert str(path) == f"hf://datasets/one/cards@main/data/in.{extension}"
            run(path, tmp_path / f"out.{extension}")
            assert (tmp_path / f"out.{extension}").read_bytes() == whole(tmp_path, extension)

    def test_faults_of_the_hub(self, hub: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(TableError, match=r"^hf://datasets/one/none/in.csv cannot be read: there is no such object"):
            open_reader("hf://datasets/one/none/in.csv", "text")
        hub.pipe("datasets/one/cards/in.csv", b"text\nhello\n")
        with pytest.raises(TableError, match=r"hf:// is read only, as each write is a commit"):
            run(file_path("hf://datasets/one/cards/in.csv"), file_path("hf://datasets/one/cards/out.csv"))

        def fail(*args: Any, **options: Any) -> None:
            raise ConnectionError(f"https://hub/in.csv?token={SECRET}")

        monkeypatch.setattr(hub, "open", fail)
        with pytest.raises(StoreError, match=r"^hf://.*/in.csv: .*\(ConnectionError\)\.$"):
            open_reader("hf://datasets/one/cards/in.csv", "text")


def test_a_local_job_loads_no_library_of_stores(tmp_path: Path) -> None:
    assert isinstance(file_path("in.csv"), Path)
    assert not isinstance(file_path("in.csv"), object_path.ObjectPath)
    assert file_path("c://in.csv") == Path("c:/in.csv")
