"""Generation by the code of a GPU, run on a CPU: torch computes there what kernels compute on a GPU."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from penstock.engine.errors import DeviceFailed, InvalidOption, UnsupportedDevice
from penstock.engine.generation.cpu import CpuSeq2Seq
from penstock.engine.generation.device import DecoderRows, Seq2SeqDevice
from penstock.engine.generation.generator import Generator
from penstock.engine.generation.loading import Seq2SeqCheckpoint, load_seq2seq
from penstock.engine.gpu.generation import seq2seq as seq2seq_module
from penstock.engine.gpu.generation.seq2seq import GpuSeq2Seq
from penstock.engine.model.seq2seq import Seq2SeqWeights
from penstock.engine.types import Int32Array
from tests.engine.generation.helpers import (
    EOS,
    FAMILIES,
    SMALL,
    drain,
    expected,
    model_of,
    options_of,
    save_seq2seq,
    sources,
)

pytestmark = pytest.mark.slow

LENGTHS = (1, 33, 5)
MANY_ENDS: dict[str, Any] = {"eos_token_id": list(range(11, 18)), "max_new_tokens": 14, "num_beams": 4}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Operations are too small for more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def device_of(weights: Seq2SeqWeights, dtype: torch.dtype = torch.float32, **limits: int) -> GpuSeq2Seq:
    return GpuSeq2Seq(weights, replace(SMALL, **limits), device="cpu", dtype=dtype)


def generator_of(checkpoint: Seq2SeqCheckpoint, **limits: int) -> Generator:
    device = device_of(checkpoint.weights, torch.float32, **limits)
    return Generator(checkpoint.weights, replace(SMALL, **limits), device=device)


def assert_parity(family: str, quantum: int = 3, **options: Any) -> list[list[int]]:
    """The tokens are those of `generate`. Returns them."""
    checkpoint, model = model_of(family)
    generator, batch = generator_of(checkpoint), sources(LENGTHS)
    for id, source in enumerate(batch):
        generator.start(id, source, checkpoint.options(**options))
    tokens = drain(generator, quantum)
    generator.check_integrity()
    assert generator.num_free_pages == SMALL.num_pages
    wanted = [expected(model, source, **options) for source in batch]
    assert [tokens[id] for id in range(len(batch))] == wanted
    return wanted


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("num_beams", [1, 4])
def test_the_search_on_the_device_gives_the_tokens_of_generate(family: str, num_beams: int) -> None:
    tokens = assert_parity(family, max_new_tokens=10, num_beams=num_beams)
    assert any(tokens)


@pytest.mark.parametrize(
    ("length_penalty", "early_stopping"), [(-1.0, False), (0.6, True), (0.6, "never"), (2.0, False), (2.0, "never")]
)
def test_when_beams_stop(length_penalty: float, early_stopping: Any) -> None:
    assert_parity("marian-untied", length_penalty=length_penalty, early_stopping=early_stopping, **MANY_ENDS)


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize(
    "options",
    [
        {"min_new_tokens": 6, "eos_token_id": list(range(11, 18))},
        {"bad_words_ids": [[40], [2], [41]]},
        {"suppress_tokens": list(range(20, 60))},
        {"forced_bos_token_id": 33},
        {"forced_eos_token_id": 13, "max_new_tokens": 3},
        {"renormalize_logits": True, "suppress_tokens": list(range(20, 60))},
        {"decoder_start_token_id": 60},
        {"max_new_tokens": 1},
    ],
    ids=str,
)
def test_rules_on_the_device(options: dict[str, Any], num_beams: int) -> None:
    checkpoint, _ = model_of("bart")
    given: dict[str, Any] = {"max_new_tokens": 10, "num_beams": num_beams, "eos_token_id": EOS[:3]} | options
    assert device_of(checkpoint.weights).search.supports(checkpoint.options(**given))
    assert_parity("bart", **given)


@pytest.mark.parametrize(
    "options",
    [
        {"do_sample": True},
        {"no_repeat_ngram_size": 2},
        {"repetition_penalty": 1.2},
        {"bad_words_ids": [[41, 42]]},
        {"begin_suppress_tokens": [30]},
        {"forced_bos_token_id": 33, "suppress_tokens": [33]},
        {"eos_token_id": list(range(20))},
        {"num_beams": 20},
    ],
    ids=str,
)
def test_rules_that_the_host_applies(options: dict[str, Any]) -> None:
    checkpoint, _ = model_of("marian")
    assert not device_of(checkpoint.weights).search.supports(checkpoint.options(**options))


@pytest.mark.parametrize("num_beams", [1, 3])
def test_a_rule_of_the_host_gives_the_tokens_of_generate(num_beams: int) -> None:
    assert_parity("t5", max_new_tokens=12, no_repeat_ngram_size=2, num_beams=num_beams)


def test_each_joins_and_leaves_at_every_step_whoever_chooses_its_tokens() -> None:
    checkpoint, model = model_of("marian")
    kinds: tuple[dict[str, Any], ...] = (
        {"max_new_tokens": 5},
        {"max_new_tokens": 9, "num_beams": 4},
        {"max_new_tokens": 12, "no_repeat_ngram_size": 2},
        {"max_new_tokens": 7, "num_beams": 2, "length_penalty": 2.0},
        {"max_new_tokens": 11},
        {"max_new_tokens": 9, "num_beams": 4, "early_stopping": True},
    )
    limits = replace(SMALL, max_rows=12)
    device = GpuSeq2Seq(checkpoint.weights, limits, device="cpu", dtype=torch.float32)
    generator, batch = Generator(checkpoint.weights, limits, device=device), sources([3 + 5 * id for id in range(12)])
    tokens: dict[int, list[int]] = {}
    for id, source in enumerate(batch):
        generator.start(id, source, checkpoint.options(**kinds[id % len(kinds)]))
        for progress in generator.step(quantum=1 + id % 3):
            tokens.setdefault(progress.id, []).extend(progress.tokens)
        generator.check_integrity()
        if id == 7:
            generator.cancel(4)
    for id, more in drain(generator, quantum=2).items():
        tokens.setdefault(id, []).extend(more)
    assert generator.num_free_pages == SMALL.num_pages
    for id, source in enumerate(batch):
        if id != 4:
            assert tokens[id] == expected(model, source, **kinds[id % len(kinds)]), id


def test_a_request_whose_options_leave_no_token_does_not_start() -> None:
    generator = generator_of(model_of("marian")[0])
    (source,) = sources([9])
    with pytest.raises(InvalidOption):
        generator.start(0, source, options_of(suppress_tokens=list(range(90)), forced_eos_token_id=None))


def test_a_step_of_the_host_that_raises_is_raised_though_the_device_searches_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or else the request at fault would never be found. The steps of the others are not lost."""
    checkpoint, model = model_of("marian")
    device = device_of(checkpoint.weights)
    generator, (source,) = Generator(checkpoint.weights, SMALL, device=device), sources([9])
    generator.start(0, source, options_of(max_new_tokens=6))
    generator.start(1, source, options_of(max_new_tokens=6, no_repeat_ngram_size=2))

    def fail(rows: DecoderRows) -> Tensor:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patched:
        patched.setattr(device, "step", fail)
        generator.encode()
        with pytest.raises(RuntimeError, match="out of memory"):
            generator.decode(quantum=2)
        first = [token for one in generator.decode([0]) for token in one.tokens]
    tokens = drain(generator)
    assert first + tokens[0] == expected(model, source, max_new_tokens=6)
    assert tokens[1] == expected(model, source, max_new_tokens=6, no_repeat_ngram_size=2)


@pytest.mark.parametrize(("num_beams", "quantum"), [(1, 4), (4, 4), (4, 1)])
def test_the_steps_that_ran_are_told(num_beams: int, quantum: int) -> None:
    checkpoint, _ = model_of("marian-untied")
    given = MANY_ENDS | {"num_beams": num_beams, "early_stopping": True}
    lengths = (14, 3, 9, 14, 6)

    def steps(generator: Generator, quantum: int) -> dict[int, int]:
        for id, (source, most) in enumerate(zip(sources((1, 33, 5, 8, 21)), lengths, strict=True)):
            generator.start(id, source, checkpoint.options(**(given | {"max_new_tokens": most})))
        generator.encode()
        found: dict[int, int] = {}
        while generator.active:
            for one in generator.decode(quantum=quantum):
                found[one.id] = found.get(one.id, 0) + one.steps
        return found

    exact = steps(Generator(checkpoint.weights, SMALL), 1)
    assert steps(generator_of(checkpoint), quantum) == exact
    assert len(set(exact.values())) > 2


def test_where_one_kind_of_search_raises_the_steps_of_the_others_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint, model = model_of("marian")
    device = device_of(checkpoint.weights)
    generator, batch = Generator(checkpoint.weights, SMALL, device=device), sources([9, 4])
    kinds: list[dict[str, Any]] = [{"max_new_tokens": 6}, {"max_new_tokens": 6, "num_beams": 3}]
    for id, (source, options) in enumerate(zip(batch, kinds, strict=True)):
        generator.start(id, source, options_of(**options))
    generator.encode()
    quantum = device.search._quantum

    def fail_with_beams(seats: Any, asked: Tensor, shape: Any, steps: int) -> Tensor:
        if shape.beams > 1:
            raise RuntimeError("CUDA out of memory")
        return quantum(seats, asked, shape, steps)

    with monkeypatch.context() as patched:
        patched.setattr(device.search, "_quantum", fail_with_beams)
        (first,) = generator.decode(quantum=2)
        assert (first.id, first.steps, len(first.tokens)) == (0, 2, 2)
        with pytest.raises(torch.OutOfMemoryError):
            generator.decode([1], quantum=2)
    tokens = drain(generator, 2)
    assert [[*first.tokens, *tokens[0]], tokens[1]] == [
        expected(model, source, **options) for source, options in zip(batch, kinds, strict=True)
    ]


def test_a_device_that_has_failed_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors of a batch, a lack of memory, and a device that cannot be used any more."""
    checkpoint, _ = model_of("marian")
    broken: list[RuntimeError] = []

    def synchronize(self: GpuSeq2Seq) -> None:
        if broken:
            raise broken[0]

    monkeypatch.setattr(GpuSeq2Seq, "_synchronize", synchronize)
    device = device_of(checkpoint.weights)
    generator, (source,) = Generator(checkpoint.weights, SMALL, device=device), sources([9])
    generator.start(0, source, options_of(max_new_tokens=6))
    generator.start(1, source, options_of(max_new_tokens=6, no_repeat_ngram_size=2))
    generator.encode()

    def decode_both(error: type[Exception]) -> None:
        for id in (0, 1):
            with pytest.raises(error, match="CUDA"):
                generator.decode([id])

    for error in ("CUDA error: invalid argument", "CUDA out of memory", "CUDA error: illegal memory access"):

        def fail(*_: Any, error: str = error) -> Tensor:
            raise RuntimeError(error)

        with monkeypatch.context() as patched:
            patched.setattr(seq2seq_module, "decode", fail)
            decode_both(torch.OutOfMemoryError if "out of memory" in error else RuntimeError)
            if "illegal" in error:
                broken.append(RuntimeError("CUDA error: illegal memory access\nmore"))
                decode_both(DeviceFailed)
    decode_both(DeviceFailed)  # the model is sound again
    generator.start(2, source, options_of(max_new_tokens=6))
    with pytest.raises(DeviceFailed):
        generator.encode()


def test_sizes_that_kernels_cannot_read_are_refused(tmp_path: Path) -> None:
    save_seq2seq(tmp_path, "t5", d_ff=44)
    weights = load_seq2seq(str(tmp_path)).weights
    with pytest.raises(UnsupportedDevice, match="feed-forward size 44 is no multiple of 8"):
        device_of(weights, torch.float16)
    assert device_of(weights).search is not None


def test_there_is_no_idle_work_without_graphs() -> None:
    assert not generator_of(model_of("marian")[0]).idle()


def rows_of(lengths: np.ndarray, source_lengths: np.ndarray, seed: int) -> DecoderRows:
    """Rows in the middle of a generation: two of each source, each with pages of its own after those of the sources."""
    rng, count = np.random.default_rng(seed), len(lengths)
    pages = 100 + np.arange(count)[:, None] * 16 + np.arange(16)
    slots = pages[np.arange(count), (lengths - 1) // SMALL.page_size] * SMALL.page_size + (lengths - 1) % 4
    return DecoderRows(
        tokens=rng.integers(10, 90, count),
        slots=slots,
        pages=pages,
        lengths=lengths,
        source_pages=1 + np.arange(len(source_lengths))[:, None] * 16 + np.arange(16),
        source_lengths=source_lengths,
        rows_per_source=np.full(len(source_lengths), 2),
    )


def logits_of(device: Seq2SeqDevice, batch: list[Int32Array]) -> list[Tensor]:
    """Logits of six steps after the encoder, of two rows a source."""
    lengths = np.array([len(source) for source in batch])
    slots = [((1 + 16 * place) * SMALL.page_size + np.arange(len(s))) for place, s in enumerate(batch)]
    device.encode(batch, np.concatenate(slots))
    return [device.step(rows_of(np.full(2 * len(batch), step + 1), lengths, seed=step)) for step in range(6)]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float16, 0.03)], ids=str)
def test_logits_are_those_of_the_cpu(family: str, dtype: torch.dtype, tolerance: float) -> None:
    weights, batch = model_of(family)[0].weights, sources((7, 30, 1))
    ours = logits_of(device_of(weights, dtype), batch)
    exact = logits_of(CpuSeq2Seq(weights, SMALL.num_pages + 1, SMALL.page_size, 1), batch)
    for own, theirs in zip(ours, exact, strict=True):
        assert own.shape == theirs.shape
        assert (own - theirs).abs().max() <= tolerance * theirs.abs().max()


def test_pages_are_copied_and_cleared() -> None:
    weights, batch = model_of("marian")[0].weights, sources((7, 30, 1))
    device = device_of(weights)
    before = logits_of(device, batch)[-1]
    rows = rows_of(np.full(6, 6), np.array([7, 30, 1]), seed=5)
    moved = replace(rows, pages=rows.pages + 16 * 6)
    device.copy_pages(rows.pages.ravel(), moved.pages.ravel())
    assert torch.equal(device.step(moved), before)
    device.clear_pages(moved.pages.ravel())
    assert not torch.allclose(device.step(moved), before)
