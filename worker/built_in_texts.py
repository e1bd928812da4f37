"""Texts that tokenizers treat differently, of many lengths: they show what a model's answers differ by."""

from collections.abc import Callable, Sequence

_PROSE = (
    "Where is my card? I ordered it two weeks ago and nothing has arrived yet, although the app says that it was sent "
    "on Monday. The weather was fine, so a delay seems unlikely; please tell me what happened, and when it will come. "
)
_LENGTHS_WORDS = (1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 126, 127, 128, 200)  # around the block sizes of kernels
_MOST_WORDS = 1 << 15  # of the longest text

_PLAIN = (
    "where is my card",
    "Where Is My CARD",
    "WHERE IS MY CARD",
    "iPhone, McDonald's and NASA",
    "caf\u00e9, na\u00efve, \u00dcbergr\u00f6\u00dfe, \u0130stanbul, \u00c5ngstr\u00f6m",
    "cafe\u0301 with a combining accent",
    "\u6f22\u5b57\u3068\u4eee\u540d, \u4e2d\u6587\u5b57\u7b26, \ud55c\uad6d\uc5b4",
    "\u0440\u0443\u0441\u0441\u043a\u0438\u0439 \u0442\u0435\u043a\u0441\u0442, \u0639\u0631\u0628\u064a",
    "thumbs up \U0001f44d\U0001f3fd and a family \U0001f468\u200d\U0001f469\u200d\U0001f467",
    "  leading and trailing spaces  ",
    "tabs\tand\nnew\r\nlines\n\n",
    "zero\u200bwidth, a soft\u00adhyphen, a\u00a0space that does not break",
    "don't can't it's (brackets) [square] {curly} <angle> & symbols $5.00 100% a@b.c #tag http://x.y/z?q=1",
    "supercalifragilisticexpialidocious" * 2,
    "1234567890 3.14159 1,000,000 2026-11-28",
    "a",
    ".",
    "\u00a0",
    "",
    "   ",
)
_BLANK_THEN_TEXT = "\n" * 4100 + "where is my card"


def built_in_texts(special_tokens: Sequence[str], num_tokens: Callable[[str], int], limit: int | None) -> list[str]:
    """Texts of many kinds, among them special tokens within texts, many lengths, and one beyond the limit.

    special_tokens: of the reference's tokenizer. num_tokens: that it makes of a text. limit: of the model, in tokens.
    """
    within = [f"{before}where {token} is my card{after}" for token in special_tokens for before, after in _AROUND]
    within += [f"{token}{token}" for token in special_tokens[:1]]
    return [*_PLAIN, *within, *_of_lengths(), _BLANK_THEN_TEXT, _long_text(num_tokens, limit or 0)]


def plain_texts() -> list[str]:
    """The same but for special tokens, the texts that have no token, and those beyond a limit."""
    return [text for text in (*_PLAIN, *_of_lengths()) if text.strip()]


def _of_lengths() -> list[str]:
    words = (_PROSE * (_LENGTHS_WORDS[-1] // 20)).split()
    return [" ".join(words[:count]) for count in _LENGTHS_WORDS]


_AROUND = (("", ""), ("Oh, ", " now?"))


def _long_text(num_tokens: Callable[[str], int], limit: int) -> str:
    """Prose of more tokens than the limit, whose end differs from its beginning."""
    text = _PROSE * 4
    while num_tokens(text) <= limit and len(text) < _MOST_WORDS * 8:
        text += text
    return text + "The end is about rivers, mountains and snow."
