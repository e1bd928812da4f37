"""A text in another language has the tokens that transformers gives it with that `src_lang`."""

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from penstock.producer.errors import InvalidRequest, UnsupportedTask
from penstock.producer.languages import Languages
from penstock.producer.tokenization import Tokenizer
from tests.producer.tokenizer_makers import MAKERS

TEXTS = ["the card", "", "where is my card the card", "de_DE </s> deu_Latn", "é中"]
SOME = Languages({"en_XX": 7, "de_DE": 8}, place=-1)


@pytest.mark.parametrize(
    ("name", "own", "others"),
    [
        ("mbart", "en_XX", ("de_DE", "zh_CN")),
        ("mbart-50", "en_XX", ("de_DE", "sl_SI")),
        ("nllb", "eng_Latn", ("deu_Latn", "zul_Latn")),
        ("nllb, the language behind the text", "fra_Latn", ("eng_Latn",)),
    ],
)
async def test_the_token_of_the_source_is_where_transformers_puts_it(
    name: str, own: str, others: tuple[str, ...], tmp_path: Path
) -> None:
    MAKERS[name](tmp_path)
    ours, theirs = Tokenizer.from_directory(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    for language in (own, *others, None):
        theirs.src_lang = language or own
        for cuts in (False, True):
            expected = theirs(TEXTS, truncation=cuts, max_length=6)["input_ids"]
            found = ours.encode(TEXTS, truncate=cuts, max_tokens=6, language=language)
            later = await ours.encode_async(TEXTS, truncate=cuts, max_tokens=6, language=language)
            assert [one.ids.tolist() for one in found] == expected
            assert [one.ids.tolist() for one in later] == expected
        assert ours.languages.token(language or own) == theirs.convert_tokens_to_ids(language or own)
    for token in ("</s>", "<s>", "<pad>", "<mask>"):
        assert token not in ours.languages.tokens
    ours.close()


def test_a_tokenizer_without_languages_has_none(tmp_path: Path) -> None:
    MAKERS["t5"](tmp_path)
    ours = Tokenizer.from_directory(tmp_path)
    with pytest.raises(UnsupportedTask, match="no tokenizer that knows languages"):
        ours.encode(["a"], truncate=False, language="en_XX")
    ours.close()


def test_a_request_names_its_target_in_place_of_the_first_token() -> None:
    given = (("num_beams", 2), ("source_language", "en_XX"), ("target_language", "de_DE"))
    assert SOME.resolved(given) == (("forced_bos_token_id", 8), ("num_beams", 2))
    assert SOME.resolved((("num_beams", 2),)) == (("num_beams", 2),)
    with pytest.raises(InvalidRequest, match="at most one of `target_language` and `forced_bos_token_id`"):
        SOME.resolved((("forced_bos_token_id", 7), ("target_language", "de_DE")))


@pytest.mark.parametrize("option", ["source_language", "target_language"])
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("de_De", "The model has no such language. Given: 'de_De'. Did you mean `de_DE`?"),
        ("German", "The model has no such language. Given: 'German'. It has de_DE, en_XX."),
    ],
)
def test_a_language_that_is_not_there_is_named(option: str, name: str, says: str) -> None:
    with pytest.raises(UnsupportedTask) as caught:
        SOME.resolved(((option, name),))
    assert caught.value.message == says
