"""The choice of tokens for the rows of one step, of any sequences."""

import math
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from penstock.engine.generation.pages import Int64Array
from penstock.engine.generation.rules import LogitRules, rules_of
from penstock.engine.generation.search import BeamSearch, Continuations, greedy, num_candidates, sample
from penstock.engine.generation_options import GenerationOptions


@dataclass(slots=True)
class Hypotheses:
    """One sequence's tokens so far, and how the next are chosen: one row, or a row for each beam."""

    options: GenerationOptions
    seed: int
    rules: LogitRules = field(init=False)
    beams: BeamSearch | None = field(init=False)
    rows: list[list[int]] = field(init=False)  # tokens of each row, the start token first

    def __post_init__(self) -> None:
        self.rules = rules_of(self.options.without_lengths())
        self.beams = BeamSearch(self.options) if self.options.num_beams > 1 else None
        self.rows = [[self.options.decoder_start_token_id] for _ in range(self.options.num_beams)]

    def accept(self, choice: "Choice") -> None:
        """Add the tokens of a step that has not finished the sequence."""
        if choice.beams is None:
            self.rows[0].extend(choice.tokens)
        else:
            self.beams = choice.beams
            self.rows = [[self.options.decoder_start_token_id, *tokens] for tokens in choice.beams.hypotheses]


class Choice(NamedTuple):
    """Result of a step for a sequence, or of the steps that a device's search ran."""

    tokens: tuple[int, ...]  # that are certain now; of beams none before the end
    is_finished: bool
    beams: BeamSearch | None = None  # the search after this step; None at the end
    parents: Int64Array | None = None  # of beams: the row that each row continues; None at the end
    is_invalid: bool = False  # whether scores were not finite, or the rules left no token
    steps: int = 1  # that it took: more of a device's search
    by_options: bool = False  # of an invalid one: whether the model's own scores were finite


_INVALID = Choice((), is_finished=True, is_invalid=True)
_NO_TOKEN = Choice((), is_finished=True, is_invalid=True, by_options=True)


def choose(logits: Tensor, sequences: Sequence[Hypotheses]) -> list[Choice]:
    """Choose tokens by logits [R, V], the rows of each sequence following each other, for `Hypotheses.accept`.

    Changes no sequence. Those whose rules are equal are processed together. A choice depends on its own logits only.
    """
    starts = list(accumulate((len(sequence.rows) for sequence in sequences), initial=0))
    is_finite = _is_finite(logits).numpy()
    choices: dict[int, Choice] = {}
    groups: dict[int, list[int]] = {}
    for index, sequence in enumerate(sequences):
        if is_finite[starts[index] : starts[index + 1]].all():
            groups.setdefault(id(sequence.rules), []).append(index)
        else:
            choices[index] = _INVALID
    for members in groups.values():
        rows = [row for index in members for row in range(starts[index], starts[index + 1])]
        group = [sequences[index] for index in members]
        choices.update(zip(members, _choose_by_rules(logits[rows], group), strict=True))
    return [choices[index] for index in range(len(sequences))]


def _choose_by_rules(logits: Tensor, sequences: list[Hypotheses]) -> Iterator[Choice]:
    """Choices of sequences that share their rules. `logits` may be overwritten."""
    rules, options = sequences[0].rules, sequences[0].options
    histories = [row for sequence in sequences for row in sequence.rows]
    max_new_tokens = [sequence.options.max_new_tokens for sequence in sequences for _ in sequence.rows]
    scores = torch.log_softmax(logits, dim=-1) if options.num_beams > 1 else logits
    scores = rules.apply(scores, histories, np.array(max_new_tokens))
    has_token = _is_finite(scores)
    if options.num_beams > 1:
        return _advance_beams(scores.masked_fill(~has_token[:, None], -math.inf), has_token.tolist(), sequences)
    if options.do_sample:
        seeds = [sequence.seed for sequence in sequences]
        tokens = sample(scores, seeds, [len(history) - 1 for history in histories])
    else:
        tokens = greedy(scores)
    return map(_choice_of, sequences, tokens, has_token.tolist())


def _is_finite(scores: Tensor) -> Tensor:
    """Whether each row [R, V] can be chosen from: it has a token, and no score is NaN or infinitely good."""
    return scores.amax(dim=1).isfinite()


def _choice_of(sequence: Hypotheses, token: int, has_token: bool) -> Choice:
    if not has_token:
        return _NO_TOKEN
    (row,), options = sequence.rows, sequence.options
    return Choice((token,), is_finished=token in options.eos_token_ids or len(row) >= options.max_new_tokens)


def _advance_beams(scores: Tensor, has_token: list[bool], sequences: list[Hypotheses]) -> Iterator[Choice]:
    searches = [copy(sequence.beams) for sequence in sequences if sequence.beams is not None]
    vocab_size = scores.shape[1]
    sums = scores + torch.from_numpy(np.concatenate([search.scores for search in searches]))[:, None]
    sums = sums.view(len(searches), -1)
    best = torch.topk(sums, min(num_candidates(sequences[0].options), sums.shape[1]))
    parents, tokens = np.divmod(best.indices.numpy(), vocab_size)
    for i, search in enumerate(searches):
        first = i * len(search.hypotheses)
        if not any(has_token[first : first + len(search.hypotheses)]):  # what has ended counts
            yield Choice(search.best, is_finished=True) if search.has_ended else _NO_TOKEN
            continue
        chosen = search.advance(Continuations(best.values[i].numpy(), parents[i], tokens[i]))
        if chosen is None:
            yield Choice(search.best, is_finished=True)
        else:
            yield Choice((), is_finished=False, beams=search, parents=chosen)
