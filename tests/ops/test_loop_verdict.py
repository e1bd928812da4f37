"""The verdict of the loop: a broken promise is a complaint, and a kept one is none."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from penstock.ops.bench.load.records import Record
from penstock.ops.loop.loop_settings import RESULT, REVISION
from penstock.ops.loop.verdict import Verdict

Change = Callable[[list[Record]], list[Record]]


def record(key: int, body: str | None, *, op: str = "c", time_ms: int = 1) -> Record:
    row = None if op == "d" else {"id": key, "body": body}
    value = json.dumps({"schema": {"fields": []}, "payload": {"after": row, "op": op}}).encode()
    return Record("in", 0, 0, time_ms, b"%d" % key, value, [("header", b"kept")])


def tombstone(key: int) -> Record:
    return record(key, None)._replace(value=None)


def enriched(before: Record) -> Record:
    headers = [*before.headers, ("model", b"a model")]
    if before.value is None or not (row := json.loads(before.value)["payload"]["after"]) or row["body"] is None:
        return before._replace(topic="out", headers=headers)
    return with_row(before._replace(topic="out", headers=headers), **{RESULT: [0.5, 0.25], REVISION: "m@1"})


def with_row(before: Record, **changes: Any) -> Record:
    document = json.loads(before.value or b"")
    document["payload"]["after"] |= changes
    return before._replace(value=json.dumps(document).encode())


INPUTS = [
    record(1, "a text"),
    record(2, None),
    record(1, "another", op="u"),
    record(3, "a third"),
    record(1, None, op="d"),
    tombstone(1),
]


def complaints(outputs: list[Record]) -> set[str]:
    verdict = Verdict()
    verdict.check_records(INPUTS, outputs)
    return {*verdict.complaints}


def test_records_that_have_their_vectors_and_nothing_else_are_right() -> None:
    assert complaints([enriched(one) for one in INPUTS]) == set()


def test_the_order_of_different_keys_is_free() -> None:
    assert complaints([enriched(one) for one in sorted(INPUTS, key=lambda one: one.key or b"")]) == set()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda records: records[:-1], "lost_or_doubled"),
        (lambda records: [*records, records[-1]], "lost_or_doubled"),
        (lambda records: [records[2], records[1], records[0], *records[3:]], "changed_or_out_of_order"),
        (lambda records: [with_row(records[0], body="changed"), *records[1:]], "changed_or_out_of_order"),
        (lambda records: [INPUTS[0], *records[1:]], "changed_or_out_of_order"),
        (
            lambda records: [records[0], with_row(records[1], **{RESULT: [0.5]}), *records[2:]],
            "changed_or_out_of_order",
        ),
        (lambda records: [with_row(records[0], **{REVISION: None}), *records[1:]], "changed_or_out_of_order"),
        (lambda records: [records[0]._replace(timestamp=2), *records[1:]], "changed_or_out_of_order"),
        (lambda records: [records[0]._replace(headers=()), *records[1:]], "changed_or_out_of_order"),
        (lambda records: [*records[:-1], records[-1]._replace(value=b"null")], "changed_or_out_of_order"),
    ],
    ids=[
        "lost",
        "doubled",
        "order",
        "row",
        "no vector",
        "a vector of no text",
        "no revision",
        "time",
        "headers",
        "no tombstone",
    ],
)
def test_a_broken_promise_is_a_complaint(change: Change, complaint: str) -> None:
    assert complaints(change([enriched(one) for one in INPUTS])) == {complaint}


def test_a_vector_that_is_another_texts_is_named() -> None:
    expected = np.eye(3, dtype=np.float32)
    verdict = Verdict()
    verdict.check_vectors([10, 20, 30], expected + np.float32(1e-6), expected)
    assert verdict.complaints == {}
    verdict.check_vectors([10, 20, 30], expected[[0, 2, 1]], expected)
    assert verdict.complaints == {"wrong_vector": ["2 times", "20", "30"]}
