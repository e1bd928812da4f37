"""Options of generation have one form for equal values, and a wrong one is named."""

from typing import Any

import numpy as np
import pytest

from penstock.producer.errors import InvalidRequest
from penstock.producer.wire.codec import decode_request, encode_request
from penstock.producer.wire.generation import MAX_TOKENS_LISTED, read_generation
from penstock.producer.wire.messages import Options, Request
from penstock.producer.wire.options import recheck_options

EVERY: dict[str, Any] = {
    "bad_words_ids": [[1, 2], [3]],
    "begin_suppress_tokens": [4],
    "decoder_start_token_id": 0,
    "do_sample": True,
    "early_stopping": "never",
    "eos_token_id": [1, 2],
    "forced_bos_token_id": 5,
    "forced_eos_token_id": 1,
    "length_penalty": 0.5,
    "max_length": 21,
    "max_new_tokens": 20,
    "min_length": 2,
    "min_new_tokens": 1,
    "no_repeat_ngram_size": 3,
    "num_beams": 1,
    "renormalize_logits": False,
    "repetition_penalty": 1.5,
    "seed": 2**63 - 1,
    "source_language": "eng_Latn",
    "suppress_tokens": [6, 7],
    "target_language": "fra_Latn",
    "temperature": 0.5,
    "top_k": 10,
    "top_p": 0.5,
}


def test_every_option_passes_through_a_record() -> None:
    options = Options(generation=read_generation(EVERY))
    request = decode_request(encode_request(Request("m", "generate", text=("hello",), options=options)))
    assert request.options == options
    assert dict(request.options.generation).keys() == EVERY.keys()


@pytest.mark.parametrize(
    ("given", "same"),
    [
        ({"temperature": 1}, {"temperature": 1.0}),
        ({"temperature": np.float32(0.5)}, {"temperature": 0.5}),
        ({"num_beams": np.int64(4)}, {"num_beams": 4}),
        ({"eos_token_id": 1}, {"eos_token_id": [1]}),
        ({"top_k": 3, "num_beams": 2}, {"num_beams": 2, "top_k": 3}),
        ({"top_k": None}, {}),
        ((("suppress_tokens", (1, 2)),), {"suppress_tokens": [1, 2]}),
        ({"num_return_sequences": 1, "min_p": 0, "typical_p": None}, {}),
    ],
)
def test_equal_options_have_equal_bytes(given: Any, same: Any) -> None:
    one, other = read_generation(given), read_generation(same)
    assert one == other
    assert list(map(type, dict(one).values())) == list(map(type, dict(other).values()))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"typical_p": 0.5}, "`generation`: an option is none of `generate`, or not implemented. Given: 'typical_p'"),
        ({7: 1}, "`generation`: an option is none of `generate`, or not implemented. Given: no name"),
        ({"max_new_tokens": True}, "`generation.max_new_tokens` must be a count. Given: True"),
        ({"max_new_tokens": 2**31}, "`generation.max_new_tokens` must be a count. Given: 2147483648"),
        ({"num_beams": 1.0}, "`generation.num_beams` must be a count. Given: 1.0"),
        ({"do_sample": 1}, "`generation.do_sample` must be true or false. Given: 1"),
        ({"temperature": float("nan")}, "`generation.temperature` must be a number. Given: nan"),
        ({"temperature": 10**400}, "`generation.temperature` must be a number."),
        ({"early_stopping": "always"}, "`generation.early_stopping` must be true, false or never. Given: 'always'"),
        ({"seed": -1}, "`generation.seed` must be a number from 0 to 2^63 - 1. Given: -1"),
        (
            {"source_language": 5},
            "`generation.source_language` must be the name of a language, of at most 64 characters.",
        ),
        ({"target_language": ""}, "`generation.target_language` must be the name of a language"),
        ({"target_language": "a" * 65}, "`generation.target_language` must be the name of a language"),
        ({"target_language": "a\n"}, "`generation.target_language` must be the name of a language"),
        ({"suppress_tokens": [1, "a"]}, "`generation.suppress_tokens` must be a token, or a list of them."),
        ({"bad_words_ids": [1]}, "`generation.bad_words_ids` must be a list of lists of tokens. Given: another type"),
        ({"bad_words_ids": [[0] * (MAX_TOKENS_LISTED + 1)]}, "`generation.bad_words_ids` must be a list"),
        ({"suppress_tokens": [0] * (MAX_TOKENS_LISTED + 1)}, "`generation.suppress_tokens` must be"),
        ([1], "`generation` must be a map of options."),
        ((1, 2), "`generation` must be a map of options."),
    ],
)
def test_a_wrong_option_is_named(given: Any, says: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_generation(given)
    assert caught.value.message.startswith(says)


def test_a_caller_may_give_a_map_and_other_tasks_have_no_such_options() -> None:
    given = Options(generation={"num_beams": 4})  # type: ignore[arg-type]  # what callers do
    assert recheck_options(given, "generate", is_text=True).generation == (("num_beams", 4),)
    with pytest.raises(InvalidRequest, match="an option of `generate`, not of `embed`"):
        recheck_options(given, "embed", is_text=True)
    checked = recheck_options(Options(generation=(("do_sample", True),)), "generate", is_text=False)
    assert checked.generation == (("do_sample", True),)
    with pytest.raises(InvalidRequest, match="do_sample"):  # equal to the last, but for its type
        recheck_options(Options(generation=(("do_sample", 1),)), "generate", is_text=False)


def test_token_ids_hold_the_language_of_their_source_already() -> None:
    given = Options(generation=(("source_language", "eng_Latn"), ("target_language", "fra_Latn")))
    assert recheck_options(given, "generate", is_text=True) == given
    with pytest.raises(InvalidRequest, match=r"`generation\.source_language` needs texts"):
        recheck_options(given, "generate", is_text=False)
    target = given._replace(generation=given.generation[1:])
    assert recheck_options(target, "generate", is_text=False) == target
