"""Reader of JSON Lines."""

import codecs
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

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
            hint = " OpenAI's batch files need --format openai." if any("custom_id" in row for row in objects) else ""
            place = f"{input_shown(path)}: no line of the first {len(objects)}"
            raise TableError(f"{place} has the key {column!r}. Keys: {keys}.{hint}")


def count_jsonl(path: Path) -> int:
    """Number of rows."""
    with open_input(path) as file:
        return sum(1 for _ in numbered_lines(file))


_JSON_TYPES = {
    list: "a list",
    str: "a string",
    float: "a number",
    int: "a number",
    bool: "a boolean",
    type(None): "null",
}


def _json_row(number: int, line: bytes | None, columns: Sequence[str]) -> tuple[Text | PenstockError, Object]:
    """The text and the object of a line; a line without an object is kept as {"line": its text}."""
    given = line or b""
    try:
        # Numbers are not used. As int, one of thousands of digits would be an error, and one of millions take minutes.
        fields = read_object(number, line, parse_int=float)
    except InvalidRequest as error:
        return error, {"line": given.decode("utf-8-sig", errors="replace").strip()} if given else {}
    own = JsonLine(fields, given.removeprefix(codecs.BOM_UTF8).strip())
    for column in columns:
        if column not in fields:
            return InvalidRequest(f"Line {number} has no key {column!r}."), own
        if not isinstance(fields[column], str):
            return InvalidRequest(f"Line {number}: {column!r} is not a string."), own
    return text_of([fields[column] for column in columns]), own


def read_object(number: int, line: bytes | None, parse_int: Callable[[str], Any]) -> Object:
    """The object of a line of `numbered_lines`. Raises InvalidRequest."""
    if line is None:
        raise InvalidRequest(f"Line {number} is over {MAX_LINE_BYTES:,} bytes.")
    try:
        fields = json.loads(line.decode("utf-8-sig"), parse_int=parse_int)
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"Line {number} holds bytes that are not UTF-8.") from error
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"Line {number} is not JSON: {error}.") from error
    if not isinstance(fields, dict):
        raise InvalidRequest(f"Line {number} holds {_JSON_TYPES[type(fields)]}; an object was expected.")
    return fields
