"""The error tree: codes of error replies, and the exceptions that a client raises.

    PenstockError
    ├── InvalidRequest     invalid_request    malformed envelope, missing field, wrong type, over a size bound
    │   ├── UnknownModel       unknown_model      the topic's workers do not serve this model
    │   ├── UnsupportedTask    unsupported_task   the model cannot do this task, or not with these options
    │   ├── TooLong            too_long           a sequence exceeds the model's maximum and truncate is off
    │   ├── EmptyInput         empty              a blank text, a sequence of zero ids, or no sequence
    │   └── BadTokenId         bad_token_id       a token id is outside the vocabulary
    ├── Expired            expired            the deadline passed before an answer could be given
    ├── Cancelled          cancelled          the sender took the request back
    ├── Overloaded         overloaded         rejected at admission; try later                (retriable)
    ├── BackendError       backend            the engine failed on this input
    └── ShuttingDown       shutting_down      the worker or client is closing                 (retriable)

Those that no reply carries, and a client raises by itself:

    PenstockError
    ├── InvalidRequest
    │   └── WrongArgument      invalid_request    an argument has another type or name
    ├── KafkaUnreachable   kafka_unreachable  no broker answers                               (retriable)
    ├── WrongLoop          wrong_loop         a client is used from another event loop or process
    └── MixedRevisions     mixed_revisions    two revisions of the model answered one call, stream or job

`retriable`: sending the same bytes again may succeed. It is a property of the class.
"""

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import ClassVar

_NEAR = 0.75  # of `get_close_matches`: a slip of the keyboard, and not another option


class PenstockError(Exception):
    """Root of the tree; `code` is the class on the wire.

    A record fails as a whole. `rows` maps the index of each sequence at fault to its error, so that the others can be
    sent again. It is empty when no sequence in particular is at fault.
    """

    code: ClassVar[str] = "backend"
    retriable: ClassVar[bool] = False

    def __init__(self, message: str = "", rows: "Mapping[int, PenstockError] | None" = None) -> None:
        """Control characters are escaped: a message may quote what anybody has sent, and comes to terminals."""
        super().__init__(message if message.isprintable() else _printable(message))
        self.rows: Mapping[int, PenstockError] = rows or {}

    @property
    def message(self) -> str:
        """The sentence for a person: the fault, and the expected value."""
        return str(self.args[0]) or self.code


class InvalidRequest(PenstockError):
    """The request itself is at fault; sending it again cannot help."""

    code = "invalid_request"


class UnknownModel(InvalidRequest):
    """The request names a model that this topic's workers do not serve."""

    code = "unknown_model"


class UnsupportedTask(InvalidRequest):
    """The served model cannot do the task that was asked, or not with the options that were given."""

    code = "unsupported_task"


class TooLong(InvalidRequest):
    """A sequence is longer than the model's maximum and `truncate` is off."""

    code = "too_long"


class EmptyInput(InvalidRequest):
    """A text is blank, a sequence has zero ids, or a request holds no sequence at all."""

    code = "empty"


class BadTokenId(InvalidRequest):
    """A token id is outside the model's vocabulary."""

    code = "bad_token_id"


class Expired(PenstockError):
    """The deadline passed before an answer could be given."""

    code = "expired"


class Cancelled(PenstockError):
    """The sender took the request back before it was answered."""

    code = "cancelled"


class Overloaded(PenstockError):
    """The worker refused the request because it could not be served in time."""

    code = "overloaded"
    retriable = True


class BackendError(PenstockError):
    """The engine failed on this input although it was valid."""

    code = "backend"


class ShuttingDown(PenstockError):
    """The worker or the client is closing; the request was not computed."""

    code = "shutting_down"
    retriable = True


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


def _printable(text: str) -> str:
    return "".join([one if one.isprintable() else one.encode("unicode_escape").decode() for one in text])


ERRORS_BY_CODE: dict[str, type[PenstockError]] = {
    error.code: error
    for error in (
        *(InvalidRequest, UnknownModel, UnsupportedTask, TooLong, EmptyInput, BadTokenId),
        *(Expired, Cancelled, Overloaded, BackendError, ShuttingDown),
    )
}


def error_from_code(code: str, message: str) -> PenstockError:
    """The exception for an error reply; an unknown code, of a newer worker, becomes a `BackendError` that names it."""
    cls = ERRORS_BY_CODE.get(code)
    return cls(message) if cls is not None else BackendError(f"{code}: {message}")
