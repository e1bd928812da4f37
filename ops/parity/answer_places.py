"""Where the answer of a record or of a row is, and what stands beside it."""

import json
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, NamedTuple, Protocol

from penstock.ops.parity.recorded_answers import NotComparable, RecordedAnswer, Unanswered, read_answer
from penstock.producer.files.result_columns import ResultColumns
from penstock.producer.wire.messages import Options
from penstock.worker.routes.pointer import Pointer

_DIGEST_BYTES = 16
_SHOWN_CHARS = 200
_TASKS = ("embed", "embed_all", "classify", "rerank")
_COLUMNS = sorted(
    {ResultColumns(task, Options(top_k=top_k)).names for task in _TASKS for top_k in (0, 1)}, key=len, reverse=True
)  # a longer list stands before one that it ends with


def read_json(text: bytes) -> Any:
    """A document of JSON. Raises NotComparable, whose message begins with a verb."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # also of bytes that are not UTF-8
        raise NotComparable(f"is not JSON: {error}") from error


class ReadAnswer(NamedTuple):
    """The content of a document."""

    answer: RecordedAnswer | Unanswered | NotComparable
    inputs: bytes = b""  # digest of the rest; empty: there is none


class AnswerPlace(Protocol):
    """Made for a whole topic or file."""

    def read(self, document: Any) -> ReadAnswer:
        """The answer in a document of JSON."""
        ...


class FieldPlace:
    """A field, as routes write it."""

    def __init__(self, pointer: Pointer) -> None:
        """`pointer` without names: the whole document is the answer."""
        self._pointer = pointer

    def read(self, document: Any, model: str | None = None) -> ReadAnswer:
        """The answer, and a digest of all other fields, but of those beside it that name its model in this way."""
        value = self._pointer.find(document)
        rest = _without(document, self._pointer.names, model)
        if value is not None:
            return ReadAnswer(_answer(value), _digest(rest))
        at = str(self._pointer) or "the top"
        return ReadAnswer(Unanswered(f"has nothing at {at}. {_fields_of(document)}"), _digest(rest))


class JobColumns:
    """The last columns of a file that `penstock embed`, `classify` or `rerank` has written."""

    def read(self, document: Mapping[str, Any]) -> ReadAnswer:
        """The answer, and a digest of the input's columns."""
        names = list(document)
        found = next((columns for columns in _COLUMNS if _plain(names[-len(columns) :]) == columns), None)
        if found is None:
            reason = "ends in no columns of penstock embed, classify or rerank"
            return ReadAnswer(Unanswered(f"{reason}, and --result-field was not given. {_fields_of(document)}"))
        values = dict(zip(found, list(document.values())[-len(found) :], strict=True))
        inputs = _digest({name: document[name] for name in names[: -len(found)]})
        if (error := values.pop("error")) is not None:
            return ReadAnswer(Unanswered(f"has the error {str(error)[:_SHOWN_CHARS]}"), inputs)
        first = next(iter(values))
        value = values if first == "label" else values[first]
        return ReadAnswer(Unanswered(f"has no {first}") if values[first] is None else _answer(value), inputs)


def _plain(names: list[str]) -> tuple[str, ...]:
    """The names of results beside columns of the input that have them already."""
    return tuple([_without_prefix(name) for name in names])


def _without_prefix(name: str) -> str:
    while name.startswith("penstock_"):
        name = name.removeprefix("penstock_")
    return name


def _answer(value: Any) -> RecordedAnswer | NotComparable:
    try:
        return read_answer(value)
    except NotComparable as error:
        return error.kept()


def _without(document: Any, names: tuple[str, ...], model: str | None) -> Any:
    """The document without what is at the end of the way, or is `model` there; None where nothing else is in it."""
    if not names or not isinstance(document, Mapping):
        return document if names else None
    name, rest = names[0], names[1:]
    others = {key: value for key, value in document.items() if key != name}
    if not rest:
        return {key: value for key, value in others.items() if model is None or value != model}
    if name in document:
        others[name] = _without(document[name], rest, model)
    return others


def _digest(rest: Any) -> bytes:
    if not rest:
        return b""
    return blake2b(json.dumps(rest, sort_keys=True, default=str).encode(), digest_size=_DIGEST_BYTES).digest()


def _fields_of(document: Any) -> str:
    if not isinstance(document, Mapping):
        return "It is no object"
    names = ", ".join(map(str, document)) or "none"
    return f"Its fields: {names[:_SHOWN_CHARS]}"
