"""Chains that join and leave at random, against torch."""

from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from penstock.engine.cells.contract import (
    NO_SLOT,
    Cell,
    CellBatch,
    CellOutput,
    CellSpec,
    Int32Array,
    RunningCells,
    StateSpec,
    StepEngine,
    Tensors,
)
from tests.engine.gpu.lstm_models import LstmModel

_DEPTH = 2  # batches underway
_DECODED, _STOP, _VOCABULARY = "decode", 5, 31


@dataclass(frozen=True, slots=True)
class Sentences:
    """Token ids one after another, and where each sentence begins."""

    tokens: Int32Array
    starts: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]

    @classmethod
    def random(cls, lengths: npt.NDArray[np.int64], vocabulary: int, seed: int) -> "Sentences":
        """Followed by spare tokens, so that a quantum may be read past the last sentence's end."""
        ends = np.cumsum(lengths)
        tokens = np.random.default_rng(seed).integers(0, vocabulary, int(ends[-1]) + 64, dtype=np.int32)
        return cls(tokens, ends - lengths, lengths)


def assert_chains_end_as_nn_lstm(
    engine: StepEngine, cell: str, model: LstmModel, sentences: Sentences, max_rows: int, max_quantum: int, seed: int
) -> None:
    """Run sentences with random joins and leaves, and compare each one's last h with nn.LSTM's.

    The reference is nn.LSTM in float64 with the same weights. The error may be twice that of nn.LSTM in float16, or
    2e-3.
    """
    slots = _run_chains(engine, cell, sentences, max_rows, max_quantum, np.random.default_rng(seed))
    ours = _read(engine, slots, max_rows)
    exact, plain = (_last_states(model, sentences, dtype) for dtype in (torch.float64, torch.float16))
    error, plain_error = (float((result - exact).abs().max()) for result in (ours, plain))
    assert error <= max(2e-3, 2 * plain_error)  # not of NaN


def _run_chains(
    engine: StepEngine, cell: str, sentences: Sentences, max_rows: int, max_quantum: int, rng: np.random.Generator
) -> Int32Array:
    """Run every sentence, in batches of random rows and quanta. Returns the slot that holds each one's last state.

    A chain moves to another slot in half of its batches: `write` then differs from `read`.
    """
    count = len(sentences.lengths)
    left, at = sentences.lengths.copy(), sentences.starts.copy()
    slots = np.full(count, NO_SLOT, np.int32)
    free = list(range(1, engine.num_slots))
    underway: deque[RunningCells] = deque()
    while (ready := np.flatnonzero(left)).size:
        rows = rng.permutation(ready)[: rng.integers(1, max_rows + 1)]
        quantum = int(rng.integers(1, max_quantum + 1))
        steps = np.minimum(left[rows], rng.integers(1, quantum + 1, len(rows)))
        read = slots[rows]
        is_moved = (read == NO_SLOT) | (rng.random(len(rows)) < 0.5)
        write = np.where(is_moved, [free.pop() if moved else 0 for moved in is_moved], read).astype(np.int32)
        columns = np.minimum(at[rows, None] + np.arange(quantum), len(sentences.tokens) - 1)
        tokens = sentences.tokens[columns]
        batch = CellBatch(
            cell, read[:, None], write, {"token": tokens}, steps.astype(np.int32), read == NO_SLOT, quantum
        )
        underway.append(engine.start(batch))
        free[:0] = [int(slot) for slot in read[is_moved] if slot != NO_SLOT]
        slots[rows] = write
        left[rows] -= steps
        at[rows] += steps
        if len(underway) == _DEPTH:
            underway.popleft().result()
    while underway:
        underway.popleft().result()
    return slots


def _read(engine: StepEngine, slots: Int32Array, max_rows: int) -> Tensor:
    """The h of slots, by the cell "reader"."""
    parts = []
    for first in range(0, len(slots), max_rows):
        own = slots[first : first + max_rows]
        ones = np.ones(len(own), np.int32)
        batch = CellBatch("reader", own[:, None], own, {}, ones, ones.astype(np.bool_), 1)
        parts.append(np.asarray(engine.start(batch).result().emitted["value"])[:, 0])
    return torch.from_numpy(np.concatenate(parts))


def _last_states(model: LstmModel, sentences: Sentences, dtype: torch.dtype) -> Tensor:
    """The last layer's h at each sentence's end by nn.LSTM, on the host. The model is float16 again afterwards."""
    device = model.words.device
    module, ends = model.module.to(dtype), []
    with torch.no_grad():
        for start, length in zip(sentences.starts, sentences.lengths, strict=True):
            tokens = torch.from_numpy(sentences.tokens[start : start + length]).to(device)
            out, _ = module(model.words[tokens.long()].to(dtype)[None])
            ends.append(out[0, -1].double().cpu())
    model.module.half()
    return torch.stack(ends)


def decoder() -> Cell:
    """A chain that feeds its token back: token' = (3 token + count) mod 31, where count is the state plus one.

    It stops after a step that emits 5.
    """
    spec = CellSpec(
        _DECODED,
        states=(StateSpec("count", 8),),
        inputs=("token",),
        emits=(StateSpec("token", 1, torch.int32),),
        feedback={"token": "token"},
        stop={"token": _STOP},
        max_rows=64,
        max_steps=8,
    )

    def step(states: Tensors, inputs: Tensors) -> tuple[Tensors, Tensors]:
        count = states["count"] + 1
        token = (3 * inputs["token"] + count[:, 0].int()) % _VOCABULARY
        return {"count": count}, {"token": token[:, None]}

    return Cell(spec, step)


@dataclass(slots=True)
class _Decoding:
    """A chain of the decoder on the host."""

    first: int
    token: int
    count: int = 0
    is_stopped: bool = False

    def run(self, steps: int) -> list[int]:
        """Tokens of up to `steps` steps."""
        emitted: list[int] = []
        while len(emitted) < steps and not self.is_stopped:
            self.count += 1
            self.token = (3 * self.token + self.count) % _VOCABULARY
            self.is_stopped = self.token == _STOP
            emitted.append(self.token)
        return emitted


def assert_decodes(engine: StepEngine, num_chains: int, batches: int, seed: int) -> None:
    """Run decoders in random batches, two underway, and compare tokens, steps and stop flags with the host's.

    Stopped chains stay in: they must do nothing. Their slots hold other chains' old states at first.
    """
    rng = np.random.default_rng(seed)
    chains = [_Decoding(token, token) for token in rng.integers(0, _VOCABULARY, num_chains).tolist()]
    is_new = np.ones(num_chains, np.bool_)
    underway: deque[tuple[npt.NDArray[np.int64], Int32Array, RunningCells]] = deque()
    for turn in range(batches + _DEPTH):
        if turn < batches:
            rows = rng.permutation(num_chains)[: rng.integers(1, num_chains + 1)]
            quantum = int(rng.integers(1, 9))
            steps = rng.integers(1, quantum + 1, len(rows)).astype(np.int32)
            slots = (rows + 1).astype(np.int32)
            tokens = np.full((len(rows), quantum), -1, np.int32)
            tokens[:, 0] = [chains[row].first for row in rows]
            read = np.where(is_new[rows], NO_SLOT, slots).astype(np.int32)[:, None]
            batch = CellBatch(_DECODED, read, slots, {"token": tokens}, steps, is_new[rows], quantum)
            underway.append((rows, steps, engine.start(batch)))
            is_new[rows] = False
        if turn >= _DEPTH - 1 and underway:
            rows, steps, running = underway.popleft()
            _assert_ran(running.result(), [chains[row] for row in rows], steps)
    assert any(chain.is_stopped for chain in chains)


def _assert_ran(output: CellOutput, chains: list[_Decoding], steps: Int32Array) -> None:
    for row, chain in enumerate(chains):
        expected = chain.run(int(steps[row]))
        assert output.emitted["token"][row, : int(output.steps[row]), 0].tolist() == expected
        assert bool(output.is_stopped[row]) == chain.is_stopped
