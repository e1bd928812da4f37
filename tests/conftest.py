"""Skips of tests that need a Kafka broker or a GPU, and the check of log events.

The summary names every skip; under CI a missing broker fails.
"""

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from penstock.ops.kafka import BrokerError, kafka_missing, ports
from penstock.ops.kafka.jars import fetch_jars
from tests.examples import QUICK, QUICK_EXAMPLES
from tests.log_events import listed_fields, unlisted
from tests.skip_summary import skip_lines

# No deadline, for an example or for making it: the first may load or compile something, and the processor is shared.
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(QUICK, settings.get_profile("default"), max_examples=QUICK_EXAMPLES)

_NO_KAFKA = pytest.StashKey[str]()
_LISTED_EVENTS = listed_fields()
_ALL_SLOW = re.compile(r"^pytestmark = .*\bmark\.slow\b", re.MULTILINE)


def pytest_configure() -> None:
    """Each pytest process has ports of its own, for a broker binds one seconds after it was chosen."""
    if worker := os.environ.get("PYTEST_XDIST_WORKER"):
        first = ports._PORTS.start + int(worker[2:]) % 6 * 2000
        ports._PORTS = range(first, first + 2000)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where slow tests are left out, a file of slow ones alone is not imported: its libraries take seconds to load."""
    if collection_path.suffix != ".py" or "not slow" not in config.option.markexpr:
        return None
    return True if _ALL_SLOW.search(collection_path.read_text(encoding="utf-8")) else None


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Download Kafka before the first test, so that no test's timeout includes the download."""
    if session.config.option.collectonly or not any(map(_needs_kafka, session.items)):
        return
    missing = kafka_missing()
    if missing is None:
        try:
            fetch_jars()
        except BrokerError as error:
            missing = " ".join(str(error).split())
    if missing is not None:
        session.config.stash[_NO_KAFKA] = missing


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") is not None:
        _require_gpu()
    if _needs_kafka(item) and _NO_KAFKA in item.config.stash:
        missing = item.config.stash[_NO_KAFKA]
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI must run the integration tests, but {missing}.", pytrace=False)
        pytest.skip(missing)


@pytest.fixture
def sighup() -> Iterator[None]:
    """Let SIGHUP reach the processes that a test starts. Under nohup the tests themselves, and so these, ignore it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture(autouse=True)
def only_listed_events() -> Iterator[None]:
    """Fail a test in whose process the project logs an event, or a field, that the manual does not list."""
    with unlisted(_LISTED_EVENTS) as found:
        yield
    assert found == [], "ops/docs/log-events.md does not list these"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in skip_lines(terminalreporter.stats.get("skipped", [])):
        terminalreporter.write_line(line, yellow=True)


def _needs_kafka(item: pytest.Item) -> bool:
    return item.get_closest_marker("integration") is not None


def _require_gpu() -> None:
    import torch  # slow to import, and most runs need none of it

    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
