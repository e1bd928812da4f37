"""The sequences of a request: token ids with lengths, texts, pairs of texts, and maps of fields.

A caller's are checked one at a time, so that an error is that of one sequence. Those of a record's value are decoded.
"""

import struct
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.producer.errors import EmptyInput, InvalidRequest, PenstockError, WrongArgument
from penstock.producer.wire.messages import Text, Tokens, token_bytes, utf8_fault
from penstock.producer.wire.sequence_codec import Fields, packed_fields, read_fields

_UINT32 = np.dtype("<u4")

# A text, a pair, ids as uint32, the fields of a model made of cells; or the error that prevents sending it.
Checked = Text | bytes | Fields | PenstockError


class Kind(StrEnum):
    """Kind of the sequences of one call; a record holds one kind."""

    IDS = "ids"
    TEXTS = "texts"
    PAIRS = "pairs"  # texts, at least one of them a pair; only the worker's tokenizer gives token types
    FIELDS = "fields"  # maps

    def fault_of(self, index: int, fault: PenstockError) -> PenstockError:
        """A worker's error about one of them, by its place in its call; the worker knows that in a record."""
        name = "Text" if self in (Kind.TEXTS, Kind.PAIRS) else "Sequence"
        return type(fault)(f"{name} {index}: {fault.message}", {index: fault})


# Task -> what each of its texts must be. Other tasks take either.
_PAIR, _STRING, _EITHER = "a pair of strings, as a tuple", "a string", "a string or a pair of strings, as a tuple"
_WANTED = {"rerank": _PAIR, "token_classify": _STRING, "generate": _STRING}


def check(
    task: str, texts: Sequence[Any] | None, ids: Sequence[npt.ArrayLike] | None, *, has_labels: bool = False
) -> tuple[Kind, list[Checked]]:
    """The sequences of a call; a faulty one is replaced by its error. For the task `sequence`, `texts` are maps.

    `has_labels`: of the request, which makes pairs of single texts.

    Raises:
        WrongArgument: not exactly one of the two is given, or it is not a list.
        InvalidRequest: the task takes no ids.
    """
    if task == "sequence":
        return Kind.FIELDS, _check_fields(texts, ids)
    wanted = _STRING if has_labels else _WANTED.get(task, _EITHER)
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
    if type(given) is list:  # as nearly always; the checks take a microsecond
        return given
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
    if isinstance(sequence, bytes):
        return len(sequence)
    if isinstance(sequence, str):
        return len(sequence) if sequence.isascii() else 4 * len(sequence)
    return len(packed_fields(sequence)) if isinstance(sequence, dict) else sum([num_bytes(part) for part in sequence])


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


def encode_tokens(tokens: Tokens) -> tuple[bytes, bytes]:
    """`ids` and `lens` of a request."""
    lens = tokens.lens
    ids = tokens.ids.astype(_UINT32, copy=False).tobytes()
    return ids, lens[0].to_bytes(4, "little") if len(lens) == 1 else struct.pack(f"<{len(lens)}I", *lens)


def decode_tokens(body: Mapping[str, Any], max_sequences: int) -> Tokens | None:
    """`ids` and `lens`, or None if the request has neither."""
    ids, lens = body.get("ids"), body.get("lens")
    if ids is None and lens is None:
        return None
    if not isinstance(ids, bytes) or not isinstance(lens, bytes) or len(ids) % 4 or len(lens) % 4:
        raise InvalidRequest("`ids` and `lens` must both be bytes of little-endian uint32.")
    if len(lens) > 4 * max_sequences:
        raise InvalidRequest(f"A record holds at most {max_sequences} sequences. Given: {len(lens) // 4}")
    lengths = (int.from_bytes(lens, "little"),) if len(lens) == 4 else struct.unpack(f"<{len(lens) // 4}I", lens)
    if not lengths:
        raise EmptyInput("`lens` is empty: the request holds no sequence.")
    if 0 in lengths:
        raise EmptyInput(f"Sequence {lengths.index(0)} has zero ids.")
    if sum(lengths) * 4 != len(ids):
        raise InvalidRequest(f"`lens` add up to {sum(lengths)}, but `ids` holds {len(ids) // 4} ids.")
    return Tokens(np.frombuffer(ids, _UINT32), lengths)


def decode_text(body: Mapping[str, Any]) -> tuple[Text, ...] | None:
    """`text` as a tuple of strings and pairs, or None if the request has none."""
    text = body.get("text")
    if text is None:
        return None
    if isinstance(text, str):
        text = [text]
    if not isinstance(text, list):
        raise InvalidRequest("`text` must be a string, or a list of strings and pairs of strings.")
    if not text:
        raise EmptyInput("`text` is an empty list: the request holds no sequence.")
    return tuple([_decode_one_text(item, index) for index, item in enumerate(text)])


def check_pairs(task: str, text: Sequence[Text] | None, *, has_labels: bool = False) -> None:
    """Check that `rerank` has pairs, whose halves only the tokenizer can mark, and tasks of tokens single texts.

    So has `classify` with labels.
    """
    if task not in _WANTED and not has_labels:
        return
    if task == "rerank" and text is None:
        raise InvalidRequest("`rerank` needs `text`: `ids` cannot say where the second text of a pair begins.")
    expected = "a pair of strings" if task == "rerank" else "a single string"
    at_fault = [index for index, item in enumerate(text or ()) if isinstance(item, str) is (task == "rerank")]
    if at_fault:
        what = f"`{task}` with labels" if has_labels else f"`{task}`"
        errors = {index: InvalidRequest(f"For {what}, a text must be {expected}.") for index in at_fault}
        raise InvalidRequest(f"For {what}, `text` item {at_fault[0]} must be {expected}.", errors)


def _decode_one_text(item: object, index: int) -> Text:
    if isinstance(item, str):
        if not item.strip():
            raise EmptyInput(f"Text {index} is empty.")
        return item
    if isinstance(item, list) and len(item) == 2 and isinstance(item[0], str) and isinstance(item[1], str):
        if not (item[0].strip() and item[1].strip()):
            raise EmptyInput(f"Text pair {index} has an empty member.")
        return (item[0], item[1])
    raise InvalidRequest(f"`text` item {index} must be a string or a pair of strings.")
