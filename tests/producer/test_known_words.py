"""Known words: the ids of the library, whatever was met before; only for tokenizers that take a text word by word."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from penstock.producer import known_words
from penstock.producer.known_words import KnownWords
from tests.examples import examples

LETTERS = "abcdefgh"
CONTINUED = [f"##{letter}" for letter in LETTERS]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *CONTINUED, ".", "中", "[", "]", "sep"]
ODD = [
    "[SEP]",
    "[CLS]",
    "É",
    "e\u0301",
    "\u0301",
    "中",
    "a中b",
    ".",
    "a.b",
    "\t",
    "\n",
    "\r\n",
    "\x00",
    "\x1c",
    "\u00a0",
    " ",
]
words = st.one_of(st.text(LETTERS, max_size=4), st.sampled_from(ODD), st.text(max_size=3))
texts = st.lists(words, max_size=20).map(" ".join)


def wordpiece(vocabulary: list[str] = VOCABULARY) -> Any:
    """A tokenizer like BERT's."""
    ids = {word: index for index, word in enumerate(vocabulary)}
    plain: Any = tokenizers.Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    plain.normalizer = normalizers.BertNormalizer()
    plain.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    plain.decoder = decoders.WordPiece()
    plain.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    plain.add_special_tokens([word for word in vocabulary if word.startswith("[") and len(word) > 1])
    return plain


def known(plain: Any) -> KnownWords:
    table = KnownWords.of(plain)
    assert table is not None
    return table


def ids_of(found: bytes | None) -> list[int] | None:
    return None if found is None else np.frombuffer(found, np.int32).tolist()


def learned(table: KnownWords, text: str, max_tokens: int | None = None) -> list[int]:
    """The ids of a text, once enough of its words are known."""
    for _ in range(100):
        ids = ids_of(table.learn(text, max_tokens))
        if ids is not None:
            return ids
    raise AssertionError(f"{text!r} was never learned")


PLAIN = wordpiece()
TABLE = known(PLAIN)


@settings(max_examples=examples(500))
@given(texts)
def test_the_ids_of_known_words_are_those_of_the_whole_text(text: str) -> None:
    expected = PLAIN.encode(text).ids
    assert learned(TABLE, text) == expected
    assert ids_of(TABLE.find(text, None)) == expected


@settings(max_examples=examples(200))
@given(texts, st.integers(4, 12))
def test_known_words_are_cut_where_the_library_cuts(text: str, max_tokens: int) -> None:
    cutting = wordpiece()
    cutting.enable_truncation(max_tokens)
    assert learned(TABLE, text, max_tokens) == cutting.encode(text).ids


def test_a_text_of_new_words_is_left_to_the_library_until_most_are_known() -> None:
    table = known(wordpiece())
    text = " ".join(a + b for a in LETTERS for b in LETTERS)
    answers = [table.learn(text, None) for _ in range(8)]
    assert answers[0] is None
    assert answers[-1] is not None
    assert table.find(text, None) == answers[-1]


def test_new_words_and_pairs_are_not_found() -> None:
    table = known(wordpiece())
    assert table.find("ab", None) is None
    assert ids_of(table.learn("ab", None)) == [2, 5, 14, 3]
    assert ids_of(table.find("ab ab", None)) == [2, 5, 14, 5, 14, 3]
    assert table.find(("ab", "ab"), None) is None
    assert table.learn(("ab", "ab"), None) is None


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither many words nor long ones stay, and what was forgotten is learned again."""
    monkeypatch.setattr(known_words, "_MAX_WORDS", 4)
    table = known(wordpiece())
    for letter in LETTERS:
        learned(table, letter)
    forgotten = [letter for letter in LETTERS if table.find(letter, None) is None]
    assert len(forgotten) >= len(LETTERS) - 4
    assert all(learned(table, letter) == PLAIN.encode(letter).ids for letter in forgotten)
    long_word = "a" * 40
    assert learned(table, long_word) == PLAIN.encode(long_word).ids
    assert table.find(long_word, None) is None
    assert table.find("a " * 40_000, None) is None


def test_text_that_is_not_unicode_raises_as_in_the_library() -> None:
    with pytest.raises(TypeError):
        known(wordpiece()).learn("\ud83d", None)


@pytest.mark.parametrize("added", ["new york", " a", "中"])
def test_added_tokens_that_cross_spaces_rule_it_out(added: str) -> None:
    plain = wordpiece()
    plain.add_tokens([AddedToken(added, normalized=True)])
    assert KnownWords.of(plain) is None


def test_other_tokenizers_are_left_alone(tmp_path: Path) -> None:
    other_split = wordpiece()
    other_split.pre_tokenizer = pre_tokenizers.Metaspace()
    other_normalizer = wordpiece()
    other_normalizer.normalizer = normalizers.Sequence([normalizers.BertNormalizer()])
    typed = wordpiece()
    typed.post_processor = processors.TemplateProcessing("[CLS]:1 $A:1 [SEP]:1", None, [("[CLS]", 2), ("[SEP]", 3)])
    no_unknown = wordpiece(["[CLS]", "[SEP]", "b"])
    assert [KnownWords.of(plain) for plain in (other_split, other_normalizer, typed, no_unknown)] == [None] * 4
