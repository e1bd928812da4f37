"""Tokens of any text are those of transformers' AutoTokenizer on the same directory, for tokenizers of many kinds."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from penstock.producer.plain_tokenizer import plain_tokenizer
from penstock.producer.tokenization import Encoded, Tokenizer
from penstock.producer.wire.messages import Text
from tests.examples import examples
from tests.producer.tokenizer_makers import MAKERS

ODD = [
    *("[PAD]", "<pad>", "[SEP]", "</s>", "<s>", "[CLS]", "[MASK]", "<mask>", "[UNK]", "<unk>", "<m>"),
    *("cardcard", "zq zq", "<q>", "card", "Card", "CARD", "the", "étude", "É", "e\u0301", "İ", "ΣΑΣ", "ﬁ", "中文"),
    *("🙂", "👩\u200d🚀", "\u202e", "\x00", "\ufffd", "\u2581", "\u00a0", "  ", "\n", "\n\n\n", "\t", "<extra_id_0>"),
]
pieces = st.one_of(st.sampled_from(ODD), st.text("abcde ÉéABC.", max_size=6), st.text(max_size=3))
texts = st.tuples(st.lists(pieces, max_size=16), st.sampled_from(["", " "])).map(lambda both: both[1].join(both[0]))
# transformers takes a pair with an empty second text for a single text; on the wire such a pair is refused.
any_text: st.SearchStrategy[Text] = st.one_of(texts, st.tuples(texts, texts.filter(bool)))


@pytest.fixture(scope="module", params=MAKERS, ids=str)
def sides(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Tokenizer, Any]]:
    """Ours and transformers' of one directory."""
    directory: Path = tmp_path_factory.mktemp("tokenizer")
    MAKERS[request.param](directory)
    ours = Tokenizer.from_directory(directory)
    yield ours, AutoTokenizer.from_pretrained(directory, local_files_only=True)
    ours.close()


def assert_same(encoded: Encoded, theirs: Any, text: Text, max_tokens: int | None) -> None:
    parts = (text,) if isinstance(text, str) else text
    longest = {"truncation": "longest_first", "max_length": max_tokens} if max_tokens else {}
    expected = theirs(*parts, verbose=False, return_offsets_mapping=True, **longest)
    assert encoded.ids.tolist() == expected["input_ids"]
    types = np.zeros(len(encoded.ids), int) if encoded.token_type_ids is None else encoded.token_type_ids
    assert types.tolist() == expected.get("token_type_ids", [0] * len(encoded.ids))
    if encoded.spans is not None:
        assert [tuple(span) for span in encoded.spans.tolist()] == expected["offset_mapping"]


@pytest.mark.slow
@settings(max_examples=examples(40))
@given(text=any_text, max_tokens=st.integers(5, 12), spans=st.booleans())
def test_any_text_has_the_tokens_of_transformers(
    sides: tuple[Tokenizer, Any], text: Text, max_tokens: int, spans: bool
) -> None:
    ours, theirs = sides
    for _ in range(2):  # its words are new, then known
        assert_same(ours.encode([text], truncate=False, spans=spans)[0], theirs, text, None)
        cut = ours.encode([text], truncate=True, max_tokens=max_tokens, spans=spans)
        assert_same(cut[0], theirs, text, max_tokens)


@pytest.mark.slow
@settings(max_examples=examples(20))
@given(text=texts, max_tokens=st.integers(5, 12))
def test_ids_that_a_client_sends_are_cut_as_the_text_is(
    sides: tuple[Tokenizer, Any], text: str, max_tokens: int
) -> None:
    ours = sides[0]
    [whole], [cut] = ours.encode([text], truncate=False), ours.encode([text], truncate=True, max_tokens=max_tokens)
    assert ours.frame.cut(whole.ids, max_tokens).tolist() == cut.ids.tolist()


@pytest.mark.parametrize(
    ("name", "is_plain"),
    [
        ("bert", True),
        ("bert, no options", True),
        ("bert, tokenizer.json alone", True),
        ("backend", True),
        ("mpnet", True),
        ("roberta", True),
        ("bert, cased by its options", False),
        ("bert, a token in added_tokens_decoder", False),
        ("roberta with a prefixed space", False),
        ("xlm-roberta", False),
    ],
)
def test_transformers_is_asked_where_a_file_alone_does_not_tell(tmp_path: Path, name: str, is_plain: bool) -> None:
    """It takes seconds to import, and a client may not have it."""
    MAKERS[name](tmp_path)
    assert (plain_tokenizer(tmp_path) is not None) == is_plain
