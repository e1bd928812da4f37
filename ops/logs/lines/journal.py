"""journald's JSON export (`journalctl -o json`): the worker's lines are in the field MESSAGE."""

import json

from penstock.ops.logs.libraries import polars

_MARK = b'"__REALTIME_TIMESTAMP"'  # every entry has it


def is_journal(block: bytes) -> bool:
    """Whether the first line of a block is an entry of a journal."""
    return _MARK in block[: block.find(b"\n") if b"\n" in block else len(block)]


def unwrapped(block: bytes) -> bytes:
    """The messages of the entries of a block, one a line. A line that is no entry stays as it is."""
    pl = polars()
    try:
        messages = pl.read_ndjson(block, schema={"MESSAGE": pl.String}, ignore_errors=True)["MESSAGE"].to_list()
        if None not in messages:
            return _joined(messages)
    except pl.exceptions.PolarsError:
        pass  # a line is cut: one by one
    return _joined([_message(line) for line in block.decode("utf-8", "replace").splitlines()])


def _message(line: str) -> str:
    try:
        message = json.loads(line)["MESSAGE"]
    except (ValueError, RecursionError, KeyError, TypeError):
        return line
    if isinstance(message, list):  # bytes that are not UTF-8
        return bytes([one for one in message if isinstance(one, int) and 0 <= one < 256]).decode("utf-8", "replace")
    return str(message or "")


def _joined(messages: list[str]) -> bytes:
    return "\n".join([message.replace("\n", " ") for message in messages]).encode("utf-8", "replace") + b"\n"
