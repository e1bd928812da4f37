"""Tokens of any text are those of transformers' AutoTokenizer on the same directory, for tokenizers of many kinds."""

import json
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
from penstock.producer.tokenizer_files import TokenizerError
from penstock.producer.wire.messages import Text
from tests.examples import examples
from tests.producer.tokenizer_makers import MAKERS, edit

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
        ("bert, its tokens in added_tokens_decoder", True),
        ("bert, a token in added_tokens_decoder", False),
        ("roberta with a prefixed space", False),
        ("xlm-roberta", False),
    ],
)
def test_transformers_is_asked_where_a_file_alone_does_not_tell(tmp_path: Path, name: str, is_plain: bool) -> None:
    """It takes seconds to import, and a client may not have it."""
    MAKERS[name](tmp_path)
    assert (plain_tokenizer(tmp_path) is not None) == is_plain


_TOKENS = [f"{name}_token" for name in ("bos", "cls", "eos", "mask", "pad", "sep", "unk")]
_TOKEN_LISTS = ["additional_special_tokens", "extra_special_tokens"]
_OPTIONS = """
    add_prefix_space do_lower_case model_input_names model_max_length never_split padding_side strip_accents
    tokenize_chinese_chars tokenizer_class trim_offsets truncation_side
""".split()  # noqa: SIM905 -- a list would take a line for each
READ = {  # keys by file
    "tokenizer_config.json": ["added_tokens_decoder", *_OPTIONS, *_TOKENS, *_TOKEN_LISTS],
    "special_tokens_map.json": [*_OPTIONS, *_TOKENS, *_TOKEN_LISTS],
    "added_tokens.json": ["a", "[CLS]"],
    "config.json": ["model_type", "tokenizer_class"],
    "tokenizer.json": [
        "added_tokens",
        "decoder",
        "model",
        "normalizer",
        "post_processor",
        "pre_tokenizer",
        "truncation",
    ],
    "sentence_bert_config.json": ["do_lower_case", "processing_kwargs", "processor_kwargs", "query_length"],
}
OF_ANY_TYPE = [7, True, "x", "token_type_ids", ["x"], [5], {"a": 1}, {"[MASK]": "[MASK]"}, None]
KNOWN = ("the card is mycard [MASK] where", ("a card", "where is the card"))


def _theirs(directory: Path) -> Any:
    """The tokenizer of transformers; None for files that it refuses."""
    try:
        return AutoTokenizer.from_pretrained(directory, local_files_only=True, model_max_length=12)
    except Exception:  # of many unrelated types
        return None


@pytest.mark.slow
@pytest.mark.parametrize("file", READ)
@pytest.mark.parametrize("name", ["bert", "backend", "roberta"])
def test_a_value_of_any_type_is_refused_or_read_as_transformers_reads_it(tmp_path: Path, name: str, file: str) -> None:
    MAKERS[name](tmp_path)
    if file in ("special_tokens_map.json", "added_tokens.json"):
        edit(tmp_path, added_tokens_decoder=...)  # beside which they are not read
    before = (tmp_path / file).read_text(encoding="utf-8") if (tmp_path / file).exists() else "{}"
    for key in READ[file]:
        for value in OF_ANY_TYPE:
            (tmp_path / file).write_text(json.dumps(json.loads(before) | {key: value}), encoding="utf-8")
            try:
                ours = Tokenizer.from_directory(tmp_path)
            except TokenizerError:
                continue
            theirs = _theirs(tmp_path) if file != "sentence_bert_config.json" else None
            for text in KNOWN if theirs else ():
                assert_same(ours.encode([text], truncate=False)[0], theirs, text, None)
                assert_same(ours.encode([text], truncate=True, max_tokens=6)[0], theirs, text, 6)
            ours.close()


@pytest.mark.parametrize(
    ("file", "key", "value"),
    [
        *[
            (file, key, value)
            for file in ("tokenizer_config.json", "special_tokens_map.json")
            for key, value in [
                ("model_input_names", 7),
                ("model_input_names", True),
                ("model_input_names", "token_type_ids"),
                ("model_input_names", ["input_ids", 5]),
                ("extra_special_tokens", 7),
                ("additional_special_tokens", True),
                ("additional_special_tokens", "[MASK]"),
                ("truncation_side", "Left"),
                ("tokenizer_class", ["BertTokenizer"]),
            ]
        ],
        ("config.json", "model_type", []),
        ("config.json", "model_type", {"a": 1}),
        ("config.json", "tokenizer_class", 7),
    ],
)
def test_a_value_of_another_type_is_refused_by_file_and_key(tmp_path: Path, file: str, key: str, value: Any) -> None:
    MAKERS["bert"](tmp_path)
    edit(tmp_path, added_tokens_decoder=...)
    edit(tmp_path, file, **{key: value})
    with pytest.raises(TokenizerError, match=f"{file}: `{key}` must be"):
        Tokenizer.from_directory(tmp_path)


@pytest.mark.parametrize(
    ("file", "changes"),
    [
        ("tokenizer_config.json", {"added_tokens_decoder": None}),
        ("tokenizer_config.json", {"extra_special_tokens": {"[MASK]": "<q>"}}),
        ("special_tokens_map.json", {"model_input_names": ["input_ids"], "chat_template": "x"}),
        ("added_tokens.json", {"<q>": None}),
    ],
)
def test_what_only_transformers_can_judge_is_left_to_it(tmp_path: Path, file: str, changes: dict[str, Any]) -> None:
    MAKERS["bert"](tmp_path)
    edit(tmp_path, added_tokens_decoder=...)
    assert plain_tokenizer(tmp_path) is not None
    edit(tmp_path, file, **changes)
    assert plain_tokenizer(tmp_path) is None


@pytest.mark.parametrize("key", _TOKEN_LISTS)
def test_special_tokens_of_either_file_count(tmp_path: Path, key: str) -> None:
    MAKERS["bert"](tmp_path)
    edit(tmp_path, "tokenizer_config.json", added_tokens_decoder=..., **{key: ["<q>"]})
    edit(tmp_path, "special_tokens_map.json", **{key: ["[MASK]"]})
    [ours] = Tokenizer.from_directory(tmp_path).encode(["a <q> card"], truncate=False)
    assert ours.ids.tolist() == AutoTokenizer.from_pretrained(tmp_path)("a <q> card")["input_ids"]
