"""Requests that join and leave at every step, on a GPU: graphs of the encoder, and steps in place."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from penstock.engine.generation.generator import Generator
from penstock.engine.generation.loading import Seq2SeqCheckpoint, load_seq2seq
from penstock.engine.gpu.generation.greedy_steps import GreedySteps
from penstock.engine.gpu.generation.likely_tokens import likely_tokens
from penstock.engine.gpu.generation.search_state import MAX_EOS, SearchState, SearchTerms
from penstock.engine.gpu.generation.seq2seq import GpuSeq2Seq
from tests.engine.generation.helpers import SMALL, drain, expected, model_of, save_seq2seq, sources
from tests.gpu.references import HALVES

pytestmark = pytest.mark.gpu


def integers(low: int, high: int, *shape: int) -> Tensor:
    return torch.randint(low, high, shape, dtype=torch.int32, device="cuda")


def greedy_steps(requests: int, quantum: int, seed: int, logits: Tensor, *, by_torch: bool) -> GreedySteps:
    """Small numbers, so that lengths and tokens often meet their terms. Equal seeds give equal requests."""
    torch.manual_seed(seed)
    none = torch.zeros(requests, 1, device="cuda")
    terms = SearchTerms(
        max_new=integers(1, 7, requests),
        min_new=integers(0, 6, requests),
        forced_first=integers(-1, 3, requests),
        forced_last=integers(-1, 3, requests),
        bans=integers(0, 9, requests),
        renormalize=integers(0, 2, requests),
        patience=integers(0, 3, requests),
        source_length=integers(1, 9, requests),
        length_penalty=none[:, 0],
        eos=integers(-1, 30, requests, MAX_EOS),
        source_pages=integers(0, 9, requests, 2),
    )
    status = integers(0, 3, requests) * integers(0, 2, requests)
    length, last = integers(0, 6, requests), integers(0, 30, requests, 1)
    state = SearchState(status, length, last, none, none, none, none, none, none, none)
    if not by_torch:
        return GreedySteps.begin(terms, state, quantum, logits)
    steps = GreedySteps.empty(terms, state, quantum)
    steps.advance_by_torch(None, 0)
    return steps


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("requests", [1, 64, 300])
def test_greedy_steps_are_those_of_torch(requests: int, dtype: torch.dtype) -> None:
    quantum, logits = 3, torch.zeros(1, 8, dtype=dtype, device="cuda")
    for seed in range(8):
        ours = greedy_steps(requests, quantum, seed, logits, by_torch=False)
        exact = greedy_steps(requests, quantum, seed, logits, by_torch=True)
        for step in range(quantum):
            values, tokens = torch.randn(requests, 1, device="cuda"), integers(0, 30, requests, 1)
            values[torch.rand_like(values) < 0.1] = torch.nan
            values[torch.rand_like(values) < 0.1] = -torch.inf
            ours.take(values, tokens, step, logits)
            exact.advance_by_torch((values, tokens), 1 + step)
            for of in (ours, exact):
                of.results[:, 2 + step :] = 0
            for name in ("positions", "lengths", "source_lengths", "bans", "results"):
                assert torch.equal(getattr(ours, name), getattr(exact, name)), name
            for name in ("status", "length", "last"):
                assert torch.equal(getattr(ours.state, name), getattr(exact.state, name)), name


@pytest.mark.parametrize("count", [1, 8, 12, 32])
@pytest.mark.parametrize("values", [2, 9, 4000])
@pytest.mark.parametrize(("vocabulary", "columns"), [(40, 64), (700, 704), (5_001, 5_056)])
def test_of_equally_likely_tokens_the_first_are_found(vocabulary: int, columns: int, values: int, count: int) -> None:
    rows = 65
    logits = (integers(0, values, rows, columns) / 8).half()
    none = torch.zeros(1, columns // 8, dtype=torch.uint8, device="cuda")
    zeros = torch.zeros(rows, dtype=torch.int32, device="cuda")
    _, tokens = likely_tokens(logits, vocabulary, none, zeros, zeros, count)
    best = logits[:, :vocabulary].sort(dim=1, descending=True, stable=True).indices
    assert torch.equal(tokens, best[:, : tokens.shape[1]].int())


def wide_model() -> Seq2SeqCheckpoint:
    """With heads that FlashAttention takes."""
    with TemporaryDirectory() as directory:
        save_seq2seq(Path(directory), "marian", d_model=128, encoder_attention_heads=4, decoder_attention_heads=4)
        return load_seq2seq(directory)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_a_graph_of_the_encoder_gives_what_its_launches_give(dtype: torch.dtype) -> None:
    """Two batches of a shape are launched, the others replayed. A batch's spare tokens change no other slot."""
    weights = wide_model().weights
    device = GpuSeq2Seq(weights, SMALL, dtype=dtype)
    kept: list[Tensor] = []
    for seed in (1, 2, 1, 2):
        batch = sources((7, 30, 1, 25), seed)
        slots = SMALL.page_size + np.arange(sum(map(len, batch)))
        device.encode(batch, slots)
        kept.append(device._key_values[:, SMALL.page_size : SMALL.page_size + len(slots)].clone())
        scratch = (SMALL.num_pages + 1) * SMALL.page_size
        assert not device._key_values[:, : SMALL.page_size].any()
        assert not device._key_values[:, SMALL.page_size + len(slots) : scratch].any()
    assert device.sources._graphs is not None
    assert len(device.sources._graphs) == 1
    alone = GpuSeq2Seq(weights, SMALL, dtype=dtype)
    alone.encode([sources((7, 30, 1, 25), 1)[1]], SMALL.page_size + np.arange(30))
    own = alone._key_values[:, SMALL.page_size : SMALL.page_size + 30]
    tolerance = 32 * torch.finfo(dtype).eps * own.abs().max()
    for found, wanted in ((kept[2], kept[0]), (kept[3], kept[1]), (kept[2][:, 7:37], own)):
        assert (found - wanted).abs().max() <= tolerance


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_a_capture_may_be_the_first_work_of_a_thread(dtype: torch.dtype) -> None:
    """As in a worker whose warm-up ran out of time: a graph is due, and another thread goes on."""
    weights = wide_model().weights
    device = GpuSeq2Seq(weights, SMALL, dtype=dtype)
    batch = sources((7, 30, 1, 25), 1)
    slots = SMALL.page_size + np.arange(sum(map(len, batch)))
    kept: list[Tensor] = []

    def encode() -> None:
        device.encode(batch, slots)
        torch.cuda.synchronize()
        kept.append(device._key_values[:, SMALL.page_size : SMALL.page_size + len(slots)].clone())

    encode()
    encode()  # the shape is due
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(device.idle).result(60)
        assert device.sources._graphs is not None
        assert len(device.sources._graphs) == 1
        thread.submit(encode).result(60)
    assert (kept[2] - kept[0]).abs().max() <= 32 * torch.finfo(dtype).eps * kept[0].abs().max()


@pytest.mark.parametrize("is_prepared", [False, True])
def test_requests_join_and_leave_at_every_step(is_prepared: bool) -> None:
    """Few rows and pages, so that those of requests that left, some before their end, are taken at once."""
    checkpoint, model = model_of("marian")
    kinds: tuple[dict[str, Any], ...] = (
        {"max_new_tokens": 5},
        {"max_new_tokens": 9, "num_beams": 4},
        {"max_new_tokens": 3},
        {"max_new_tokens": 12, "no_repeat_ngram_size": 2},
        {"max_new_tokens": 11},
    )
    limits = replace(SMALL, max_rows=12, num_pages=90)
    device = GpuSeq2Seq(checkpoint.weights, limits, dtype=torch.float32)
    if is_prepared:
        device.prepare(checkpoint.options(**kinds[0]), quanta=(1, 2, 3), max_requests=8)
    generator = Generator(checkpoint.weights, limits, device=device)
    batch = sources([3 + 3 * id % 40 for id in range(40)])
    tokens: dict[int, list[int]] = {}
    cancelled = {6, 17, 18, 30}
    for id, source in enumerate(batch):
        generator.start(id, source, checkpoint.options(**kinds[id % len(kinds)]))
        for progress in generator.step(quantum=1 + id % 3):
            tokens.setdefault(progress.id, []).extend(progress.tokens)
        if id - 1 in cancelled:
            generator.cancel(id - 1)
        generator.check_integrity()
    for id, more in drain(generator, quantum=2).items():
        tokens.setdefault(id, []).extend(more)
    assert generator.num_free_pages == limits.num_pages
    for id, source in enumerate(batch):
        if id not in cancelled:
            assert tokens[id] == expected(model, source, **kinds[id % len(kinds)]), id
