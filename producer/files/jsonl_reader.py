"""Reader of JSON Lines."""

import codecs
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from penstock.producer.errors import InvalidRequest, PenstockError
from penstock.producer.files.row_blocks import Block, Content, JsonLine, Object, TableError, in_blocks, text_of
from penstock.producer.files.standard_streams import input_shown, open_input
from penstock.producer.wire.messages import Text

MAX_LINE_BYTES = 64 << 20  # a row of CSV has as many characters
_MAX_SHOWN = 8  # objects whose keys an error lists


def numbered_lines(file: IO[bytes]) -> Iterator[tuple[int, bytes | None]]:
    """Numbers and contents of lines that are not blank; None for a line over `MAX_LINE_BYTES`."""
    for number in itertools.count(1):
        line = file.readline(MAX_LINE_BYTES + 1)
        if not line:
            return
        is_long = len(line) > MAX_LINE_BYTES
        while is_long and line and not line.endswith(b"\n"):
            line = file.readline(MAX_LINE_BYTES)
        if is_long or line.strip():
            yield number, None if is_long else line


def read_jsonl(path: Path, columns: Sequence[str]) -> Content:
    """Header and blocks of a file."""
    with open_input(path) as file:
        yield None, None
        rows = ((*_json_row(number, line, columns), len(line or b""), number) for number, line in numbered_lines(file))
        blocks = in_blocks(rows, file, path)
        first = next(blocks, None)
        if first is not None:
            _check_keys(path, first, columns)
            yield first
        yield from blocks


def _check_keys(path: Path, block: Block, columns: Sequence[str]) -> None:
    """Check that each column is a key of some object of the first block. Raises TableError: none would be answered."""
    objects = [row for row in block.source if isinstance(row, JsonLine)]
    for column in columns:
        if objects and not any(column in row for row in objects):
            keys = ", ".join(dict.fromkeys(str(key) for row in objects[:_MAX_SHOWN] for key in row))
            raise TableError(
                f"{input_shown(path)}: no line of the first {len(objects)} has the key {column!r}. Keys: {keys}."
            )


def count_jsonl(path: Path) -> int:
    """Number of rows."""
    with open_input(path) as file:
        return sum(1 for _ in numbered_lines(file))


_JSON_TYPES = {
    list: "a list",
    str: "a string",
    float: "a number",
    bool: "a boolean",
    type(None): "null",
}


def _json_row(number: int, line: bytes | None, columns: Sequence[str]) -> tuple[Text | PenstockError, Object]:
    """The text and the object of a line; a line without an object is kept as {"line": its text}."""
    if line is None:
        return InvalidRequest(f"Line {number} is over {MAX_LINE_BYTES:,} bytes."), {}
    try:
        # Numbers are not used. As int, one of thousands of digits would be an error, and one of millions take minutes.
        fields = json.loads(line.decode("utf-8-sig"), parse_int=float)
    except UnicodeDecodeError:
        return InvalidRequest(f"Line {number} holds bytes that are not UTF-8."), _kept(line)
    except (ValueError, RecursionError) as error:
        return InvalidRequest(f"Line {number} is not JSON: {error}."), _kept(line)
    if not isinstance(fields, dict):
        return InvalidRequest(f"Line {number} holds {_JSON_TYPES[type(fields)]}; an object was expected."), _kept(line)
    own = JsonLine(fields, line.removeprefix(codecs.BOM_UTF8).strip())
    for column in columns:
        if column not in fields:
            return InvalidRequest(f"Line {number} has no key {column!r}."), own
        if not isinstance(fields[column], str):
            return InvalidRequest(f"Line {number}: {column!r} is not a string."), own
    return text_of([fields[column] for column in columns]), own


def _kept(line: bytes) -> Object:
    return {"line": line.decode("utf-8-sig", errors="replace").strip()}
