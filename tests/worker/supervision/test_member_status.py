"""The supervisor's port answers for its members."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from penstock.worker.settings import WorkerSettings
from penstock.worker.supervision import member_status
from penstock.worker.supervision.member_status import members_status
from penstock.worker.telemetry import status_server
from penstock.worker.telemetry.status_server import Status, serve_status

SETTINGS = WorkerSettings.model_validate({"model": "m", "metrics_port": 9100, "metrics_host": "0.0.0.0"})


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that runs answers in time, however long the machine stands still."""
    monkeypatch.setattr(status_server, "_LOOP_S", 60.0)
    monkeypatch.setattr(member_status, "_ANSWER_S", 100.0)


@asynccontextmanager
async def member(fault: str = "", config: Mapping[str, Any] | None = None) -> AsyncIterator[int]:
    """The port of a member that says this."""
    server = serve_status("127.0.0.1", 0, Status(CollectorRegistry(), str, lambda: fault, lambda: config or {}))
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


def status(*ports: int) -> Status:
    return members_status(SETTINGS, CollectorRegistry(), str, lambda: dict(enumerate(ports)))


async def test_it_is_live_unless_a_member_says_that_it_is_not() -> None:
    async with AsyncExitStack() as stack:
        faults = ("", "the engine hangs", "", "it fails")
        ports = [await stack.enter_async_context(member(fault)) for fault in faults]
        assert await asyncio.to_thread(status(*ports).not_live) == "worker 1: the engine hangs; worker 3: it fails"
        assert await asyncio.to_thread(status(ports[0], ports[2]).not_live) == ""


async def test_a_member_that_does_not_answer_is_its_supervisors_to_replace() -> None:
    async with member() as gone:
        pass
    assert await asyncio.to_thread(status(gone).not_live) == ""
    assert await asyncio.to_thread(status().not_live) == ""


async def test_the_settings_are_those_of_the_members_with_the_port_of_the_supervisor() -> None:
    loaded = {"lanes": 2, "metrics_port": 0, "metrics_host": "127.0.0.1", "reasons": {"given": ["lanes"]}}
    async with member() as loading, member(config=loaded) as port:
        assert await asyncio.to_thread(status(loading).config) == {}
        config = await asyncio.to_thread(status(loading, port).config)
    assert config == {**loaded, "metrics_port": 9100, "metrics_host": "0.0.0.0", "config": None}
