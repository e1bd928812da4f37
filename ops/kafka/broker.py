"""A real Apache Kafka broker on this machine, for development and tests: a KRaft node on 127.0.0.1."""

import atexit
import signal
import subprocess
import uuid
from abc import ABC, abstractmethod
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

from penstock.ops.kafka.errors import BrokerFailed
from penstock.ops.kafka.guarded import GuardedProcess, logged_failure
from penstock.ops.kafka.jars import fetch_jars, java_path
from penstock.ops.kafka.owned import OwnedFolder
from penstock.ops.kafka.ports import ReservedPorts, answers
from penstock.ops.kafka.server_properties import ONE_NODE, listener_properties

START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 20.0
# For a short life, as in tests and demos: start-up time matters more than peak throughput.
FAST_START = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx512m")
# For benchmarks: with the flags above the broker limits a fast worker.
FULL_SPEED = ("-XX:+UseG1GC", "-Xms512m", "-Xmx4g")
LOG_FLAGS = (
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSS",
)


def new_cluster_id() -> str:
    """A random id for the nodes of one cluster."""
    return urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """Which node of which cluster a broker is."""

    id: int = 1
    cluster_id: str = field(default_factory=new_cluster_id)


class LocalBroker(ABC):
    """A context manager that starts a broker, or several, and closes them."""

    @abstractmethod
    def start(self) -> None:
        """Start what is not running, and wait until it is ready."""

    @abstractmethod
    def close(self) -> None:
        """Stop it for good."""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class KafkaBroker(LocalBroker):
    """One broker process with its data. All methods block: in a coroutine, use `asyncio.to_thread`.

    Address and data survive `stop` and `kill`, until `close` (or leaving the context). The broker never
    outlives this process, even if this process is killed with SIGKILL. Not safe for concurrent calls.
    """

    def __init__(
        self,
        *,
        data_dir: Path | None = None,  # None: a temporary folder that `close` removes, or the next start if killed
        temporary_in: Path | None = None,  # the parent of that folder; None: the system's
        num_partitions: int = 1,  # of a topic that is created on first use
        config: Mapping[str, str] = MappingProxyType({}),  # further lines of server.properties, with precedence
        listeners: Mapping[str, str] = MappingProxyType({}),  # further ones: name -> its security protocol
        jvm_flags: Sequence[str] = FAST_START,
        port: int | None = None,  # None: a free one
        node: ClusterNode | None = None,  # None: the only one of a new cluster
    ) -> None:
        self._own_data: OwnedFolder | None = None
        if data_dir is None:
            self._own_data = OwnedFolder("penstock-kafka-", temporary_in)
            data_dir = self._own_data.path
        self._data_dir = data_dir.resolve()
        self._num_partitions = num_partitions
        self._config = dict(config)
        self._jvm_flags = tuple(jvm_flags)
        self._node = node or ClusterNode()
        self._ports = ReservedPorts(2 + len(listeners))
        free_port, self._controller_port, *ports = self._ports.numbers
        self._port = port or free_port
        self._listeners = dict(listeners)
        self._listener_ports = dict(zip(listeners, ports, strict=True))
        self._process: GuardedProcess | None = None

    @property
    def bootstrap_servers(self) -> str:
        """`127.0.0.1:port`, constant for the life of this object."""
        return f"127.0.0.1:{self._port}"

    def address(self, listener: str) -> str:
        """`127.0.0.1:port` of a further listener."""
        return f"127.0.0.1:{self._listener_ports[listener]}"

    @property
    def nodes(self) -> list["KafkaBroker"]:
        """This broker, as a `BrokerCluster` of one."""
        return [self]

    @property
    def voter(self) -> str:
        """This node in `controller.quorum.voters`."""
        return f"{self._node.id}@127.0.0.1:{self._controller_port}"

    @property
    def log_path(self) -> Path:
        """The broker's log. Each start appends to it."""
        return self._data_dir / "broker.log"

    @property
    def pid(self) -> int | None:
        """Process id of the broker; None if it is not running."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Start the broker and wait until it answers a metadata request. No effect if it is running.

        Raises BrokerMissing or BrokerFailed, and leaves no process behind.
        """
        if self.pid is not None:
            return
        self._reap()
        classpath = f"{fetch_jars()}/*"
        properties = self._write_properties()
        if not (self._data_dir / "data" / "meta.properties").exists():
            self._format(classpath, properties)
        atexit.register(self.close)
        try:
            self._launch(classpath, properties)
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """Shut down cleanly: the broker flushes its log. Kill it after STOP_TIMEOUT_S."""
        if self._process is not None:
            self._process.stop(STOP_TIMEOUT_S)
        self._reap()

    def kill(self) -> None:
        """Kill the broker with SIGKILL, as in a crash. Acknowledged records survive until the next start."""
        self._reap()

    def suspend(self) -> None:
        """Stop the process with SIGSTOP, as a machine that hangs: its connections stay open."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Undo `suspend`."""
        self._signal(signal.SIGCONT)

    def configure(self, config: Mapping[str, str]) -> None:
        """Add lines to server.properties, from the next start on."""
        self._config.update(config)

    def close(self) -> None:
        """Stop the broker for good, give its ports back and remove temporary data. May be called twice."""
        atexit.unregister(self.close)
        if self._own_data is None:
            self.stop()
        else:
            self._reap()  # the data is not read again: a clean shutdown would only cost time
            self._own_data.remove()
        self._ports.release()

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send(number)

    def _java(self, flags: Sequence[str]) -> list[str]:
        java = java_path()
        if java is None:
            raise BrokerFailed("java has disappeared since it was found. Start again.")
        return [java, *flags]

    def _write_properties(self) -> Path:
        lines = {
            **listener_properties(
                {"PLAINTEXT": self._port} | self._listener_ports, self._listeners, self._controller_port
            ),
            "node.id": str(self._node.id),
            "controller.quorum.voters": self.voter,
            "log.dirs": str(self._data_dir / "data"),
            "num.partitions": str(self._num_partitions),
            **ONE_NODE,
            **self._config,
        }
        path = self._data_dir / "server.properties"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        return path

    def _format(self, classpath: str, properties: Path) -> None:
        command = [*self._java(FAST_START), "-cp", classpath, "kafka.tools.StorageTool", "format"]
        # The id follows an equals sign, because one in 64 ids starts with a dash.
        command += [f"--cluster-id={self._node.cluster_id}", "--config", str(properties)]
        log_start = self.log_path.stat().st_size if self.log_path.exists() else 0
        with self.log_path.open("ab") as log:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=START_TIMEOUT_S)
        if done.returncode != 0:
            raise BrokerFailed(f"Kafka could not format {self._data_dir}:\n{logged_failure(self.log_path, log_start)}")

    def _launch(self, classpath: str, properties: Path) -> None:
        command = [*self._java(self._jvm_flags), *LOG_FLAGS, "-cp", classpath, "kafka.Kafka", str(properties)]
        self._process = GuardedProcess(command, self.log_path)
        self._process.wait_until(lambda: answers(self._port), "Kafka", START_TIMEOUT_S)

    def _reap(self) -> None:
        if self._process is not None:
            self._process.kill()
        self._process = None
