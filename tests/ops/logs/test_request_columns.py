"""Requests that are scanned as columns add up to what parsed ones do."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from penstock.ops.logs.lines import line_columns
from penstock.ops.logs.lines.line_columns import LineColumns
from penstock.ops.logs.lines.request_columns import REQUESTS
from penstock.ops.logs.totals.digest import Digest
from tests.ops.logs.helpers import FLEET, HOST_A, SAMPLES, digest, line
from tests.ops.logs.test_mutated_lines import damaged, unusual


@pytest.fixture(autouse=True)
def any_size_is_scanned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_columns, "MIN_SCANNED_BYTES", 0)


def cut(text: str) -> tuple[int, list[bytes]]:
    found, others = LineColumns(REQUESTS).cut(text.encode())
    return sum(len(one.rows) for one in found), others


def both(path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Digest, Digest]:
    scanned = digest(path)
    monkeypatch.setattr(line_columns, "MIN_SCANNED_BYTES", 1 << 40)
    return scanned, digest(path)


@pytest.mark.parametrize("path", [FLEET, HOST_A], ids=lambda path: str(path.name))
def test_all_real_lines_of_both_events_are_scanned(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    num_requests = sum(json.loads(one)["event"] in ("request_done", "request_refused") for one in text.splitlines())
    assert cut(text)[0] == num_requests > 50


@pytest.mark.parametrize("path", [FLEET, SAMPLES], ids=lambda path: str(path.name))
def test_the_digest_is_the_same(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scanned, parsed = both(path, monkeypatch)
    assert scanned.series.totals() == pytest.approx(parsed.series.totals())
    assert scanned.lines == parsed.lines
    assert scanned.num_kept == parsed.num_kept
    assert scanned.requests.events == parsed.requests.events
    assert scanned.requests.num_ahead == parsed.requests.num_ahead
    for name, stages in scanned.requests.stages.items():
        slowest = [[one.fields for one in either.requests.slowest(name)] for either in (scanned, parsed)]
        assert slowest[0] == slowest[1]
        others = parsed.requests.stages[name]
        assert {stage: (len(times), times.greatest) for stage, times in stages.items()} == {
            stage: (len(times), times.greatest) for stage, times in others.items()
        }
    assert scanned.rejections.by_code.keys() == parsed.rejections.by_code.keys()
    for code, refused in scanned.rejections.by_code.items():
        assert refused == parsed.rejections.by_code[code]


def test_a_line_with_an_unusual_value_is_left_as_it_is() -> None:
    lines = FLEET.read_text(encoding="utf-8").splitlines()
    one = json.loads(next(each for each in lines if '"request_done"' in each))
    usual = "".join(json.dumps({**one, "offset": offset}) + "\n" for offset in range(3))
    late, unnamed, quoted = ({**one, "kafka_ms": None}, {**one, "sample": None}, {**one, "class": 'a "b"'})
    others = [json.dumps(each) for each in (late, unnamed, quoted)]
    refused = line("request_refused", code="empty", records="two")
    assert cut(usual + "\n".join(others) + "\n" + refused) == (
        3,
        [*[each.encode() for each in others], refused[:-1].encode()],
    )


@pytest.mark.parametrize("change", [damaged, unusual])
def test_the_digest_of_mutated_lines_is_the_same(change: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(5)
    lines = [one for path in (FLEET, HOST_A) for one in path.read_bytes().splitlines(keepends=True)]
    path = tmp_path / "worker.log"
    requests = [one for one in lines if b'"request_' in one]
    mutated = [change(rng, rng.choice(requests)) for _ in range(2000)]
    path.write_bytes(b"".join([*lines, *mutated, *lines]))
    scanned, parsed = both(path, monkeypatch)
    assert scanned.series.totals() == pytest.approx(parsed.series.totals())
    assert scanned.lines == parsed.lines
    assert scanned.requests.events == parsed.requests.events
    assert scanned.requests.num_ahead == parsed.requests.num_ahead
    assert scanned.rejections.by_code == parsed.rejections.by_code


def test_any_bytes_at_all() -> None:
    rng = random.Random(4)
    text = "\n".join(FLEET.read_text(encoding="utf-8").splitlines()[100:130]).encode()
    columns = LineColumns(REQUESTS)
    for _ in range(500):
        mutated = bytearray(text)
        for _ in range(rng.randint(1, 20)):
            mutated[rng.randrange(len(mutated))] = rng.randrange(256)
        lines = [one for one in bytes(mutated).split(b"\n") if one.strip()]
        found, others = columns.cut(bytes(mutated))
        taken = [one.line(row) for one in found for row in range(len(one.rows))]
        for one in taken:
            json.loads(one)
        assert sorted([*others, *[one.encode() for one in taken]]) == sorted(lines)
