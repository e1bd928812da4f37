"""A traceback of the library in the worker's log is a bug, unless a fault has taken the privilege away."""

from datetime import UTC, datetime
from typing import Any

import pytest

from penstock.ops.chaos.faults.faults import Injected
from penstock.ops.chaos.verdict.refusals import is_denial

REVOKED = Injected("access_revoked", 1000.0, 1010.0)


def event(at_s: float, logger: str = "aiokafka.consumer", last: str = "GroupAuthorizationFailed") -> dict[str, Any]:
    exception = f"Traceback (most recent call last):\n{last}"
    return {"logger": logger, "exception": exception, "timestamp": datetime.fromtimestamp(at_s, UTC).isoformat()}


@pytest.mark.parametrize(("at_s", "expected"), [(999.9, False), (1000.0, True), (1040.0, True), (1040.1, False)])
def test_a_denial_is_expected_while_a_privilege_is_missing(at_s: float, expected: bool) -> None:
    assert is_denial(event(at_s), [REVOKED]) is expected


def test_other_faults_and_other_exceptions_are_no_denials() -> None:
    assert not is_denial(event(1005.0), [Injected("no_leader", 1000.0, 1010.0)])
    assert not is_denial(event(1005.0), [Injected("access_revoked", 1000.0, 1010.0, error="TimeoutError()")])
    assert not is_denial(event(1005.0, logger="penstock.worker"), [REVOKED])
    assert not is_denial(event(1005.0, last="KeyError: 1"), [REVOKED])
