"""The conditions of a loop that has come to rest: of the records on both topics, and of the vectors in the target."""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import psycopg

from penstock.engine.types import Float32Array
from penstock.ops.bench.load.records import Record
from penstock.ops.loop.loop_settings import RESULT, REVISION, TARGET_TABLE

_SHOWN = 5
_MOST_ERROR = 1e-4  # of a component, and of a distance: two programs that compute in float32
_NEIGHBOURS = 10


@dataclass(slots=True)
class Verdict:
    """Complaints, each with examples, and figures. Without complaints the loop has passed."""

    complaints: dict[str, list[str]] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)

    def complain(self, what: str, examples: Sequence[object]) -> None:
        """Note what does not hold, if there are examples of it."""
        if examples:
            self.complaints[what] = [f"{len(examples)} times", *map(str, examples[:_SHOWN])]

    def check_records(self, inputs: Iterable[Record], outputs: Iterable[Record]) -> None:
        """Of each key, the output topic has each record of the input topic once, in order, with nothing changed.

        Key, headers and time are as they were, and so is the value, but for the vector, its revision, and both in the
        schema.
        """
        before, after = _by_key(inputs), _by_key(outputs)
        self.figures["input_records"] = sum(map(len, before.values()))
        self.figures["output_records"] = sum(map(len, after.values()))
        keys = sorted(before.keys() | after.keys())
        self.complain("lost_or_doubled", [key for key in keys if len(before[key]) != len(after[key])])
        pairs = [(key, *pair) for key in keys for pair in zip(before[key], after[key], strict=False)]
        self.complain("changed_or_out_of_order", [key for key, old, new in pairs if not _is_enriched(old, new)])

    def check_vectors(self, ids: Sequence[int], vectors: Float32Array, expected: Float32Array) -> None:
        """The vectors in the target are those of the reference."""
        errors = np.abs(vectors - expected).max(axis=1)
        self.figures["vectors"], self.figures["largest_error"] = len(ids), float(f"{errors.max():.2g}")
        self.complain("wrong_vector", np.asarray(ids)[errors > _MOST_ERROR].tolist())

    def check_neighbours(
        self, connection: psycopg.Connection, ids: Sequence[int], expected: Float32Array, queries: Float32Array
    ) -> None:
        """The rows that pgvector finds nearest to a query are those that are nearest by the reference's vectors.

        A row as far as the farthest of them may be in its place.
        """
        place = {number: n for n, number in enumerate(ids)}
        unit = expected / np.linalg.norm(expected, axis=1, keepdims=True)
        wrong = []
        for n, query in enumerate(queries):
            distances = 1 - unit @ (query / np.linalg.norm(query))
            found = [place[number] for number in _nearest(connection, query)]
            best = np.sort(distances)[: len(found)]
            if len(found) < min(_NEIGHBOURS, len(ids)) or not np.allclose(distances[found], best, atol=_MOST_ERROR):
                wrong.append(n)
        self.figures["queries"] = len(queries)
        self.complain("other_neighbours", wrong)


def _nearest(connection: psycopg.Connection, query: Float32Array) -> list[int]:
    statement = f"SELECT id FROM {TARGET_TABLE} WHERE {RESULT} IS NOT NULL ORDER BY {RESULT} <=> %s::real[]::vector, id"
    return [found for (found,) in connection.execute(f"{statement} LIMIT {_NEIGHBOURS}", (query.tolist(),))]


def _by_key(records: Iterable[Record]) -> dict[bytes, list[Record]]:
    found: dict[bytes, list[Record]] = defaultdict(list)
    for record in records:
        found[record.key or b""].append(record)
    return found


def _is_enriched(before: Record, after: Record) -> bool:
    kept = before.timestamp == after.timestamp and set(before.headers) <= set(after.headers)
    if before.value is None or after.value is None:
        return kept and before.value is after.value
    old, new = json.loads(before.value), json.loads(after.value)
    row = new["payload"]["after"] or {}
    added = row.pop(RESULT, None), row.pop(REVISION, None)
    has_text = bool(row) and row["body"] is not None
    return kept and old["payload"] == new["payload"] and all((value is not None) == has_text for value in added)
