"""Every cause has its own typed error, which tells the lateness and what to do."""

import pytest

from penstock.producer.errors import BackendError, Expired, Overloaded
from penstock.scheduler import Cause
from penstock.worker.requests.deadline_errors import cause_of, deadline_error


@pytest.mark.parametrize(
    ("cause", "kind", "advice"),
    [
        (Cause.ARRIVED_LATE, Expired, "allow more time"),
        (Cause.QUEUED, Expired, "start more workers"),
        (Cause.OVERLOADED, Overloaded, "Send again later"),
    ],
)
def test_each_cause_has_its_error(cause: Cause, kind: type[Expired | Overloaded], advice: str) -> None:
    error = deadline_error(cause, 1.2345)
    assert isinstance(error, kind)
    assert error.code == kind.code
    assert error.retriable == kind.retriable
    assert "1,200 ms" in error.message  # two digits, so that requests that are late together share the error
    assert deadline_error(cause, 1.2) is error
    assert advice in error.message
    assert cause_of(error) is cause
    assert cause_of(type(error)("as a record's error", {3: error})) is cause  # as the worker repeats it


def test_every_cause_is_covered() -> None:
    assert {cause_of(deadline_error(cause, 0.0)) for cause in Cause} == set(Cause)


def test_other_errors_have_no_cause() -> None:
    assert cause_of(BackendError("broken")) is None
