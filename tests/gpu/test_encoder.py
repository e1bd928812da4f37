"""The encoder on the device: against transformers or the CPU in float32, graphs against launches, and nothing leaks."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from penstock.engine import TaskOptions
from penstock.engine.cpu.ops import encode_on_cpu, prepare_for_cpu
from penstock.engine.families import family_of
from penstock.engine.gpu import GpuEncoder
from penstock.engine.model.checkpoint import read_checkpoint
from penstock.engine.model.layout import sort_by_length
from penstock.engine.model.weights import EncoderWeights
from penstock.engine.types import Float32Array, Int32Array
from tests.engine.gpu.random_encoders import COMBINATIONS, random_encoder
from tests.engine.helpers import (
    GPU_FAMILIES,
    MAX_TOKENS,
    PAD,
    gpu_sizes,
    pack,
    random_sequences,
    reference_hidden,
    save_encoder,
)
from tests.gpu.references import is_shared

pytestmark = pytest.mark.gpu

LENGTHS = (1, 2, 17, 64, 65, 127, 128, 129, 130, 1, 33)
FEW = (40, 1, 60, 33)  # in all few enough for our own products
LONG = (2000, 1, 700, 129, 33)
DTYPES = (torch.float16, torch.bfloat16)


def load(directory: Path, dtype: torch.dtype = torch.float16, **more: Any) -> GpuEncoder:
    checkpoint = read_checkpoint(directory)
    return GpuEncoder(family_of(checkpoint).encoder(checkpoint), dtype, **more)


def hidden(encoder: GpuEncoder, sequences: Sequence[Int32Array]) -> list[Float32Array]:
    """Hidden states [L, H] of each sequence, as one batch."""
    batch = pack(sequences)
    states = encoder.run(batch).float().cpu().numpy()
    return [np.asarray(states[a:b]) for a, b in itertools.pairwise(batch.cu_seqlens)]


def on_cpu(weights: EncoderWeights, sequences: Sequence[Int32Array]) -> list[Float32Array]:
    """As `hidden`, in float32."""
    batch = pack(sequences)
    layout = sort_by_length(batch.cu_seqlens)
    found = encode_on_cpu(prepare_for_cpu(weights, torch.float32), batch, layout, torch.float32)
    states = torch.empty(len(batch.token_ids), found.shape[1])
    states[torch.from_numpy(layout.tokens[: len(states)])] = found[: len(states)]
    return [states[a:b].numpy() for a, b in itertools.pairwise(batch.cu_seqlens)]


def cosine(one: Float32Array, other: Float32Array) -> float:
    a, b = one.astype(np.float64).ravel(), other.astype(np.float64).ravel()
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    chosen: torch.dtype = request.param
    return chosen


@pytest.mark.parametrize("family", GPU_FAMILIES)
@pytest.mark.parametrize("lengths", [LENGTHS, FEW], ids=["many", "few"])
def test_every_family_equals_transformers(
    tmp_path: Path, family: str, lengths: tuple[int, ...], dtype: torch.dtype
) -> None:
    model = save_encoder(tmp_path, family, **gpu_sizes(family))
    encoder = load(tmp_path, dtype)
    sequences = random_sequences(lengths)
    expected = [reference_hidden(model, sequence) for sequence in sequences]
    for _ in range(3):  # eager, captured, replayed
        for got, want in zip(hidden(encoder, sequences), expected, strict=True):
            assert cosine(got, want) >= (0.9999 if dtype == torch.float16 else 0.998)


@pytest.mark.parametrize("name", COMBINATIONS)
@pytest.mark.parametrize("lengths", [LENGTHS, FEW, LONG], ids=["many", "few", "long"])
def test_every_combination_of_parts_equals_the_cpu(name: str, lengths: tuple[int, ...], dtype: torch.dtype) -> None:
    weights = random_encoder(replace(COMBINATIONS[name], max_tokens=max(LONG)))
    encoder, sequences = GpuEncoder(weights, dtype), random_sequences(lengths)
    expected = on_cpu(weights, sequences)
    for _ in range(3):  # eager, captured, replayed
        for got, want in zip(hidden(encoder, sequences), expected, strict=True):
            assert cosine(got, want) >= (0.9999 if dtype == torch.float16 else 0.998)


@pytest.mark.parametrize("name", COMBINATIONS)
def test_poison_in_the_buffers_of_any_combination_reaches_no_result(name: str) -> None:
    encoder, sequences = GpuEncoder(random_encoder(COMBINATIONS[name])), random_sequences((5, 40, 1, 100))
    clean = [hidden(encoder, sequences) for _ in range(3)][-1]
    for workspace in (encoder._graph_workspace, encoder._workspace):
        for chunk in workspace.arena.buffers:
            chunk.fill_(0xFF)
    for got, want in zip(hidden(encoder, sequences), clean, strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("family", ["roberta", "mpnet"])
def test_pad_tokens_in_a_text_have_the_positions_of_transformers(
    tmp_path: Path, family: str, dtype: torch.dtype
) -> None:
    model = save_encoder(tmp_path, family, **gpu_sizes(family))
    encoder = load(tmp_path, dtype)
    sequences = random_sequences((40, 40, 9, 130))
    for place in (0, 3, 7):
        sequences[1][place] = sequences[2][place] = PAD
    expected = [reference_hidden(model, sequence) for sequence in sequences]
    for chosen in (
        [0],
        [1],
        [0],
        [1],
        [1],
        [0],
        [0, 1, 2, 3],
    ):  # a description is kept for single sequences of a length
        for _ in range(3):
            for got, index in zip(hidden(encoder, [sequences[i] for i in chosen]), chosen, strict=True):
                assert cosine(got, expected[index]) >= (0.9999 if dtype == torch.float16 else 0.998)


def test_products_of_many_rows_in_a_forward(tmp_path: Path, dtype: torch.dtype) -> None:
    model = save_encoder(tmp_path, "bert", hidden_size=256, intermediate_size=1024)
    encoder = load(tmp_path, dtype)
    if not encoder._products.wide_groups:
        pytest.skip("needs Hopper")
    sequences = random_sequences((64,) * 64)
    assert encoder._products.is_wide(64 * 64, 1024, 256, is_plain=False)
    expected = [reference_hidden(model, sequence) for sequence in sequences[:5]]
    first = hidden(encoder, sequences)
    for got, want in zip(first, expected, strict=False):
        assert cosine(got, want) >= (0.9999 if dtype == torch.float16 else 0.998)
    for _ in range(3):  # captured and replayed, in memory that holds NaN
        for workspace in (encoder._graph_workspace, encoder._workspace):
            for chunk in workspace.arena.buffers:
                chunk.fill_(0xFF)
        for got, want in zip(hidden(encoder, sequences), first, strict=True):
            np.testing.assert_array_equal(got, want)


@pytest.fixture
def encoders(tmp_path: Path, dtype: torch.dtype) -> tuple[GpuEncoder, GpuEncoder]:
    """One with graphs and one without, of the same weights."""
    save_encoder(tmp_path, "bert", hidden_size=128)
    return load(tmp_path, dtype), load(tmp_path, dtype, graphs=False)


def test_a_replayed_graph_equals_the_launches_it_was_captured_from(encoders: tuple[GpuEncoder, GpuEncoder]) -> None:
    encoder, _ = encoders
    rng = np.random.default_rng(0)
    packs = [random_sequences(rng.integers(1, MAX_TOKENS, rng.integers(1, 30)).tolist(), seed) for seed in range(40)]
    first = [hidden(encoder, sequences) for sequences in packs]
    for _ in range(2):
        for sequences, before in zip(packs, first, strict=True):
            for got, want in zip(hidden(encoder, sequences), before, strict=True):
                np.testing.assert_array_equal(got, want)


def test_a_row_does_not_depend_on_its_batch(encoders: tuple[GpuEncoder, GpuEncoder]) -> None:
    rng = np.random.default_rng(1)
    probe = random_sequences((40,), seed=99)[0]
    for encoder in encoders:
        alone = hidden(encoder, [probe])[0]
        for seed in range(50):
            others = random_sequences(rng.integers(1, MAX_TOKENS, rng.integers(1, 40)).tolist(), seed)
            place = int(rng.integers(0, len(others) + 1))
            together = hidden(encoder, [*others[:place], probe, *others[place:]])[place]
            # cuBLAS may sum in another order for another number of rows: an error of the precision, and no more.
            assert cosine(together, alone) >= (0.99999 if encoder.dtype == torch.float16 else 0.9998)


def test_a_thousand_random_packs_agree_with_the_launches_of_exact_shape(
    encoders: tuple[GpuEncoder, GpuEncoder],
) -> None:
    with_graphs, eager = encoders
    rng = np.random.default_rng(2)
    for seed in range(1000):
        sequences = random_sequences(rng.integers(1, MAX_TOKENS + 1, rng.integers(1, 24)).tolist(), seed)
        for got, want in zip(hidden(with_graphs, sequences), hidden(eager, sequences), strict=True):
            assert cosine(got, want) >= (0.99999 if eager.dtype == torch.float16 else 0.9998)


@pytest.mark.parametrize("family", GPU_FAMILIES)
def test_poison_in_every_buffer_reaches_no_result(tmp_path: Path, family: str, dtype: torch.dtype) -> None:
    save_encoder(tmp_path, family, **gpu_sizes(family))
    sequences = random_sequences((5, 40, 1, 100))
    for encoder in (load(tmp_path, dtype), load(tmp_path, dtype, graphs=False)):
        clean = [hidden(encoder, sequences) for _ in range(3)][-1]
        for workspace in (encoder._graph_workspace, encoder._workspace):
            for chunk in workspace.arena.buffers:
                chunk.fill_(0xFF)  # NaN in float16, bfloat16 and float32
        if encoder._graphs is not None:
            assert len(encoder._graphs) == 1
        for got, want in zip(hidden(encoder, sequences), clean, strict=True):
            np.testing.assert_array_equal(got, want)


def test_what_captures_hold_is_what_the_device_lacks(encoders: tuple[GpuEncoder, GpuEncoder]) -> None:
    encoder, _ = encoders
    packs = [random_sequences((32,) * count) for count in range(1, 17)]  # a shape each
    for sequences in packs:
        hidden(encoder, sequences)  # compiled, loaded, and memory made
    torch.cuda.empty_cache()
    free_bytes = torch.cuda.mem_get_info()[0]
    for sequences in packs:
        hidden(encoder, sequences)
    torch.cuda.empty_cache()
    assert encoder._graphs is not None
    assert len(encoder._graphs) == len(packs)
    taken_bytes = free_bytes - torch.cuda.mem_get_info()[0]
    if is_shared():
        pytest.skip("other processes use the device, and what they take is not free either")
    assert taken_bytes <= encoder._graphs.held_bytes + (32 << 20)  # the driver's first graph may take more than counts


def test_no_device_memory_is_allocated_after_the_first_batches(encoders: tuple[GpuEncoder, GpuEncoder]) -> None:
    rng = np.random.default_rng(3)
    packs = [random_sequences(rng.integers(1, 100, rng.integers(1, 20)).tolist(), seed) for seed in range(100)]
    largest = random_sequences((100,) * 25)
    for encoder in encoders:
        # The last capture empties torch's cache, which the results' own tensors then fill again.
        for sequences in (largest, largest, *packs, *packs, *packs):
            hidden(encoder, sequences)
        before = torch.cuda.memory_stats()["num_device_alloc"], torch.cuda.memory_allocated()
        for sequences in packs:
            hidden(encoder, sequences)
        assert (torch.cuda.memory_stats()["num_device_alloc"], torch.cuda.memory_allocated()) == before


def test_a_batch_with_token_types(tmp_path: Path) -> None:
    model = save_encoder(tmp_path, "bert", hidden_size=128)
    encoder = load(tmp_path)
    sequences = random_sequences((9, 30, 9))
    types = [np.arange(len(s), dtype=np.int32) // 5 % 2 for s in sequences]
    batch = pack(sequences, TaskOptions("embed"), types)
    for _ in range(3):
        states = encoder.run(batch).float().cpu().numpy()
        for index, (a, b) in enumerate(itertools.pairwise(batch.cu_seqlens)):
            assert cosine(states[a:b], reference_hidden(model, sequences[index], types[index])) >= 0.9999
