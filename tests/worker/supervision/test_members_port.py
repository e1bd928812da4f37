"""One port for all members: samples labelled with the worker, families once, members that are away left out; probes."""

import asyncio
import socketserver
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest, make_wsgi_app

from penstock.worker.settings import WorkerSettings
from penstock.worker.supervision import members_port
from penstock.worker.supervision.members_port import MemberMetrics, members_status
from penstock.worker.telemetry import status_server
from penstock.worker.telemetry.status_server import Status, serve_status


class _Silent(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def ports(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[int, int]]:
    """Two members that serve metrics, in time however long the machine stands still, and one that does not answer."""
    monkeypatch.setattr(members_port, "_SCRAPE_S", 60.0)
    servers = []
    for worker in range(2):
        registry = CollectorRegistry()
        counter = Counter("penstock_requests", "Finished records.", ["outcome"], registry=registry)
        counter.labels('o"k').inc(worker + 1)
        Histogram("penstock_batch_tokens", "Tokens.", registry=registry, buckets=(1, 2)).observe(1)
        server = make_server("127.0.0.1", 0, make_wsgi_app(registry), handler_class=_Silent)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        servers.append((server, thread))
    yield {worker: server.server_port for worker, (server, _) in enumerate(servers)} | {7: 1}
    for server, thread in servers:
        server.shutdown()
        server.server_close()
        thread.join()


def test_all_members_are_in_one_exposition(ports: dict[int, int]) -> None:
    metrics = MemberMetrics(lambda: ports, lambda: {"serving": 2, "restarting": 1})
    metrics.count_restart(7, "signal")
    lines = generate_latest(metrics.registry).decode().splitlines()
    for expected in (
        'penstock_requests_total{outcome="o\\"k",worker="0"} 1.0',
        'penstock_requests_total{outcome="o\\"k",worker="1"} 2.0',
        'penstock_batch_tokens_bucket{le="1.0",worker="1"} 1.0',
        'penstock_members{state="restarting"} 1.0',
        'penstock_worker_restarts_total{reason="signal",worker="7"} 1.0',
    ):
        assert expected in lines
    types = [line for line in lines if line.startswith("# TYPE")]
    assert len(types) == len(set(types))
    assert "# TYPE penstock_requests_total counter" in types
    assert not any('worker="7"' in line for line in lines if "restarts" not in line)


@pytest.mark.parametrize(
    "answer",
    [b"", b"nonsense\r\n\r\n", b"HTTP/1.0 200 OK\r\nContent-Length: 99\r\n\r\nshort", b"HTTP/1.0 200 OK\r\n\r\na{ 1\n"],
    ids=["nothing", "no HTTP", "cut off", "no exposition"],
)
def test_a_member_that_answers_badly_is_left_out(ports: dict[int, int], answer: bytes) -> None:
    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(65536)
            self.request.sendall(answer)

    with socketserver.TCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.handle_request).start()
        metrics = MemberMetrics(lambda: {**ports, 3: server.server_address[1]}, dict)
        exposition = generate_latest(metrics.registry).decode()
    assert 'penstock_requests_total{outcome="o\\"k",worker="1"} 2.0' in exposition
    assert 'worker="3"' not in exposition


def test_members_are_scraped_without_a_proxy(ports: dict[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    exposition = generate_latest(MemberMetrics(lambda: ports, dict).registry).decode()
    assert 'worker="0"' in exposition


def test_restarts_begin_at_0() -> None:
    metrics = MemberMetrics(dict, dict)
    metrics.add_worker(2)
    lines = generate_latest(metrics.registry).decode().splitlines()
    assert 'penstock_worker_restarts_total{reason="signal",worker="2"} 0.0' in lines


SETTINGS = WorkerSettings.model_validate({"model": "m", "metrics_port": 9100, "metrics_host": "0.0.0.0"})


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that runs answers in time, however long the machine stands still."""
    monkeypatch.setattr(status_server, "_LOOP_S", 60.0)
    monkeypatch.setattr(members_port, "_ANSWER_S", 100.0)


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
