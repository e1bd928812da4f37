"""Steps of greedy search in place: one kernel after each pass of the decoder, or torch on a device without it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.engine.gpu.generation.search_state import RUNNING, SearchState, SearchTerms
from penstock.engine.gpu.generation.search_steps import Candidates, banned_rows, take_greedy
from penstock.engine.kernels.greedy_step import greedy_step


@dataclass(frozen=True, slots=True)
class GreedySteps:
    """N requests of one row each in a quantum of steps. All int32 and contiguous, on the device of the state."""

    terms: SearchTerms
    state: SearchState  # `status`, `length` and `last` change
    positions: Tensor  # [N]: this and the next three are of the next pass; 0 where a request does not run
    lengths: Tensor  # [N] of the keys, the pass's own included
    source_lengths: Tensor  # [N]
    bans: Tensor  # [N] rows of the table of bans
    results: Tensor  # [N, 1 + steps]: the status, and the tokens that were added; -1 for none

    @classmethod
    def begin(cls, terms: SearchTerms, state: SearchState, quantum: int, logits: Tensor) -> "GreedySteps":
        """Before the first pass. logits: a tensor of the type that `take` will find tokens in."""
        steps = cls.empty(terms, state, quantum)
        steps._advance(None, logits, 0)
        return steps

    @classmethod
    def empty(cls, terms: SearchTerms, state: SearchState, quantum: int) -> "GreedySteps":
        """With memory for what a pass needs and gives."""
        positions, lengths, source_lengths, bans = (torch.empty_like(state.length) for _ in range(4))
        results = state.length.new_empty(len(state.length), 1 + quantum)
        return cls(terms, state, positions, lengths, source_lengths, bans, results)

    def take(self, values: Tensor, tokens: Tensor, step: int, logits: Tensor) -> None:
        """Add the likeliest tokens: values float32, tokens int32 [N, 1], as of `likely_tokens`."""
        self._advance((values, tokens), logits, 1 + step)

    def _advance(self, found: tuple[Tensor, Tensor] | None, logits: Tensor, column: int) -> None:
        if not logits.is_cuda or logits.dtype is torch.float32:
            self.advance_by_torch(found, column)
            return
        terms, state = self.terms, self.state
        greedy_step(
            (terms.max_new, terms.min_new, terms.forced_first, terms.forced_last, terms.bans, terms.source_length),
            terms.eos,
            (state.status, state.length, state.last),
            (self.positions, self.lengths, self.source_lengths, self.bans),
            self.results,
            column,
            found,
            logits,
        )

    def advance_by_torch(self, found: tuple[Tensor, Tensor] | None, column: int) -> None:
        """As the kernel, on any device. found: values and tokens; None before the first pass."""
        state = self.state
        if found is not None:
            new, added = take_greedy(self.terms, state, Candidates(found[0][:, None, :1], found[1][:, None, :1]))
            for old, after in ((state.status, new.status), (state.length, new.length), (state.last, new.last)):
                old.copy_(after)
            self.results[:, column] = added
        self.results[:, 0] = state.status
        is_running = state.status == RUNNING
        self.positions.copy_(state.length.masked_fill(~is_running, 0))
        self.lengths.copy_((state.length + 1).masked_fill(~is_running, 0))
        self.source_lengths.copy_(self.terms.source_length.masked_fill(~is_running, 0))
        self.bans.copy_(banned_rows(self.terms, state))
