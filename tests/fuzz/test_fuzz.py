"""Every decoder takes any bytes: it returns, or raises its typed error, in bounded time and memory."""

import random

import pytest

from tests.fuzz.decoder import Decoder
from tests.fuzz.decoders import DECODERS
from tests.fuzz.fuzzing import fuzz

NUM_INPUTS = 20_000


@pytest.mark.slow
@pytest.mark.parametrize("decoder", DECODERS, ids=lambda decoder: decoder.name)
def test_a_decoder_returns_or_raises_its_typed_error(decoder: Decoder) -> None:
    assert list(map(str, fuzz(decoder, NUM_INPUTS // len(DECODERS) + 1, seed=1))) == []


@pytest.mark.parametrize("decoder", DECODERS, ids=lambda decoder: decoder.name)
def test_the_samples_themselves_are_read(decoder: Decoder) -> None:
    for sample in decoder.samples:
        decoder.decode(sample)


def test_a_decoder_that_breaks_its_contract_is_found() -> None:
    def fragile(value: bytes) -> None:
        if value[:1] == b"\xff":
            raise KeyError("undeclared")

    (fault, *_) = fuzz(Decoder("fragile", [b"\xfe sample"], fragile), 2000, seed=random.randrange(100))
    assert "KeyError" in str(fault)
