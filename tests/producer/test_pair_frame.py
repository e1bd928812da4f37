"""Pairs of texts that were tokenized alone: the tokens, types and cut of transformers' pairs, for many tokenizers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from penstock.producer.pair_frame import PairFrame
from penstock.producer.tokenization import Tokenizer
from penstock.producer.tokenizer_files import TokenizerError
from tests.examples import examples
from tests.producer.test_tokenizer_reference import texts
from tests.producer.tokenizer_makers import MAKERS


@pytest.fixture(scope="module", params=MAKERS, ids=str)
def sides(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Tokenizer, Any]]:
    """Ours and transformers' of one directory."""
    directory: Path = tmp_path_factory.mktemp("tokenizer")
    MAKERS[request.param](directory)
    ours = Tokenizer.from_directory(directory)
    yield ours, AutoTokenizer.from_pretrained(directory, local_files_only=True)
    ours.close()


@pytest.mark.slow
@settings(max_examples=examples(40))
@given(
    firsts=st.lists(texts, min_size=1, max_size=3),
    seconds=st.lists(texts.filter(bool), min_size=1, max_size=3),
    most=st.integers(6, 24),
)
def test_pairs_have_the_tokens_types_and_cut_of_transformers(
    sides: tuple[Tokenizer, Any], firsts: list[str], seconds: list[str], most: int
) -> None:
    ours, theirs = sides
    frame, single = ours.pair_frame, ours.frame
    ids = [
        one.ids[single.before : len(one.ids) - single.after] for one in ours.encode([*firsts, *seconds], truncate=False)
    ]
    own, others = ids[: len(firsts)], ids[len(firsts) :]
    room = most - frame.num_special - np.array([[len(second) for second in others]] * len(firsts))
    kept = np.minimum(room, np.array([[len(first)] for first in own]))
    if kept.min() < 0 or ((kept == 0) & (room == 0)).any():
        return  # transformers cuts no text to nothing
    found, types = frame.pairs(own, others, kept)
    expected_ids, expected_types = [], []
    for first in firsts:
        for second in seconds:
            encoded = theirs(first, second, truncation="only_first", max_length=most, verbose=False)
            expected_ids += encoded["input_ids"]
            expected_types += encoded.get("token_type_ids", [0] * len(encoded["input_ids"]))
    assert found.tolist() == expected_ids
    assert (np.zeros(len(found), int) if types is None else types).tolist() == expected_types


def test_a_tokenizer_that_makes_no_pairs_is_named() -> None:
    second_first = tokenizers.processors.TemplateProcessing(single="$A", pair="$B:1 $A:0", special_tokens=[])
    for plain in (tokenizers.Tokenizer(tokenizers.models.WordLevel({}, "x")), _words()):
        plain.post_processor = second_first
        with pytest.raises(TokenizerError, match="pair"):
            PairFrame.of(plain, gives_types=True, cuts_left=False)


def _words() -> Any:
    return tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, "a"))
