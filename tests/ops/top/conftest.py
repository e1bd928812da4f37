"""Ports that tests scrape."""

import pytest

from penstock.ops.top import scrape
from penstock.worker.supervision import members_port


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No answer is late, however long the machine stands still."""
    monkeypatch.setattr(scrape, "_WITHIN_S", 60.0)
    monkeypatch.setattr(members_port, "_SCRAPE_S", 60.0)
