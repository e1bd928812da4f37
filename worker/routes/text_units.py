"""Places at which a text may be cut: the starts of its tokens, as the tokenizer gives them, and how good each is."""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from penstock.producer.wire.messages import Uint32Array

PIECE_CHARACTERS = 1 << 13  # of a text, tokenized together: some milliseconds of the library
_SENTENCE = 2  # rank of a place where one begins; of a word: 1
# The end of a sentence, or of a paragraph, and the spaces behind it. What may fail to match has a bounded length.
_SENTENCE_END = re.compile(
    r"""([.!?…]["'’”»)\]]{0,3}(?=\s)|[。！？｡]["'”’」』）]{0,3}|\n(?=[^\S\n]{0,40}\n))\s*"""  # noqa: RUF001  # as texts have it
)
_IS_SPACE = np.array([chr(code).isspace() for code in range(0x3002)])  # no character beyond U+3000 is one

_Ints = npt.NDArray[np.int64]
_Ranks = npt.NDArray[np.uint8]


class Piece(NamedTuple):
    """A part of a text. It ends behind a space, if it has one in its second half."""

    start: int
    text: str


def pieces_of(text: str) -> Iterator[Piece]:
    """The parts of a text, one at least. They are tokenized one by one: then no call of the library takes long."""
    start = 0
    while start < len(text) or start == 0:
        end = start + PIECE_CHARACTERS
        if end < len(text):
            half = start + PIECE_CHARACTERS // 2
            space = max(text.rfind(" ", half, end), text.rfind("\n", half, end))
            end = end if space < 0 else space + 1
        yield Piece(start, text[start:end])
        start = end


class PieceUnits(NamedTuple):
    """The units of a piece, as `TextUnits` has them."""

    starts: _Ints  # [n] characters of the text
    before: _Ints  # [n] tokens of the text
    ranks: _Ranks  # [n]
    num_tokens: int  # of the text up to the piece's end
    rank_behind: int  # of the place at the piece's end

    @classmethod
    def of(cls, piece: Piece, spans: Uint32Array, last: Self | None) -> Self:
        """`spans`: of the piece's tokens, [n, 2]; those of special tokens are empty. `last`: of the piece before it."""
        codes = np.frombuffer(piece.text.encode("utf-32-le", "surrogatepass"), np.uint32)
        is_space = _IS_SPACE[np.minimum(codes, len(_IS_SPACE) - 1)]
        begun = spans[spans[:, 0] < spans[:, 1], 0].astype(np.int64)
        starts, counts = np.unique(np.append(begun, 0), return_counts=True)
        counts[0] -= 1  # that of the piece's own start
        tokens = np.maximum(counts, 1)
        places = np.append(starts, len(codes))
        ranks = _ranks(piece.text, places, is_space)
        num_before = 0
        if last is not None:
            num_before, ranks[0] = last.num_tokens, max(ranks[0], last.rank_behind)
        is_solid = np.diff(np.append(0, np.cumsum(~is_space))[places]) > 0  # others belong to those before them
        before = num_before + np.cumsum(tokens) - tokens
        num_tokens = num_before + int(tokens.sum())
        return cls(starts[is_solid] + piece.start, before[is_solid], ranks[:-1][is_solid], num_tokens, int(ranks[-1]))


def _ranks(text: str, places: _Ints, is_space: npt.NDArray[np.bool_]) -> _Ranks:
    """Of places in a piece."""
    is_word = np.append(False, is_space)[places] | np.append(is_space, False)[places]
    ends = np.array([(match.end(1), match.end()) for match in _SENTENCE_END.finditer(text)], np.int64).reshape(-1, 2)
    changes = np.zeros(len(places) + 1, np.int64)
    np.add.at(changes, np.searchsorted(places, ends[:, 0]), 1)
    np.add.at(changes, np.searchsorted(places, ends[:, 1], "right"), -1)
    return np.where(np.cumsum(changes[:-1]) > 0, _SENTENCE, is_word).astype(np.uint8)


class TextUnits(NamedTuple):
    """A text as units, which are not cut: one token, or several of one character, and what follows without a token.

    Each has a character that is no space.
    """

    starts: _Ints  # [n + 1] characters; the last is the text's end
    before: _Ints  # [n + 1] tokens before each start; a unit counts as one at least
    ranks: _Ranks  # [n + 1] what begins there, 2: a sentence, 1: a word

    @property
    def num(self) -> int:
        """Number of units."""
        return len(self.starts) - 1

    @classmethod
    def join(cls, parts: Sequence[PieceUnits], num_characters: int) -> Self:
        """Of the pieces of a text that has so many characters."""
        return cls(
            np.concatenate([*[part.starts for part in parts], [num_characters]]),
            np.concatenate([*[part.before for part in parts], [parts[-1].num_tokens]]),
            np.concatenate([*[part.ranks for part in parts], np.array([_SENTENCE], np.uint8)]),
        )
