"""Replies to JSON requests, as Python's own parser reads them."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from penstock.engine.types import ModelInfo
from penstock.producer.wire.codec import decode_reply
from penstock.producer.wire.messages import Options, Reply
from penstock.worker.batching.batch import BatchStats, Sums
from penstock.worker.replies.reply import encode_partial, encode_replies
from penstock.worker.requests.sequence_block import SequenceBlock
from penstock.worker.stepping.generation_work import generation_row

MakeSequences = Callable[..., list[SequenceBlock]]


def json_sequences(make: MakeSequences, *ids: list[int], **given: Any) -> list[SequenceBlock]:
    sequences = make(*ids, **given)
    sequences[0].request.address.is_json = True
    return sequences


@pytest.mark.parametrize(
    ("options", "row"),
    [
        (Options(), [0.5, -1.0, 0.1, 3.0]),
        (Options(dtype="float16"), [0.5, -1.0, 0.099975586, 3.0]),
        (Options(dtype="ubinary"), [0b10110000]),
        (Options(dtype="binary"), [0b10110000 - 128]),
    ],
)
def test_vectors_are_lists_of_numbers(
    info: ModelInfo, make_sequences: MakeSequences, options: Options, row: list[float]
) -> None:
    first, second = json_sequences(make_sequences, [1], [2], options=options)
    for sequence in (first, second):
        sequence.settle([np.array([0.5, -1, 0.1, 3], np.float32)])
    [value] = encode_replies([first.request], info, None, 0.0)
    reply = json.loads(value)
    assert (reply["model"], reply["revision"], reply["task"], reply["n"]) == ("tiny", "r1", "embed", 2)
    assert reply["rows"] == [row, row]


def test_notes_of_a_json_reply_are_those_of_msgpack(info: ModelInfo, make_sequences: MakeSequences) -> None:
    stats = BatchStats("full", "fifo", 0.0, Sums(2, 5, 13, 3), 0.25, device_s=0.125)
    (of_json,), (of_msgpack,) = json_sequences(make_sequences, [1, 2]), make_sequences([1, 2])
    for sequence in (of_json, of_msgpack):
        sequence.request.note_tokens(2)
        sequence.settle([np.zeros(4, np.float32)])
    values = encode_replies([of_json.request, of_msgpack.request], info, stats, 11.0)
    reply, expected = json.loads(values[0]), decode_reply(values[1])
    assert isinstance(expected, Reply)
    assert (reply["cached"], reply["timing"], reply["batch"]) == (expected.cached, expected.timing, expected.batch)


def test_classes_are_objects(info: ModelInfo, make_sequences: MakeSequences) -> None:
    [sequence] = json_sequences(make_sequences, [1], task="classify", options=Options(top_k=2))
    sequence.settle([np.array([0.25, 0.5, 0.125], np.float32)])
    [value] = encode_replies([sequence.request], info, None, 0.0)
    assert json.loads(value)["rows"] == [
        {"label": "green", "score": 0.5, "labels": ["green", "red"], "scores": [0.5, 0.25]}
    ]


def test_a_partial_reply_is_json_too(info: ModelInfo, make_sequences: MakeSequences) -> None:
    [sequence] = json_sequences(make_sequences, [1], task="generate")
    partial = json.loads(encode_partial(sequence, generation_row([7, 8], "partial"), info, None))
    assert (partial["ok"], partial["task"], partial["rows"]) == (
        True,
        "generate",
        [{"finish": "partial", "tokens": [7, 8]}],
    )
