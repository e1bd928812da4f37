"""Errors of requests that missed their deadline or were rejected because they would have, one class for each cause.

Both kinds of `Expired` are one code on the wire; their classes let metrics count them apart.
"""

import functools
from typing import ClassVar

from penstock.producer.errors import Expired, Overloaded, PenstockError
from penstock.scheduler import Cause


class ArrivedLate(Expired):
    """The deadline had passed before this worker read the request."""

    cause: ClassVar[Cause] = Cause.ARRIVED_LATE


class LateInQueue(Expired):
    """The request was admitted, and its deadline passed or can no longer be met."""

    cause: ClassVar[Cause] = Cause.QUEUED


_ABSURD_S = 365 * 86400.0  # a deadline given in seconds, or in another unit


def deadline_error(cause: Cause, late_s: float) -> PenstockError:
    """The error for a request that is not run; `late_s` is how late its answer is, or would be.

    It tells the lateness to two digits. Requests that are about equally late share one error, which is encoded once.
    """
    if late_s < _ABSURD_S:
        return _shared_error(cause, f"{float(f'{late_s * 1e3:.2g}'):,.0f} ms")
    return _shared_error(cause, "years (it is given in milliseconds since 1970)")


@functools.lru_cache(maxsize=1024)
def _shared_error(cause: Cause, late: str) -> PenstockError:
    match cause:
        case Cause.ARRIVED_LATE:
            return ArrivedLate(f"The deadline had passed {late} before the request could be taken: allow more time.")
        case Cause.QUEUED:
            return LateInQueue(
                f"The deadline can no longer be met, by {late}: it took longer than predicted to get here. Allow more "
                "time, or start more workers."
            )
        case Cause.OVERLOADED:
            return Overloaded(
                f"The answer would come {late} too late, given the current queue. Send again later, allow more time, "
                "or start more workers."
            )
    raise RuntimeError(f"No error is known for the cause {cause!r}. This is a bug.")


def cause_of(error: PenstockError) -> Cause | None:
    """The cause of an error by `deadline_error`; None for any other error."""
    if isinstance(error, Overloaded):
        return Cause.OVERLOADED
    return error.cause if isinstance(error, ArrivedLate | LateInQueue) else None
