"""Kafka Connect on this machine: one process from Maven's jars, and its connectors by its REST interface."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from penstock.ops.kafka import FAST_START
from penstock.ops.kafka.broker import LOG_FLAGS
from penstock.ops.kafka.errors import BrokerFailed
from penstock.ops.kafka.guarded import GuardedProcess
from penstock.ops.kafka.jars import fetch_jars, java_path
from penstock.ops.kafka.owned import OwnedFolder
from penstock.ops.kafka.ports import ReservedPorts

START_TIMEOUT_S, STOP_TIMEOUT_S, RUNNING_TIMEOUT_S = 120.0, 10.0, 60.0
PACKAGE = "penstock.ops.loop"  # whose pom.xml has the jars
_JSON = "org.apache.kafka.connect.json.JsonConverter"
_TRACE_LINES = 4


class ConnectWorker:
    """One process that runs connectors until the context ends. Its calls block."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._servers = bootstrap_servers
        self._folder = OwnedFolder("penstock-connect-")
        self._ports = ReservedPorts(1)
        self._url = f"http://127.0.0.1:{self._ports.numbers[0]}"
        self._process: GuardedProcess | None = None

    def __enter__(self) -> Self:
        """Raises BrokerMissing without Java or Maven, BrokerFailed if Connect ends by itself."""
        try:
            self._start()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def add(self, name: str, config: Mapping[str, str]) -> None:
        """Start a connector, and wait until its task runs. Raises BrokerFailed with the reason if it does not."""
        self._ask("PUT", f"/connectors/{name}/config", config)
        ends = time.monotonic() + RUNNING_TIMEOUT_S
        while not self.is_running(name):
            if time.monotonic() > ends:
                told = "" if self._process is None else self._process.failure()
                raise BrokerFailed(f"The connector {name} did not run after {RUNNING_TIMEOUT_S:.0f} s:\n{told}")
            time.sleep(0.1)

    def is_running(self, name: str) -> bool:
        """Whether the task of a connector runs. Raises BrokerFailed with the reason if it has failed."""
        tasks = self._ask("GET", f"/connectors/{name}/status")["tasks"]
        for task in tasks:
            if task["state"] == "FAILED":
                trace = [line for line in task["trace"].splitlines() if not line.startswith("\t")]
                raise BrokerFailed(f"The connector {name} failed:\n" + "\n".join(trace[-_TRACE_LINES:]))
        return any(task["state"] == "RUNNING" for task in tasks)

    def _start(self) -> None:
        folder = self._folder.path
        settings = {
            "bootstrap.servers": self._servers,
            # JSON with a schema beside each value, which the sink needs and the converter's default is.
            "key.converter": _JSON,
            "value.converter": _JSON,
            "offset.storage.file.filename": str(folder / "offsets"),
            "offset.flush.interval.ms": "1000",
            "listeners": self._url,
            "plugin.discovery": "service_load",
        }
        properties = folder / "connect.properties"
        properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        classpath = f"{fetch_jars(PACKAGE)}/*"
        command = [java_path() or "java", *FAST_START, *LOG_FLAGS, "-cp", classpath]
        command += ["org.apache.kafka.connect.cli.ConnectStandalone", str(properties)]
        self._process = GuardedProcess(command, folder / "connect.log")
        self._process.wait_until(self._answers, "Kafka Connect", START_TIMEOUT_S)

    def _answers(self) -> bool:
        try:
            self._ask("GET", "/connectors")
        except (OSError, BrokerFailed):  # it answers with 404 until it has its resources
            return False
        return True

    def _ask(self, method: str, path: str, body: Mapping[str, str] | None = None) -> Any:
        request = urllib.request.Request(
            self._url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                return json.loads(response.read())
        except urllib.error.HTTPError as error:
            with error:
                raise BrokerFailed(f"Kafka Connect answers {method} {path} with {error.read().decode()}") from error

    def _close(self) -> None:
        if self._process is not None:
            self._process.stop(STOP_TIMEOUT_S)
        self._folder.remove()
        self._ports.release()
