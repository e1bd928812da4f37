"""One text of `penstock embed`, `classify` and `generate`, answered on the terminal."""

import json
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from penstock.ops.cli.jobs.job_settings import FileJobSettings
from penstock.ops.cli.terminal import EXIT_OK, EXIT_PROBLEM, EXIT_USAGE, fail
from penstock.producer.errors import PenstockError
from penstock.producer.settings import ClientSettings
from penstock.producer.wire.messages import Classification, Generation, Options, Vector
from penstock.producer.wire.sequences import check
from penstock.producer.wire.vector_tables import SparseVector, TextVectors

_Shown = Vector | SparseVector | TextVectors | Classification | Generation

_MAX_ONE_TEXT_S = 30.0  # longest wait for the answer to one text
_SHOWN_NUMBERS = 6


def client_settings(settings: ClientSettings) -> dict[str, Any]:
    """The client's part of a command's settings."""
    return {name: getattr(settings, name) for name in ClientSettings.model_fields}


async def answer_one(task: str, settings: FileJobSettings, options: Options, text: str) -> int:
    """Print the answer to one text. Returns the exit code."""
    from penstock.ops.cli.jobs.local_fleet import local_worker
    from penstock.producer.client import Client

    _, (checked,) = check(task, [text], None)
    if isinstance(checked, PenstockError):  # before any connection to Kafka
        fail(f"{checked.code}: {checked.message}")
        return EXIT_USAGE
    timeout_s = min(settings.timeout_s, _MAX_ONE_TEXT_S)
    connect_timeout_s = min(settings.connect_timeout_s or timeout_s, timeout_s)
    client_of = client_settings(settings) | {"connect_timeout_s": connect_timeout_s}
    async with local_worker(settings) as while_alive, Client(**client_of) as client:
        (row,) = await while_alive(client.map(task, [text], options=options, timeout_s=timeout_s))
    if isinstance(row, float | list | dict):
        raise RuntimeError(f"{task} was answered with a row of another task. This is a bug.")
    if isinstance(row, PenstockError):
        fail(f"{row.code}: {row.message}" + _advice(row, settings))
        return EXIT_PROBLEM
    if sys.stdout.isatty():
        Console(highlight=False).print(as_text(row))
    else:
        print(json.dumps(_as_json(row)))
    return EXIT_OK


def _advice(error: PenstockError, settings: FileJobSettings) -> str:
    if error.code != "expired":
        return ""
    return f" Is a worker for {settings.served_name!r} running? Start one: penstock worker --model …"


def _as_json(row: _Shown) -> Any:
    if isinstance(row, TextVectors):
        return {"embedding": row.vector.tolist(), "token_embeddings": row.tokens.tolist(), **_as_json(row.sparse)}
    if isinstance(row, SparseVector):
        return {"indices": row.ids.tolist(), "values": row.weights.tolist()}
    if isinstance(row, Generation):
        return {"text": row.text, "finish": row.finish, "tokens": row.tokens}
    if isinstance(row, Classification):
        return [{"label": label, "score": score} for label, score in zip(row.labels, row.scores, strict=True)]
    return row.tolist()


def as_text(row: _Shown) -> Table | str:
    """An answer as a terminal shows it, in rich's markup. Of embed_all the vector: all else is in the JSON."""
    if isinstance(row, TextVectors):
        return as_text(row.vector)
    if isinstance(row, SparseVector):
        return _table("token id", "weight", sorted(zip(*row, strict=True), key=lambda entry: -entry[1]))
    if isinstance(row, Generation):
        return escape(row.text or "")
    if isinstance(row, Classification):
        return _table("label", "score", list(zip(row.labels, row.scores, strict=True)))
    if row.ndim == 2:
        return f"{len(row)} vectors of {row.shape[1]} dimensions"
    is_of_bytes = row.dtype.kind != "f"  # eight signs or one value in each
    head = ", ".join(f"{number}" if is_of_bytes else f"{number:.4f}" for number in row[:_SHOWN_NUMBERS])
    unit = "bytes" if is_of_bytes else "dimensions"
    return f"[{head}{', …' if len(row) > _SHOWN_NUMBERS else ''}]  {len(row)} {unit}".replace("[", "\\[")


def _table(name: str, number: str, rows: Sequence[tuple[Any, float]]) -> Table:
    table = Table(name, number, box=None, header_style="bold")
    for one, value in rows:
        table.add_row(str(one), f"{value:.4f}")
    return table
