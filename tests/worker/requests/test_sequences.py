"""Requests of models made of cells, up to the queue: what is wrong with a sequence is told before it takes a slot."""

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from penstock.engine.cells.graph import GraphLimits
from penstock.engine.types import ModelInfo
from penstock.producer.errors import EmptyInput, InvalidRequest, PenstockError, UnsupportedTask
from penstock.producer.prompts import Prompts
from penstock.producer.wire.codec import decode_reply, encode_request
from penstock.producer.wire.messages import Reply, Request, join_tokens
from penstock.worker.replies.reply import encode_replies
from penstock.worker.requests.preparation import RequestPreparer
from penstock.worker.requests.record import PendingRecord
from penstock.worker.requests.reply_bounds import ReplyBounds
from penstock.worker.requests.request import PendingRequest
from penstock.worker.requests.sequence_block import SequenceBlock
from penstock.worker.requests.sequences import SequenceRequests
from penstock.worker.requests.validation import RequestValidator
from penstock.worker.stepping.cell_model import SequenceChecks
from tests.worker.conftest import FakeRecord
from tests.worker.stepping.cell_models import EMISSIONS, MODEL, Bench


class Stages:
    """The stages before the queue, for a model made of cells."""

    def __init__(self, info: ModelInfo, max_reply_bytes: int = 10_000) -> None:
        self.info = replace(info, tasks=frozenset({"sequence"}), emissions=EMISSIONS)
        bounds = ReplyBounds(self.info, max_reply_bytes)
        checks = SequenceChecks(MODEL, 8, GraphLimits(max_nodes=10, max_steps=2000))
        cells = SequenceRequests(self.info, checks.work, max_reply_bytes)
        self._validator = RequestValidator(
            self.info, bounds, Prompts(), reply_topics=".*", slo_s=None, max_sequences=64
        )
        self._preparer = RequestPreparer(self.info, bounds, None, has_cache=True, cells=cells)

    def requests(self, message: Request) -> list[PendingRequest]:
        """The valid request of a record. Raises its rejection."""
        record = PendingRecord(FakeRecord(encode_request(message)), ("t", 0), from_bulk_topic=False)
        requests, rejections = self._validator.validate([record], 1.0, 1.0)
        for rejection in rejections:
            raise rejection.error
        return requests

    async def sequences(self, *fields: dict[str, Any]) -> list[SequenceBlock]:
        """The sequences of one request. Raises its rejection."""
        requests = self.requests(Request(self.info.name, "sequence", sequences=fields))
        prepared, rejections = await self._preparer.prepare(requests)
        for rejection in rejections:
            raise rejection.error
        return prepared


async def test_each_sequence_has_its_work_and_its_key(info: ModelInfo) -> None:
    stages = Stages(info)
    sequences = await stages.sequences({"values": [1, 2, 3]}, {"values": [1, 2]}, {"values": [1, 2, 3]})
    assert [len(sequence.token_ids) for sequence in sequences] == [4, 3, 4]  # steps, with that of `halve`
    assert [sequence.work is not None and sequence.work.num_steps for sequence in sequences] == [4, 3, 4]
    assert sequences[0].keys[0] == sequences[2].keys[0] != sequences[1].keys[0]
    (other,) = await Stages(replace(info, revision="r2")).sequences({"values": [1, 2, 3]})
    assert other.keys[0] != sequences[0].keys[0]


async def test_sequences_at_fault_are_named(info: ModelInfo) -> None:
    fields: list[dict[str, Any]] = [{"values": [1]}, {"values": []}, {"values": "word"}]
    fields += [{"values": [1], "more": 1}, {"none": 1}]
    with pytest.raises(PenstockError, match=r"Sequence 1 \(and 2 more\): EmptySequence") as caught:
        await Stages(info).sequences(*fields)
    assert {place: type(error) for place, error in caught.value.rows.items()} == {
        1: EmptyInput,
        2: InvalidRequest,
        4: InvalidRequest,
    }
    assert "KeyError" in caught.value.rows[4].message


@pytest.mark.parametrize("length", [2001, 2500])
async def test_a_sequence_over_the_limits_is_rejected(info: ModelInfo, length: int) -> None:
    with pytest.raises(InvalidRequest, match=r"GraphTooLarge: the request has \d+ steps; at most 2000"):
        await Stages(info).sequences({"values": [1] * length})


async def test_a_record_whose_emissions_no_reply_could_hold_is_rejected_without_a_culprit(info: ModelInfo) -> None:
    stages = Stages(info, max_reply_bytes=4096)
    assert len(await stages.sequences({"values": [1] * 400})) == 1  # 8 bytes a step
    with pytest.raises(InvalidRequest, match="would exceed 4,096 bytes; send fewer") as caught:
        await stages.sequences({"values": [1] * 400}, {"values": [1] * 100})
    assert caught.value.rows == {}


async def test_other_tasks_are_rejected(info: ModelInfo) -> None:
    with pytest.raises(UnsupportedTask, match="can sequence"):
        Stages(info).requests(Request(info.name, "embed", join_tokens([[1]])))


async def test_the_event_loop_has_turns_while_much_is_unfolded(info: ModelInfo) -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await Stages(info, max_reply_bytes=10**6).sequences(*[{"values": [1] * 1000}] * 20)
    counting.cancel()
    assert turns >= 10


async def test_results_of_the_runner_become_the_columns_of_a_reply(info: ModelInfo) -> None:
    stages, bench = Stages(info), Bench()
    jobs = [[1, 2, 4], [4, 6, 99], [5]]
    sequences = await stages.sequences(*[{"values": values} for values in jobs])
    bench.add(*jobs)
    rows: dict[int, Any] = {}
    while not bench.runner.is_idle:
        rows |= dict(bench.runner.advance(0.0).finished)
    for sequence in sequences:
        sequence.settle([rows[sequence.indices[0]]])
    (value,) = encode_replies([sequences[0].request], stages.info, None, 1.0)
    reply = decode_reply(value)
    assert isinstance(reply, Reply)
    found: Any = reply.rows("sequence")
    assert [row["sum"].ravel().tolist() for row in found] == [[1, 3, 7], [4, 10], [5]]
    assert [row["half"].ravel().tolist() for row in found] == [[3.5], [5], [2.5]]
    assert [row["is_ten"].dtype for row in found] == [np.int32] * 3
