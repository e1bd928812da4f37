"""Records and rows as the worker makes them, from the few words that a test cares about."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from penstock.engine.types import ModelInfo
from penstock.producer.wire.headers import ReplyAddress, request_headers
from penstock.producer.wire.messages import Options, Request, join_tokens
from penstock.worker.requests.record import InFlight, Row, rows_of

REQUEST_TOPIC = "penstock.requests.tiny"


@dataclass
class FakeRecord:
    """What aiokafka hands out, as plain data."""

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
MakeRows = Callable[..., list[Row]]


@pytest.fixture
def make_record() -> MakeRecord:
    """A record of the request topic, addressed to `penstock.replies`, unless told otherwise."""
    return FakeRecord


@pytest.fixture
def info() -> ModelInfo:
    """A small model that can do both tasks."""
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


@pytest.fixture
def make_rows() -> MakeRows:
    """`make_rows([1, 2], [3])` is one accepted record of two sequences, keyed by their ids."""
    offsets = itertools.count()

    def make(
        *sequences: Sequence[int],
        deadline: float | None = None,
        bulk: bool = False,
        task: str = "embed",
        options: Options | None = None,
    ) -> list[Row]:
        tokens = join_tokens(sequences)
        request = Request("tiny", task, tokens=tokens, options=options or Options())
        n = len(sequences)
        owner = InFlight(
            record=FakeRecord(offset=next(offsets)),
            address=ReplyAddress("penstock.replies", 0, b"id", None),
            request=request,
            deadline=deadline,
            bulk=bulk,
            arrived=0.0,
            rows=[None] * n,
            missing=n,
        )
        rows = rows_of(owner, [(np.array(ids, np.int32), None) for ids in sequences])
        for row in rows:
            row.key = row.token_ids.tobytes()
        return rows

    return make
