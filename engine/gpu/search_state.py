"""The state of searches on a device: a seat for each request, in tensors that the steps read and write."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from penstock.engine.generation.device import SearchRequest
from penstock.engine.generation.options import GenerationOptions
from penstock.engine.generation.search import BeamSearch
from penstock.engine.gpu.cell_batches import row_bucket
from penstock.engine.gpu.uploads import upload

RUNNING, FINISHED, INVALID = 0, 1, 2
OUT = -1e9  # the score of a hypothesis that is no candidate, as in transformers
MAX_EOS = 8
_PATIENCE: dict[Any, int] = {False: 0, True: 1, "never": 2}


class SearchShape(NamedTuple):
    """Facts that requests of one pool of seats share."""

    beams: int
    candidates: int  # that compete in a step: `BeamSearch.num_candidates`; 1 without beams

    @classmethod
    def of(cls, options: GenerationOptions) -> "SearchShape":
        """The shape of requests with these options."""
        beams = options.num_beams
        return cls(beams, BeamSearch(options).num_candidates if beams > 1 else 1)

    def bucket(self, requests: int) -> int:
        """Seats of the graph for so many requests: its rows are as many as of a batch of cells, in whole requests."""
        return -(-row_bucket(requests * self.beams) // self.beams)


@dataclass(frozen=True, slots=True)
class SearchTerms:
    """Options of N requests: int32 [N] where nothing else is said."""

    max_new: Tensor
    min_new: Tensor
    forced_first: Tensor  # the only first token; -1: any
    forced_last: Tensor
    bans: Tensor  # row of the table of bans; the next row has the end tokens too
    renormalize: Tensor
    patience: Tensor  # of early_stopping: 0 false, 1 true, 2 never
    source_length: Tensor
    length_penalty: Tensor  # float64
    eos: Tensor  # [N, MAX_EOS]; -1 in places of none
    source_pages: Tensor  # [N, ...]


@dataclass(frozen=True, slots=True)
class SearchState:
    """State of N requests of B beams; int32 where nothing else is said. T: longest result; 0 where B = 1."""

    status: Tensor  # [N]
    length: Tensor  # [N]: new tokens
    last: Tensor  # [N, B]: token that each hypothesis reads next
    slots: Tensor  # [N, B, longest]: of the keys of each hypothesis; its row's own from `length` on
    scores: Tensor  # float32 [N, B]: of the growing hypotheses
    tokens: Tensor  # [N, B, T]: of the growing hypotheses
    ended: Tensor  # [N, B, T]: tokens of the best that have ended, best first
    ended_lengths: Tensor  # [N, B]
    ended_scores: Tensor  # float32 [N, B]
    is_ended: Tensor  # bool [N, B]


class Seats:
    """The seats of one shape. The last one, `spare`, is of no request, and has ended."""

    def __init__(self, shape: SearchShape, count: int, longest: int, source_columns: int, device: torch.device) -> None:
        """longest: most new tokens; source_columns: most pages of a source."""

        def zeros(*widths: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros(count + 1, *widths, dtype=dtype, device=device)

        beams, kept = shape.beams, longest if shape.beams > 1 else 0
        self.spare = count
        self._device = device
        self._terms = SearchTerms(
            max_new=zeros(),
            min_new=zeros(),
            forced_first=zeros(),
            forced_last=zeros(),
            bans=zeros(),
            renormalize=zeros(),
            patience=zeros(),
            source_length=zeros(),
            length_penalty=zeros(dtype=torch.float64),
            eos=zeros(MAX_EOS),
            source_pages=zeros(source_columns),
        )
        self._state = SearchState(
            status=torch.full_like(zeros(), FINISHED),
            length=zeros(),
            last=zeros(beams),
            slots=zeros(beams, longest),
            scores=zeros(beams, dtype=torch.float32),
            tokens=zeros(beams, kept),
            ended=zeros(beams, kept),
            ended_lengths=zeros(beams),
            ended_scores=zeros(beams, dtype=torch.float32),
            is_ended=zeros(beams, dtype=torch.bool),
        )

    def open(self, seats: Sequence[int], requests: Sequence[SearchRequest], bans: Sequence[int]) -> None:
        """Write requests to their seats. bans: row of the table of bans of each."""
        state, options = self._state, [request.options for request in requests]
        counts = [len(requests), *self._terms.source_pages.shape[1:]]
        pages, slots = np.zeros(counts, np.int32), np.zeros((len(requests), *state.slots.shape[1:]), np.int32)
        for place, request in enumerate(requests):
            pages[place, : len(request.source_pages)] = request.source_pages
            slots[place, :, : request.slots.shape[1]] = request.slots
        of_eos = [[*o.eos_token_ids, *[-1] * (MAX_EOS - len(o.eos_token_ids))] for o in options]
        penalties = np.array([o.length_penalty for o in options], np.float64)
        where, start, own, penalty, *terms = upload(
            self._device,
            np.array(seats),
            np.array([o.decoder_start_token_id for o in options]),
            slots,
            penalties.view(np.int32),
            np.array([o.max_new_tokens for o in options]),
            np.array([o.min_new_tokens for o in options]),
            np.array([_or_none(o.forced_bos_token_id) for o in options]),
            np.array([_or_none(*o.forced_eos_token_ids) for o in options]),
            np.array(bans),
            np.array([o.renormalize_logits for o in options]),
            np.array([_PATIENCE[o.early_stopping] for o in options]),
            np.array([request.source_length for request in requests]),
            np.array(of_eos),
            pages,
        )
        where = where.long()
        self._terms.length_penalty.index_copy_(0, where, penalty.view(torch.float64))
        integers = [field.name for field in fields(SearchTerms) if field.name != "length_penalty"]
        for name, values in zip(integers, terms, strict=True):
            getattr(self._terms, name).index_copy_(0, where, values)
        state.slots.index_copy_(0, where, own)
        state.last.index_copy_(0, where, start[:, None].expand(-1, state.last.shape[1]))
        for part, value in (
            (state.status, RUNNING),
            (state.length, 0),
            (state.scores, OUT),
            (state.scores[:, 0], 0),
            (state.ended_lengths, 0),
            (state.ended_scores, OUT),
            (state.is_ended, 0),
        ):
            part.index_fill_(0, where, value)

    def read(self, seats: Tensor) -> tuple[SearchTerms, SearchState]:
        """Copies of some seats."""
        return _rows(self._terms, seats), _rows(self._state, seats)

    def write(self, seats: Tensor, state: SearchState) -> None:
        """Put the state of some seats back."""
        for field in fields(SearchState):
            getattr(self._state, field.name).index_copy_(0, seats, getattr(state, field.name))


def _rows(tensors: Any, seats: Tensor) -> Any:
    return type(tensors)(*(getattr(tensors, field.name).index_select(0, seats) for field in fields(tensors)))


def _or_none(*tokens: int | None) -> int:
    """The one token, or -1."""
    return -1 if not tokens or tokens[0] is None else tokens[0]
