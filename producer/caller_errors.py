"""Errors of the tree that a client raises by itself. No worker sends them."""

from collections.abc import Collection
from difflib import get_close_matches

from penstock.producer.errors import InvalidRequest, PenstockError

_NEAR = 0.75  # of `get_close_matches`: a slip of the keyboard, and not another option


class KafkaUnreachable(PenstockError):
    """No broker answered within `connect_timeout_s`, or a command's broker was lost for as long."""

    code = "kafka_unreachable"
    retriable = True


class WrongArgument(InvalidRequest, TypeError):
    """An argument has the wrong type, or a name that the method does not have. Nothing was sent."""


class WrongLoop(PenstockError, RuntimeError):
    """A client was used from another event loop or process than that in which it was started."""

    code = "wrong_loop"


class MixedRevisions(PenstockError):
    """Two revisions of the model answered one call, stream or job."""

    code = "mixed_revisions"


def did_you_mean(name: str, known: Collection[str]) -> str:
    """` Did you mean …?` for a name that is like a known one; else empty."""
    near = get_close_matches(name, sorted(known), 1, _NEAR)
    return f" Did you mean `{near[0]}`?" if near else ""
