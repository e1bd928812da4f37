"""Checks of a caller's sequences, one at a time, so that an error is that of one sequence."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import numpy.typing as npt

from penstock.producer.errors import EmptyInput, InvalidRequest, PenstockError
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


def check(texts: Sequence[Text] | None, ids: Sequence[npt.ArrayLike] | None) -> tuple[Kind, list[Checked]]:
    """The sequences of a call; a faulty one is replaced by its error.

    Raises:
        InvalidRequest: not exactly one of the two is given, or it is not a list.
    """
    if (texts is None) == (ids is None):
        raise InvalidRequest("Give exactly one of `texts` and `ids`.")
    if texts is not None:
        if isinstance(texts, str) or not hasattr(texts, "__len__"):
            raise InvalidRequest("`texts` must be a list of strings, or of pairs of strings.")
        is_paired = any(isinstance(text, tuple) for text in texts)
        kind = Kind.PAIRS if is_paired else Kind.TEXTS
        return kind, [_check_text(text, index) for index, text in enumerate(texts)]
    if ids is None or isinstance(ids, str) or not hasattr(ids, "__len__"):
        raise InvalidRequest("`ids` must be a list of sequences of token ids.")
    return Kind.IDS, [_check_ids(sequence, index) for index, sequence in enumerate(ids)]


def check_fields(sequences: Sequence[Mapping[str, Any]]) -> list[Checked]:
    """The sequences of a call of `sequence`; a faulty one is replaced by its error. Raises InvalidRequest."""
    if isinstance(sequences, str | Mapping) or not hasattr(sequences, "__len__"):
        raise InvalidRequest("`sequences` must be a list of maps of fields.")
    return [read_fields(fields, index) for index, fields in enumerate(sequences)]


def num_bytes(sequence: Text | bytes | Fields) -> int:
    """Approximate bytes of a sequence in its record."""
    if isinstance(sequence, dict):
        return len(packed_fields(sequence))
    if isinstance(sequence, str):
        return len(sequence) if sequence.isascii() else 4 * len(sequence)
    return sum([num_bytes(part) for part in sequence]) if isinstance(sequence, tuple) else len(sequence)


def _check_text(text: Any, index: int) -> Checked:
    parts = text if isinstance(text, tuple) and len(text) == 2 else (text,)
    for part in parts:
        if not isinstance(part, str):
            what = type(text).__name__
            return InvalidRequest(f"`texts` item {index} must be a string or a pair of strings. Given: {what}")
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
