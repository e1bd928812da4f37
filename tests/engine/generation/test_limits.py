"""Bounds of a generator, and the requests that it rejects."""

from typing import Any

import numpy as np
import pytest

from penstock.engine.errors import GeneratorFull, InvalidOption, InvalidSource
from penstock.engine.generation.generator import Generator
from penstock.engine.generation.limits import GeneratorLimits
from tests.engine.generation.helpers import drain, model_of, options_of, small_generator, sources

pytestmark = pytest.mark.slow


def start(generator: Generator, id: int, length: int, **options: Any) -> None:
    generator.start(id, sources([length])[0], options_of(**{"max_new_tokens": 8} | options))


@pytest.mark.parametrize(
    ("source", "words"),
    [([], "has 0 tokens; 1 to 64"), ([20] * 65, "has 65 tokens"), ([90], r"\[0, 90\)"), ([-1, 5], "Given: -1 to 5")],
)
def test_sources_that_are_rejected(source: list[int], words: str) -> None:
    generator = small_generator()
    with pytest.raises(InvalidSource, match=words):
        generator.start(0, np.array(source, np.int32), options_of())
    assert generator.waiting == ()


@pytest.mark.parametrize(
    ("bounds", "changes", "words"),
    [
        ({}, {"max_new_tokens": 65}, "max_new_tokens must be at most 64"),
        ({"max_rows": 8}, {"num_beams": 9}, "num_beams must be at most 8"),
        ({}, {"eos_token_id": 90}, "eos_token_id must be a token in"),
        ({}, {"num_beams": 32, "max_new_tokens": 64}, "need 513 pages; there are 400"),
    ],
)
def test_options_that_the_model_or_the_limits_do_not_allow(
    bounds: dict[str, Any], changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidOption, match=words):
        small_generator(**bounds).start(0, sources([4])[0], options_of(**changes))


def test_what_waits_is_bounded() -> None:
    generator = small_generator(max_waiting=1)
    start(generator, 0, 4)
    with pytest.raises(GeneratorFull, match="1 requests wait"):
        start(generator, 1, 4)
    generator.encode()
    start(generator, 1, 4)


def test_rows_are_bounded() -> None:
    generator = small_generator(max_rows=4)
    for id in range(3):
        start(generator, id, 4, num_beams=3)
    assert generator.encode() == [0]
    assert set(drain(generator)) == {0, 1, 2}


def test_a_batch_of_the_encoder_is_bounded() -> None:
    generator = small_generator(max_encode_tokens=20)
    for id in range(3):
        start(generator, id, 9)
    assert generator.encode() == [0, 1]
    assert generator.encode() == [2]


def test_the_default_limits_hold_a_request() -> None:
    generator = Generator(model_of("marian")[0].weights, GeneratorLimits())
    start(generator, 0, 9)
    assert drain(generator)[0]
