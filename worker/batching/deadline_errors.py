"""Deadlines that are missed, and requests that are refused so as not to miss them: the error that tells each, by cause.

Both kinds of `Expired` have their own class here, so that they can be counted apart; on the wire they are one code.
"""

from typing import ClassVar

from penstock.producer.errors import Expired, Overloaded, PenstockError
from penstock.scheduler import Cause


class ArrivedLate(Expired):
    """The deadline had passed before this worker had the request."""

    cause: ClassVar[Cause] = Cause.ARRIVED_LATE


class LateInQueue(Expired):
    """It was admitted, and can no longer be met."""

    cause: ClassVar[Cause] = Cause.QUEUED


_ABSURD_S = 365 * 86400.0  # a deadline in seconds, or in something else


def refusal_error(cause: Cause, late_s: float) -> PenstockError:
    """The answer to a request that is not run. `late_s`: how late it is, or would be."""
    late_ms = f"{late_s * 1e3:,.0f} ms" if late_s < _ABSURD_S else "years (it is given in milliseconds since 1970)"
    match cause:
        case Cause.ARRIVED_LATE:
            return ArrivedLate(f"The deadline had passed {late_ms} before the request could be taken: allow more time.")
        case Cause.QUEUED:
            return LateInQueue(
                f"The deadline can no longer be met, by {late_ms}: it took longer than predicted to get here. Allow "
                "more time, or start more workers."
            )
        case Cause.OVERLOADED:
            return Overloaded(
                f"The answer would come {late_ms} too late, after all that waits before it. Send again later, allow "
                "more time, or start more workers."
            )
    raise RuntimeError(f"No error is known for the cause {cause!r}. This is a bug.")


def cause_of(error: PenstockError) -> Cause | None:
    """Why the request was not run, as far as time is the reason."""
    if isinstance(error, Overloaded):
        return Cause.OVERLOADED
    return error.cause if isinstance(error, ArrivedLate | LateInQueue) else None
