"""Token ids of words that were met before, for tokenizers that split a text at spaces before all else, as BERT's does.

On a 16-core server a look-up takes 0.16 µs a word, and the `tokenizers` library 3 µs, in any number of threads.
"""

from typing import Any, Self

import numpy as np
from tokenizers import models, normalizers, pre_tokenizers

from penstock.producer.wire.messages import Text

_MAX_WORDS = 1 << 16  # some 15 MB
_MAX_WORD_CHARS = 32
_MAX_TEXT_CHARS = 1 << 15  # a look-up holds the interpreter lock, which the library does not
# Alone, a word takes the library more than twice the time that it takes in a text. So a text of more than a quarter new
# words is encoded whole, and as many new words as an eighth of its words are stored. Where no word comes twice, this
# costs a third more time.
_WORDS_PER_NEW = 4
_WORDS_PER_LESSON = 8


class KnownWords:
    """Words and their ids, as bytes of int32 without special tokens. Thread-safe. Made by `of`."""

    def __init__(self, plain: Any, before: bytes, after: bytes, *, cuts_left: bool) -> None:
        self._plain = plain
        self._cuts_left = cuts_left
        self._before, self._after = before, after  # the special tokens of a text
        self._ids: dict[str, bytes] = {}

    @classmethod
    def of(cls, plain: Any, *, cuts_left: bool = False) -> Self | None:
        """The words of a `tokenizers.Tokenizer` without truncation. None where a text is more than its words.

        BERT's normalizer and pre-tokenizer treat a word in a text as they treat it alone. No composed character crosses
        a space, and no added token without a space in it does.
        """
        splits_at_spaces = (
            isinstance(plain.normalizer, normalizers.BertNormalizer)
            and isinstance(plain.pre_tokenizer, pre_tokenizers.BertPreTokenizer)
            and isinstance(plain.model, models.WordPiece)
        )
        if not splits_at_spaces:
            return None
        added = [token.content for token in plain.get_added_tokens_decoder().values()]
        if any(text.split() != [text] for text in (*added, *map(plain.normalizer.normalize_str, added))):
            return None
        try:
            whole, word = plain.encode("a"), plain.encode("a", add_special_tokens=False).ids
        except Exception:  # the library's error where the vocabulary has no token for what it does not know
            return None
        num_before = (*whole.special_tokens_mask, 0).index(0)
        before, after = whole.ids[:num_before], whole.ids[num_before + len(word) :]
        if any(whole.type_ids) or before + word + after != whole.ids:
            return None
        return cls(plain, _as_bytes(before), _as_bytes(after), cuts_left=cuts_left)

    def find(self, text: Text, max_tokens: int | None) -> bytes | None:
        """Ids of a text with its special tokens, cut to `max_tokens`. None for new words, long texts and pairs."""
        if isinstance(text, tuple) or len(text) > _MAX_TEXT_CHARS:
            return None
        try:
            return self._framed(b"".join(map(self._ids.__getitem__, _split(text))), max_tokens)
        except KeyError:
            return None

    def learn(self, text: Text, max_tokens: int | None) -> bytes | None:
        """`find` for a text with new words, of which some are learned. None: the library encodes the text faster.

        Raises TypeError, as the library does, for text that is not Unicode.
        """
        if isinstance(text, tuple) or len(text) > _MAX_TEXT_CHARS:
            return None
        words = _split(text)
        new = [word for word in words if word not in self._ids]
        if len(new) <= 1 + len(words) // _WORDS_PER_NEW:
            return self._framed(b"".join(map(self._ids_of, words)), max_tokens)
        for word in new[: 1 + len(words) // _WORDS_PER_LESSON]:
            if len(word) <= _MAX_WORD_CHARS:
                self._ids_of(word)
        return None

    def _framed(self, ids: bytes, max_tokens: int | None) -> bytes:
        if max_tokens is not None:
            num_bytes = 4 * max_tokens - len(self._before) - len(self._after)
            ids = ids[max(0, len(ids) - num_bytes) :] if self._cuts_left else ids[:num_bytes]
        return self._before + ids + self._after

    def _ids_of(self, word: str) -> bytes:
        known = self._ids.get(word)
        if known is not None:
            return known
        ids = _as_bytes(self._plain.encode(word, add_special_tokens=False).ids)
        if len(word) <= _MAX_WORD_CHARS:
            if len(self._ids) >= _MAX_WORDS:
                self._ids.clear()  # the frequent words are soon learned again
            self._ids[word] = ids
        return ids


def _split(text: str) -> list[str]:
    return text.replace("\n", " ").split(" ")


def _as_bytes(ids: list[int]) -> bytes:
    return np.array(ids, np.int32).tobytes()
