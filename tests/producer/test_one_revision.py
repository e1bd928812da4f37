"""Answers of one call, stream or job have one revision of the model, or it ends with an error that names both."""

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from penstock.producer import MixedRevisions, PenstockError
from penstock.producer.one_revision import OneRevision
from penstock.producer.wire.codec import encode_reply
from penstock.producer.wire.headers import CORRELATION_ID, PARTIAL
from penstock.producer.wire.messages import Generation, Reply, Request
from tests.producer.helpers import Received, connected, first_ids

NAMES_BOTH = r"'m' .*'v1' and 'v2'"


def by_turns(*revisions: str) -> Callable[[Request], Reply]:
    """Workers of these revisions, which answer one record after another; the last one answers all further ones."""
    remaining = list(revisions)

    def answer(request: Request) -> Reply:
        revision = remaining.pop(0) if len(remaining) > 1 else remaining[0]
        return Reply("m", revision, vectors=first_ids(request).vectors)

    return answer


@pytest.mark.parametrize("share", [True, False])
async def test_a_call_that_two_revisions_answer_raises_both(monkeypatch: pytest.MonkeyPatch, share: bool) -> None:
    settings = {"sequences_per_record": 2, "batch_calls": share}
    async with connected(monkeypatch, by_turns("v1", "v2"), **settings) as (client, _):
        with pytest.raises(MixedRevisions, match=NAMES_BOTH):
            await client.embed(ids=[[1], [2], [3]])
        vectors = await client.embed(ids=[[1], [2], [3]])  # all of v2
    assert vectors[:, 0].tolist() == [1, 2, 3]


async def test_map_raises_it_for_the_whole_call(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected(monkeypatch, by_turns("v1", "v2"), sequences_per_record=2) as (client, _):
        with pytest.raises(MixedRevisions, match=NAMES_BOTH):
            await client.map("embed", ids=[[1], [2], [3]])


async def test_records_of_a_call_that_has_ended_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    revisions = iter(["v1", "v2"])

    def answer(request: Request) -> Reply | None:
        revision = next(revisions, None)
        return None if revision is None else Reply("m", revision, vectors=first_ids(request).vectors)

    async with connected(monkeypatch, answer, sequences_per_record=1) as (client, loop):
        with pytest.raises(MixedRevisions):
            await asyncio.wait_for(client.embed(ids=[[1], [2], [3]]), 30)
        assert loop.waiting == 1


async def test_calls_that_share_a_record_are_judged_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second record holds the end of one call and the whole of another, which has one revision."""
    async with connected(monkeypatch, by_turns("v1", "v2"), sequences_per_record=2) as (client, loop):
        first, second = await asyncio.gather(
            client.embed(ids=[[1], [2], [3]]), client.embed(ids=[[4]]), return_exceptions=True
        )
    assert [request.num_sequences for request in loop.requests] == [2, 2]
    assert isinstance(first, MixedRevisions)
    assert not isinstance(second, BaseException)
    assert second[:, 0].tolist() == [4]


async def test_what_is_sent_again_counts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record without its row at fault may reach another worker."""
    replies: list[Reply | PenstockError] = [
        Reply("m", "v1", scores=(1.0, 2.0)),
        PenstockError("bad", {0: PenstockError("bad")}),
    ]

    def answer(request: Request) -> Reply | PenstockError:
        return replies.pop(0) if replies else Reply("m", "v2", scores=(3.0,) * request.num_sequences)

    async with connected(monkeypatch, answer, sequences_per_record=2) as (client, _):
        with pytest.raises(MixedRevisions):
            await client.map("rerank", [("a", "b")] * 4)


async def test_a_stream_ends_where_the_weights_change(monkeypatch: pytest.MonkeyPatch) -> None:
    async def rows() -> Any:
        for number in range(6):
            yield f"text {number}"

    def answer(request: Request) -> Reply:
        assert request.text is not None
        return Reply(
            "m",
            "v1" if str(request.text[-1]) < "text 3" else "v2",
            vectors=np.zeros((request.num_sequences, 1), np.float32),
        )

    shown: list[str] = []

    async def read() -> None:
        async for row, _ in client.map_rows("embed", rows()):
            shown.append(row)

    async with connected(monkeypatch, answer) as (client, _):
        with pytest.raises(MixedRevisions, match=NAMES_BOTH):
            await read()
    assert shown == ["text 0", "text 1", "text 2"][: len(shown)]


async def test_several_revisions_are_taken_by_those_who_want_it(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"sequences_per_record": 2, "allow_mixed_revisions": True}
    async with connected(monkeypatch, by_turns("v1", "v2"), **settings) as (client, _):
        assert (await client.embed(ids=[[1], [2], [3]]))[:, 0].tolist() == [1, 2, 3]


async def test_several_calls_of_one_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected(monkeypatch, by_turns("v1", "v2")) as (client, _):
        one = OneRevision()
        await client.map("embed", ids=[[1]], revision=one)
        assert one.first == "v1"
        with pytest.raises(MixedRevisions, match=NAMES_BOTH):
            await client.map("embed", ids=[[1]], revision=one)


async def test_a_text_that_is_begun_by_one_revision_and_ended_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(request: Request) -> Reply:
        correlation = [(name, data) for name, data in loop.records[-1].headers if name == CORRELATION_ID]
        value = encode_reply(Reply("m", "v1", generations=(Generation((7,), "partial"),)))
        receive = client._exchange._inbox._receive
        asyncio.get_running_loop().call_soon(receive, Received([*correlation, (PARTIAL, b"0")], value))
        return Reply("m", "v2", generations=(Generation((7, 8, 1), "stop"),))

    async with connected(monkeypatch, answer) as (client, loop):
        with pytest.raises(MixedRevisions, match=NAMES_BOTH):
            _ = [row async for row in client.stream(ids=[1])]
    async with connected(monkeypatch, answer, allow_mixed_revisions=True) as (client, loop):
        rows = [row.tokens async for row in client.stream(ids=[1])]
    assert rows == [(7,), (7, 8, 1)]
