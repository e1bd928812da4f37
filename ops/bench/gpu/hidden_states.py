"""Comparison of hidden states here with those of transformers in float32, on random token ids."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.engine.types import Int32Array
from penstock.ops.bench.gpu.sides import Input, Pack, Runtime, Side

LENGTHS = (1, 2, 127, 128, 129, 512)  # around kernel block sizes; random packs are no longer than the last
MIN_COSINE = 0.9999

_TOKENS_PER_LENGTH, _SEQUENCES_PER_LENGTH = 1024, 64  # most for each of LENGTHS
_MAX_PACK = 32  # most sequences in a random pack


_Results = list[tuple[Tensor, Tensor]]  # of one side and of the reference, for each pack


@dataclass(frozen=True, slots=True)
class Agreement:
    """Distance of one side from the reference."""

    cosine_min: float
    cosine_mean: float
    error: float  # largest difference / largest value, maximum over all packs


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report."""

    what: str
    num_sequences: int
    ours: Agreement
    theirs: Agreement | None  # transformers in the runtime's precision; None in float32, which is the reference
    needed: float  # smallest cosine that passes

    @property
    def passed(self) -> bool:
        """Whether the cosine suffices; False for NaN."""
        return self.ours.cosine_min >= self.needed


@dataclass
class _Tally:
    """Accumulates cosines and errors for an `Agreement`."""

    cosines: list[Tensor] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)

    def add(self, got: Tensor, want: Tensor) -> None:
        """Rows [N, D]: a cosine for each."""
        got, want = got.to("cpu", torch.float64), want.to("cpu", torch.float64)
        self.cosines.append(F.cosine_similarity(got, want, dim=1))
        self.errors.append(((got - want).abs().max() / want.abs().max()).item())

    def agreement(self) -> Agreement:
        cosines = torch.cat(self.cosines)
        return Agreement(cosines.min().item(), cosines.mean().item(), float(np.max(self.errors)))


class Comparison:
    """Runs both sides and the reference on random packs. `run` yields the lines of the report."""

    def __init__(self, runtime: Runtime, reference: Side, beside: Side | None, *, packs: int, seed: int) -> None:
        """`beside`: transformers in the runtime's precision. `packs`: number of random packs."""
        self._reference = reference
        self._sides: list[Side] = [runtime] if beside is None else [runtime, beside]
        self._info = runtime.info
        self._task = runtime.task
        self._inputs = _RandomInputs(runtime, seed)
        self._packs = packs

    @property
    def num_packs(self) -> int:
        """Number of calls of `done`."""
        return len(self._inputs.lengths) + self._packs

    def run(self, done: Callable[[], None]) -> Iterator[Check]:
        """Yield the checks. `done` is called after each pack."""
        results: list[_Results] = [[] for _ in self._sides]
        num_results = 0
        for length in self._inputs.lengths:
            pack = self._inputs.equal(length)
            tallies = [_Tally() for _ in self._sides]
            self._compare(pack, tallies, results)
            num_results += len(pack)
            done()
            yield self._check(f"{length} token{'s' if length > 1 else ''}", len(pack), tallies)
        packed, alone = ([_Tally() for _ in self._sides] for _ in range(2))
        num_packed = 0
        for _ in range(self._packs):
            pack = self._inputs.random()
            hidden = self._compare(pack, packed, results)
            self._compare_alone(pack, hidden, alone)
            num_packed += len(pack)
            done()
        yield self._check("random packs", num_packed, packed)
        yield self._check("alone vs pack", self._packs, alone)
        what = {"embed": "vectors", "classify": "scores", "token_classify": "token scores"}[self._task]
        tallies = [_result_tally(result, is_vector_each=self._task == "embed") for result in results]
        yield self._check(what, num_results + num_packed, tallies)

    def _compare(self, pack: Pack, tallies: Sequence[_Tally], results: Sequence[_Results]) -> list[Tensor]:
        """Compare each side with the reference. Returns each side's hidden states."""
        want = self._reference.run(pack)
        hidden = []
        for side, tally, result in zip(self._sides, tallies, results, strict=True):
            got = side.run(pack)
            tally.add(got.hidden, want.hidden)
            result.append((got.results.cpu(), want.results.cpu()))
            hidden.append(got.hidden)
        return hidden

    def _compare_alone(self, pack: Pack, together: list[Tensor], tallies: Sequence[_Tally]) -> None:
        """Compare each side with itself: one sequence of the pack, alone and within the pack."""
        place = self._inputs.place_in(pack)
        start = sum(len(sequence.ids) for sequence in pack[:place])
        for side, hidden, tally in zip(self._sides, together, tallies, strict=True):
            alone = side.run([pack[place]]).hidden
            tally.add(hidden[start : start + len(alone)], alone)

    def _check(self, what: str, num_sequences: int, tallies: Sequence[_Tally]) -> Check:
        ours, *others = (tally.agreement() for tally in tallies)
        theirs = others[0] if others else None
        return Check(what, num_sequences, ours, theirs, _needed(self._info.dtype, theirs))


def _needed(dtype: str, theirs: Agreement | None) -> float:
    """Smallest cosine that passes. bfloat16 has three digits: there, twice the angle of transformers passes.

    1 - cos x is x^2 / 2 for small x, so twice the angle is four times the distance from 1.
    """
    if dtype != "bfloat16" or theirs is None:
        return MIN_COSINE
    return min(MIN_COSINE, 1 - 4 * (1 - theirs.cosine_min))


def _result_tally(results: _Results, *, is_vector_each: bool) -> _Tally:
    """Scores are compared as one vector: single scores have no direction."""
    got, want = (torch.cat(parts) for parts in zip(*results, strict=True))
    tally = _Tally()
    tally.add(*((got, want) if is_vector_each else (got.reshape(1, -1), want.reshape(1, -1))))
    return tally


class _RandomInputs:
    """Random sequences without the padding id, to which some families of transformers assign no position."""

    def __init__(self, runtime: Runtime, seed: int) -> None:
        ids = np.arange(runtime.info.vocab_size, dtype=np.int32)
        self._ids = ids[ids != (-1 if runtime.config.pad_token_id is None else runtime.config.pad_token_id)]
        self._has_types = runtime.takes_types
        self._rng = np.random.default_rng(seed)
        self._longest = min(LENGTHS[-1], runtime.info.max_tokens)
        self.lengths = tuple(sorted({min(length, self._longest) for length in LENGTHS}))

    def equal(self, length: int) -> Pack:
        return self._pack([length] * min(_SEQUENCES_PER_LENGTH, _TOKENS_PER_LENGTH // length), typed=False)

    def random(self) -> Pack:
        """1 to 32 sequences with a log-uniform longest length; every second pack has token types."""
        longest = int(np.exp(self._rng.uniform(0, np.log(self._longest + 1))))
        lengths = self._rng.integers(1, longest + 1, self._rng.integers(1, _MAX_PACK + 1))
        return self._pack(lengths.tolist(), typed=self._has_types and bool(self._rng.integers(2)))

    def place_in(self, pack: Pack) -> int:
        return int(self._rng.integers(len(pack)))

    def _pack(self, lengths: Sequence[int], *, typed: bool) -> Pack:
        return [Input(self._rng.choice(self._ids, n), self._types(n) if typed else None) for n in lengths]

    def _types(self, length: int) -> Int32Array:
        """Zeros, then ones from a random position on."""
        return (np.arange(length) >= self._rng.integers(1, length + 1)).astype(np.int32)
