"""How tokens are chosen from scores: the greatest, by chance, or by beams.

Beam search follows transformers' (5.x) in every comparison, so that equal scores give equal tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from penstock.engine.generation.pages import Int64Array
from penstock.engine.generation_options import GenerationOptions

Float32Array = npt.NDArray[np.float32]

_OUT = np.float32(-1e9)  # the score of a hypothesis that is no candidate, as in transformers


def greedy(scores: Tensor) -> list[int]:
    """The token of the greatest score [R, V] of each row."""
    tokens: list[int] = scores.argmax(dim=-1).tolist()
    return tokens


def sample(scores: Tensor, seeds: Sequence[int], steps: Sequence[int]) -> list[int]:
    """A token of each row with probabilities softmax(scores) [R, V], by one uniform number a row.

    The number depends on the row's seed and step only, so it is the same in any batch and after a restart.
    """
    total = scores.double().softmax(dim=-1).cumsum(dim=-1)
    wanted = torch.from_numpy(uniform(seeds, steps)) * total[:, -1]
    # The first token whose cumulated probability is above the number; one of probability 0 never is.
    tokens: list[int] = torch.searchsorted(total, wanted[:, None], right=True)[:, 0].tolist()
    return tokens


def uniform(seeds: Sequence[int], steps: Sequence[int]) -> npt.NDArray[np.float64]:
    """A number in [0, 1) for each pair of a seed and a step: splitmix64 (Steele et al. 2014) as a hash of both."""
    mask = (1 << 64) - 1
    hashed = _mixed(np.array([seed & mask for seed in seeds], np.uint64))
    mixed = _mixed(hashed + np.array(steps, np.uint64))
    return (mixed >> np.uint64(12)).astype(np.float64) * 2.0**-52


def _mixed(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


@dataclass(frozen=True, slots=True)
class Continuations:
    """The best continuations of one sequence's hypotheses, best first: K = `num_candidates` of them."""

    scores: Float32Array  # [K] sums of log-probabilities
    parents: Int64Array  # [K] hypothesis that each continues
    tokens: Int64Array  # [K]


def num_candidates(options: GenerationOptions) -> int:
    """Continuations that `BeamSearch.advance` needs, or all: so many that enough of them end with no end token."""
    return max(2, 1 + len(options.eos_token_ids)) * options.num_beams


class BeamSearch:
    """Hypotheses of one sequence: `num_beams` that grow, and the best `num_beams` that have ended.

    `advance` replaces its lists and arrays, so a shallow copy keeps the search before a step.
    """

    def __init__(self, options: GenerationOptions) -> None:
        """Expects that options of one sequence do not change."""
        beams = options.num_beams
        self._options = options
        self._tokens: list[tuple[int, ...]] = [()] * beams  # of each growing hypothesis
        self.scores = np.full(beams, _OUT)  # of each growing hypothesis; at first they are equal, and one counts
        self.scores[0] = 0
        self._ended: list[tuple[int, ...]] = [()] * beams
        self._ended_scores = np.full(beams, _OUT)
        self._is_ended = np.zeros(beams, np.bool_)  # whether each place of `_ended` is taken

    @property
    def hypotheses(self) -> list[tuple[int, ...]]:
        """Tokens of each growing hypothesis."""
        return self._tokens

    @property
    def best(self) -> tuple[int, ...]:
        """Tokens of the best hypothesis that has ended."""
        return self._ended[0]

    @property
    def has_ended(self) -> bool:
        """Whether a hypothesis has ended, so that `best` is one."""
        return bool(self._is_ended[0])

    def advance(self, found: Continuations) -> Int64Array | None:
        """Take one step. Returns the parent of each growing hypothesis, or None when the search has ended."""
        options, beams = self._options, self._options.num_beams
        last = found.tokens.tolist()
        tokens = [(*self._tokens[i], token) for i, token in zip(found.parents.tolist(), last, strict=True)]
        length = len(tokens[0])
        is_full = length >= options.max_new_tokens
        ends = np.array([is_full or token in options.eos_token_ids for token in last])
        self._keep_ended(tokens, found.scores / length**options.length_penalty, ends)
        growing = found.scores + np.where(ends, _OUT, np.float32(0))
        order = _best(growing, beams)
        self._tokens = [tokens[i] for i in order]
        self.scores = growing[order]
        if ends.all() or not self._may_improve(length) or (options.early_stopping is True and self._is_ended.all()):
            return None
        return found.parents[order]

    def _keep_ended(self, tokens: list[tuple[int, ...]], scores: Float32Array, ends: npt.NDArray[np.bool_]) -> None:
        """Keep the best that have ended. Those behind the first `num_beams` continuations do not count."""
        beams = self._options.num_beams
        counts = ends & (np.arange(len(ends)) < beams)
        merged = np.concatenate([self._ended_scores, scores + np.where(counts, np.float32(0), _OUT)])
        order = _best(merged, beams)
        hypotheses = self._ended + tokens
        self._ended = [hypotheses[i] for i in order]
        self._ended_scores = merged[order]
        self._is_ended = np.concatenate([self._is_ended, counts])[order]

    def _may_improve(self, length: int) -> bool:
        """Whether the best growing hypothesis may still get a better score than the worst that has ended."""
        options = self._options
        is_patient = options.early_stopping == "never" and options.length_penalty > 0
        reached = options.max_new_tokens if is_patient else length
        attainable = self.scores[0] / np.float32(reached**options.length_penalty)
        worst = np.where(self._is_ended, self._ended_scores.min(), _OUT)
        return bool((attainable > worst).any())


def _best(scores: Float32Array, count: int) -> Int64Array:
    """Places of the best scores, best first. Of equal ones torch's choice, as in transformers."""
    places: Int64Array = torch.from_numpy(scores).topk(count).indices.numpy()
    return places
