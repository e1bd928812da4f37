"""The jars of a `pom.xml`, such as Apache Kafka's: their requirements, and a cache of them outside the repository."""

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

from penstock.ops.kafka.errors import BrokerFailed, BrokerMissing

MIN_JAVA = 17  # Apache Kafka 4 brokers refuse anything older.
MAVEN_TIMEOUT_S = 600.0
KAFKA = "penstock.ops.kafka"  # the package whose pom.xml has the broker's jars
_VERSION = re.compile(r"<(\w+)\.version>([^<]+)<")  # the first of a pom names its folder


def kafka_missing(package: str = KAFKA) -> str | None:
    """Reason why a real broker, or what else a package's pom.xml is for, cannot run here; None if it can."""
    java = java_path()
    if java is None:
        return f"Java {MIN_JAVA} or newer is not installed (no `java` in JAVA_HOME or PATH)"
    version = _java_major(java)
    if version is None or version < MIN_JAVA:
        return f"Java {MIN_JAVA} or newer is needed; {java} is Java {version or 'of an unknown version'}"
    if shutil.which("mvn") is None and not jar_dir(package).is_dir():
        return f"Maven is not installed (no `mvn` in PATH), and the jars {jar_dir(package).name} are not cached yet"
    return None


def java_path() -> str | None:
    """The java of JAVA_HOME, else the first in PATH."""
    home = os.environ.get("JAVA_HOME")
    candidate = shutil.which("java", path=str(Path(home, "bin"))) if home else None
    return candidate or shutil.which("java")


def jar_dir(package: str = KAFKA) -> Path:
    """Folder of the jars of a package's pom.xml. Its name changes with the pom, so that the cache is never stale."""
    pom = _pom(package)
    version = _VERSION.search(pom)
    if version is None:
        raise BrokerFailed(f"pom.xml of {package} names no version as a property. This is a bug.")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "penstock" / f"{version[1]}-{version[2]}-{hashlib.sha256(pom.encode()).hexdigest()[:8]}"


def fetch_jars(package: str = KAFKA) -> Path:
    """Return the folder of jars, which Maven fills on first use.

    Safe for concurrent processes: one downloads, and the folder appears complete or not at all.
    Raises BrokerMissing if Java or Maven is missing, BrokerFailed if Maven fails.
    """
    missing = kafka_missing(package)
    if missing is not None:
        raise BrokerMissing(f"A real Kafka broker cannot run here: {missing}.")
    target = jar_dir(package)
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with exclusive(target.with_name(f"{target.name}.lock")):
        if not target.is_dir():
            _download(package, target)
    return target


def _download(package: str, target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=".jars-", dir=target.parent) as scratch:
        pom, libs = Path(scratch, "pom.xml"), Path(scratch, "libs")
        pom.write_text(_pom(package))
        command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"]
        command += [f"-DoutputDirectory={libs}", "-DincludeScope=runtime"]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=MAVEN_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired as error:
            raise BrokerFailed(f"Maven did not download {target.name} in {MAVEN_TIMEOUT_S:.0f} s.") from error
        if done.returncode != 0:
            raise BrokerFailed(f"Maven failed to fetch {target.name} (exit {done.returncode}):\n{done.stdout[-2000:]}")
        libs.rename(target)


def _pom(package: str) -> str:
    return resources.files(package).joinpath("pom.xml").read_text(encoding="utf-8")


def _java_major(java: str) -> int | None:
    done = subprocess.run(
        [java, "-version"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    version = re.search(r'version "(\d+)', done.stdout)
    return int(version[1]) if version else None


@contextlib.contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold an advisory lock, which the kernel releases if this process dies."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
