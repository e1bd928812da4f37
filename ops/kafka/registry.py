"""A real schema registry on this machine, for development and tests: Apicurio's, with Confluent's interface."""

import contextlib
import http.client
import os
import signal
import subprocess
import tarfile
import tempfile
import time
from pathlib import Path

from penstock.ops.kafka.broker import FAST_START, START_TIMEOUT_S, LocalBroker
from penstock.ops.kafka.errors import BrokerFailed, BrokerMissing
from penstock.ops.kafka.jars import MAVEN_TIMEOUT_S, exclusive, java_path, kafka_missing
from penstock.ops.kafka.owned import OwnedFolder, StartGate
from penstock.ops.kafka.ports import ReservedPorts

_VERSION = "3.0.9"  # the last that runs on Java 17
_ARTIFACT = f"io.apicurio:apicurio-registry-app:{_VERSION}:tar.gz:all"
_PATH = "/apis/ccompat/v7"
_ATTEMPTS = 4


class RegistryServer(LocalBroker):
    """One registry process with its schemas. All methods block. Address and schemas survive `kill`, until `close`.

    It never outlives this process.
    """

    def __init__(self) -> None:
        self._data = OwnedFolder("penstock-registry-")
        self._ports = ReservedPorts(1)
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Of Confluent's interface; constant for the life of this object."""
        return f"http://127.0.0.1:{self._ports.numbers[0]}{_PATH}"

    def start(self) -> None:
        """Start the registry and wait until it answers. No effect if it is running.

        A slow machine may need several attempts: the registry gives its own database five seconds. Raises BrokerMissing
        or BrokerFailed, and leaves no process behind.
        """
        if self._process is not None:
            return
        (jar,) = fetch_registry().glob("*-runner.jar")
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                self._launch(jar)
            except BrokerFailed:
                if attempt == _ATTEMPTS:
                    raise
            else:
                return

    def _launch(self, jar: Path) -> None:
        settings = {
            "quarkus.http.host": "127.0.0.1",
            "quarkus.http.port": str(self._ports.numbers[0]),
            "apicurio.datasource.url": f"jdbc:h2:file:{self._data.path / 'schemas'};WRITE_DELAY=0",
        }
        command = [java_path() or "java", *FAST_START, *[f"-D{name}={value}" for name, value in settings.items()]]
        with (self._data.path / "registry.log").open("ab") as log, StartGate() as gate:
            self._process = subprocess.Popen(
                gate.held(*command, "-jar", str(jar)), stdin=gate.stdin, stdout=log, stderr=log, process_group=0
            )
            self._guard = gate.guard(self._process.pid)
        try:
            self._wait_until_ready(self._process)
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        """Kill the registry with SIGKILL. The guard first: it could kill another process of the same pid."""
        for process in (self._guard, self._process):
            if process is not None:
                process.send_signal(signal.SIGKILL)
                process.wait()
                if process.stdin is not None:
                    process.stdin.close()
        self._guard = self._process = None

    def close(self) -> None:
        """Stop the registry for good, and remove its schemas. May be called twice."""
        self.kill()
        self._data.remove()
        self._ports.release()

    def _wait_until_ready(self, process: "subprocess.Popen[bytes]") -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(0.05)
                raise BrokerFailed(f"The registry ended with exit code {code} while starting:\n{self._tail()}")
            if time.monotonic() > deadline:
                raise BrokerFailed(f"The registry was not ready after {START_TIMEOUT_S:.0f} s:\n{self._tail()}")

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self._ports.numbers[0], timeout=5)
        try:
            connection.request("GET", f"{_PATH}/subjects")
            return connection.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _tail(self) -> str:
        return (self._data.path / "registry.log").read_text(errors="replace")[-3000:]


def fetch_registry() -> Path:
    """The folder of the registry's jars, which Maven fills on first use. Safe for concurrent processes.

    Raises BrokerMissing if Java or Maven is missing, BrokerFailed if Maven fails.
    """
    missing = kafka_missing()
    if missing is not None:
        raise BrokerMissing(f"A schema registry cannot run here: {missing}.")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock"
    target = cache / f"registry-{_VERSION}"
    cache.mkdir(parents=True, exist_ok=True)
    with exclusive(target.with_name(f"{target.name}.lock")):
        if not target.is_dir():
            _download(target)
    return target


def _download(target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=".registry-", dir=target.parent) as scratch:
        archive = Path(scratch, "registry.tar.gz")
        # Later versions of the plugin want the artifact's parent, which Maven Central does not have.
        command = ["mvn", "-q", "-B", "org.apache.maven.plugins:maven-dependency-plugin:2.8:get"]
        command += [f"-Dartifact={_ARTIFACT}", "-Dtransitive=false", f"-Ddest={archive}"]
        done = subprocess.run(
            command,
            cwd=scratch,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=MAVEN_TIMEOUT_S,
        )
        if done.returncode != 0:
            raise BrokerFailed(f"Maven failed to fetch the registry (exit {done.returncode}):\n{done.stdout[-2000:]}")
        folder = Path(scratch, "registry")
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
        folder.rename(target)
