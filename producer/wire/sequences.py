"""Checks of a caller's sequences, one at a time, so that an error is that of one sequence."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import numpy.typing as npt

from penstock.producer.errors import EmptyInput, InvalidRequest, PenstockError, WrongArgument
from penstock.producer.wire.messages import Text, token_bytes, utf8_fault
from penstock.producer.wire.sequence_codec import Fields, packed_fields, read_fields

# A text, a pair, ids as uint32, the fields of a model made of cells; or the error that prevents sending it.
Checked = Text | bytes | Fields | PenstockError


class Kind(StrEnum):
    """Kind of the sequences of one call; a record holds one kind."""

    IDS = "ids"
    TEXTS = "texts"
    PAIRS = "pairs"  # texts, at least one of them a pair; only the worker's tokenizer gives token types
    FIELDS = "fields"  # maps

    def named(self, index: int) -> str:
        """The name of one of them in a message, by its place in its call."""
        return f"{'Text' if self in (Kind.TEXTS, Kind.PAIRS) else 'Sequence'} {index}"


# Task -> what each of its texts must be. Other tasks take either.
_PAIR, _STRING, _EITHER = "a pair of strings, as a tuple", "a string", "a string or a pair of strings, as a tuple"
_WANTED = {"rerank": _PAIR, "token_classify": _STRING, "generate": _STRING}


def check(task: str, texts: Sequence[Any] | None, ids: Sequence[npt.ArrayLike] | None) -> tuple[Kind, list[Checked]]:
    """The sequences of a call; a faulty one is replaced by its error. For the task `sequence`, `texts` are maps.

    Raises:
        WrongArgument: not exactly one of the two is given, or it is not a list.
        InvalidRequest: the task takes no ids.
    """
    if task == "sequence":
        return Kind.FIELDS, _check_fields(texts, ids)
    wanted = _WANTED.get(task, _EITHER)
    if (texts is None) == (ids is None):
        fault = "Neither was given." if texts is None else "Both were given."
        raise WrongArgument(f"Give either `texts`, a list, each {wanted}; or `ids`, a list of lists. {fault}")
    if texts is not None:
        listed = check_list("texts", texts, f"a list, each {wanted}")
        is_paired = any(isinstance(text, tuple) for text in listed)
        kind = Kind.PAIRS if is_paired else Kind.TEXTS
        return kind, [_check_text(text, index, wanted) for index, text in enumerate(listed)]
    if task == "rerank":
        raise InvalidRequest("`rerank` needs texts: `ids` cannot say where the second text of a pair begins.")
    listed = check_list("ids", ids, "a list of sequences of token ids", most_dimensions=2)
    return Kind.IDS, [_check_ids(sequence, index) for index, sequence in enumerate(listed)]


def check_list(name: str, given: Any, wanted: str, most_dimensions: int = 1) -> Sequence[Any]:
    """The argument `name`, which has an order and a length: a list, a tuple, an array or a series.

    Raises WrongArgument for anything else, such as a map, whose items would be its keys.
    """
    is_listed = hasattr(given, "__len__") and hasattr(given, "__getitem__")
    is_other = isinstance(given, str | bytes | bytearray | memoryview | Mapping)
    if not is_listed or is_other or getattr(given, "ndim", 1) > most_dimensions:
        raise WrongArgument(f"`{name}` must be {wanted}. Given: {type(given).__name__}")
    return given  # type: ignore[no-any-return]  # checked above


def _check_fields(sequences: Any, ids: object) -> list[Checked]:
    if ids is not None:
        raise WrongArgument("`sequence` takes maps of fields, and no `ids`.")
    listed = check_list("sequences", sequences, "a list of maps of fields")
    return [read_fields(fields, index) for index, fields in enumerate(listed)]


def num_bytes(sequence: Text | bytes | Fields) -> int:
    """Approximate bytes of a sequence in its record."""
    if isinstance(sequence, dict):
        return len(packed_fields(sequence))
    if isinstance(sequence, str):
        return len(sequence) if sequence.isascii() else 4 * len(sequence)
    return sum([num_bytes(part) for part in sequence]) if isinstance(sequence, tuple) else len(sequence)


def _check_text(text: Any, index: int, wanted: str) -> Checked:
    is_pair = isinstance(text, tuple) and len(text) == 2
    is_other = wanted == (_STRING if is_pair else _PAIR)
    parts = text if is_pair else (text,)
    for part in parts:
        if not isinstance(part, str) or is_other:
            return WrongArgument(f"`texts` item {index} must be {wanted}. Given: {type(text).__name__}")
        # A worker would reject it too, and the record would have to be sent again.
        if not part or part.isspace():
            return EmptyInput(f"Text {index} is empty.")
        if fault := utf8_fault(part):
            return InvalidRequest(f"Text {index} cannot be UTF-8: {fault}.")
    return text  # type: ignore[no-any-return]  # checked above


def _check_ids(sequence: Any, index: int) -> Checked:
    try:
        return token_bytes(sequence, index)
    except PenstockError as error:
        return error
