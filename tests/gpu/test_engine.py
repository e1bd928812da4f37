"""The engine on a GPU behind the doors that workers and users see: the same answers as on a CPU, and nothing leaks."""

import asyncio
import gc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from penstock.engine import EngineLanes, PackedBatch, PipelinedEngine, TaskOptions, from_torch, load_engine
from penstock.engine.device_share import DeviceShare
from penstock.engine.errors import InvalidBatch
from penstock.engine.types import ModelInfo
from penstock.engine.vector_rows import split_sparse, split_vectors
from tests.engine.helpers import MAX_TOKENS, PAD, pack, random_sequences, save_classifier, save_encoder, save_tagger
from tests.engine.model.test_reference_vectors import save_bge_m3, save_masked_lm
from tests.engine.rerankers import save_reranker
from tests.gpu.references import is_shared

pytestmark = pytest.mark.gpu

LENGTHS = (5, 1, 100, 64, 7, MAX_TOKENS, 5)
DEVICES = (("cuda", "float16"), ("cpu", "float32"))
WIDTH = 128  # four heads of 32: the CPU's tests have heads of 12, which no GPU kernel takes


def largest_error(rows: Any, expected: Any) -> float:
    assert [row.shape for row in rows] == [row.shape for row in expected]
    assert all(row.dtype == np.float32 for row in rows)
    return max(float(np.abs(row - want).max()) for row, want in zip(rows, expected, strict=True))


@pytest.fixture
def both(tmp_path: Path) -> tuple[Any, Any]:
    """One embedding model on the GPU and on the CPU."""
    save_encoder(tmp_path, "bert", hidden_size=WIDTH)
    return load_engine(str(tmp_path), device="cuda"), load_engine(str(tmp_path), device="cpu", dtype="float32")


def test_a_gpu_is_what_auto_means_here(tmp_path: Path) -> None:
    save_encoder(tmp_path, "bert", hidden_size=WIDTH)
    engine = load_engine(str(tmp_path))
    assert engine.info.device == torch.cuda.get_device_name()
    assert engine.info.dtype == "float16"
    assert isinstance(engine, PipelinedEngine)


@pytest.mark.parametrize("pooling", ["cls", "mean", "max", "last"])
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("dimensions", [None, 16])
def test_embeddings_are_the_cpus(both: tuple[Any, Any], pooling: str, normalize: bool, dimensions: int | None) -> None:
    gpu, cpu = both
    batch = pack(random_sequences(LENGTHS), TaskOptions("embed", pooling, normalize, dimensions))
    expected = cpu.run(batch).rows
    scale = max(float(np.abs(row).max()) for row in expected)
    for _ in range(3):
        assert largest_error(gpu.run(batch).rows, expected) <= 0.01 * scale


def test_options_differ_within_a_batch(both: tuple[Any, Any]) -> None:
    gpu, cpu = both
    wanted = [TaskOptions("embed", pooling=p, normalize=True) for p in ("cls", "mean", "max", "cls", "last")]
    wanted.append(TaskOptions("embed", pooling="mean", normalize=True, prompt_tokens=3))
    batch = pack(random_sequences(LENGTHS[:6]), wanted)
    assert largest_error(gpu.run(batch).rows, cpu.run(batch).rows) <= 0.01


def test_a_reranker_of_two_tokens_logits_scores_as_on_the_cpu(tmp_path: Path) -> None:
    save_reranker(tmp_path, hidden_size=WIDTH, head_dim=32)
    gpu, cpu = (load_engine(str(tmp_path / "saved"), device=device, dtype=dtype) for device, dtype in DEVICES)
    batch = pack(random_sequences(LENGTHS), TaskOptions("rerank"))
    assert largest_error(gpu.run(batch).rows, cpu.run(batch).rows) <= 0.02


@pytest.mark.parametrize(
    ("save", "family"), [(save_classifier, "bert"), (save_tagger, "bert"), (save_classifier, "qwen2")]
)
@pytest.mark.parametrize("num_pads", [0, 2])
def test_heads_give_the_cpus_scores(tmp_path: Path, save: Any, family: str, num_pads: int) -> None:
    """A decoder's reads the last token that is no padding."""
    save(tmp_path, family, hidden_size=WIDTH, pad_token_id=PAD, id2label={0: "a", 1: "b", 2: "c"})
    gpu, cpu = load_engine(str(tmp_path), device="cuda"), load_engine(str(tmp_path), device="cpu", dtype="float32")
    (task,) = gpu.info.tasks - {"embed"}
    sequences = random_sequences(LENGTHS)
    sequences[2][len(sequences[2]) - num_pads :] = PAD
    batch = pack(sequences, TaskOptions(task))
    for _ in range(3):
        assert largest_error(gpu.run(batch).rows, cpu.run(batch).rows) <= 0.02


@pytest.mark.parametrize("save", [save_masked_lm, save_bge_m3])
def test_sparse_weights_and_token_vectors_are_the_cpus(tmp_path: Path, save: Any) -> None:
    directory = save(tmp_path, hidden_size=WIDTH)
    gpu, cpu = load_engine(str(directory), device="cuda"), load_engine(str(directory), device="cpu", dtype="float32")
    tasks = sorted(gpu.info.tasks)
    batch = pack(random_sequences(LENGTHS), [TaskOptions(tasks[i % len(tasks)]) for i in range(len(LENGTHS))])
    for _ in range(3):
        for wanted, row, expected in zip(batch.options, gpu.run(batch).rows, cpu.run(batch).rows, strict=True):
            found, want = (_parts(wanted.task, one, cpu.info) for one in (row, expected))
            assert largest_error(found, want) <= 0.02 * max(float(np.abs(part).max()) for part in want)


def _parts(task: str, row: Any, info: ModelInfo) -> list[Any]:
    """The vectors of a row, the sparse one of the vocabulary's length: a weight of nearly 0 may be on one side only."""
    if task not in ("embed_sparse", "embed_all"):
        return [row]
    *others, sparse = split_vectors(row, info.dim, info.token_dim) if task == "embed_all" else (row,)
    ids, weights = split_sparse(sparse)
    whole = np.zeros(info.vocab_size, np.float32)
    whole[ids] = weights
    return [*others, whole]


def test_what_was_prepared_is_replayed_from_the_first_batch_on(
    both: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu, cpu = both
    gpu.prepare(DeviceShare(), max_sequences=64, max_tokens=2048, budget_s=30.0)
    graphs = gpu._encoder._graphs
    num_prepared = len(graphs)
    assert num_prepared > 50
    replays: list[object] = []
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", _counted(torch.cuda.CUDAGraph.replay, replays))
    for count in (1, 5, 30):
        batch = pack(random_sequences(np.random.default_rng(count).integers(2, 100, count).tolist()))
        assert largest_error(gpu.run(batch).rows, cpu.run(batch).rows) <= 0.01
    assert len(replays) == 3
    assert len(graphs) == num_prepared


def _counted(replay: Any, replays: list[object]) -> Any:
    def counted(graph: object) -> None:
        replays.append(graph)
        replay(graph)

    return counted


def test_preparing_ends_with_its_budget(both: tuple[Any, Any]) -> None:
    gpu, _ = both
    before = len(gpu._encoder._graphs)  # of the batches that a load runs
    gpu.prepare(DeviceShare(), max_sequences=1024, max_tokens=16_384, budget_s=0.0)
    assert len(gpu._encoder._graphs) == before


def test_an_unknown_task_is_an_error_and_the_engine_lives(both: tuple[Any, Any]) -> None:
    gpu, _ = both
    with pytest.raises(ValueError, match="task 'classify'"):
        gpu.run(pack(random_sequences((3,)), TaskOptions("classify")))
    assert len(gpu.run(pack(random_sequences((3,)))).rows) == 1


async def test_a_lane_keeps_two_batches_underway_and_their_results_apart(both: tuple[Any, Any]) -> None:
    gpu, cpu = both
    rng = np.random.default_rng(0)
    batches = [pack(random_sequences(rng.integers(1, 100, 9).tolist(), seed)) for seed in range(60)]
    lanes = EngineLanes(gpu)
    outputs = await asyncio.gather(*[lanes.submit(batch) for batch in batches])
    await lanes.close()
    for batch, output in zip(batches, outputs, strict=True):
        expected = cpu.run(batch).rows
        scale = max(float(np.abs(row).max()) for row in expected)
        assert largest_error(output.rows, expected) <= 0.01 * scale
        assert output.device_s > 0


async def test_a_lane_captures_what_came_twice_between_batches(both: tuple[Any, Any]) -> None:
    gpu, cpu = both
    batch = pack(random_sequences(LENGTHS))
    graphs, expected = gpu._encoder._graphs, cpu.run(batch).rows
    before = len(graphs)  # of the batches that a load runs
    for _ in range(2):
        await through_lanes(gpu, [batch], 2)
        assert len(graphs) == before + 1
    assert largest_error(gpu.run(batch).rows, expected) <= 0.01


def test_token_types_beyond_their_table_fail_alone(both: tuple[Any, Any]) -> None:
    batch = pack(random_sequences((3, 5)))
    wrong = replace(batch, token_type_ids=np.full(8, 2, np.int32))
    for engine in both:
        with pytest.raises(InvalidBatch, match="token_type_ids"):
            engine.run(wrong)
        assert len(engine.run(batch).rows) == 2


def test_a_model_runs_on_its_own_device(tmp_path: Path) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    model = save_encoder(tmp_path, "bert", hidden_size=WIDTH)
    with torch.cuda.device(1):
        fast = from_torch(model, device="cuda")
    ids = torch.from_numpy(np.stack(random_sequences((9, 9)))).long()
    with torch.no_grad():
        expected = model(input_ids=ids).last_hidden_state
    for _ in range(3):  # launched, captured, replayed; device 0 is current
        assert (fast(ids) - expected).abs().max() <= 0.03


async def test_memory_is_flat_over_100_000_requests(both: tuple[Any, Any]) -> None:
    gpu, _ = both
    rng = np.random.default_rng(1)
    batches = [pack(random_sequences(rng.integers(1, 60, 100).tolist(), seed)) for seed in range(50)]
    for _ in range(2):  # captures empty torch's cache, which is then filled again
        await through_lanes(gpu, batches, 3)
    before, free_bytes = allocator_bytes(), torch.cuda.mem_get_info()[0]
    await through_lanes(gpu, batches, 20)
    assert allocator_bytes() == before
    change_bytes = torch.cuda.mem_get_info()[0] - free_bytes
    assert is_shared() or abs(change_bytes) <= 2 << 20  # the driver's, a page at most


async def through_lanes(gpu: Any, batches: list[PackedBatch], rounds: int) -> None:
    """All batches so often, two underway at a time. When it returns, the lane holds nothing any more."""
    lanes = EngineLanes(gpu)
    for _ in range(rounds):
        outputs = await asyncio.gather(*map(lanes.submit, batches))
        assert [len(output.rows) for output in outputs] == [len(batch.options) for batch in batches]
    await lanes.close()
    while gpu.idle() == 0.0:  # every graph that is due
        pass


def allocator_bytes() -> tuple[int, int]:
    gc.collect()  # what other tests of this process have left would go at any time
    return torch.cuda.memory_allocated(), torch.cuda.memory_reserved()


def test_an_idle_engine_gives_the_device_back_what_a_burst_took(
    both: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu, _ = both
    small = pack(random_sequences((3, 5)))
    for _ in range(3):
        expected = gpu.run(small).rows
    reserved_bytes = torch.cuda.memory_reserved()  # of this process: others may use the device
    assert len(gpu.run(pack(random_sequences((100,) * 20_000))).rows) == 20_000
    assert torch.cuda.memory_reserved() > reserved_bytes + (256 << 20)
    for _ in range(2):  # the burst has come since the last time
        monkeypatch.setattr(gpu, "_trim_at", 0.0)
        gpu.idle()
    assert torch.cuda.memory_reserved() <= reserved_bytes + (32 << 20)
    assert largest_error(gpu.run(small).rows, expected) <= 1e-6


def test_a_batch_beyond_the_devices_memory_fails_alone(both: tuple[Any, Any]) -> None:
    gpu, _ = both
    small = pack(random_sequences((3, 5)))
    expected = gpu.run(small).rows
    too_large = pack(random_sequences((100,) * 20_000))
    _, whole_bytes = torch.cuda.mem_get_info()
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (64 << 20)) / whole_bytes)
    try:
        with pytest.raises(torch.cuda.OutOfMemoryError):
            gpu.run(too_large)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert largest_error(gpu.run(small).rows, expected) <= 1e-6
    assert len(gpu.run(too_large).rows) == 20_000


def test_from_torch_runs_on_the_gpu_padded_and_packed(tmp_path: Path) -> None:
    model = save_encoder(tmp_path, "bert", hidden_size=WIDTH)
    fast = from_torch(model, device="cuda")
    sequences = random_sequences((9, 30, 1))
    ids = torch.zeros(3, 30, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = torch.from_numpy(sequence)
        mask[row, : len(sequence)] = 1
    with torch.no_grad():
        expected = model(input_ids=ids, attention_mask=mask).last_hidden_state * mask[:, :, None]
    padded = fast(ids, mask)
    assert (padded - expected).abs().max() <= 0.03
    packed = fast.packed(torch.from_numpy(np.concatenate(sequences)), torch.tensor([0, 9, 39, 40]))
    assert (packed - padded[mask.bool()]).abs().max() <= 0.01
