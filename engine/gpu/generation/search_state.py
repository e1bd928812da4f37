"""The state of searches on a device: a seat for each request, a row of one tensor that the steps read and write."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from penstock.engine.generation.device import SearchRequest
from penstock.engine.generation.search import num_candidates
from penstock.engine.generation_options import GenerationOptions
from penstock.engine.gpu.buckets import row_bucket
from penstock.engine.gpu.uploads import upload
from penstock.engine.types import Int32Array

RUNNING, FINISHED, INVALID = 0, 1, 2
OUT = -1e9  # the score of a hypothesis that is no candidate, as in transformers
MAX_EOS = 8
_PATIENCE: dict[Any, int] = {False: 0, True: 1, "never": 2}
_VECTOR = 4  # int32 values that a gather reads at a time


class SearchShape(NamedTuple):
    """Facts that requests of one pool of seats share."""

    beams: int
    candidates: int  # that compete in a step: `num_candidates`; 1 without beams

    @classmethod
    def of(cls, options: GenerationOptions) -> "SearchShape":
        """The shape of requests with these options."""
        return cls(options.num_beams, num_candidates(options) if options.num_beams > 1 else 1)

    def bucket(self, requests: int) -> int:
        """Seats of the graph for so many requests: its rows are as many as of a batch of cells, in whole requests."""
        return -(-row_bucket(requests * self.beams) // self.beams)


@dataclass(frozen=True, slots=True)
class SearchTerms:
    """Options of N requests: int32 [N], contiguous, where nothing else is said."""

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


_SINGLE = ("max_new", "min_new", "forced_first", "forced_last", "bans", "renormalize", "patience", "source_length")
_OF_BEAMS = ("last", "scores", "ended_scores", "ended_lengths", "is_ended")


class Seats:
    """The seats of one shape. The last one, `spare`, is of no request, and has ended.

    A seat is one row of int32 values; its floats are their bits. So a quantum gathers and writes back all of a request
    at once.
    """

    def __init__(
        self, shape: SearchShape, count: int, longest: int, source_columns: int, page_size: int, device: torch.device
    ) -> None:
        """longest: most new tokens; source_columns: most pages of a source."""
        beams, kept = shape.beams, longest if shape.beams > 1 else 0
        widths = {"length_penalty": 2} | dict.fromkeys(_SINGLE, 1) | {"eos": MAX_EOS, "status": 1, "length": 1}
        widths |= dict.fromkeys(_OF_BEAMS, beams) | {"source_pages": source_columns}
        widths |= {"slots": beams * longest, "tokens": beams * kept, "ended": beams * kept}
        ends = list(accumulate(widths.values()))
        self._columns = {name: slice(end - width, end) for (name, width), end in zip(widths.items(), ends, strict=True)}
        self.spare = count
        self._beams, self._longest, self._page_size = beams, longest, page_size
        self._rows = torch.zeros(count + 1, -(-ends[-1] // _VECTOR) * _VECTOR, dtype=torch.int32, device=device)
        self._rows[:, self._columns["status"]] = FINISHED

    def first_row(self, options: GenerationOptions, bans: int) -> Int32Array:
        """The row of a request with these options at its start, up to its pages. bans: row of the table of bans."""
        columns, row = self._columns, np.zeros(self._columns["source_pages"].start, np.int32)
        values: dict[str, Any] = {
            "length_penalty": np.array([options.length_penalty], np.float64).view(np.int32),
            "max_new": options.max_new_tokens,
            "min_new": options.min_new_tokens,
            "forced_first": _or_none(options.forced_bos_token_id),
            "forced_last": _or_none(*options.forced_eos_token_ids),
            "bans": bans,
            "renormalize": options.renormalize_logits,
            "patience": _PATIENCE[options.early_stopping],
            "eos": [*options.eos_token_ids, *[-1] * (MAX_EOS - len(options.eos_token_ids))],
            "status": RUNNING,
            "last": options.decoder_start_token_id,
            "scores": np.array([0.0, *[OUT] * (self._beams - 1)], np.float32).view(np.int32),
            "ended_scores": np.full(self._beams, OUT, np.float32).view(np.int32),
        }
        for name, value in values.items():
            row[columns[name]] = value
        return row

    def open(self, seats: Sequence[int], requests: Sequence[SearchRequest], first: Sequence[Int32Array]) -> None:
        """Write requests to their seats. first: `first_row` of each."""
        columns, size = self._columns, self._page_size
        rows = np.zeros((len(requests), columns["slots"].stop), np.int32)
        rows[:, : columns["source_pages"].start] = first
        rows[:, columns["source_length"]] = np.array([request.source_length for request in requests])[:, None]
        rows[:, columns["source_pages"]] = [request.source_pages for request in requests]
        pages = np.array([request.pages for request in requests])
        slots = (pages[..., None] * size + np.arange(size)).reshape(len(requests), self._beams, -1)
        rows[:, columns["slots"]] = slots[:, :, : self._longest].reshape(len(requests), -1)
        where, values = upload(self._rows.device, np.array(seats), rows)
        self._rows[:, : rows.shape[1]].index_copy_(0, where.long(), values)

    def read(self, seats: Tensor) -> tuple[SearchTerms, SearchState]:
        """Copies of some seats."""
        columns, picked = self._columns, self._rows.index_select(0, seats)

        def part(name: str) -> Tensor:
            return picked[:, columns[name]].contiguous()

        def by_beam(name: str) -> Tensor:
            return part(name).view(len(seats), self._beams, -1)

        single = picked[:, columns[_SINGLE[0]].start : columns[_SINGLE[-1]].stop].t().contiguous()
        terms = SearchTerms(
            **dict(zip(_SINGLE, single.unbind(), strict=True)),
            length_penalty=part("length_penalty").view(torch.float64)[:, 0],
            eos=part("eos"),
            source_pages=part("source_pages"),
        )
        return terms, SearchState(
            status=part("status")[:, 0],
            length=part("length")[:, 0],
            last=part("last"),
            slots=by_beam("slots"),
            scores=part("scores").view(torch.float32),
            tokens=by_beam("tokens"),
            ended=by_beam("ended"),
            ended_lengths=part("ended_lengths"),
            ended_scores=part("ended_scores").view(torch.float32),
            is_ended=part("is_ended") != 0,
        )

    def write(self, seats: Tensor, state: SearchState) -> None:
        """Put the state of some seats back. Without beams, a step changes no more than the tokens that it reads."""
        of_request = [state.status[:, None], state.length[:, None], state.last]
        if self._beams > 1:
            of_request += [state.scores.view(torch.int32), state.ended_scores.view(torch.int32)]
            of_request += [state.ended_lengths, state.is_ended.int()]
            of_tokens = [part.flatten(1) for part in (state.slots, state.tokens, state.ended)]
            self._write(seats, "slots", torch.cat(of_tokens, 1))
        self._write(seats, "status", torch.cat(of_request, 1))

    def _write(self, seats: Tensor, first: str, values: Tensor) -> None:
        start = self._columns[first].start
        self._rows[:, start : start + values.shape[1]].index_copy_(0, seats, values)


def _or_none(*tokens: int | None) -> int:
    """The one token, or -1."""
    return -1 if not tokens or tokens[0] is None else tokens[0]
