"""Requirements of a real broker are checked before anything starts, and reported in one sentence."""

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.ops.kafka import BrokerFailed, BrokerMissing, KafkaBroker, kafka_missing
from penstock.ops.kafka.jars import fetch_jars, jar_dir

JAVA_17 = "echo 'openjdk version \"17.0.15\" 2025-04-15' >&2"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty PATH and cache; a test puts in it the programs that it wants found."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


def install(folder: Path, name: str, script: str) -> None:
    program = folder / name
    program.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{script}\n")
    program.chmod(stat.S_IRWXU)


def test_no_java(programs: Path) -> None:
    assert "Java 17 or newer is not installed" in (kafka_missing() or "")


def test_java_too_old(programs: Path) -> None:
    install(programs, "java", "echo 'java version \"1.8.0_372\"' >&2")
    assert "is Java 1" in (kafka_missing() or "")


def test_no_maven(programs: Path) -> None:
    install(programs, "java", JAVA_17)
    assert "Maven is not installed" in (kafka_missing() or "")


def test_java_home_comes_before_path(programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(programs, "java", "echo 'java version \"1.8.0_372\"' >&2")
    install(programs, "mvn", "exit 1")
    (tmp_path / "jdk" / "bin").mkdir(parents=True)
    install(tmp_path / "jdk" / "bin", "java", JAVA_17)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    assert kafka_missing() is None


def test_maven_is_not_needed_once_the_jars_are_cached(programs: Path) -> None:
    install(programs, "java", JAVA_17)
    jar_dir().mkdir(parents=True)
    assert kafka_missing() is None
    assert fetch_jars() == jar_dir()


def test_starting_without_java_raises_what_is_missing(programs: Path) -> None:
    broker = KafkaBroker()
    with pytest.raises(BrokerMissing, match="Java 17 or newer is not installed"), broker:
        pass


def test_a_failed_download_is_reported_with_mavens_output_and_leaves_no_cache(programs: Path) -> None:
    install(programs, "java", JAVA_17)
    install(programs, "mvn", "echo 'no route to repository'; exit 1")
    with pytest.raises(BrokerFailed, match="no route to repository"):
        fetch_jars()
    assert not jar_dir().exists()


def test_processes_that_ask_at_once_download_once(programs: Path, tmp_path: Path) -> None:
    install(programs, "java", JAVA_17)
    install(
        programs,
        "mvn",
        f"""echo download >> {tmp_path}/downloads
for argument in "$@"; do case "$argument" in -DoutputDirectory=*) libs="${{argument#*=}}";; esac; done
mkdir "$libs" && touch "$libs/kafka.jar" """,
    )
    ask = "from penstock.ops.kafka.jars import fetch_jars; print(*fetch_jars().iterdir())"
    askers = [subprocess.Popen([sys.executable, "-c", ask], stdout=subprocess.PIPE) for _ in range(3)]
    answers = {asker.communicate(timeout=300)[0].decode().strip() for asker in askers}
    assert answers == {str(jar_dir() / "kafka.jar")}
    assert (tmp_path / "downloads").read_text() == "download\n"
