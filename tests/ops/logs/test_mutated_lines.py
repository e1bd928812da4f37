"""The scanner reads damaged and unusual lines as a JSON parser does."""

import json
import random
import re
from typing import Any

import pytest

from penstock.ops.logs.lines import line_columns
from penstock.ops.logs.lines.block_parser import BlockParser, LineCounts
from penstock.ops.logs.lines.event import Event
from tests.ops.logs.helpers import FLEET, batch

NUMBERS = "007 -7 7. .7 7e 7e5 -0.5E-3 1e400 1e-400 NaN Infinity - 12345678901234567890 0.1000000000000000055511151231"
TIMES = (
    "2026-02-30T03:00:00Z 2026-11-22T24:00:00Z 2026-11-22T03:60:00Z 2026-11-22T03:00:60.5Z 2026-11-22T03:00:01.Z "
    "2026-11-22T03:00:01.5.5Z 2026x11-22T03:00:01Z 2024-02-29T23:59:59.9999999Z 1969-12-31T23:59:59Z "
    "0000-01-01T00:00:00Z 2026-11-22_03:00:01Z 2026-11-22T03:00:01+02:00 2026-11-22T03:00:01Z"
)
VALUES = [
    *[one.encode() for one in NUMBERS.split(" ")],
    *[f'"{one}"'.encode() for one in TIMES.split()],
    *(b"null", b"true", b"false", b"nul", b"falsy", b'"text"', b'"a\\"b"', b'"a\\u00e9"', b'"a\tb"', b'"\xff\xc3"'),
    *(b"{}", b"[1]", b"", b" 1", b"1 "),
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


def parsed(block: bytes) -> tuple[list[str], list[Event], LineCounts]:
    """Rows with twelve digits of each number, in any order; events; counts."""
    counts = LineCounts()
    batches, _, events = BlockParser(0, counts).parse(block)
    return sorted(repr([_rounded(value) for value in row]) for row in batches.iter_rows()), events, counts


def _rounded(value: Any) -> Any:
    return f"{value + 0.0:.12g}" if isinstance(value, float) else value


def made_line(rng: random.Random) -> bytes:
    numbers = {"device_s": rng.lognormvariate(0, 5), "predicted_s": rng.random(), "tokens": rng.randrange(10_000)}
    return batch(rng.randrange(3600), worker=rng.randrange(3), trigger=rng.choice(("hungry", "é")), **numbers).encode()


@pytest.mark.parametrize("change", [damaged, unusual])
def test_with_and_without_the_scanner(change: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(4)
    real = [line for line in FLEET.read_bytes().splitlines(keepends=True) if b'"batch_done"' in line]
    for made in (real, [made_line(rng) for _ in range(100)]) * 4:
        lines = [rng.choice(made) for _ in range(600)]
        block = made[0] + b"".join(change(rng, line) if rng.random() < 0.8 else line for line in lines)
        monkeypatch.setattr(line_columns, "MIN_SCANNED_BYTES", 0)
        with_it = parsed(block)
        monkeypatch.setattr(line_columns, "MIN_SCANNED_BYTES", 1 << 40)
        without = parsed(block)
        assert with_it[0] == without[0]
        assert sorted(map(repr, with_it[1])) == sorted(map(repr, without[1]))
        assert with_it[2].broken == without[2].broken
        assert with_it[2] == without[2]
        assert len(with_it[0]) > 100
