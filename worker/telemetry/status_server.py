"""The HTTP port of a worker: `/metrics` for Prometheus, `/readyz` and `/livez` for probes, `/config` for operators."""

import asyncio
import contextlib
import io
import json
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from socketserver import ThreadingMixIn
from typing import Any, TextIO
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import structlog
from prometheus_client import CollectorRegistry, make_wsgi_app

_LOOP_S = 1.0  # an event loop that takes longer to answer is not live
_POLL_S = 0.05  # a server that is stopped ends within this
_SILENT_S = 10.0  # for which a connection may send nothing; each holds a thread and a file of the worker

log = structlog.get_logger("penstock.worker")


@dataclass(frozen=True, slots=True)
class Status:
    """The answers of the port. All of it is called from the server's threads, which may wait."""

    registry: CollectorRegistry
    not_ready: Callable[[], str]  # why the worker does not serve; empty if it does
    not_live: Callable[[], str]  # why a restart would help, beside the event loop; empty if it would not
    config: Callable[[], Mapping[str, Any]]  # settings in force, as JSON data without secrets; empty: not decided yet


def serve_status(host: str, port: int, status: Status) -> WSGIServer:
    """Serve on a thread, until `shutdown`. Called on the event loop that both probes ask for a sign of life.

    Raises OSError that names the options if the port is taken or the host is not an address of this machine.
    """
    loop = asyncio.get_running_loop()
    metrics = make_wsgi_app(status.registry)

    def respond(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        match environ["PATH_INFO"]:
            case "/readyz":
                fault = status.not_ready() or _loop_fault(loop)
                body: Mapping[str, Any] = {"ready": not fault}
            case "/livez":
                fault = _loop_fault(loop) or status.not_live()
                body = {"live": not fault}
            case "/config":
                body = status.config()
                fault = "" if body else "the settings are decided when a model is loaded"
            case _:
                found: Iterable[bytes] = metrics(environ, start_response)
                return found
        code = "503 Service Unavailable" if fault else "200 OK"
        start_response(code, [("Content-Type", "application/json"), ("Cache-Control", "no-store")])
        return [json.dumps({**body, **({"reason": fault} if fault else {})}).encode()]

    try:
        family, *_, (address, *_) = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        server = make_server(str(address), port, respond, _SERVERS[family], _Silent)
    except OSError as error:
        raise OSError(error.errno, error.strerror, f"--metrics-host {host} --metrics-port {port}") from error
    threading.Thread(target=_run, args=(server, loop), name="status-server", daemon=True).start()
    log.info("metrics_served", host=host, port=server.server_port)
    return server


def _run(server: WSGIServer, loop: asyncio.AbstractEventLoop) -> None:
    """Serve until `shutdown`. What ends it before fails a callback of the loop, and so the worker."""
    try:
        server.serve_forever(_POLL_S)
    except Exception as error:
        loop.call_soon_threadsafe(_raise, error)


def _raise(error: Exception) -> None:
    raise error


def _loop_fault(loop: asyncio.AbstractEventLoop) -> str:
    answered = threading.Event()
    loop.call_soon_threadsafe(answered.set)
    return "" if answered.wait(_LOOP_S) else f"the event loop has not answered for {_LOOP_S:g} s"


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Of a connection: what its client does is no fault of the worker. The log has no line that is not JSON."""
        error = sys.exception()
        if not isinstance(error, OSError):
            log.warning("status_request_failed", error=repr(error))


class _Silent(WSGIRequestHandler):
    timeout = _SILENT_S

    def handle(self) -> None:
        with contextlib.suppress(TimeoutError):
            super().handle()

    def get_stderr(self) -> TextIO:
        """For the traceback of an answer that fails."""
        return _Event()

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


class _Event(io.StringIO):
    """Takes a traceback, and logs its last line."""

    def flush(self) -> None:
        if lines := self.getvalue().splitlines():
            log.warning("status_request_failed", error=lines[-1])


class _Server6(_Server):
    address_family = socket.AF_INET6


_SERVERS = {socket.AF_INET: _Server, socket.AF_INET6: _Server6}
