"""Unit tests need Python alone. Integration tests need a real Kafka: where it cannot run they are skipped, and one line
of the summary says so; under CI they fail instead."""

import os

import pytest

from penstock.ops.kafka import BrokerError, kafka_missing
from penstock.ops.kafka.jars import fetch_jars

_MISSING = pytest.StashKey[str]()
_NOT_RUN = pytest.StashKey[list[str]]()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Download Kafka before the first test, so that no test's timeout pays for it."""
    if session.config.option.collectonly or not any(map(_needs_kafka, session.items)):
        return
    missing = kafka_missing()
    if missing is None:
        try:
            fetch_jars()
        except BrokerError as error:
            missing = " ".join(str(error).split())
    if missing is not None:
        session.config.stash[_MISSING] = missing
        session.config.stash[_NOT_RUN] = []


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    stash = item.config.stash
    if _MISSING not in stash or not _needs_kafka(item):
        return
    if os.environ.get("CI") == "true":
        pytest.fail(f"CI must run the integration tests, but {stash[_MISSING]}.", pytrace=False)
    stash[_NOT_RUN].append(item.location[0])
    pytest.skip(stash[_MISSING])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    not_run = config.stash.get(_NOT_RUN, [])
    if not_run:
        files = ", ".join(sorted(set(not_run)))
        reason = config.stash[_MISSING]
        terminalreporter.write_line(f"{len(not_run)} integration tests did not run ({files}): {reason}.", yellow=True)


def _needs_kafka(item: pytest.Item) -> bool:
    return item.get_closest_marker("integration") is not None
