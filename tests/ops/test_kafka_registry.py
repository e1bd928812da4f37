"""The start of a schema registry, which gives up by itself where the machine stands still."""

import http.client
import stat
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from penstock.ops.kafka import RegistryServer
from penstock.ops.kafka.errors import BrokerFailed
from penstock.ops.kafka.jars import java_path

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def java_that_fails(folder: Path, times: int) -> Path:
    """A JAVA_HOME. Its java ends the registry with an error so many times, and is otherwise the machine's."""
    java = folder / "bin" / "java"
    java.parent.mkdir()
    starts = folder / "starts"
    fails = f'echo x >> "{starts}"; [ $(wc -l < "{starts}") -le {times} ] && exit 7'
    java.write_text(f'#!/bin/sh\ncase "$*" in *-runner.jar) {fails};; esac\nexec "{java_path()}" "$@"\n')
    java.chmod(java.stat().st_mode | stat.S_IXUSR)
    return folder


def test_a_registry_that_ends_while_it_starts_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java_that_fails(tmp_path, 2)))
    with RegistryServer() as registry:
        found = urlsplit(registry.url)
        connection = http.client.HTTPConnection(found.hostname or "", found.port)
        connection.request("GET", f"{found.path}/subjects")
        assert connection.getresponse().read() == b"[]"
        connection.close()


def test_a_registry_that_never_starts_says_why_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java_that_fails(tmp_path, 99)))
    with pytest.raises(BrokerFailed, match="exit code 7"), RegistryServer():
        pass
    assert (tmp_path / "starts").read_text().count("x") > 1
