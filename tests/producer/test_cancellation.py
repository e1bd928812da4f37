"""Cancellations: records that the client sends behind requests of many steps."""

import asyncio
from contextlib import aclosing

import pytest

from penstock.producer import Client, ShuttingDown
from penstock.producer.wire.headers import CANCEL, DEADLINE_MS
from tests.producer.helpers import connected


async def test_a_cancelled_call_cancels_its_requests_of_many_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cancellation follows the request in its partition, with its reply headers and nothing else."""

    async def one(client: Client) -> None:
        async with aclosing(client.stream(ids=[3])) as stream:
            await anext(stream)

    async with connected(monkeypatch, lambda request: None) as (client, loop):
        calls = [
            asyncio.create_task(call)
            for call in (client.sequence([{"x": [1]}]), client.generate(ids=[[1], [2]]), one(client))
        ]
        embedding = asyncio.create_task(client.embed(ids=[[9]]))
        await loop.until_waiting(5)
        for call in (*calls, embedding):
            call.cancel()
        await asyncio.wait([*calls, embedding])
        left = asyncio.create_task(client.generate(ids=[[4]]))
        await loop.until_waiting(6)
        assert len(loop.cancellations) == 4
    with pytest.raises(ShuttingDown):
        await left
    stepped = [at for at, request in enumerate(loop.requests) if request.task != "embed"]
    expected = []
    for at in stepped:
        headers = [(name, data) for name, data in loop.records[at].headers if name != DEADLINE_MS]
        expected.append((loop.partitions_of[at], [*headers, (CANCEL, b"")]))
    assert sorted([(partition, list(record.headers)) for partition, record in loop.cancellations]) == sorted(expected)
    assert {record.value for _, record in loop.cancellations} == {b""}
