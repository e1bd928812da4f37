"""The special tokens before and after a text, and how the ids of a text that is too long are cut between them."""

from dataclasses import dataclass
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

_Values = TypeVar("_Values", bound=npt.NDArray[Any])


@dataclass(frozen=True, slots=True)
class SpecialFrame:
    """Numbers of special tokens. Without a tokenizer the last token ends a text, and the cut is before it."""

    before: int = 0
    after: int = 1
    cuts_left: bool = False

    def cut(self, values: _Values, max_tokens: int) -> _Values:
        """The values [n, ...] of the tokens that remain, as truncation by the tokenizer leaves them."""
        if len(values) <= max_tokens:
            return values
        first = self.before if self.cuts_left else max_tokens - self.after
        kept = np.concatenate([values[:first], values[len(values) - (max_tokens - first) :]])
        return cast("_Values", kept)


def frame_of(plain: Any, *, cuts_left: bool) -> SpecialFrame:
    """The frame of a `tokenizers.Tokenizer` without truncation. Called once for each."""
    num_special: int = plain.num_special_tokens_to_add(is_pair=False)
    for text in ("a", *(token.content for token in plain.get_added_tokens_decoder().values())):
        try:
            mask = plain.encode(text).special_tokens_mask
        except Exception:  # the library's error where the vocabulary has no token for what it does not know
            continue
        if 0 in mask:
            before = mask.index(0)
            return SpecialFrame(before, num_special - before, cuts_left)
    return SpecialFrame(0, num_special, cuts_left)
