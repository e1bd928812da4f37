"""A quantum of search steps as work on the device alone, which a CUDA graph can hold."""

from collections.abc import Callable

import torch
from torch import Tensor

from penstock.engine.generation.selection import Choice
from penstock.engine.gpu.generation.cached_attention import CacheLines
from penstock.engine.gpu.generation.greedy_steps import GreedySteps
from penstock.engine.gpu.generation.likely_tokens import BanTable, likely_tokens
from penstock.engine.gpu.generation.search_state import (
    FINISHED,
    INVALID,
    RUNNING,
    SearchShape,
    SearchState,
    SearchTerms,
    Seats,
)
from penstock.engine.gpu.generation.search_steps import Candidates, banned_rows, take_beams
from penstock.engine.gpu.generation.seq2seq_ops import TargetRows

Predict = Callable[[TargetRows], Tensor]  # logits [R, ...], overwritten by the next call


class SearchQuantum:
    """Reads the state of some seats, runs decoder steps, and writes it back."""

    def __init__(self, predict: Predict, vocabulary: int, bans: BanTable, page_size: int, logits: Tensor) -> None:
        """logits: the memory that `predict` writes to."""
        self._predict = predict
        self._vocabulary = vocabulary
        self._bans = bans
        self._page_size = page_size
        self._logits = logits

    def __call__(self, seats: Seats, asked: Tensor, shape: SearchShape, quantum: int) -> Tensor:
        """Run a quantum for the seats that `asked` [N] names. Returns their results, int32 [N, ...].

        Of greedy search: the status, and the tokens that were added; -1 for none. Of beams: the status, the steps that
        ran, and the length and tokens of the best that has ended. Depends on the requests only through memory at fixed
        addresses.
        """
        terms, state = seats.read(asked)
        if shape.beams == 1:
            results = self._greedy(terms, state, quantum)
        else:
            began, lines = state.length, self._lines(state)
            for _ in range(quantum):
                state = take_beams(terms, state, self._candidates(shape, terms, state, lines), shape.candidates)
            facts = torch.stack([state.status, state.length - began, state.ended_lengths[:, 0]], 1)
            results = torch.cat([facts, state.ended[:, 0]], 1)
        seats.write(asked, state)  # last, so that a quantum that raises has changed nothing
        return results

    def _greedy(self, terms: SearchTerms, state: SearchState, quantum: int) -> Tensor:
        """Run the decoder for a quantum, one row a request. The state changes in place."""
        steps = GreedySteps.begin(terms, state, quantum, self._logits)
        past = CacheLines(state.slots[:, 0], steps.lengths, None, 1)
        sources = CacheLines(terms.source_pages, steps.source_lengths, None, self._page_size)
        for step in range(quantum):
            logits = self._predict(TargetRows(state.last[:, 0], steps.positions, past, sources))
            found = likely_tokens(logits, self._vocabulary, self._bans.bits, steps.bans, terms.renormalize, 1)
            steps.take(*found, step, logits)
        return steps.results

    def _candidates(self, shape: SearchShape, terms: SearchTerms, state: SearchState, lines: Tensor) -> Candidates:
        """Run the decoder for one step."""
        is_running = state.status == RUNNING
        positions = state.length.masked_fill(~is_running, 0)
        lengths = (state.length + 1).masked_fill(~is_running, 0)
        of_sources = terms.source_length.masked_fill(~is_running, 0)

        def by_row(values: Tensor) -> Tensor:
            return values[:, None].expand(-1, shape.beams).reshape(-1)

        past = CacheLines(state.slots.flatten(0, 1), by_row(lengths), None, 1)
        sources = CacheLines(terms.source_pages, of_sources, lines, self._page_size)
        logits = self._predict(TargetRows(state.last.flatten(), by_row(positions), past, sources))
        bans = by_row(banned_rows(terms, state))
        values, tokens = likely_tokens(
            logits, self._vocabulary, self._bans.bits, bans, by_row(terms.renormalize), shape.candidates
        )
        of_request = len(state.status), shape.beams, -1
        return Candidates(values.view(of_request), tokens.view(of_request))

    @staticmethod
    def _lines(state: SearchState) -> Tensor:
        """The request of each row."""
        count, beams = state.last.shape
        return torch.arange(count * beams, dtype=torch.int32, device=state.last.device) // beams


def num_results(shape: SearchShape, quantum: int, longest: int) -> int:
    """Values of a request's results. longest: most new tokens."""
    return 3 + longest if shape.beams > 1 else 1 + quantum


def greedy_choice(row: list[int]) -> Choice:
    """By a row of results: the status, then the tokens that were added; -1 for none."""
    status = row[0]
    if status == RUNNING:  # each step has added a token
        return Choice(tuple(row[1:]), False, None, None, False, len(row) - 1)
    tokens = tuple(token for token in row[1:] if token >= 0)
    is_invalid = status == INVALID  # by a step that has added no token
    return Choice(tokens, is_finished=True, is_invalid=is_invalid, steps=len(tokens) + is_invalid)


def choice_of_beams(row: list[int]) -> Choice:
    """By a row of results: the status, the steps that ran, the length of the best that has ended, and its tokens."""
    status, steps, length = row[:3]
    tokens = tuple(row[3 : 3 + length]) if status == FINISHED else ()
    return Choice(tokens, is_finished=status != RUNNING, is_invalid=status == INVALID, steps=steps)
