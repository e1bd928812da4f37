"""The judge of routes finds what was lost, doubled, falsified or put out of order, and nothing else."""

import json
from collections.abc import Sequence

import numpy as np
import pytest

from penstock.engine.types import Float32Array
from penstock.ops.bench.load.records import Record
from penstock.ops.chaos.load.route_load import AVRO, CODE, JSON, TEXT
from penstock.ops.chaos.verdict.route_judge import RESULT, RouteJudge

OUTPUT = {JSON: "json.out", AVRO: "avro.out"}
BODY = b"\0\0\0\0\7\2\2"  # of Avro: the id of a schema, and two fields


def expected(text: str) -> Float32Array:
    return np.array([len(text), 0.5], np.float32)


def asked(offset: int, text: str | None = "abc", topic: str = JSON, code: bytes | None = None) -> Record:
    value = None if text is None else json.dumps({"n": offset}).encode() if topic == JSON else BODY
    headers = [] if text is None else [(CODE, code)] if code else [(TEXT, text.encode())]
    return Record(topic, 0, offset, 7, b"key", value, headers)


def enriched(one: Record, value: bytes | None = None) -> Record:
    if value is None and one.value is not None:
        vector = expected("abc")
        added = bytes([2, 4]) + vector.astype("<f4").tobytes() + b"\0"
        is_json = one.topic == JSON
        value = json.dumps(json.loads(one.value) | {RESULT: vector.tolist()}).encode() if is_json else one.value + added
    source = ("penstock-source", f"{one.topic}-0-{one.offset}".encode())
    return one._replace(topic=OUTPUT[one.topic], value=value, headers=[*one.headers, source])


def letter(one: Record, code: bytes) -> Record:
    source = ("penstock-source", f"{one.topic}-0-{one.offset}".encode())
    told = [source, ("penstock-error-code", code), ("penstock-error-message", b"why")]
    return one._replace(topic="letters", headers=[*one.headers, *told])


GOOD = [asked(0), asked(1, None), asked(2, topic=AVRO), asked(3, code=b"backend")]
ENDED = [enriched(GOOD[0]), enriched(GOOD[1]), enriched(GOOD[2])]


def found(outputs: Sequence[Record], letters: Sequence[Record], *, may_repeat: bool = False) -> set[str]:
    judge = RouteJudge(OUTPUT, expected, may_repeat=may_repeat)
    judge.inputs(GOOD, [(JSON, 0, 0)])
    for one in outputs:
        judge.output(one)
    for one in letters:
        judge.letter(one)
    judge.check_outcomes({(JSON, 0): 4}, {(JSON, 0): 4})
    return {*judge.violations}


def test_records_that_came_out_as_they_are_owed_break_no_promise() -> None:
    assert not found(ENDED, [letter(GOOD[3], b"backend")])
    assert not found([*ENDED, *ENDED], [letter(GOOD[3], b"backend")] * 2, may_repeat=True)


@pytest.mark.parametrize(
    ("outputs", "letters", "kind"),
    [
        (ENDED[1:], [letter(GOOD[3], b"backend")], "lost"),
        (ENDED, [], "lost"),
        ([*ENDED, ENDED[0]], [letter(GOOD[3], b"backend")], "doubled"),
        (ENDED, [letter(GOOD[3], b"backend")] * 2, "doubled"),
        (ENDED, [letter(GOOD[3], b"invalid_request")], "wrong_letter"),
        (ENDED, [letter(GOOD[3], b"backend"), letter(GOOD[0], b"backend")], "wrong_outcome"),
        ([ENDED[1], ENDED[0], ENDED[2]], [letter(GOOD[3], b"backend")], "out_of_order"),
        ([enriched(GOOD[0], b"{}"), *ENDED[1:]], [letter(GOOD[3], b"backend")], "wrong_output"),
        ([*ENDED[:2], enriched(GOOD[2], BODY)], [letter(GOOD[3], b"backend")], "wrong_output"),
        ([*ENDED, ENDED[0]._replace(topic="avro.out")], [letter(GOOD[3], b"backend")], "output_of_nothing"),
    ],
)
def test_each_broken_promise_is_found(outputs: Sequence[Record], letters: Sequence[Record], kind: str) -> None:
    assert kind in found(outputs, letters)


def test_what_is_not_committed_and_what_brokers_lost_is_told() -> None:
    judge = RouteJudge(OUTPUT, expected, may_repeat=False)
    judge.inputs([], [(JSON, 0, 0)])
    judge.check_outcomes({(JSON, 0): 3}, {(JSON, 0): 4})
    assert {*judge.violations} == {"input_lost_by_brokers", "left_behind"}
