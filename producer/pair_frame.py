"""Pairs of texts that are tokenized already: the tokens of both, between the special tokens of a pair."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from penstock.producer.tokenizer_files import TokenizerError

Int32Array = npt.NDArray[np.int32]


class _Tokens(NamedTuple):
    """Ids and token types as bytes of int32, which join faster than arrays."""

    ids: bytes
    types: bytes

    @property
    def number(self) -> int:
        return len(self.ids) // 4


@dataclass(frozen=True, slots=True)
class PairFrame:
    """The special tokens around two texts. `pairs` gives what the tokenizer makes of a first text and a second one."""

    before: _Tokens
    between: _Tokens
    after: _Tokens
    first_type: int  # of the first text's tokens
    second_type: int
    cuts_left: bool

    @classmethod
    def of(cls, plain: Any, *, gives_types: bool, cuts_left: bool) -> Self:
        """The frame of a `tokenizers.Tokenizer` without truncation. Raises TokenizerError where it makes no such pair.

        `gives_types`: whether the model is given token types; all are 0 otherwise.
        """
        pair = _some_pair(plain)
        members = pair.sequence_ids  # 0 and 1 of the texts' tokens, None of special ones
        first, second = members.index(0), members.index(1)
        first_end, second_end = first + members.count(0), second + members.count(1)
        middle = [None] * (second - first_end)
        if members[first:second_end] != [0] * (first_end - first) + middle + [1] * (second_end - second):
            raise TokenizerError("Its pairs are not one text after the other.")
        types = pair.type_ids if gives_types else [0] * len(members)
        parts = (slice(0, first), slice(first_end, second), slice(second_end, None))
        before, between, after = [_tokens(pair.ids[part], types[part]) for part in parts]
        return cls(before, between, after, types[first], types[second], cuts_left)

    @property
    def num_special(self) -> int:
        """Special tokens of a pair."""
        return self.before.number + self.between.number + self.after.number

    def pairs(
        self, firsts: Sequence[Int32Array], seconds: Sequence[Int32Array], kept: npt.NDArray[np.intp]
    ) -> tuple[Int32Array, Int32Array | None]:
        """Ids and token types [T], end to end, of each first text with each second one; types are None where all are 0.

        Args:
            firsts, seconds: ids without special tokens.
            kept: [N, M], how many tokens of the first text each pair has. It loses others as the tokenizer cuts.
        """
        tails = [self._tail(second) for second in seconds]
        first_types = _run(self.first_type, int(kept.max(initial=0)))
        ids: list[bytes] = []
        types: list[bytes] = []
        for first, counts in zip(firsts, kept.tolist(), strict=True):
            whole = first.tobytes()
            for count, tail in zip(counts, tails, strict=True):
                begin = len(whole) - 4 * count if self.cuts_left else 0
                ids += (self.before.ids, whole[begin : begin + 4 * count], tail.ids)
                types += (self.before.types, first_types[: 4 * count], tail.types)
        all_types = np.frombuffer(b"".join(types), np.int32)
        return np.frombuffer(b"".join(ids), np.int32), all_types if all_types.any() else None

    def _tail(self, second: Int32Array) -> _Tokens:
        """A pair from the end of its first text on."""
        types = self.between.types + _run(self.second_type, len(second)) + self.after.types
        return _Tokens(self.between.ids + second.astype(np.int32, copy=False).tobytes() + self.after.ids, types)


def _some_pair(plain: Any) -> Any:
    """The encoding of a pair whose two texts have tokens. Raises TokenizerError where there is none."""
    for text in ("a", *(token.content for token in plain.get_added_tokens_decoder().values())):
        try:
            pair = plain.encode(text, text)
        except Exception:  # the library's error where the vocabulary has no token for what it does not know
            continue
        if 0 in pair.sequence_ids and 1 in pair.sequence_ids:
            return pair
    raise TokenizerError("It makes no pair of two texts.")


def _tokens(ids: Sequence[int], types: Sequence[int]) -> _Tokens:
    return _Tokens(np.array(ids, np.int32).tobytes(), np.array(types, np.int32).tobytes())


def _run(value: int, count: int) -> bytes:
    return np.full(count, value, np.int32).tobytes()
