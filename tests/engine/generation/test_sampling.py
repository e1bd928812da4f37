"""Sampling: the filters of transformers, frequencies that are the probabilities, numbers that are the seed's."""

from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.engine.generation.generator import Generator
from penstock.engine.generation.rules import filtered
from penstock.engine.generation.search import sample, uniform
from penstock.engine.generation_options import GenerationOptions
from tests.engine.generation.helpers import SMALL, drain, model_of, sources

SAMPLED: dict[str, Any] = {"do_sample": True, "temperature": 1.7, "top_k": 30, "top_p": 0.95, "max_new_tokens": 12}


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.0])
@pytest.mark.parametrize("top_k", [0, 1, 7, 500])
@pytest.mark.parametrize("top_p", [1e-6, 0.4, 0.9, 1.0])
def test_filters_are_those_of_transformers(temperature: float, top_k: int, top_p: float) -> None:
    scores = torch.randn(5, 60, generator=torch.Generator().manual_seed(0)) * 4
    wanted, ids = scores / temperature, torch.zeros(5, 1, dtype=torch.long)
    if top_k:
        wanted = transformers.TopKLogitsWarper(top_k)(ids, wanted)
    if top_p < 1:
        wanted = transformers.TopPLogitsWarper(top_p)(ids, wanted)
    options = GenerationOptions(0, do_sample=True, temperature=temperature, top_k=top_k, top_p=top_p)
    assert torch.equal(filtered(scores, options), wanted)


def test_frequencies_are_the_probabilities() -> None:
    probabilities = torch.tensor([0.1, 0.0, 0.4, 0.05, 0.45, 0.0])
    count = 20_000
    drawn = sample(probabilities.log().expand(count, -1), range(count), [3] * count)
    found = np.bincount(drawn, minlength=6) / count
    np.testing.assert_allclose(found, probabilities.numpy(), atol=0.015)
    assert found[1] == found[5] == 0


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(-(2**70), 2**70), st.integers(0, 10_000)), min_size=1, max_size=20))
def test_a_number_depends_on_its_seed_and_step_only(pairs: list[tuple[int, int]]) -> None:
    together = uniform(*zip(*pairs, strict=True))
    assert all(0 <= number < 1 for number in together)
    assert together.tolist() == [uniform([seed], [step])[0] for seed, step in pairs]


def test_numbers_of_neighbouring_seeds_and_steps_are_independent() -> None:
    seeds, steps = np.divmod(np.arange(250_000), 500)
    numbers = uniform(seeds.tolist(), steps.tolist()).reshape(500, 500)
    cells = np.histogram(numbers, bins=100, range=(0, 1))[0]
    assert abs(cells - 2500).max() < 5 * np.sqrt(2500)
    for left, right in ((numbers[1:], numbers[:-1]), (numbers[:, 1:], numbers[:, :-1])):
        assert abs(np.corrcoef(left.ravel(), right.ravel())[0, 1]) < 0.01


@pytest.mark.slow
def test_tokens_are_those_of_the_seed_in_any_batch() -> None:
    checkpoint, _ = model_of("bart")
    batch = sources((5, 5, 5, 20, 1, 33))
    batch[1] = batch[0]
    seeds = (4, 9, 4, 4, 5, 6)

    def run(ids: list[int]) -> dict[int, list[int]]:
        generator = Generator(checkpoint.weights, SMALL)
        for id in ids:
            generator.start(id, batch[id], checkpoint.options(**SAMPLED), seed=seeds[id])
        return drain(generator)

    together = run([0, 1, 2, 3, 4, 5])
    assert together == {id: tokens for id in range(6) for tokens in run([id]).values()}
    assert together == run([5, 3, 1, 0, 2, 4])
    assert together[0] != together[1]
