"""One step of greedy or beam search as operations on tensors, which a CUDA graph can hold.

Beam search is that of `penstock.engine.generation.search`, for all requests at a time. Constants are never given to
`torch.where`, which would copy them to the device; a capture does not allow that.
"""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from penstock.engine.gpu.generation.search_state import FINISHED, INVALID, OUT, RUNNING, SearchState, SearchTerms


class Candidates(NamedTuple):
    """The K likeliest tokens of each row, likeliest first."""

    values: Tensor  # float32 [N, B, K]: log-probabilities; NaN in rows of which a logit is no number
    tokens: Tensor  # int32 [N, B, K]


def banned_rows(terms: SearchTerms, state: SearchState) -> Tensor:
    """Row of the table of bans for each request's next token, [N]."""
    return terms.bans + (state.length < terms.min_new).int()


def take_greedy(terms: SearchTerms, state: SearchState, found: Candidates) -> tuple[SearchState, Tensor]:
    """The state after a step of one row each, and the tokens [N] that it has added; -1 for none."""
    is_number, found = ~found.values[:, 0, 0].isnan(), _forced(terms, state, found)
    token, is_running = found.tokens[:, 0, 0], state.status == RUNNING
    is_valid = is_number & (found.values[:, 0, 0] > -torch.inf)
    length = state.length + 1
    ends = (length >= terms.max_new) | (token[:, None] == terms.eos).any(1)
    grows = is_running & is_valid
    new = replace(
        state,
        status=_status(state, is_valid, ends),
        length=torch.where(grows, length, state.length),
        last=torch.where(grows[:, None], token[:, None], state.last),
    )
    return new, token.masked_fill(~grows, -1)


def take_beams(terms: SearchTerms, state: SearchState, found: Candidates, count: int) -> SearchState:
    """The state after a step of B rows each. count: of the continuations that compete, `num_candidates`."""
    is_number = ~found.values[:, :, 0].isnan().any(1)
    found = _forced(terms, state, found)
    is_valid = is_number & (found.values[:, :, 0] > -torch.inf).any(1)
    size, beams = found.values.shape[2], state.last.shape[1]
    scores, order = _best((found.values + state.scores[:, :, None]).flatten(1), count)
    parents, tokens = order // size, found.tokens.flatten(1).gather(1, order)
    length = state.length + 1
    ends = (length >= terms.max_new)[:, None] | (tokens[:, :, None] == terms.eos[:, None]).any(2)

    kept = _keep_ended(terms, state, scores, parents, tokens, ends)
    growing, order = _best(scores + ends * OUT, beams)
    parents, last = parents.gather(1, order), tokens.gather(1, order)
    done = ends.all(1) | ~_may_improve(terms, growing, kept, length)
    done |= (terms.patience == 1) & kept.is_ended.all(1)
    is_running = state.status == RUNNING
    of_row = is_running[:, None]
    return SearchState(
        status=_status(state, is_valid, done),
        length=torch.where(is_running, length, state.length),
        last=last,
        slots=torch.where(_before(state.slots, length), _of_parents(state.slots, parents), state.slots),
        scores=growing,
        tokens=_with_last(_of_parents(state.tokens, parents), last, length),
        ended=torch.where(of_row[:, :, None], kept.ended, state.ended),
        ended_lengths=torch.where(of_row, kept.ended_lengths, state.ended_lengths),
        ended_scores=kept.ended_scores,
        is_ended=kept.is_ended,
    )


def _keep_ended(
    terms: SearchTerms, state: SearchState, scores: Tensor, parents: Tensor, tokens: Tensor, ends: Tensor
) -> SearchState:
    """The state with the best that have ended. Those behind the first B continuations do not count."""
    beams, length = state.last.shape[1], state.length + 1
    counts = ends & (torch.arange(ends.shape[1], device=ends.device) < beams)
    own = scores / _divisor(length, terms)[:, None] + ~counts * OUT
    merged, place = _best(torch.cat([state.ended_scores, own], 1), beams)
    was_ended, new = place < beams, (place - beams).clamp(min=0)
    histories = torch.cat([state.ended, state.tokens], 1)
    chosen = _of_parents(histories, torch.where(was_ended, place, beams + parents.gather(1, new)))
    ended = torch.where(was_ended[:, :, None], chosen, _with_last(chosen, tokens.gather(1, new), length))
    old_lengths = state.ended_lengths.gather(1, place.clamp(max=beams - 1))
    return replace(
        state,
        ended=ended,
        ended_lengths=torch.where(was_ended, old_lengths, length[:, None]),
        ended_scores=merged,
        is_ended=torch.cat([state.is_ended, counts], 1).gather(1, place),
    )


def _may_improve(terms: SearchTerms, growing: Tensor, kept: SearchState, length: Tensor) -> Tensor:
    """Whether the best growing hypothesis may still get a better score than the worst that has ended, [N]."""
    is_patient = (terms.patience == 2) & (terms.length_penalty > 0)
    attainable = growing[:, 0] / _divisor(torch.where(is_patient, terms.max_new, length), terms)
    worst = kept.ended_scores.amin(1, keepdim=True).expand_as(kept.is_ended).masked_fill(~kept.is_ended, OUT)
    return (attainable[:, None] > worst).any(1)


def _forced(terms: SearchTerms, state: SearchState, found: Candidates) -> Candidates:
    """The candidates of rows that have no choice: one token of score 0."""
    token = terms.forced_first.masked_fill(state.length != 0, -1)
    is_last = (state.length == terms.max_new - 1) & (terms.forced_last >= 0)
    token = torch.where(is_last, terms.forced_last, token)[:, None, None]
    only = torch.full_like(found.values[:1, :1], -torch.inf)
    only[:, :, 0] = 0
    values = torch.where(token >= 0, only, found.values)
    return Candidates(values, torch.where(token >= 0, token, found.tokens))


def _status(state: SearchState, is_valid: Tensor, ends: Tensor) -> Tensor:
    after = torch.full_like(state.status, RUNNING).masked_fill(ends, FINISHED).masked_fill(~is_valid, INVALID)
    return torch.where(state.status == RUNNING, after, state.status)


def _divisor(length: Tensor, terms: SearchTerms) -> Tensor:
    """length ** length_penalty, rounded once as the host rounds it."""
    return length.double().pow(terms.length_penalty).float()


def _best(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` greatest of each row and their places; of equal ones the first."""
    values, order = scores.sort(dim=1, descending=True, stable=True)
    return values[:, :count], order[:, :count]


def _of_parents(rows: Tensor, parents: Tensor) -> Tensor:
    """rows [N, any, T] by parents [N, M]: [N, M, T]."""
    return rows.gather(1, parents[:, :, None].expand(-1, -1, rows.shape[2]))


def _before(rows: Tensor, length: Tensor) -> Tensor:
    """Whether each place of rows [N, B, T] is below `length` [N]: [N, 1, T]."""
    return torch.arange(rows.shape[2], device=rows.device) < length[:, None, None]


def _with_last(rows: Tensor, last: Tensor, length: Tensor) -> Tensor:
    """rows [N, B, T] with `last` [N, B] at the last place of `length` [N]."""
    is_last = torch.arange(rows.shape[2], device=rows.device) == length[:, None, None] - 1
    return torch.where(is_last, last[:, :, None], rows)
