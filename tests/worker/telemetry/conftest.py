"""Logging as it was before each test: the set-up of a worker's logs is that of the process."""

import logging
from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def restore_logging() -> Iterator[None]:
    root, penstock = logging.getLogger(), logging.getLogger("penstock")
    kept = root.handlers[:], root.level, penstock.level
    yield
    for handler in root.handlers:
        if handler not in kept[0]:
            handler.close()
    root.handlers[:], root.level, penstock.level = kept
    logging.setLoggerClass(logging.Logger)
    logging.captureWarnings(False)
    structlog.reset_defaults()
