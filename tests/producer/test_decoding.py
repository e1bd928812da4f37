"""The text of the first tokens of a sequence: later tokens change nothing in it."""

from collections.abc import Callable
from itertools import pairwise

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers

from penstock.producer.prompts import Prompts
from penstock.producer.tokenization import Tokenizer
from penstock.producer.tokenizer_files import LoadedTokenizer


def byte_level() -> Tokenizer:
    """As BART's: each of 256 tokens is a byte, and some are pairs; 256 is special."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate(alphabet)}
    plain = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    plain.decoder = decoders.ByteLevel()
    plain.add_special_tokens(["<s>"])
    return Tokenizer(LoadedTokenizer(plain, gives_types=False, cuts_left=False), Prompts())


def byte_fallback() -> Tokenizer:
    """As SentencePiece's: words, and a token for each byte; 259 is special."""
    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)} | {"▁a": 256, "b": 257, "é": 258}
    plain = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
    plain.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    plain.add_special_tokens(["<s>"])
    return Tokenizer(LoadedTokenizer(plain, gives_types=False, cuts_left=False), Prompts())


_EMOJI = list("a€😀é".encode())


@pytest.mark.parametrize("make", [byte_level, byte_fallback])
@given(st.lists(st.one_of(st.integers(0, 262), st.sampled_from(_EMOJI)), max_size=12), st.text(max_size=4))
@settings(deadline=None)
def test_a_part_of_a_decoded_text_begins_each_later_part_and_the_whole(
    make: Callable[[], Tokenizer], tokens: list[int], text: str
) -> None:
    tokenizer = make()
    names = [tokenizer._whole.plain.token_to_id(f"<0x{byte:02X}>") for byte in text.encode()]
    tokens = [*tokens, *([name for name in names if name is not None] or list(text.encode()))]
    parts = [tokenizer.decode_part(tokens[:end]) for end in range(len(tokens) + 1)]
    for part, later in pairwise([*parts, *tokenizer.decode([tokens])]):
        assert later.startswith(part)


@pytest.mark.parametrize("make", [byte_level, byte_fallback])
def test_a_part_of_a_decoded_text_has_no_half_character(make: Callable[[], Tokenizer]) -> None:
    tokenizer = make()
    name = tokenizer._whole.plain.token_to_id
    ids = [name(f"<0x{byte:02X}>") for byte in "€".encode()]
    if ids[0] is None:
        [(letters, _)] = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str("€")
        ids = [name(letter) for letter in letters]
    assert [tokenizer.decode_part(ids[:end]) for end in (1, 2)] == ["", ""]
    assert tokenizer.decode([ids]) == ["€"]
