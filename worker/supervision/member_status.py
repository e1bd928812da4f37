"""The supervisor's answers for its members: it asks each one's own port. Runs on the server's threads."""

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from prometheus_client import CollectorRegistry

from penstock.worker.settings import WorkerSettings
from penstock.worker.telemetry.status_server import Status

_ANSWER_S = 8.0  # longer than a member's own answer takes, its engine's probe included
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # members are on this machine


def members_status(
    settings: WorkerSettings,
    registry: CollectorRegistry,
    not_ready: Callable[[], str],
    ports: Callable[[], Mapping[int, int]],
) -> Status:
    """The answers of the supervisor's port. `ports`: worker -> the port that it serves on the loopback interface."""
    own = settings.model_dump(mode="json", include={"config", "metrics_host", "metrics_port"})
    return Status(registry, not_ready, lambda: _not_live(ports()), lambda: _config(ports(), own))


def _not_live(ports: Mapping[int, int]) -> str:
    """Which members say that they are not live, and why.

    A member that does not answer at all has ended or hangs: its supervisor replaces it.
    """
    with ThreadPoolExecutor(max(1, len(ports)), thread_name_prefix="probe") as probes:
        answers = list(probes.map(lambda port: _ask(port, "/livez"), ports.values()))
    faults = [(worker, str(said["reason"])) for worker, said in zip(ports, answers, strict=True) if "reason" in said]
    return "; ".join(f"worker {worker}: {reason}" for worker, reason in faults)


def _config(ports: Mapping[int, int], own: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings in force, as the first member that answers has them, and with `own`. Empty if none has loaded."""
    answers = (_ask(port, "/config") for port in ports.values())
    return next(({**said, **own} for said in answers if "reasons" in said), {})


def _ask(port: int, path: str) -> dict[str, Any]:
    """The JSON object of a member's answer; empty if there is none."""
    try:
        with _OPENER.open(f"http://127.0.0.1:{port}{path}", timeout=_ANSWER_S) as answer:
            said = json.load(answer)
    except urllib.error.HTTPError as refusal:
        with refusal:
            said = _json(refusal.read())
    except (OSError, ValueError, http.client.HTTPException):
        return {}
    return said if isinstance(said, dict) else {}


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return {}
