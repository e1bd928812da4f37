"""Cells on a GPU: graphs of fused LSTM steps and of any cell's torch code, against torch."""

import numpy as np
import pytest
import torch

from penstock.engine.gpu.cells.step_engine import GpuStepEngine
from penstock.engine.kernels import chain_lstm, lstm
from tests.engine.gpu import lstm_reference
from tests.engine.gpu.cell_checks import Sentences, assert_chains_end_as_nn_lstm, assert_decodes, decoder
from tests.engine.gpu.lstm_models import LstmModel
from tests.gpu.references import HALVES, randn

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("is_prepared", [False, True])
@pytest.mark.parametrize(
    ("kind", "layers", "max_short_rows", "max_chain_rows"),
    [
        ("folded", 1, 0, 0),
        ("folded", 1, 0, 16),
        ("folded", 1, 0, 64),
        ("folded", 2, 0, 64),
        ("folded", 2, 64, 0),
        ("unfolded", 2, 0, 0),
        ("unfolded", 2, 64, 0),
        ("torch", 1, 0, 0),
    ],
)
def test_chains_that_join_and_leave_end_as_those_of_nn_lstm(
    kind: str, layers: int, max_short_rows: int, max_chain_rows: int, is_prepared: bool
) -> None:
    model = LstmModel.random(500, 256, layers, torch.device("cuda"), seed=1)
    cell = model.cell(kind, 40, 4, max_short_rows=max_short_rows, max_chain_rows=max_chain_rows)
    engine = GpuStepEngine([cell, model.reader(40)], num_slots=300)
    if is_prepared:
        engine.prepare(budget_s=20)
        assert engine.num_graphs == 3 * 4 + 4  # row buckets 8 to 64, for quanta 1, 2 and 4, and of the reader
    lengths = np.random.default_rng(3).integers(1, 30, 100)
    assert_chains_end_as_nn_lstm(engine, "lstm", model, Sentences.random(lengths, 500, 3), 40, 4, seed=2)


@pytest.mark.parametrize("is_prepared", [False, True])
def test_a_decoder_feeds_back_its_tokens_and_does_nothing_once_it_has_stopped(is_prepared: bool) -> None:
    engine = GpuStepEngine([decoder()], 65)
    if is_prepared:
        engine.prepare(budget_s=20)
    assert_decodes(engine, num_chains=64, batches=40, seed=4)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(("inputs", "hidden"), [(0, 1024), (72, 8), (8, 1032), (512, 512)])
@pytest.mark.parametrize("step", [0, 1])
@pytest.mark.parametrize(("rows", "is_short"), [(37, False), (37, True), (20, True), (150, True)])
def test_kernels_against_torch(
    inputs: int, hidden: int, dtype: torch.dtype, step: int, rows: int, is_short: bool
) -> None:
    slots, vocabulary = 400, 50
    rng = np.random.default_rng(1)
    read, write, steps, tokens = (
        torch.tensor(values, dtype=torch.int32, device="cuda")
        for values in (
            rng.permutation(200)[:rows],
            200 + rng.permutation(200)[:rows],
            rng.integers(0, 4, rows),
            rng.integers(0, vocabulary, rows),
        )
    )
    words = randn(vocabulary, inputs, dtype=dtype, seed=1) if inputs else None
    addend = randn(vocabulary, 4 * hidden, dtype=dtype, seed=2)
    gates = randn(rows, 4 * hidden, dtype=dtype, seed=3)
    weight = randn(4 * hidden, inputs + hidden, dtype=dtype, seed=7, scale=hidden**-0.5)
    made = []
    for kernels in (lstm, lstm_reference):
        states, operand = (randn(n, w, dtype=dtype, seed=4) for n, w in ((slots, hidden), (rows, inputs + hidden)))
        cells, above = randn(slots, hidden, dtype=torch.float32, seed=5), randn(rows, hidden + 8, dtype=dtype, seed=6)
        following = randn(rows, inputs + hidden, dtype=dtype, seed=8)
        chains = lstm.Chains(read, write, steps)
        now, then = (None if words is None else lstm.Embedding(ids, words) for ids in (tokens, tokens.flip(0)))
        kernels.lstm_begin(operand, states, chains, now)
        rest = (lstm.Embedding(tokens, addend), cells, states, chains, step, following, above, then)
        if is_short:
            kernels.short_lstm_step(operand, lstm.short_order(weight), *rest)
        else:
            kernels.lstm_step(gates, *rest)
        made.append((operand, following, states, cells, above))
    for ours, theirs in zip(*made, strict=True):
        error = (ours.float() - theirs.float()).abs().max().item()
        assert error <= 2 * torch.finfo(dtype if ours.dtype is dtype else torch.float16).eps, error


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("hidden", chain_lstm.HIDDEN_SIZES)
@pytest.mark.parametrize("rows", [1, 13, 16, 32, 50, 64])
@pytest.mark.parametrize("quantum", [2, 3, 9])
def test_all_steps_in_one_launch_against_torch(quantum: int, rows: int, hidden: int, dtype: torch.dtype) -> None:
    """Twice, as the arrivals go on from launch to launch. The second goes on where the first has ended."""
    slots, vocabulary = 200, 50
    rng = np.random.default_rng(quantum)
    fresh, own = rng.permutation(100)[:rows], 100 + rng.permutation(100)[:rows]
    tokens = rng.integers(0, vocabulary, (2, quantum, rows))
    steps = rng.integers(0, quantum + 1, (2, rows))
    for batch, row in np.argwhere(steps < quantum):
        tokens[batch, steps[batch, row] :, row] = 1 << 30  # undefined: it must not be looked up
    addend = randn(vocabulary, 4 * hidden, dtype=dtype, seed=2)
    weight = lstm.short_order(randn(4 * hidden, hidden, dtype=dtype, seed=7, scale=hidden**-0.5))
    exchange = chain_lstm.new_exchange(weight, rows)
    made = []
    for run in (chain_lstm.chain_lstm, lstm_reference.chain_lstm):
        states = randn(slots, hidden, dtype=dtype, seed=4)
        cells = randn(slots, hidden, dtype=torch.float32, seed=5)
        for batch, read in enumerate((fresh, np.where(steps[0] > 0, own, fresh))):
            read_, write, count, ids = (
                torch.tensor(values, dtype=torch.int32, device="cuda")
                for values in (read, own, steps[batch], tokens[batch])
            )
            run(weight, lstm.Embedding(ids, addend), cells, states, lstm.Chains(read_, write, count), exchange)
        made.append((states, cells))
    for ours, theirs in zip(*made, strict=True):
        error = (ours.float() - theirs.float()).abs().max().item()
        assert error <= 8 * torch.finfo(dtype).eps, error


def test_launches_of_two_engines_that_wait_for_their_blocks_do_not_block_one_another() -> None:
    """Each takes nearly all multiprocessors, and ends only if all of its blocks run at the same time."""
    hidden, rows, quantum = 1024, 32, 32
    addend = randn(50, 4 * hidden, dtype=torch.float16, seed=2)
    weight = lstm.short_order(randn(4 * hidden, hidden, dtype=torch.float16, seed=7, scale=hidden**-0.5))
    ids = torch.zeros(quantum, rows, dtype=torch.int32, device="cuda")
    slots = torch.arange(rows, dtype=torch.int32, device="cuda")
    chains = lstm.Chains(slots, slots, torch.full_like(slots, quantum))
    made = []
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(3)]  # type: ignore[no-untyped-call]  # torch
    for stream in streams:
        with torch.cuda.stream(stream):
            states, cells = torch.zeros(rows, hidden, device="cuda").half(), torch.zeros(rows, hidden, device="cuda")
            made.append((states, cells, chain_lstm.new_exchange(weight, rows)))
    torch.cuda.synchronize()
    for _ in range(20):
        for stream, (states, cells, exchange) in zip(streams, made, strict=True):
            with torch.cuda.stream(stream):
                chain_lstm.chain_lstm(weight, lstm.Embedding(ids, addend), cells, states, chains, exchange)
    torch.cuda.synchronize()
    first, *others = made
    assert first[0].abs().max() > 0
    assert all(torch.equal(first[0], other[0]) and torch.equal(first[1], other[1]) for other in others)
