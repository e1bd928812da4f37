"""A text has the tokens of transformers' slow tokenizer of M2M100, in each language, and tokens have its text."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, M2M100Tokenizer

from penstock.producer.errors import UnsupportedTask
from penstock.producer.tokenization import Tokenizer
from penstock.producer.tokenizer_files import MissingTokenizer
from tests.examples import examples

_WORDS = "the card Card where is my étude etude a <b> arrive arrived cards weather madeupword".split()  # noqa: SIM905
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCÉéöß中."
ODD = [
    *("<pad>", "</s>", "<s>", "<unk>", "__fr__", "__en__", "madeupword0", "card", "Card", "cards", "the", "étude", "É"),
    *(
        "e\u0301",
        "İ",
        "ﬁ",
        "中文",
        "🙂",
        "👩\u200d🚀",
        "\u202e",
        "\x00",
        "\ufffd",
        "\u2581",
        "\u00a0",
        "  ",
        "\n",
        "\t",
    ),
]
pieces = st.one_of(st.sampled_from(ODD), st.text("abcde ÉéABC.", max_size=6), st.text(max_size=3))
texts = st.tuples(st.lists(pieces, max_size=16), st.sampled_from(["", " "])).map(lambda both: both[1].join(both[0]))


def make(directory: Path, **options: Any) -> None:
    """Its files as facebook/m2m100_418M has them: ids in an order of their own, and languages among special tokens."""
    rng = random.Random(0)
    lines = [" ".join(rng.choices(_WORDS, k=8)) + " " + "".join(rng.choices(_LETTERS, k=6)) for _ in range(400)]
    model = directory / "sentencepiece.bpe.model"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_prefix=str(model.with_suffix("")),
        vocab_size=90,
        model_type=options.pop("model_type", "bpe"),
        character_coverage=1.0,
        minloglevel=2,
    )
    words = sentencepiece.SentencePieceProcessor(str(model))
    own = [words.id_to_piece(index) for index in range(3, words.get_piece_size())]
    rng.shuffle(own)
    vocabulary = {word: index for index, word in enumerate(["<s>", "<pad>", "</s>", "<unk>", *own])}
    (directory / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    languages = M2M100Tokenizer(vocab_file=directory / "vocab.json", spm_file=str(model)).lang_code_to_token.values()
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "sep_token": "</s>", "pad_token": "<pad>"}
    config = {"src_lang": None, "language_codes": "m2m100", "num_madeup_words": 8, "tokenizer_class": "M2M100Tokenizer"}
    for name, content in (
        ("tokenizer_config.json", {**special, **config, **options}),
        ("special_tokens_map.json", {**special, "additional_special_tokens": list(languages)}),
        ("config.json", {"model_type": "m2m_100"}),
    ):
        (directory / name).write_text(json.dumps(content), encoding="utf-8")


@pytest.fixture(scope="module", params=[{}, {"src_lang": "fr"}], ids=str)
def sides(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Tokenizer, Any]]:
    """Ours and transformers' of one directory."""
    directory: Path = tmp_path_factory.mktemp("tokenizer")
    make(directory, **request.param)
    ours = Tokenizer.from_directory(directory)
    yield ours, AutoTokenizer.from_pretrained(directory, local_files_only=True)
    ours.close()


@settings(max_examples=examples(200))
@given(text=texts, language=st.sampled_from(["fr", "en", "zu"]), max_tokens=st.integers(5, 12))
def test_any_text_has_the_tokens_of_transformers(
    sides: tuple[Tokenizer, Any], text: str, language: str, max_tokens: int
) -> None:
    ours, theirs = sides
    own = theirs.src_lang
    assert ours.encode([text], truncate=False)[0].ids.tolist() == theirs(text)["input_ids"]
    theirs.src_lang = language
    whole, cut = theirs(text)["input_ids"], theirs(text, truncation=True, max_length=max_tokens)["input_ids"]
    theirs.src_lang = own
    assert ours.encode([text], truncate=False, language=language)[0].ids.tolist() == whole
    found = ours.encode([text], truncate=True, max_tokens=max_tokens, language=language)
    assert found[0].ids.tolist() == cut


@settings(max_examples=examples(200))
@given(tokens=st.lists(st.integers(0, 190), max_size=12))
def test_any_tokens_have_the_text_of_transformers(sides: tuple[Tokenizer, Any], tokens: list[int]) -> None:
    ours, theirs = sides
    assert ours.decode([tokens]) == [theirs.decode(tokens, skip_special_tokens=True)]


def test_languages_have_the_names_that_transformers_takes(sides: tuple[Tokenizer, Any]) -> None:
    ours, theirs = sides
    assert ours.languages.token("fr") == theirs.get_lang_id("fr")
    with pytest.raises(UnsupportedTask, match="no such language"):
        ours.languages.token("__fr__")


def test_what_may_come_out_otherwise_takes_token_ids_alone(tmp_path: Path) -> None:
    make(tmp_path)
    words = json.loads((tmp_path / "vocab.json").read_text(encoding="utf-8"))
    without = {word: index for word, index in words.items() if word != "▁card"}
    (tmp_path / "vocab.json").write_text(json.dumps(without), encoding="utf-8")
    with pytest.raises(MissingTokenizer, match="no fast form"):
        Tokenizer.from_directory(tmp_path)
    make(tmp_path, model_type="unigram")
    with pytest.raises(MissingTokenizer, match="no fast form"):
        Tokenizer.from_directory(tmp_path)
