"""Rows that polars reads are those of a JSON parser, or their lines are left to it; and they add up."""

import json
import random
import re
from collections import Counter, defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.ops.logs.lines import blocks
from penstock.ops.logs.lines.blocks import KINDS, LineCounts, event_of, parse_block, read_rows, rows_of
from penstock.ops.logs.lines.event import parse_time
from penstock.ops.logs.totals.digest import Digest
from tests.ops.logs.helpers import FLEET, HOST_A, SAMPLES, batch, digest, line

NUMBERS = "007 -7 7. .7 7e 7e5 -0.5E-3 1e400 1e-400 NaN Infinity - 12345678901234567890 0.1000000000000000055511151231"
TIMES = (
    "2026-02-30T03:00:00Z 2026-11-22T24:00:00Z 2026-11-22T03:60:00Z 2026-11-22T03:00:01.Z 2026-11-22T03:00:01.5.5Z "
    "2026x11-22T03:00:01Z 2024-02-29T23:59:59.9999999Z 1969-12-31T23:59:59Z 0000-01-01T00:00:00Z 2026-11-22_03:00:01Z "
    "2026-11-22T03:00:01+02:00 2026-11-22T03:00:01Z"
)
VALUES = [
    *[one.encode() for one in NUMBERS.split(" ")],
    *[f'"{one}"'.encode() for one in TIMES.split()],
    *(b"null", b"true", b"false", b"nul", b"falsy", b'"text"', b'"a\\"b"', b'"a\\u00e9"', b'"a\tb"', b'"\xff\xc3"'),
    *(b"[1]", b"", b" 1", b"1 "),
]


def damaged(rng: random.Random, text: bytes) -> bytes:
    """A line that is cut, joined with the next one, overwritten, or has one byte more, less or another."""
    place = rng.randrange(len(text))
    match rng.randrange(4):
        case 0:
            return text[:place] + b"\n"
        case 1:
            return text[:place]
        case 2:
            return text[:place] + rng.randbytes(rng.randint(1, 9)) + text[place + rng.randint(0, 3) :]
    return text[:place] + rng.choice(b'"\\{},: \n\r\t0.-eE').to_bytes() + text[place + rng.randint(0, 1) :]


def unusual(rng: random.Random, text: bytes) -> bytes:
    """A line with another value, another order of fields, or one field more or less."""
    fields = list(json.loads(text).items())
    match rng.randrange(4):
        case 0:
            rng.shuffle(fields)
        case 1:
            fields.insert(rng.randrange(len(fields)), ("more", rng.random()))
        case 2:
            fields.pop(rng.randrange(len(fields)))
        case _:
            found = rng.choice(list(re.finditer(rb': ("[^"]*"|[^,}]+)', text)))
            return text[: found.start(1)] + rng.choice(VALUES) + text[found.end(1) :]
    return json.dumps(dict(fields)).encode() + rng.choice([b"\n", b"\r\n", b" \n"])


def by_json(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on, all lines are left to the JSON parser."""
    monkeypatch.setattr(blocks, "read_rows", lambda lines, more: read_rows([], more))


def figures(found: Digest) -> dict[str, Any]:
    """The sums of a digest, as plain data."""
    times = {(name, stage): one for name, of in found.requests.stages.items() for stage, one in of.items()}
    return {
        "lines": found.lines,
        "kept": found.num_kept,
        "ahead": found.requests.num_ahead,
        "codes": found.rejections.by_code,
        "problems": found.problems,
        "slowest": {name: [one.fields for one in of.events] for name, of in found.requests.slowest.items()},
        "stages": {key: (len(one), one.greatest) for key, one in times.items()},
        "longest": [one.number("device_s") for one in found.batches.longest.events],
        "triggers": [group[:5] for group in found.batches.by("trigger")],
        "totals": {name: f"{total:.9g}" for name, total in found.series.totals().items()},
    }


@pytest.mark.parametrize("path", [FLEET, HOST_A], ids=lambda path: str(path.name))
def test_all_real_lines_of_the_frequent_events_are_rows(path: Path) -> None:
    lines = path.read_bytes().splitlines()
    events = {place: event for place, one in enumerate(lines) if (event := event_of(0, one)) and event.name in KINDS}
    assert len(events) > 100
    assert read_rows(lines).to_dicts() == rows_of(events).to_dicts()


@pytest.mark.parametrize("filters", [(), ("p>5ms",), ("offset>100",), ("partition=0",)], ids=str)
def test_the_digest_of_real_logs_is_the_same_by_json(filters: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    by_rows = figures(digest(SAMPLES, filters=filters))
    assert by_rows["kept"] > 10
    by_json(monkeypatch)
    assert figures(digest(SAMPLES, filters=filters)) == by_rows


@pytest.mark.parametrize("change", [damaged, unusual])
def test_the_digest_of_mutated_lines_is_the_same_by_json(
    change: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(5)
    whole = [one for path in (FLEET, HOST_A) for one in path.read_bytes().splitlines(keepends=True)]
    frequent = [one for one in whole if any(f'"{name}"'.encode() in one for name in KINDS)]
    path = tmp_path / "worker.log"
    path.write_bytes(b"".join([*whole, *[change(rng, rng.choice(frequent)) for _ in range(3000)], *whole]))
    by_rows = figures(digest(path))
    by_json(monkeypatch)
    assert figures(digest(path)) == by_rows


@pytest.mark.parametrize("broken", [batch(0)[:60], "another program", batch(0)[:60] + batch(1), '{"event": 7.}'])
def test_a_broken_line_costs_few_rows_of_the_others(broken: str) -> None:
    """polars refuses all lines for the sake of one."""
    lines = [batch(second % 60).rstrip().encode() for second in range(1000)]
    lines[500] = broken.rstrip().encode()
    taken = read_rows(lines)["place"].to_list()
    assert 500 not in taken
    assert len(taken) == 999 or (broken.startswith('{"event": 7') and len(taken) > 900)


def test_numbers_of_any_form() -> None:
    rng = random.Random(1)
    values = [0.0, 1e-05, 5e-324, 1.5e3, -2.25, 0.1, 1e22, 123456.789012]
    values += [rng.lognormvariate(0, 9) for _ in range(500)]
    rows = read_rows([batch(0, device_s=one, tokens=place).encode() for place, one in enumerate(values)])
    assert rows["device_s"].to_list() == values
    assert rows["tokens"].to_list() == list(range(len(values)))


def test_times() -> None:
    rng = random.Random(2)
    moments = [datetime.fromtimestamp(rng.randrange(0, 4_102_444_800), UTC) for _ in range(300)]
    moments += [datetime(2024, 2, 29, 23, 59, 59, tzinfo=UTC), datetime(2000, 3, 1, tzinfo=UTC)]
    texts = [moment.strftime("%Y-%m-%dT%H:%M:%S") + end for moment in moments for end in (".123456Z", "Z")]
    rows = parse_block("".join(line("batch_done", one) for one in texts).encode(), 0, LineCounts()).rows.sort("place")
    assert rows["time_s"].to_list() == [parse_time(one) for one in texts]


@pytest.mark.parametrize(
    "other",
    [
        batch(0)[:-3],
        batch(0)[:60],
        "worker_1  | " + batch(0),
        line("batch_done", "2026-11-22T03:00:00+01:00"),
        line("batch_done", "2026-13-22T03:00:00Z"),
        line("batch_done", "yesterday"),
        line("batch_gone"),
        '{"device_s": }',
        "{",
        batch(0, tokens=10**400),
    ],
    ids=range(10),
)
def test_a_line_that_is_no_row_is_left_to_the_json_parser(other: str) -> None:
    rows = read_rows([batch(1).encode(), other.encode(), batch(2).encode()])
    assert 1 not in rows["place"].to_list()
    parsed = parse_block((batch(1) + other.rstrip("\n") + "\n" + batch(2)).encode(), 0, LineCounts())
    assert parsed.rows["event"].to_list().count("batch_done") >= 2


def test_a_value_of_another_type_is_unknown() -> None:
    rows = read_rows([batch(0, **{key: value}).encode() for key, value in (("tokens", True), ("device_s", "0.1"))])
    assert (rows["tokens"].to_list(), rows["device_s"].to_list()) == ([None, 60], [0.01, None])


def test_any_bytes_at_all() -> None:
    rng = random.Random(3)
    text = b"".join(FLEET.read_bytes().splitlines(keepends=True)[100:130])
    for _ in range(500):
        mutated = bytearray(text)
        for _ in range(rng.randint(1, 20)):
            mutated[rng.randrange(len(mutated))] = rng.randrange(256)
        counts = LineCounts()
        part = parse_block(bytes(mutated), 0, counts)
        assert counts.lines == len(part.lines)
        assert part.events.keys() <= {*part.rows["place"].to_list()}
        assert len(part.rows) + counts.foreign + counts.broken >= counts.lines > 0


def test_batches_of_many_kinds_and_times_add_up(tmp_path: Path) -> None:
    """Unknown texts, clocks years apart, lines without a time, and more than one kind of each."""
    rng = np.random.default_rng(0)
    triggers = ["hungry", "timeout", *(f"kind {number}" for number in range(90))]
    made = [
        batch(
            int(rng.choice([0, 1, 2, 59])),
            trigger=str(rng.choice(triggers)),
            partition=str(rng.choice(["fifo", "dp", "ü"])),
            sequences=int(rng.integers(0, 9)),
            tokens=int(rng.integers(0, 5000)),
            device_s=float(rng.integers(1, 9)) / 1000,
        )
        for _ in range(400)
    ]
    made += [one.replace('"timestamp": "2026', '"timestamp": "1999') for one in made[:20]]
    made += [one.replace('"timestamp": "', '"timestamp": "?') for one in made[:20]]
    path = tmp_path / "worker.log"
    path.write_text("".join(made), encoding="utf-8")
    lines = [json.loads(one) for one in made]
    found = digest(path).batches
    for key in ("trigger", "partition"):
        groups = found.by(key)
        assert {group.name: group.batches for group in groups} == Counter(one[key] for one in lines)
        tokens: dict[str, int] = defaultdict(int)
        for one in lines:
            tokens[one[key]] += one["tokens"]
        assert {group.name: group.tokens for group in groups} == tokens
    sizes = Counter((max(one["tokens"], 1) - 1).bit_length() for one in lines)
    assert {group.name: group.batches for group in found.by("size")} == sizes
    assert found.all.device_s == pytest.approx(sum(one["device_s"] for one in lines))
    assert len(found.all.ratios) == len(lines)


def test_requests_of_odd_values_are_counted(tmp_path: Path) -> None:
    """Fields that are missing, no numbers, or not finite leave the others as they are."""
    odd: list[dict[str, Any]] = [
        {"sample": "first", "kafka_ms": -5.0, "total_ms": 7.0},
        {"sample": "first", "kafka_ms": "soon", "total_ms": float("nan")},
        {"sample": "slowest", "kafka_ms": True, "total_ms": 9000},
        {"sample": "first", "total_ms": None, "compute_ms": 3},
        {"sample": "first", "class": "bulk", "total_ms": 20.0},
        {},
    ]
    path = tmp_path / "worker.log"
    path.write_text("".join(line("request_done", **fields) for fields in odd) + line("request_done", None, total_ms=8))
    found = digest(path)
    stages = found.requests.stages
    assert found.lines.events == len(odd) + 1
    assert [event.fields.get("total_ms") for event in found.requests.slowest["online"].events] == [9000, 8, 7.0]
    assert [event.fields.get("total_ms") for event in found.requests.slowest["bulk"].events] == [20.0]
    counted = {name: {stage: len(times) for stage, times in of.items() if len(times)} for name, of in stages.items()}
    assert counted == {"online": {"kafka": 1, "total": 1, "compute": 1}, "bulk": {"total": 1}}
    assert found.requests.num_ahead == 1
    totals = found.series.totals()
    assert (totals["kafka_s"], totals["slowest_s"]) == (0.0, 9.0)
