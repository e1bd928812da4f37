"""Options are read as transformers names them; what is not implemented is rejected by name."""

import re
from pathlib import Path
from typing import Any

import pytest
import transformers

from penstock.engine.errors import InvalidOption, UnsupportedCheckpoint
from penstock.engine.generation.loading import load_seq2seq
from penstock.engine.generation_options import _NEUTRAL, GenerationOptions, clip_lengths
from penstock.producer.wire.generation import NEUTRAL_OPTIONS
from tests.engine.helpers import save_encoder

START = {"decoder_start_token_id": 0}
SAMPLING = START | {"do_sample": True}
WIRE = Path(__file__).parents[3] / "producer" / "wire" / "WIRE.md"


def test_an_empty_config_of_transformers_gives_the_defaults() -> None:
    make: Any = transformers.GenerationConfig  # transformers leaves it untyped
    config = make(decoder_start_token_id=0).to_dict()
    assert GenerationOptions.of(config) == GenerationOptions(0)


def test_the_published_options_of_a_marian_model() -> None:
    config = {
        "bad_words_ids": [[58100]],
        "bos_token_id": 0,
        "decoder_start_token_id": 58100,
        "eos_token_id": 0,
        "forced_eos_token_id": 0,
        "max_length": 512,
        "num_beams": 4,
        "pad_token_id": 58100,
        "renormalize_logits": True,
        "transformers_version": "4.32.0.dev0",
    }
    assert GenerationOptions.of(config) == GenerationOptions(
        decoder_start_token_id=58100,
        eos_token_ids=(0,),
        max_new_tokens=511,
        num_beams=4,
        bad_words_ids=((58100,),),
        forced_eos_token_ids=(0,),
        renormalize_logits=True,
    )


def test_new_tokens_precede_lengths_that_count_the_start_token() -> None:
    options = GenerationOptions.of(START | {"max_length": 9, "max_new_tokens": 5, "min_length": 4})
    assert (options.max_new_tokens, options.min_new_tokens) == (5, 3)


def test_the_start_token_is_the_bos_token_by_default() -> None:
    assert GenerationOptions.of({"bos_token_id": 5}).decoder_start_token_id == 5


def test_an_end_token_that_is_listed_twice_counts_once() -> None:
    assert GenerationOptions.of(START | {"eos_token_id": [2, 5, 2]}).eos_token_ids == (2, 5)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_return_sequences", 2),
        ("num_beam_groups", 2),
        ("encoder_no_repeat_ngram_size", 3),
        ("typical_p", 0.9),
        ("min_p", 0.1),
        ("exponential_decay_length_penalty", [3, 1.1]),
        ("sequence_bias", [[[3], 1.0]]),
        ("guidance_scale", 2.0),
        ("stop_strings", ["x"]),
        ("not_an_option", 1),
    ],
)
def test_options_that_are_not_implemented(name: str, value: Any) -> None:
    with pytest.raises(InvalidOption, match=f"^{name} is not implemented"):
        GenerationOptions.of(START | {name: value})


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({}, "decoder_start_token_id must be a token"),
        (START | {"max_length": 1}, "max_new_tokens must be at least 1"),
        (START | {"min_new_tokens": -1}, "min_new_tokens"),
        (START | {"num_beams": 0}, "num_beams"),
        (START | {"num_beams": 33}, r"num_beams must be in \[1, 32\]"),
        (START | {"num_beams": 2, "length_penalty": -3.1}, r"length_penalty must be in \[-3, 10\]"),
        (START | {"bad_words_ids": [[1, word] for word in range(257)]}, "at most 256 sequences of several tokens"),
        (START | {"num_beams": True}, "num_beams must be an integer"),
        (START | {"num_beams": 2, "do_sample": True}, "do_sample with num_beams"),
        (SAMPLING | {"temperature": 0.0}, "temperature"),
        (SAMPLING | {"temperature": 1e-40}, r"temperature must be in \[0.01, 100\]. Given: 1e-40"),
        (SAMPLING | {"temperature": 1e39}, "temperature must be in"),
        (SAMPLING | {"temperature": float("nan")}, "temperature must be in"),
        (START | {"temperature": "hot"}, "temperature must be a number"),
        (SAMPLING | {"top_p": 0.0}, "top_p"),
        (SAMPLING | {"top_k": -1}, "top_k"),
        (START | {"num_beams": 2, "length_penalty": float("nan")}, "length_penalty"),
        (START | {"early_stopping": "later"}, "early_stopping"),
        (START | {"repetition_penalty": 0}, r"repetition_penalty must be in \[0.01, 100\]"),
        (START | {"repetition_penalty": 1e39}, "repetition_penalty must be in"),
        (START | {"no_repeat_ngram_size": -1}, "no_repeat_ngram_size"),
        (START | {"bad_words_ids": [[]]}, "bad_words_ids"),
        (START | {"bad_words_ids": [[1.5]]}, "bad_words_ids must be an integer"),
        (START | {"eos_token_id": "</s>"}, "eos_token_id must be an integer"),
        (START | {"do_sample": 1}, "do_sample must be true or false"),
    ],
)
def test_values_that_are_rejected(config: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidOption, match=words):
        GenerationOptions.of(config)


def test_tokens_outside_the_vocabulary() -> None:
    with pytest.raises(InvalidOption, match=r"bad_words_ids must be a token in \[0, 10\). Given: 10"):
        GenerationOptions(0, bad_words_ids=((3, 10),)).require_tokens(10)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("num_beams", "of {1:g} beams at most"),
        ("length_penalty", "a penalty is in [{0:g}, {1:g}]"),
        ("temperature", "a temperature is in [{0:g}, {1:g}]"),
        ("repetition_penalty", "a penalty is in [{0:g}, {1:g}]"),
    ],
)
def test_the_wire_format_says_the_bounds(name: str, said: str) -> None:
    with pytest.raises(InvalidOption) as raised:
        GenerationOptions.of(
            START | ({"num_beams": 2} if name == "length_penalty" else {"do_sample": True}) | {name: 1000}
        )
    (bounds,) = re.findall(r"\[(\S+), (\S+)\]", str(raised.value))
    lines = WIRE.read_text(encoding="utf-8").splitlines()
    (row,) = [line for line in lines if line.startswith("| `") and f"`{name}`" in line]
    assert said.format(*map(float, bounds)) in row


@pytest.mark.slow
def test_an_encoder_does_not_generate(tmp_path: Path) -> None:
    save_encoder(tmp_path, "bert")
    with pytest.raises(UnsupportedCheckpoint, match="'bert' does not generate here"):
        load_seq2seq(str(tmp_path))


@pytest.mark.parametrize(
    "neutral",
    [
        {"temperature": 0, "top_p": 0.0, "top_k": 0},
        {"length_penalty": 50.0, "early_stopping": True},
        {"num_return_sequences": 1, "num_beam_groups": 1, "min_p": 0.0, "guidance_scale": 1, "penalty_alpha": 0},
    ],
)
def test_values_that_change_no_token_of_a_greedy_search_are_as_if_left_out(neutral: dict[str, Any]) -> None:
    assert GenerationOptions.of(START | neutral) == GenerationOptions.of(START)


@pytest.mark.parametrize("name", ["max_length", "max_new_tokens", "min_length", "min_new_tokens"])
def test_a_models_own_lengths_end_where_its_limits_do(name: str) -> None:
    options = GenerationOptions.of(START | clip_lengths({name: 2048}, 100))
    assert max(options.max_new_tokens, options.min_new_tokens) == 100


def test_options_that_leave_out_the_whole_vocabulary() -> None:
    options = GenerationOptions(0, suppress_tokens=(0, 1), bad_words_ids=((2,), (3, 1)))
    options.require_token_left(4)
    with pytest.raises(InvalidOption, match="leave no token"):
        options.require_token_left(3)


def test_the_wire_takes_the_neutral_values_that_a_checkpoint_may_have() -> None:
    assert NEUTRAL_OPTIONS == _NEUTRAL
