"""The scanner takes out of a line what a JSON parser does, or leaves the line to it."""

import json
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from penstock.ops.logs.lines import line_columns
from penstock.ops.logs.lines.batch_columns import BATCH_COLUMNS, BATCHES, batches_in, batches_of
from penstock.ops.logs.lines.event import parse_time
from penstock.ops.logs.lines.line_columns import LineColumns
from tests.ops.logs.helpers import FLEET, HOST_A, SAMPLES, batch, digest


@pytest.fixture(autouse=True)
def any_size_is_scanned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_columns, "MIN_SCANNED_BYTES", 0)


def scanned(text: str | bytes) -> tuple[list[dict[str, Any]], list[bytes]]:
    found, others = LineColumns([BATCHES]).cut(text.encode() if isinstance(text, str) else text)
    return batches_in(found).to_dicts(), others


@pytest.mark.parametrize("path", [FLEET, HOST_A], ids=lambda path: str(path.name))
def test_real_lines(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    rows, others = scanned(path.read_bytes())
    expected = [json.loads(one) for one in lines if '"event": "batch_done"' in one]
    assert rows == batches_of(expected).to_dicts()
    assert len(rows) + len(others) == len(lines)
    assert all(b"batch_done" not in one for one in others)


def test_the_digest_is_the_same_with_and_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with_it = digest(SAMPLES, filters=("p>5ms",))
    monkeypatch.setattr(line_columns, "MIN_SCANNED_BYTES", 1 << 40)
    without = digest(SAMPLES, filters=("p>5ms",))
    assert with_it.series.totals() == pytest.approx(without.series.totals())
    assert with_it.lines == without.lines
    assert with_it.batches.longest_batches == without.batches.longest_batches


def test_numbers_of_any_form() -> None:
    rng = random.Random(1)
    values = [
        0.0,
        1e-05,
        5e-324,
        1.5e3,
        -2.25,
        0.1,
        1e22,
        123456.789012,
        *[rng.lognormvariate(0, 9) for _ in range(500)],
    ]
    rows, others = scanned("".join(batch(0, device_s=one, tokens=place) for place, one in enumerate(values)))
    assert others == []
    assert [row["device_s"] for row in rows] == values
    assert [row["tokens"] for row in rows] == list(range(len(values)))


def test_times() -> None:
    rng = random.Random(2)
    moments = [datetime.fromtimestamp(rng.randrange(0, 4_102_444_800), UTC) for _ in range(300)]
    moments += [datetime(2024, 2, 29, 23, 59, 59, tzinfo=UTC), datetime(2000, 3, 1, tzinfo=UTC)]
    texts = [moment.strftime("%Y-%m-%dT%H:%M:%S") + end for moment in moments for end in (".123456Z", "Z")]
    rows, _ = scanned("".join(at(one) for one in texts))
    assert [row["second"] for row in rows] == [int(parse_time(one) or 0) for one in texts]


def at(time: str) -> str:
    return json.dumps({**json.loads(batch()), "timestamp": time}) + "\n"


@pytest.mark.parametrize(
    "other",
    [
        batch(0, device_s=None),
        batch(0, device_s="0.1"),
        batch(0, tokens=True),
        batch(0, trigger='say "so"'),
        batch(0, trigger=None),
        batch(0)[:-3] + "\n",
        batch(0)[:60] + "\n",
        batch(0).replace("}", "} "),
        at("2026-11-22T03:00:00+01:00"),
        at("2026-13-22T03:00:00Z"),
        at("yesterday"),
        batch(0).replace("batch_done", "batch_gone"),
        '{"device_s": }\n',
        "{\n",
        batch(0).replace(": 0.01,", ": 0.01e,"),
    ],
)
def test_a_line_that_is_laid_out_otherwise_is_left_as_it_is(other: str) -> None:
    rows, others = scanned(batch(1) + other + batch(2))
    assert others == [other.encode().rstrip(b"\n")]
    assert [row["second"] % 60 for row in rows] == [1, 2]


def test_lines_of_two_layouts_in_turn() -> None:
    """As of two versions, or of one worker with a trace and one without."""
    rows, others = scanned("".join(batch(second) + batch(second, more=1) for second in range(3)))
    assert ([row["second"] % 60 for row in rows], others) == ([0, 1, 2, 0, 1, 2], [])


def test_texts_of_any_script() -> None:
    names = ("hungry", "é", "голодный", "饿", "\N{GRINNING FACE}")
    text = "".join(json.dumps({**json.loads(batch(0)), "trigger": one}, ensure_ascii=False) + "\n" for one in names * 2)
    rows, others = scanned(text)
    assert (sorted(row["trigger"] for row in rows), others) == (sorted(names * 2), [])


def test_ends_of_lines_and_of_the_block() -> None:
    text = batch(0) + "\n\r\n" + batch(1).replace("\n", "\r\n") + batch(2)
    assert [len(part) for part in scanned(text)] == [3, 0]
    for cut in range(1, len(batch(0))):
        rows, others = scanned(batch(0) + batch(1)[:cut])
        assert (len(rows), len(others)) == ((2, 0) if cut == len(batch(1)) - 1 else (1, 1)), cut


def test_lines_that_are_too_long_to_be_scanned_are_left_as_they_are() -> None:
    some, many = ({f"field_{number}": number for number in range(count)} for count in (20, 80))
    assert [len(part) for part in scanned(batch(0, **some) + batch(1))] == [2, 0]
    wide, long = batch(0, **many), batch(1, trigger="x" * 5000)
    assert scanned(wide + batch(1))[1] == [wide[:-1].encode(), batch(1)[:-1].encode()]
    assert scanned(batch(0) + long)[1] == [long[:-1].encode()]


def test_an_event_that_is_named_twice_is_the_last_one() -> None:
    twice = '{"event": "batch_done", ' + batch(0)[1:].replace('"event": "batch_done"', '"event": "other"')
    rows, others = scanned(twice + batch(1))
    assert (rows, others) == ([], [twice[:-1].encode(), batch(1)[:-1].encode()])


def test_any_bytes_at_all() -> None:
    rng = random.Random(3)
    text = (batch(0) + batch(1)).encode()
    for _ in range(2000):
        mutated = bytearray(text)
        for _ in range(rng.randint(1, 4)):
            mutated[rng.randrange(len(mutated))] = rng.randrange(256)
        rows, others = scanned(text + bytes(mutated))
        assert 2 <= len(rows) <= 4
        assert set(rows[0]) == set(BATCH_COLUMNS)
        assert all(one in bytes(mutated) for one in others)


def test_a_block_does_not_change_the_batches_of_the_one_before() -> None:
    columns = LineColumns([BATCHES])
    first = batches_in(columns.cut(batch(0, device_s=0.5, tokens=5).encode())[0])
    columns.cut(batch(1, device_s=0.25, tokens=6).encode())
    assert (first["device_s"].to_list(), first["tokens"].to_list()) == ([0.5], [5])
