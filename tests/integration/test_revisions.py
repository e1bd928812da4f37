"""Two workers of different revisions under one served name: no call has vectors of both."""

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.ops.kafka import KafkaBroker
from penstock.producer import Client, MixedRevisions
from tests.integration.conftest import StartWorker, Unique

OLD, NEW = "old", "newer"  # the tests' engine adds the length of its revision to each number of a vector
# Records of more than 8 KiB, which the client spreads over the partitions, and so over both workers.
IDS = [[5 + row, *[7] * 199] for row in range(256)]


async def test_calls_and_streams_of_two_revisions_end_with_an_error_that_names_both(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker, minilm: Path, tmp_path: Path
) -> None:
    model = unique("rolled")

    def start(revision: str) -> Any:
        return start_worker(kafka, served_name=model, echo_revision=revision, cache_path=tmp_path / "cache.sqlite")

    first = await start(OLD).ready()
    async with client(kafka, model, minilm) as strict, client(kafka, model, minilm, allow_mixed_revisions=True) as any_:
        before = await strict.embed(ids=IDS)
        answered, rolled = asyncio.Event(), asyncio.Event()
        stream = asyncio.create_task(read(strict, rows(rolled), answered))
        await asyncio.wait_for(answered.wait(), 60)
        await start(NEW).ready()
        with pytest.raises(MixedRevisions, match=f"(?=.*'{OLD}').*'{NEW}'"):
            await until_mixed(strict)
        assert (await any_.embed(ids=IDS)).shape == before.shape
        first.process.send_signal(signal.SIGTERM)
        assert await first.exit_code() == 0
        after = await strict.embed(ids=IDS)
        rolled.set()
        with pytest.raises(MixedRevisions, match=f"'{OLD}' and '{NEW}'"):
            await stream
    np.testing.assert_array_equal(after - before, len(NEW) - len(OLD))  # the shared cache gave no vector of old weights


def client(kafka: KafkaBroker, model: str, tokenizer: Path, *, allow_mixed_revisions: bool = False) -> Client:
    return Client(
        bootstrap_servers=kafka.bootstrap_servers,
        model=model,
        tokenizer=tokenizer,
        sequences_per_record=16,
        allow_mixed_revisions=allow_mixed_revisions,
    )


async def until_mixed(strict: Client) -> None:
    """Ask until both workers have partitions; a call that one of them answers alone is right."""
    async with asyncio.timeout(300):
        while True:
            await strict.embed(ids=IDS)


async def rows(rolled: asyncio.Event) -> AsyncIterator[str]:
    yield "before"
    await rolled.wait()
    yield "after"


async def read(strict: Client, texts: AsyncIterator[str], answered: asyncio.Event) -> None:
    async for _ in strict.map_rows("embed", texts):
        answered.set()
