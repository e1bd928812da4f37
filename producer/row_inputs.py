"""The inputs of a row: one text, or several texts or lists of token ids that are answered or fail together."""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.producer.errors import EmptyInput, InvalidRequest, PenstockError
from penstock.producer.wire.codec import MAX_RECORD_BYTES
from penstock.producer.wire.messages import Text, utf8_fault

_CHARS_PER_TOKEN = 4  # of English


@dataclass(slots=True, kw_only=True)
class RowInputs:
    """The inputs of a row that has several, or options of its own. Exactly one of `texts` and `ids` is given."""

    texts: Sequence[str] | None = None
    ids: Sequence[Sequence[int]] | None = None
    dimensions: int | None = None  # of this row's vectors; None: the job's
    num_tokens: int = 0  # of all inputs, as the workers count them; set with the answer

    @property
    def lengths(self) -> list[int]:
        """Characters of each input; of token ids, about as many as they stand for."""
        return [len(text) for text in self.texts or ()] + [_CHARS_PER_TOKEN * len(ids) for ids in self.ids or ()]


def lengths(row: Text | RowInputs) -> list[int]:
    """Characters of each input of a row; of a pair, those of both texts together."""
    if isinstance(row, RowInputs):
        return row.lengths
    return [len(row) if isinstance(row, str) else len(row[0]) + len(row[1])]


def num_chars(row: Text | RowInputs) -> int:
    """Characters of all inputs of a row."""
    return sum(lengths(row))


def text_fault(text: Text) -> PenstockError | None:
    """The reason for which a text cannot be sent. The client would number texts by their place in a call."""
    for part in (text,) if isinstance(text, str) else text:
        if not part.strip():
            return EmptyInput("The text is empty.")
        if len(part) > MAX_RECORD_BYTES:
            return InvalidRequest(f"The text has {len(part):,} characters; a request holds {MAX_RECORD_BYTES:,} bytes.")
        if fault := utf8_fault(part):
            return InvalidRequest(f"The text cannot be UTF-8: {fault}.")
    return None
