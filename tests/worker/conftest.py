"""Records, requests and sequences as the worker makes them, from the few words that a test cares about."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from penstock.engine.types import ModelInfo, TaskOptions
from penstock.producer.wire.headers import ReplyAddress, request_headers
from penstock.producer.wire.messages import Options, Request, join_tokens
from penstock.worker.requests.record import PendingRecord
from penstock.worker.requests.request import PendingRequest, StageTimes
from penstock.worker.requests.sequence_block import SequenceBlock

REQUEST_TOPIC = "penstock.requests.tiny"


@dataclass
class FakeRecord:
    """aiokafka's record, as plain data."""

    value: bytes | None = b""
    offset: int = 0
    headers: Sequence[tuple[str, bytes]] = field(
        default_factory=lambda: request_headers(b"id", "penstock.replies", 0, None)
    )
    partition: int = 0
    key: bytes | None = b"key"
    timestamp: int = 0
    topic: str = REQUEST_TOPIC


MakeRecord = Callable[..., FakeRecord]
MakeSequences = Callable[..., list[SequenceBlock]]


@pytest.fixture
def make_record() -> MakeRecord:
    """A record of the request topic with the reply topic `penstock.replies`, unless told otherwise."""
    return FakeRecord


@pytest.fixture
def info() -> ModelInfo:
    """A small model with two tasks."""
    return ModelInfo(
        name="tiny",
        revision="r1",
        dtype="float32",
        device="cpu",
        vocab_size=100,
        max_tokens=8,
        tasks=frozenset({"embed", "classify"}),
        dim=4,
        labels=("red", "green", "blue"),
    )


def one_by_one(blocks: Iterable[SequenceBlock]) -> list[SequenceBlock]:
    """Each sequence as a block of its own."""
    return [block.part([place]) for block in blocks for place in range(len(block.keys))]


def as_one(sequences: Sequence[SequenceBlock]) -> SequenceBlock:
    """Sequences of one request, each a block of its own, as the block that the preparation makes of them."""
    first = sequences[0]
    return SequenceBlock(
        first.request,
        [one.indices[0] for one in sequences],
        np.concatenate([one.token_ids for one in sequences]),
        [one.lengths[0] for one in sequences],
        None,
        first.options,
        [one.keys[0] for one in sequences],
    )


def sequence_maker() -> MakeSequences:
    """Of `make`: `make([1, 2], [3])` is one valid request of two sequences, keyed by their ids, each a block."""
    offsets = itertools.count()

    def make(
        *sequences: Sequence[int],
        deadline: float | None = None,
        bulk: bool = False,
        task: str = "embed",
        options: Options | None = None,
        record: PendingRecord | None = None,
    ) -> list[SequenceBlock]:
        message = Request("tiny", task, tokens=join_tokens(sequences), options=options or Options())
        record = record or PendingRecord(FakeRecord(offset=next(offsets)), (REQUEST_TOPIC, 0), from_bulk_topic=False)
        address = ReplyAddress("penstock.replies", 0, b"id", None)
        request = PendingRequest(record, address, message, deadline, bulk, StageTimes(0.0, 0.0))
        arrays = [np.array(ids, np.int32) for ids in sequences]
        return [
            SequenceBlock(request, (i,), ids, (len(ids),), None, TaskOptions(task), (ids.tobytes(),))
            for i, ids in enumerate(arrays)
        ]

    return make


@pytest.fixture
def make_sequences() -> MakeSequences:
    """See `sequence_maker`."""
    return sequence_maker()
