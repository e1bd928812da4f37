"""A server is asked why no connection can be made, and left if it says nothing."""

import asyncio

import pytest
from aiokafka.errors import KafkaError

from penstock.producer.aiokafka_internals.connection_probe import connection_faults


async def turns(done: asyncio.Task[object], most: int) -> bool:
    """Let the event loop turn until the task has ended. Returns whether it has."""
    for _ in range(most):
        if done.done():
            break
        await asyncio.sleep(0)
    return done.done()


async def test_a_server_that_says_nothing_is_left_after_five_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = asyncio.Event()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1024):
            asked.set()
        writer.close()

    loop, passed_s = asyncio.get_running_loop(), 0.0
    began = loop.time()
    monkeypatch.setattr(loop, "time", lambda: began + passed_s)
    async with await asyncio.start_server(say_nothing, "127.0.0.1", 0) as server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        found: list[tuple[str, OSError | KafkaError]] = []

        async def ask() -> None:
            found.extend([fault async for fault in connection_faults(address, {})])

        asking = asyncio.create_task(ask())
        await asked.wait()
        passed_s = 4.9
        assert not await turns(asking, 100)
        passed_s = 5.0
        assert await turns(asking, 10_000)
    [(server_name, error)] = found
    assert server_name == address
    assert isinstance(error, KafkaError | TimeoutError)
