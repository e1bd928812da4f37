"""`client.sequence`: what it sends of fields, and what callers get of emissions, with the broker left out."""

import asyncio
from typing import Any

import numpy as np
import pytest

from penstock.producer import BackendError, Client, EmptyInput, InvalidRequest, PenstockError
from penstock.producer.wire.codec import MAX_RECORD_BYTES
from penstock.producer.wire.messages import Reply, Request
from penstock.producer.wire.sequence_codec import EmissionColumn, EmissionTable
from tests.producer.helpers import connected


def sums(request: Request) -> Reply | PenstockError:
    """Answers each sequence with the sums of its values so far; those with a word are at fault."""
    assert request.sequences is not None
    at_fault = {place: InvalidRequest("a word") for place, one in enumerate(request.sequences) if "word" in one}
    if at_fault:
        return InvalidRequest("Some are at fault.", at_fault)
    rows = [np.cumsum(one["values"]) for one in request.sequences]
    values = np.concatenate(rows).astype(np.float32)[:, None]
    columns = {"sum": EmissionColumn(values, tuple(map(len, rows)))}
    return Reply("m", "r", emissions=EmissionTable(len(rows), columns))


async def test_fields_are_sent_as_plain_values_and_emissions_come_back_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected(monkeypatch, sums) as (client, loop):
        rows = await client.sequence([{"values": np.array([1, 2, 3])}, {"values": (4,), "scale": np.float32(0.5)}])
    assert [row["sum"].tolist() for row in rows] == [[[1], [3], [6]], [[4]]]
    sent = [request.sequences for request in loop.requests]
    assert sorted(sent, key=str) == [({"values": [1, 2, 3]},), ({"values": [4], "scale": 0.5},)]


async def test_each_sequence_is_a_record_so_that_a_short_one_does_not_wait_for_a_long_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with connected(monkeypatch, sums) as (client, loop):
        rows = await asyncio.gather(*[client.sequence([{"values": [n, n]}]) for n in range(300)])
    assert [int(row[0]["sum"][-1, 0]) for row in rows] == [2 * n for n in range(300)]
    assert len(loop.requests) == 300


async def test_bulk_sequences_share_records(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected(monkeypatch, sums, bulk=True) as (client, loop):
        await client.sequence([{"values": [n]} for n in range(300)])
    assert len(loop.requests) == 5  # of 64 sequences, the setting `sequences_per_record`


async def test_a_sequence_at_fault_has_its_own_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected(monkeypatch, sums) as (client, _):
        sequences: list[dict[str, Any]] = [{"values": [1]}, {"word": "no"}, {"values": [None]}, {"values": [2]}]
        results = await client.map("sequence", sequences)
        assert [isinstance(result, dict) for result in results] == [True, False, False, True]
        with pytest.raises(InvalidRequest, match="a word"):
            await client.sequence(sequences[:2])


@pytest.mark.parametrize(
    ("sequences", "error", "message"),
    [
        ([], EmptyInput, "nothing to send"),
        ([{}], EmptyInput, "Sequence 0 has no field"),
        ({"values": [1]}, InvalidRequest, "must be a list of maps"),
        ("values", InvalidRequest, "must be a list of maps of fields. Given: str"),
        ([[1, 2]], InvalidRequest, "Sequence 0 must be a map of fields. Given: list"),
        ([{"values": {"a": 1}}], InvalidRequest, "must hold numbers, strings and booleans"),
        ([{"values": b"bytes"}], InvalidRequest, "must hold numbers, strings and booleans"),
        ([{1: [1]}], InvalidRequest, "a field's name must be a string"),
        ([{"values": 2**64}], InvalidRequest, "Sequence 0 cannot be sent"),
        ([{"values": "\ud800"}], InvalidRequest, "Sequence 0 cannot be sent"),
        ([{"values": np.zeros((1, 1, 1, 1, 1))}], InvalidRequest, "lists more than 4 deep"),
        ([{"values": [0] * 4097}], InvalidRequest, "a list of more than 4096 items"),
        ([{"values": [[0] * 4000] * 17}], InvalidRequest, "at most 65,536 items"),
    ],
)
async def test_what_the_wire_cannot_hold_is_not_sent(
    monkeypatch: pytest.MonkeyPatch, sequences: Any, error: type[PenstockError], message: str
) -> None:
    async with connected(monkeypatch, sums) as (client, loop):
        with pytest.raises(error, match=message):
            await client.sequence(sequences)
    assert loop.requests == []


async def test_many_sequences_are_split_over_records(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected(monkeypatch, sums) as (client, loop):
        rows = await client.sequence([{"values": [1000] * 1000}] * 500)
    assert [float(row["sum"][-1, 0]) for row in rows] == [1_000_000] * 500
    assert all(len(record.value or b"") < MAX_RECORD_BYTES // 8 for record in loop.records)


async def test_a_reply_of_another_kind_is_the_workers_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected(monkeypatch, lambda request: Reply("m", "r", scores=(0.5,))) as (client, _):
        with pytest.raises(BackendError, match="rows of the wrong kind"):
            await client.sequence([{"values": [1]}])


async def test_sequence_takes_no_ids() -> None:
    with pytest.raises(InvalidRequest, match="takes maps of fields"):
        await Client(model="m", bootstrap_servers="nowhere:1").map("sequence", ids=[[1]])
