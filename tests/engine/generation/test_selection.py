"""The choice of tokens: scores that are not finite are invalid, and never a wrong token."""

import math
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.generation.selection import Hypotheses, choose
from penstock.engine.generation_options import GenerationOptions

VOCAB = 6
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "beams": {"num_beams": 3},
    "sample": {"do_sample": True},
    "sample-filtered": {"do_sample": True, "temperature": 0.01, "top_k": 4, "top_p": 0.7},
    "penalty": {"repetition_penalty": 100.0},
}


def hypotheses(**options: Any) -> Hypotheses:
    return Hypotheses(GenerationOptions(0, **options), seed=3)


def random_logits(sequence: Hypotheses) -> torch.Tensor:
    return torch.randn(len(sequence.rows), VOCAB, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "row",
    [[math.nan] * VOCAB, [0.0] * 5 + [math.nan], [0.0, math.inf] * 3, [-math.inf] * VOCAB, [math.inf] * VOCAB],
    ids=["nan", "one nan", "infinite", "no token", "all infinite"],
)
def test_scores_that_are_not_finite_are_invalid(kind: str, row: list[float]) -> None:
    bad, good = hypotheses(**KINDS[kind]), hypotheses(**KINDS[kind])
    logits = random_logits(good)
    spoiled = logits.clone()
    spoiled[-1] = torch.tensor(row)
    invalid, valid = choose(torch.cat([spoiled, logits]), [bad, good])
    assert (invalid.tokens, invalid.is_finished, invalid.is_invalid) == ((), True, True)
    (alone,) = choose(logits, [good])
    assert (valid.tokens, valid.is_invalid) == (alone.tokens, False)


def test_scores_that_leave_float32_in_the_rules_are_invalid() -> None:
    sequence = hypotheses(do_sample=True, temperature=0.01)
    (choice,) = choose(torch.full((1, VOCAB), 1e38), [sequence])
    assert choice.is_invalid


@given(
    st.lists(st.floats(width=32, allow_nan=True, allow_infinity=True), min_size=VOCAB, max_size=VOCAB),
    st.sampled_from([kind for kind in KINDS if kind != "beams"]),
    st.sampled_from([0.01, 1.0, 100.0]),
)
def test_any_scores_give_a_token_of_the_vocabulary_or_none(row: list[float], kind: str, factor: float) -> None:
    options = {"temperature": factor, "repetition_penalty": factor} | KINDS[kind]
    (choice,) = choose(torch.tensor([row]), [hypotheses(**options)])
    assert choice.is_invalid or 0 <= choice.tokens[0] < VOCAB
    assert choice.is_invalid or row[choice.tokens[0]] > -math.inf


def test_a_beam_that_has_no_token_left_leaves_the_others() -> None:
    """After token 1 every token is a bad word. Its scores are NaN once they are renormalised."""
    sequence = hypotheses(num_beams=2, renormalize_logits=True, bad_words_ids=tuple((1, i) for i in range(VOCAB)))
    logits = torch.zeros(2, VOCAB)
    logits[:, 1], logits[:, 2] = 9, 8
    (choice,) = choose(logits, [sequence])
    sequence.accept(choice)
    assert sequence.rows == [[0, 1], [0, 2]]
    (choice,) = choose(logits, [sequence])
    sequence.accept(choice)
    assert sequence.rows == [[0, 2, 1], [0, 2, 2]]
    assert sequence.beams is not None
    assert np.isfinite(sequence.beams.scores).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_choice_changes_nothing_until_it_is_accepted(kind: str) -> None:
    sequence = hypotheses(**KINDS[kind])
    logits = random_logits(sequence)
    after = []
    for _ in range(2):
        (choice,) = choose(logits, [sequence])
        assert sequence.rows == [[0]] * len(sequence.rows)
        copied = deepcopy(sequence)
        copied.accept(choice)
        after.append(copied.rows)
    assert after[0] == after[1]
    assert {len(row) for row in after[0]} == {2}


@pytest.mark.parametrize("tokens", [(2,) * 40, tuple(range(VOCAB)), tuple(range(VOCAB)) * 2])
def test_any_list_of_end_tokens_can_be_searched_with_beams(tokens: tuple[int, ...]) -> None:
    sequence = hypotheses(num_beams=3, eos_token_ids=tokens)
    assert sequence.options.eos_token_ids == tuple(dict.fromkeys(tokens))
    (choice,) = choose(random_logits(sequence), [sequence])
    assert choice.is_finished == (len(set(tokens)) == VOCAB)
