"""The HTTP port: metrics, and probes with a reason; on this machine only, unless the settings say otherwise."""

import asyncio
import http.client
import json
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any
from wsgiref.simple_server import WSGIServer

import pytest
from prometheus_client import CollectorRegistry, Counter

from penstock.engine import NullEngine
from penstock.worker.resolved_settings import resolve
from penstock.worker.settings import WorkerSettings
from penstock.worker.stop_signal import StopSignal
from penstock.worker.telemetry import status_server
from penstock.worker.telemetry.status_server import Status, serve_status

SASL: dict[str, Any] = {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", "sasl_username": "u"}
NOTHING = Status(CollectorRegistry(), str, str, dict)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """An event loop that goes on answers in time, however long the machine stands still."""
    monkeypatch.setattr(status_server, "_LOOP_S", 60.0)


def get_while_the_loop_stands_still(port: int, path: str) -> tuple[int, str]:
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(get, port, path).result(60)


@asynccontextmanager
async def serving(
    not_ready: Callable[[], str] = str,
    host: str = "127.0.0.1",
    not_live: Callable[[], str] = str,
    config: Callable[[], Mapping[str, Any]] = dict,
) -> AsyncIterator[tuple[str, int]]:
    registry = CollectorRegistry()
    Counter("penstock_things", "Things.", registry=registry).inc()
    server = serve_status(host, 0, Status(registry, not_ready, not_live, config))
    try:
        yield str(server.server_address[0]), server.server_port
    finally:
        server.shutdown()
        server.server_close()


def get(port: int, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


@pytest.mark.parametrize(("given", "address"), [(None, "127.0.0.1"), ("0.0.0.0", "0.0.0.0"), ("::1", "::1")])
async def test_it_is_served_on_this_machine_unless_told_otherwise(given: str | None, address: str) -> None:
    options = {"model": "null"} | ({} if given is None else {"metrics_host": given})
    async with serving(host=WorkerSettings.model_validate(options).metrics_host) as (served_at, _):
        assert served_at == address


async def test_a_connection_that_sends_nothing_is_closed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(status_server._Silent, "timeout", 0.05)

    def wait_for_the_end(port: int) -> bytes:
        with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
            return connection.recv(1)

    async with serving() as (_, port):
        assert await asyncio.to_thread(wait_for_the_end, port) == b""
    assert capsys.readouterr().err == ""


async def test_readiness_has_a_status_and_a_reason() -> None:
    reason = "worker 1 is starting"
    async with serving(lambda: reason) as (_, port):
        status, body = await asyncio.to_thread(get, port, "/readyz")
        assert (status, json.loads(body)) == (503, {"ready": False, "reason": "worker 1 is starting"})
        reason = ""
        status, body = await asyncio.to_thread(get, port, "/readyz")
        assert (status, json.loads(body)) == (200, {"ready": True})


async def test_metrics_are_served_beside_the_probes() -> None:
    async with serving() as (_, port):
        for path in ("/metrics", "/"):
            status, body = await asyncio.to_thread(get, port, path)
            assert (status, "penstock_things_total 1.0" in body) == (200, True)


async def test_a_worker_is_live_while_its_event_loop_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as (_, port):
        status, body = await asyncio.to_thread(get, port, "/livez")
        assert (status, json.loads(body)) == (200, {"live": True})
        monkeypatch.setattr(status_server, "_LOOP_S", 0.05)
        status, body = get_while_the_loop_stands_still(port, "/livez")
        assert (status, json.loads(body)["live"]) == (503, False)


async def test_an_engine_that_hangs_is_not_live_and_stays_ready() -> None:
    async with serving(not_live=lambda: "the engine hangs") as (_, port):
        status, body = await asyncio.to_thread(get, port, "/livez")
        assert (status, json.loads(body)) == (503, {"live": False, "reason": "the engine hangs"})
        assert (await asyncio.to_thread(get, port, "/readyz"))[0] == 200


async def test_the_settings_in_force_are_served_once_they_are_decided() -> None:
    settings: dict[str, Any] = {}
    async with serving(config=lambda: settings) as (_, port):
        assert (await asyncio.to_thread(get, port, "/config"))[0] == 503
        made = resolve(
            WorkerSettings.model_validate({"model": "m", "sasl_password": "hidden", **SASL}), NullEngine(name="m").info
        )
        settings.update(made.model_dump(mode="json"))
        status, body = await asyncio.to_thread(get, port, "/config")
        assert (status, json.loads(body)["sasl_password"]) == (200, "**********")
        assert json.loads(body)["reasons"]["given"] == ["model", *sorted(["sasl_password", *SASL])]
        assert "hidden" not in body


async def test_a_worker_whose_event_loop_stands_still_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its readiness is what it was before."""
    monkeypatch.setattr(status_server, "_LOOP_S", 0.05)
    async with serving() as (_, port):
        status, body = get_while_the_loop_stands_still(port, "/readyz")
        assert (status, json.loads(body)["ready"]) == (503, False)


async def test_a_server_that_dies_fails_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    signal = StopSignal()
    asyncio.get_running_loop().set_exception_handler(signal.on_loop_error)

    def die(*_: object) -> None:
        raise OSError("no more files")

    monkeypatch.setattr(WSGIServer, "serve_forever", die)
    server = serve_status("127.0.0.1", 0, NOTHING)
    async with asyncio.timeout(60):
        while not signal.is_set():  # noqa: ASYNC110 — a thread sets it
            await asyncio.sleep(0.01)
    server.server_close()
    assert repr(signal.failure) == "OSError('no more files')"


async def test_a_port_that_is_taken_is_named() -> None:
    async with serving() as (_, port):
        with pytest.raises(OSError, match=f"--metrics-host 127.0.0.1 --metrics-port {port}"):
            serve_status("127.0.0.1", port, NOTHING)
