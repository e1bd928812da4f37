"""The HTTP port of a worker: `/metrics` for Prometheus, `/ready` and `/live` for probes such as those of Kubernetes."""

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import structlog
from prometheus_client import CollectorRegistry, make_wsgi_app

_LIVE_S = 1.0  # an event loop that takes longer to answer is not live

log = structlog.get_logger("penstock.serve")

NotReady = Callable[[], str]  # why the worker is not ready; empty if it is


def serve_status(host: str, port: int, registry: CollectorRegistry, not_ready: NotReady) -> WSGIServer:
    """Serve on a thread, until `shutdown`. Called on the event loop that both probes ask for a sign of life.

    `not_ready` is called from other threads. Raises OSError that names the options if the port is taken or the host is
    not an address of this machine.
    """
    loop = asyncio.get_running_loop()
    metrics = make_wsgi_app(registry)

    def respond(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path not in ("/ready", "/live"):
            found: Iterable[bytes] = metrics(environ, start_response)
            return found
        reason = (path == "/ready" and not_ready()) or _not_live(loop)
        status = "503 Service Unavailable" if reason else "200 OK"
        start_response(status, [("Content-Type", "application/json"), ("Cache-Control", "no-store")])
        return [json.dumps({path[1:]: not reason, **({"reason": reason} if reason else {})}).encode()]

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
        server.serve_forever()
    except Exception as error:
        loop.call_soon_threadsafe(_raise, error)


def _raise(error: Exception) -> None:
    raise error


def _not_live(loop: asyncio.AbstractEventLoop) -> str:
    answered = threading.Event()
    loop.call_soon_threadsafe(answered.set)
    return "" if answered.wait(_LIVE_S) else f"the event loop has not answered for {_LIVE_S:g} s"


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Silent(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


class _Server6(_Server):
    address_family = socket.AF_INET6


_SERVERS = {socket.AF_INET: _Server, socket.AF_INET6: _Server6}
