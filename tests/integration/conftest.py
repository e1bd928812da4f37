"""Everything in this folder runs against a real Kafka broker, one for the whole session."""

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.ops.kafka import KafkaBroker


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.integration)


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaBroker]:
    """The shared broker. A test that stops or kills a broker starts its own `KafkaBroker` instead."""
    with KafkaBroker(num_partitions=4) as broker:
        yield broker


@pytest.fixture
def unique() -> Callable[[str], str]:
    """Names that nothing else on the shared broker has: `unique("requests")` is a topic or group of this test alone."""
    return lambda purpose: f"{purpose}-{uuid.uuid4().hex[:12]}"
