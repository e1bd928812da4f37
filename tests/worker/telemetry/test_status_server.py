"""The HTTP port: metrics, and probes with a reason; on this machine only, unless the settings say otherwise."""

import asyncio
import contextlib
import http.client
import json
import socket
import struct
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any
from wsgiref.simple_server import WSGIServer

import pytest
from prometheus_client import CollectorRegistry, Counter
from structlog.testing import capture_logs

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
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
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
        with socket.create_connection(("127.0.0.1", port), timeout=300) as connection:
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
    async with asyncio.timeout(300):
        while not signal.is_set():  # noqa: ASYNC110 — a thread sets it
            await asyncio.sleep(0.01)
    server.server_close()
    assert repr(signal.failure) == "OSError('no more files')"


async def test_a_port_that_is_taken_is_named() -> None:
    async with serving() as (_, port):
        with pytest.raises(OSError, match=f"--metrics-host 127.0.0.1 --metrics-port {port}"):
            serve_status("127.0.0.1", port, NOTHING)


def raw(port: int, request: bytes) -> bytes:
    """The answer to these bytes, up to the end of the connection, or as much as came before it was reset."""
    answer = b""
    with contextlib.suppress(ConnectionError), socket.create_connection(("127.0.0.1", port), timeout=300) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        while part := connection.recv(65536):
            answer += part
    return answer


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET /metrics HTTP/1.1\r\nX: " + b"a" * 70_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\n" + b"X: y\r\n" * 200 + b"\r\n",
        b"GET /metrics?name[]=%ff%00 HTTP/1.1\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nHost: \xff\r\n\r\n",
        b"GET /metrics HTTP/9.9\r\n\r\n",
        b"POST /metrics HTTP/1.1\r\nContent-Length: many\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)),
        b"GET /metrics\r\n\r\n",
        b"\r\n\r\n",
        b"",
    ],
    ids=["header", "line", "many headers", "query", "path", "version", "length", "tls", "0.9", "blank", "nothing"],
)
async def test_no_request_prints_to_the_log(
    request_bytes: bytes, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_server._Silent, "timeout", 5.0)
    async with serving() as (_, port):
        for _ in range(3):
            await asyncio.to_thread(raw, port, request_bytes)
        status, _ = await asyncio.to_thread(get, port, "/metrics")
        assert status == 200
    captured = capfd.readouterr()
    assert (captured.err, "Traceback" in captured.out) == ("", False)


def reset(port: int, num_header_bytes: int) -> None:
    """Send so many bytes of a header, and break the connection off."""
    with contextlib.suppress(ConnectionError), socket.create_connection(("127.0.0.1", port), timeout=300) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.sendall(b"GET /metrics HTTP/1.1\r\nX: " + bytes(num_header_bytes))


@pytest.mark.parametrize("num_header_bytes", [0, 100, 70_000, 3_000_000])
async def test_a_connection_that_breaks_off_prints_nothing(
    num_header_bytes: int, capfd: pytest.CaptureFixture[str]
) -> None:
    async with serving() as (_, port):
        for _ in range(10):
            await asyncio.to_thread(reset, port, num_header_bytes)
            assert (await asyncio.to_thread(get, port, "/metrics"))[0] == 200
    captured = capfd.readouterr()
    assert (captured.err, "Traceback" in captured.out) == ("", False)


async def test_an_answer_that_fails_is_an_event(capfd: pytest.CaptureFixture[str]) -> None:
    def fail() -> Mapping[str, Any]:
        raise RuntimeError("broken")

    with capture_logs() as logs:
        async with serving(config=fail) as (_, port):
            status, _ = await asyncio.to_thread(get, port, "/config")
    assert status == 500
    assert [(entry["event"], entry["error"]) for entry in logs if entry["log_level"] != "info"] == [
        ("status_request_failed", "RuntimeError: broken")
    ]
    assert capfd.readouterr().err == ""
