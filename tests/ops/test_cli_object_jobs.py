"""`penstock classify s3://… s3://…`: faults are found before Kafka is asked, and another process continues a job."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import obstore
import pytest
from obstore.store import S3Store

from penstock.producer.files import object_store, row_blocks
from tests.object_stores import create_bucket, keys_of, s3_server, store_at
from tests.ops.test_cli_jobs import KILLED_AFTER_A_PART, classify
from tests.ops.test_cli_jobs import served as served  # a worker that answers

SECRET = "not-to-be-shown"


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, int]]:
    with s3_server() as address:
        create_bucket(address)
        yield address


@pytest.fixture
def store(server: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Store]:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    address = "http://{}:{}".format(*server)
    monkeypatch.setenv("AWS_ENDPOINT_URL", address)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    object_store.open_store.cache_clear()
    yield store_at(address)
    object_store.open_store.cache_clear()


class TestFaults:
    def test_they_are_found_before_kafka_is_asked(self, store: S3Store, tmp_path: Path) -> None:
        """A client of this address would wait without end."""
        obstore.put(store, "in.csv", b"text\nhello\n")
        for args, said in (
            (
                ("s3://rows/none.csv", "out.csv"),
                "s3://rows/none.csv cannot be read: there is no such object or bucket.",
            ),
            (("s3://rows/in.csv", "s3://none/o.csv"), "s3://none/o.csv cannot be written: there is no such object or"),
            (
                ("s3://rows/in.csv", "s3://rows/o.csv", "--column", "b"),
                "s3://rows/in.csv has no column 'b'. Its columns",
            ),
            (("s3://rows/in.csv", "s3://rows/in.csv"), "s3://rows/in.csv exists already. Choose another name"),
            (("s3://rows/in.csv", "hf://datasets/one/cards/out.csv"), "hf:// is read only"),
            ((f"s3://key:{SECRET}@rows/in.csv", "out.csv"), "holds credentials."),
        ):
            code, shown = classify(*args)
            words = " ".join(shown.replace("│", " ").split())
            assert (code, said in words, SECRET in shown) == (2, True, False), shown
        assert keys_of(store) == ["in.csv"]

    def test_a_store_that_does_not_answer_is_no_fault_of_the_command(
        self, store: S3Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(object_store.RETRY, "max_retries", 1)
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
        code, said = classify("s3://rows/in.csv", "s3://rows/out.csv")
        assert code == 1
        assert said.startswith("Error: s3://rows/in.csv: the store does not answer as it should (HTTP error: ")
        assert SECRET not in said


@pytest.mark.slow
def test_a_job_killed_three_times_gives_the_bytes_of_an_undisturbed_one_over_files(
    served: str, store: S3Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each process has a disk of its own: the store alone has what is finished."""
    monkeypatch.setattr(row_blocks, "BLOCK_ROWS", 64)
    source, whole = tmp_path / "in.csv", tmp_path / "whole.csv"
    texts = [f"Where is my card {number}? {'please ' * (number * 7 % 30)}" for number in range(240)]
    source.write_text("text\n" + "".join(f"{text}\n" for text in texts))
    obstore.put(store, "cards/in.csv", source)
    assert classify(source, whole, "--top-k", "0", servers=served, model="demo")[0] == 0
    job = ("s3://rows/cards/in.csv", "s3://rows/cards/out.csv", "--top-k", "0")
    for finished in (64, 128, 192):
        disk = tmp_path / str(finished)
        disk.mkdir()
        args = ["classify", "--model", "demo", "--bootstrap-servers", served, *job]
        killed = subprocess.run(
            [
                sys.executable,
                "-c",
                KILLED_AFTER_A_PART.replace("part_directory", "object_parts").replace("PartDirectory", "ObjectParts"),
                *args,
            ],
            capture_output=True,
            cwd=disk,
            env={**os.environ, "TMPDIR": str(disk)},
        )
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert not list(disk.iterdir())
        manifest = json.loads(bytes(obstore.get(store, "cards/out.csv.parts/manifest.json").bytes()))
        assert manifest["report"]["rows"] == finished
    code, said = classify(*job, "--dry-run", model="demo")
    assert "192 rows are finished; a run would continue after them." in said
    code, said = classify(*job, servers=served, model="demo")
    assert code == 0, said
    assert "Continuing after 192 finished rows." in said
    assert bytes(obstore.get(store, "cards/out.csv").bytes()) == whole.read_bytes()
    assert [key for key in keys_of(store) if key.startswith("cards/")] == ["cards/in.csv", "cards/out.csv"]
