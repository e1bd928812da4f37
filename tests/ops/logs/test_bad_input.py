"""Bytes of every kind in a file of logs: nothing is fatal, and lines that are left out are counted."""

import codecs
import gzip
import json
import random
import zlib
from pathlib import Path

import pyarrow
import pytest

from penstock.ops.logs.errors import NoEvents
from penstock.ops.logs.lines import source
from penstock.ops.logs.lines.source import MAX_LINE_BYTES, find_sources
from penstock.ops.logs.totals.digest import Digest
from penstock.worker.telemetry.ecs import to_ecs
from tests.ops.logs.helpers import FLEET, HOST_A, batch, digest, line


def read(folder: Path, text: str | bytes, name: str = "worker.log") -> Digest:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return digest(path)


def counts(found: Digest) -> tuple[int, int, int]:
    """Events, broken lines, lines of others."""
    return found.lines.events, found.lines.broken, found.lines.foreign


def test_an_empty_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(NoEvents, match=r"worker.log: no line"):
        read(tmp_path, "")
    with pytest.raises(NoEvents, match="no line"):
        read(tmp_path, "\n\n  \n")


def test_a_file_of_another_program_says_so(tmp_path: Path) -> None:
    with pytest.raises(NoEvents, match=r"none of 3 lines is an event of penstock.*PENSTOCK_LOG_FORMAT=json"):
        read(tmp_path, 'GET / 200\n{"message": "no event"}\n[1, 2]\n')


def test_lines_that_are_cut_mixed_or_of_others_are_counted(tmp_path: Path) -> None:
    cut = batch(1)[:80]
    text = (
        batch(0)
        + cut  # two workers write into one pipe
        + batch(2)
        + "Traceback (most recent call last):\n"
        + cut
        + "\n"
        + "worker_1  | "
        + batch(3)
        + "[1, 2]\n"
        + batch(4)[:100]  # the file ends within a line
    )
    found = read(tmp_path, text)
    assert counts(found) == (3, 3, 2)
    assert found.batches.all.batches == 3
    assert cut[:20] in found.lines.examples[0]


def test_a_long_line_is_left_out_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "worker.log"
    with path.open("w") as file:
        file.write(batch(0) + '{"event": "')
        for _ in range(50):
            file.write("x" * (1 << 20))
        file.write('"}\n' + batch(1))
    found = digest(path)
    assert counts(found) == (2, 1, 0)
    assert max(len(block) for block in find_sources([str(path)])[0][0].blocks()) <= source.BLOCK_BYTES + MAX_LINE_BYTES


@pytest.mark.parametrize("junk", [b"\x00\x00\x00\n", b"\x00" * 5000, b"\n\n", b"\r\n", b"\x01\x01\n", b" \t\n"])
def test_bytes_between_lines_cost_no_line(tmp_path: Path, junk: bytes) -> None:
    found = read(tmp_path, batch(0).encode() + junk + batch(1).encode() + junk + line("stopped", answered=3).encode())
    assert found.lines.events == 3


def test_windows_line_ends(tmp_path: Path) -> None:
    assert counts(read(tmp_path, (batch(0) + batch(1)).replace("\n", "\r\n"))) == (2, 0, 0)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16-le", "utf-16-be", "latin-1"])
def test_encodings(tmp_path: Path, encoding: str) -> None:
    text = batch(0) + line("request_refused", code="too_long", reason="zu lang: Übergrößenträger").replace(
        "\\u00dc", "Ü"
    )
    mark = {"utf-16-le": codecs.BOM_UTF16_LE, "utf-16-be": codecs.BOM_UTF16_BE}.get(encoding, b"")
    found = read(tmp_path, mark + text.encode(encoding))
    assert counts(found) == (2, 0, 0)


def test_a_newer_versions_events_fields_and_types(tmp_path: Path) -> None:
    text = (
        line("batch_fused", lanes=[1, 2], note={"deep": {"er": 1}})
        + batch(0)
        + batch(1, lane=3)  # laid out otherwise than the first
        + batch(2, tokens="many")
        + line("worker_load", answered="all", missed=[1], latency_le_s={"0.0003": 4, "soon": 1})
        + line("request_done", total_ms=None, kafka_ms="late", sample="first")
        + line("request_refused", code=7, records="two")
        + json.dumps({"event": "x", "timestamp": 12, "level": ["info"], "worker": {}})
        + "\n"
        + line("x" * 500, huge=10**400)
    )
    found = read(tmp_path, text)
    assert counts(found) == (9, 0, 0)
    assert found.batches.all.batches == 2  # the tokens of the third are unknown


def test_numbers_and_names_beyond_all_sense_end_no_pass(tmp_path: Path) -> None:
    text = (
        line("foo", level="warning", suppressed=1e300)
        + line("worker_load", rejected={"overloaded": 1e300, "expired": 1e308})
        + line("worker_ready", worker=True, model="x\ud800")
        + line("worker_ready", worker=3, model="m")
        + line("worker_ready", worker=2**200, model="m")
        + batch(0, tokens=9_000_000_000_000_000_000, sequences=9_000_000_000_000_000_000)
        + batch(1)
    )
    found = read(tmp_path, text)
    assert counts(found) == (7, 0, 0)
    assert found.batches.all.batches == 1  # the tokens of the first are unknown


def test_events_without_a_time_are_counted(tmp_path: Path) -> None:
    found = read(tmp_path, line("stopped", None) + line("stopped", "yesterday") + batch(0).replace("2026-", "x"))
    assert (found.lines.events, found.lines.timeless) == (3, 3)


def test_lines_out_of_order(tmp_path: Path) -> None:
    texts = [batch(second) for second in range(300)]
    ordered = read(tmp_path, "".join(texts))
    random.Random(1).shuffle(texts)
    mixed = read(tmp_path, "".join(texts))
    assert mixed.series.totals() == pytest.approx(ordered.series.totals())
    assert (ordered.gaps.count, mixed.gaps.count) == (0, 0)


def test_a_clock_that_was_set_back_is_told_between_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "BLOCK_BYTES", 4096)
    late, early = ("".join(batch(second) for second in range(start, start + 60)) for start in (600, 0))
    assert read(tmp_path, late + early).gaps.num_steps_back == 1


def test_a_producers_clock_that_is_ahead(tmp_path: Path) -> None:
    found = read(tmp_path, line("request_done", sample="first", total_ms=5.0, kafka_ms=-4000.0))
    assert found.requests.num_ahead == 1
    assert found.requests.stages["online"]["kafka"].percentile(99) == 0.0


def test_small_blocks_of_compressed_data_are_read_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "BLOCK_BYTES", 4096)
    lines = "".join(batch(second) for second in range(60)).encode()
    (tmp_path / "worker.log.gz").write_bytes(gzip.compress(lines))
    blocks = list(find_sources([str(tmp_path)])[0][0].blocks())
    assert b"".join(blocks) == lines
    assert min(map(len, blocks[:-1])) >= 2048


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_compressed_logs_whatever_their_names(tmp_path: Path, compression: str) -> None:
    data = FLEET.read_bytes()
    packed = pyarrow.compress(data, codec=compression, asbytes=True)
    assert len(packed) < len(data) / 2
    assert read(tmp_path, packed, "any.name").series.totals() == pytest.approx(digest(FLEET).series.totals())


def test_a_compressed_log_that_ends_early_is_read_up_to_there(tmp_path: Path) -> None:
    packed = gzip.compress(HOST_A.read_bytes() * 50)
    found = read(tmp_path, packed[: len(packed) // 2], "worker.log.gz")
    assert 500 < found.lines.events < digest(HOST_A).lines.events * 50
    assert "gzip data ends early" in found.sources[0].notes[0]


@pytest.mark.parametrize("percent", [2, 20, 50, 80, 95, 99])
def test_a_small_gzip_log_that_is_cut_is_read_up_to_the_cut(percent: int, tmp_path: Path) -> None:
    packed = gzip.compress(FLEET.read_bytes())
    cut = packed[: len(packed) * percent // 100]
    readable = zlib.decompressobj(wbits=31).decompress(cut)
    path = tmp_path / "worker.log.gz"
    path.write_bytes(cut)
    found = find_sources([str(path)])[0][0]
    assert b"".join(found.blocks()) == readable
    assert found.notes == ["its gzip data ends early or is damaged; it was read up to there"]
    assert digest(tmp_path).lines.events == readable.count(b"\n") > 0


def test_a_zstd_log_that_is_cut_is_read_up_to_the_last_whole_block(tmp_path: Path) -> None:
    """A reader that lost what it had not yet given would lose up to 64 KiB more."""
    data = random.Random(3).randbytes(300_000).hex().encode()
    packed = pyarrow.compress(data, codec="zstd", asbytes=True)
    path = tmp_path / "worker.log.zst"
    path.write_bytes(packed[: len(packed) - 10])
    found = b"".join(find_sources([str(path)])[0][0].blocks())
    assert data.startswith(found)
    assert len(found) == len(data) // (128 << 10) * (128 << 10)


def test_a_file_that_may_not_be_read_is_named_and_the_others_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.log").write_text(batch(0))
    (tmp_path / "b.log").write_text(batch(0))
    opened = Path.open

    def refused(self: Path, mode: str) -> object:
        if self.name == "a.log":
            raise PermissionError(13, "Permission denied", str(self))
        return opened(self, mode)

    monkeypatch.setattr(Path, "open", refused)  # the tests may run as root, which may read anything
    found = digest(tmp_path)
    assert found.lines.events == 1
    assert found.sources[0].notes == ["Permission denied"]


def test_a_directory_with_other_files(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "worker.log").write_text(batch(0))
    (tmp_path / "deep" / "worker.log").write_text(batch(1))
    (tmp_path / "picture.png").write_bytes(b"\x89PNG" * 100)
    (tmp_path / "notes.txt").write_text("nothing")
    sources, skipped = find_sources([str(tmp_path)])
    assert sorted(one.name for one in sources) == ["deep/worker.log", f"{tmp_path.name}/worker.log"]
    assert sorted(skipped) == ["notes.txt", "picture.png"]
    with pytest.raises(NoEvents, match="There is no file or directory"):
        find_sources([str(tmp_path / "none")])


def test_journald(tmp_path: Path) -> None:
    lines = HOST_A.read_text(encoding="utf-8").splitlines()
    entry = {"__REALTIME_TIMESTAMP": "1", "_PID": "7", "_HOSTNAME": "a"}
    text = "".join(json.dumps({**entry, "MESSAGE": one}) + "\n" for one in lines)
    assert read(tmp_path, text).series.totals() == pytest.approx(digest(HOST_A).series.totals())
    others = (
        json.dumps({**entry, "MESSAGE": "Started penstock."})
        + "\n"
        + json.dumps({**entry, "MESSAGE": list(lines[-1].encode())})
        + "\n"
        + json.dumps({**entry, "MESSAGE": None})
        + "\n"
        + text[: len(text) // 2]
    )
    found = read(tmp_path, others)
    assert found.lines.foreign == 1
    assert found.lines.events > 50


def test_a_message_of_a_journal_may_be_an_array_of_bytes(tmp_path: Path) -> None:
    """Its line was taken for one of another program where no other entry was unusual."""
    messages = [batch(0), [*batch(1).encode()]]
    entries = [json.dumps({"__REALTIME_TIMESTAMP": "1", "MESSAGE": message}) for message in messages]
    assert counts(read(tmp_path, "\n".join(entries))) == (2, 0, 0)


def test_the_elastic_common_schema(tmp_path: Path) -> None:
    lines = map(json.loads, HOST_A.read_text(encoding="utf-8").splitlines())
    (tmp_path / "worker.log").write_text("".join(json.dumps(to_ecs(None, "", one)) + "\n" for one in lines))
    (tmp_path / "other.log").write_text('{"ecs.version": "8.11.0", "penstock": 7}\n')  # of another program
    found, plain = digest(tmp_path), digest(HOST_A)
    assert counts(found) == (counts(plain)[0], 0, 1)
    assert found.series.totals() == pytest.approx(plain.series.totals())
    assert found.problems.keys() == plain.problems.keys()
    assert found.rejections.by_code.keys() == plain.rejections.by_code.keys()
    assert found.settings["max_wait_ms"] == plain.settings["max_wait_ms"] == 2.0
