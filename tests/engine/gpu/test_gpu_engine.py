"""Errors of the GPU engine, and the order of its streams, with a fake of CUDA. No GPU needed."""

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from penstock.engine import EngineLanes
from penstock.engine.errors import DeviceFailed
from penstock.engine.gpu import engine as engine_module
from penstock.engine.gpu.choice import AttentionKernel, LongAttention, choose_kernel
from penstock.engine.gpu.encoder import GpuEncoder
from penstock.engine.gpu.engine import GpuEngine
from penstock.engine.gpu.products import MAX_ROWS, Products
from penstock.engine.kernels import launch as launching
from penstock.engine.model.results import EmbeddingTail, Head
from penstock.engine.model.vectors import AllVectors, KeptTokens, Lexical, TokenVectors, VectorHead
from penstock.engine.model.weights import Dense, PlainAttention, RotaryAttention
from penstock.engine.types import Int32Array, ModelInfo, PackedBatch, TaskOptions
from penstock.engine.vector_rows import split_vectors
from penstock.producer.wire.messages import Request, join_tokens
from penstock.scheduler import LaneDriver, PackedCost, Scheduler, SchedulerSettings
from penstock.worker.batching.batch import BatchStats
from penstock.worker.batching.dispatcher import Dispatcher
from penstock.worker.batching.lane_runner import LaneRunner
from penstock.worker.batching.stage import StageCallbacks
from penstock.worker.requests.request import PendingRequest, StageTimes
from penstock.worker.requests.sequence_block import SequenceBlock, SequenceResults
from tests.engine.gpu.fake_cuda import FakeCuda, FakeEvent, FakeStream
from tests.engine.helpers import pack, random_sequences

TAGS = TaskOptions("token_classify")
INFO = ModelInfo("tagger", "r1", "float16", "GPU", 200, 130, frozenset({"token_classify"}), 4, ("a", "b", "c", "d"))

# As they are worded: cuBLAS by torch, pinned memory by torch, a module's load by CuPy, a launch of ours.
OUT_OF_MEMORY = (
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
    RuntimeError("CUDA_ERROR_OUT_OF_MEMORY: out of memory"),
    RuntimeError("CUDA_ERROR_OUT_OF_MEMORY at a launch of (1, 1) blocks of (128,) threads."),
)
BATCHES_OWN = (
    RuntimeError("CUDA_ERROR_INVALID_VALUE at a launch of (12, 70000) blocks of (256,) threads."),
    RuntimeError("CUDA error: invalid configuration argument"),
    RuntimeError("The size of tensor a (3) must match the size of tensor b (4)"),
)
LASTING = RuntimeError(
    "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be reported late"
)


class SmallEncoder:
    """Each token's state is its id, four times over; batches beyond `most_tokens` raise `error`."""

    device = torch.device("cpu")
    is_capture_due = False

    def __init__(self) -> None:
        self.most_tokens = 1 << 20
        self.error: Exception | None = None
        self.lengths: list[int] = []  # tokens of each batch
        self.longest: list[int] = []  # and of its longest sequence

    def upload(self, batch: PackedBatch) -> Tensor:
        self.lengths.append(len(batch.token_ids))
        self.longest.append(batch.max_seqlen)
        if self.error is not None and len(batch.token_ids) > self.most_tokens:
            raise self.error
        return torch.from_numpy(batch.token_ids)

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.float()[:, None].expand(-1, 4)

    def trim(self) -> None:
        pass


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    return FakeCuda(monkeypatch)


@pytest.fixture
def encoder() -> SmallEncoder:
    return SmallEncoder()


@pytest.fixture
def engine(cuda: FakeCuda, encoder: SmallEncoder) -> GpuEngine:
    head = Head((), "raw", INFO.labels, "tokens")
    tail = EmbeddingTail(pooling="cls", dense=(), normalize=False)
    return GpuEngine(INFO, Path(), cast(GpuEncoder, encoder), tail, {"token_classify": head})


BATCH = pack(random_sequences((3, 5)), TAGS)


class DescribedEncoder(SmallEncoder):
    """Its inputs have the bounds of sequences, an empty one at the end, and there is a spare row, as with graphs."""

    def upload(self, batch: PackedBatch) -> Any:
        bounds = torch.from_numpy(np.append(batch.cu_seqlens, batch.cu_seqlens[-1]))
        return SimpleNamespace(token_ids=super().upload(batch), cu_seqlens=bounds)

    def forward(self, inputs: Any) -> Tensor:
        return torch.cat((super().forward(inputs.token_ids), torch.full((1, 4), torch.nan)))


def test_each_task_of_a_batch_has_the_rows_of_its_head(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    def pool(rows: Tensor, hidden: Tensor, bounds: Tensor, pooling: str, *, normalize: bool, left_out: int) -> None:
        rows.copy_(hidden[bounds[:-1].long()])

    monkeypatch.setattr(engine_module, "pool", pool)
    plain = Dense(torch.eye(4)[:3] / 100, torch.zeros(3), "identity")
    lexical = Lexical(plain.apply(lambda tensor: tensor[:1]), np.array([2], np.int32))
    tokens = TokenVectors((plain,), normalize=False, kept=KeptTokens(without_first=True))
    heads: dict[str, Head | VectorHead] = {
        "embed_tokens": tokens,
        "embed_sparse": lexical,
        "embed_all": AllVectors(tokens, lexical),
        "token_classify": Head((), "raw", INFO.labels, "tokens"),
    }
    info = replace(INFO, tasks=frozenset({"embed", *heads}), dim=4, token_dim=3)
    tail = EmbeddingTail(pooling="cls", dense=(), normalize=False)
    engine = GpuEngine(info, Path(), cast(GpuEncoder, DescribedEncoder()), tail, heads)
    sequences = [np.array(ids, np.int32) for ids in ([5, 2, 9], [7], [3, 8, 8], [4, 6], [1, 2, 3])]
    options = [TaskOptions(task) for task in ("embed_all", "embed_tokens", "embed_sparse", "embed", "token_classify")]
    everything, vectors, sparse, vector, labels = engine.run(pack(sequences, options)).rows
    found = split_vectors(everything, 4, 3)
    expected: list[Any] = [[5] * 4, [[0.02] * 3, [0.09] * 3], [5, 9, 0.05, 0.09]]
    expected += [[[0.07] * 3], [3, 8, 0.03, 0.08], [4] * 4, [[1] * 4, [2] * 4, [3] * 4]]
    for part, want in zip((*found, vectors, sparse, vector, labels), expected, strict=True):
        np.testing.assert_allclose(part, want, rtol=1e-6)


@pytest.mark.parametrize("max_tokens", [64, 128, 256, 512, 1024])
@pytest.mark.parametrize(
    ("head_dim", "long", "is_causal", "has_windows"),
    [
        (64, None, False, False),
        (64, AttentionKernel.LONG_192, False, False),
        (64, AttentionKernel.LONG_128, False, True),
        (64, AttentionKernel.LONG_CAUSAL, True, False),
        (128, None, True, False),
        (128, AttentionKernel.LONG_128, False, False),
        (128, AttentionKernel.LONG_CAUSAL, True, False),
    ],
)
def test_warming_up_meets_every_kernel_that_a_batch_may_need(
    cuda: FakeCuda,
    encoder: SmallEncoder,
    max_tokens: int,
    head_dim: int,
    long: AttentionKernel | None,
    is_causal: bool,
    has_windows: bool,
) -> None:
    """long: the kernel for Hopper, None on other devices. Layers that are causal or have windows are rotary."""
    rotary = RotaryAttention(torch.zeros(1, head_dim // 2), torch.zeros(1, head_dim // 2), None)
    gains = long and LongAttention.of(long, head_dim, is_causal=is_causal, has_windows=has_windows)

    def kernel(longest: int, rows: int) -> AttentionKernel:
        attention = rotary if is_causal or has_windows else PlainAttention()
        return choose_kernel(attention, head_dim, longest, rows, shared_bytes=227 << 10, long=gains)

    head, tail = Head((), "raw", INFO.labels, "tokens"), EmbeddingTail(pooling="cls", dense=(), normalize=False)
    info = replace(INFO, max_tokens=max_tokens)
    engine = GpuEngine(info, Path(), cast(GpuEncoder, encoder), tail, {"token_classify": head})
    engine.warm_up()
    met = {kernel(longest, rows) for longest, rows in zip(encoder.longest, encoder.lengths, strict=True)}
    assert met == {kernel(longest, rows) for longest in range(1, max_tokens + 1) for rows in range(longest, 16_384, 97)}
    assert max(encoder.longest) <= max_tokens
    assert {rows <= MAX_ROWS for rows in encoder.lengths} == {True, False}
    products = Products(torch.empty(0), wide_groups=132)
    for is_plain, width in ((False, 3072), (True, 2304)):
        assert any(products.is_wide(rows, width, 768, is_plain=is_plain) for rows in encoder.lengths)


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=str)
def test_memory_that_ran_out_in_any_words_is_one_error_and_the_engine_lives(
    cuda: FakeCuda, encoder: SmallEncoder, engine: GpuEngine, error: RuntimeError
) -> None:
    encoder.most_tokens, encoder.error = 4, error
    with pytest.raises(torch.OutOfMemoryError):
        engine.run(BATCH)
    assert cuda.num_emptied == 1
    assert len(engine.run(pack(random_sequences((3,)), TAGS)).rows) == 1


def test_memory_that_ran_out_is_that_also_where_torch_can_give_none_back(
    cuda: FakeCuda, encoder: SmallEncoder, engine: GpuEngine
) -> None:
    cuda.refused = RuntimeError("captures_underway.empty() INTERNAL ASSERT FAILED")
    encoder.most_tokens, encoder.error = 4, OUT_OF_MEMORY[1]
    with pytest.raises(torch.OutOfMemoryError, match="ALLOC_FAILED"):
        engine.run(BATCH)


@pytest.mark.parametrize("error", BATCHES_OWN, ids=str)
def test_an_error_after_which_the_device_answers_is_the_batchs_own(
    encoder: SmallEncoder, engine: GpuEngine, error: RuntimeError
) -> None:
    encoder.most_tokens, encoder.error = 4, error
    with pytest.raises(RuntimeError) as raised:
        engine.run(BATCH)
    assert raised.value is error
    assert len(engine.run(pack(random_sequences((3,)), TAGS)).rows) == 1


@pytest.mark.parametrize("error", [*BATCHES_OWN, LASTING], ids=str)
def test_a_device_that_does_not_answer_has_failed_for_good(
    cuda: FakeCuda, encoder: SmallEncoder, engine: GpuEngine, error: RuntimeError
) -> None:
    encoder.most_tokens, encoder.error, cuda.broken = 4, error, LASTING
    with pytest.raises(DeviceFailed, match=r"illegal memory access was encountered$"):
        engine.run(BATCH)
    cuda.broken = encoder.error = None
    with pytest.raises(DeviceFailed, match="illegal memory access"):
        engine.run(BATCH)
    assert encoder.lengths == [8]


def test_an_error_that_shows_only_when_the_batch_ends_is_judged_alike(cuda: FakeCuda, engine: GpuEngine) -> None:
    running = engine.start(BATCH)
    cast(FakeEvent, running._landing._ended).error = LASTING
    cuda.broken = LASTING
    with pytest.raises(DeviceFailed, match="illegal memory access"):
        running.result()


@pytest.mark.parametrize("error", OUT_OF_MEMORY[:2], ids=str)
async def test_a_batch_that_ran_out_of_memory_is_halved_until_it_fits(
    encoder: SmallEncoder, engine: GpuEngine, error: RuntimeError
) -> None:
    encoder.most_tokens, encoder.error = 20, error
    found: dict[int, Any] = {}
    over = asyncio.Event()

    def on_results(results: SequenceResults, stats: BatchStats) -> None:
        found.update({block.indices[0]: row for block, [row] in results})
        if len(found) == 8:
            over.set()

    def on_failure(*failure: object) -> None:
        failures.append(failure)
        over.set()

    failures: list[object] = []
    cost, lanes = PackedCost(0.0, 0.0, 0.0, 0.0), EngineLanes(engine)
    driver = LaneDriver(Scheduler(SchedulerSettings(10.0, 8, 1000, None), cost), 1)
    runner = LaneRunner(lanes, driver, cost, lambda: 100.0)
    callbacks = StageCallbacks(lambda stats: None, on_results, on_failure, on_failure)
    dispatcher = Dispatcher(runner, callbacks, clock=lambda: 100.0)
    runner.start(dispatcher)
    sequences = random_sequences((7,) * 8)
    dispatcher.add(one_request(sequences))
    await asyncio.wait_for(over.wait(), 60)
    dispatcher.close()
    await lanes.close()
    assert failures == []
    for index, ids in enumerate(sequences):
        np.testing.assert_array_equal(found[index], np.tile(ids[:, None], 4))
    assert sorted(encoder.lengths) == [14, 14, 14, 14, 28, 28, 56]  # and no probe of the engine's health


def one_request(sequences: Sequence[Int32Array]) -> list[SequenceBlock]:
    nothing: Any = None  # what the dispatcher does not look at
    message = Request("tiny", "embed", tokens=join_tokens(sequences))
    request = PendingRequest(nothing, nothing, message, None, False, StageTimes(0.0, 0.0))
    return [
        SequenceBlock(request, (index,), ids, (len(ids),), None, TAGS, (ids.tobytes(),))
        for index, ids in enumerate(sequences)
    ]


def test_rows_are_those_of_their_sequences(engine: GpuEngine) -> None:
    for row, ids in zip(engine.run(BATCH).rows, np.split(BATCH.token_ids, [3]), strict=True):
        np.testing.assert_array_equal(row, np.tile(ids[:, None], 4))


def test_batches_wait_for_the_weights_that_were_prepared_on_another_stream(cuda: FakeCuda, engine: GpuEngine) -> None:
    assert cast(FakeStream, engine._stream).waited_for == [cuda.default_stream]


async def test_an_idle_lane_lets_its_engine_give_memory_back_again_and_again(
    encoder: SmallEncoder, engine: GpuEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "_TRIM_AFTER_S", 0.001)
    engine.run(BATCH)  # from which on the time counts
    trimmed = threading.Semaphore(0)
    monkeypatch.setattr(encoder, "trim", trimmed.release)
    lanes = EngineLanes(engine)
    for _ in range(3):
        assert await asyncio.to_thread(trimmed.acquire, timeout=300)
    assert len((await lanes.submit(BATCH)).rows) == 2
    await lanes.close()


def test_an_idle_engine_waits_before_it_gives_memory_back(
    encoder: SmallEncoder, engine: GpuEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    trims: list[float] = []
    now = [100.0]
    monkeypatch.setattr(encoder, "trim", lambda: trims.append(now[0]))
    monkeypatch.setattr(engine_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    engine.run(BATCH)
    assert engine.idle() == 30.0
    now[0] += 20.0
    assert engine.idle() == 10.0
    assert trims == []
    now[0] += 10.0
    assert engine.idle() == 30.0
    assert trims == [130.0]


def test_an_idle_engine_captures_one_graph_at_a_time(
    cuda: FakeCuda, encoder: SmallEncoder, engine: GpuEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams: list[FakeStream] = []

    def capture_next() -> bool:
        streams.append(cuda.stream)
        encoder.is_capture_due = len(streams) < 2
        return True

    monkeypatch.setattr(encoder, "capture_next", capture_next, raising=False)
    encoder.is_capture_due = True
    engine.start(BATCH).result()
    assert streams == []  # not on the way of a batch
    assert [engine.idle(), engine.idle()] == [0.0, 0.0]
    assert (engine.idle() or 0.0) > 0.0
    assert streams == [cast(FakeStream, engine._stream)] * 2


def test_pinned_memory_is_reused_and_not_before_its_rows_were_copied_out(cuda: FakeCuda, engine: GpuEngine) -> None:
    batches = [pack(random_sequences((3, 5), seed), TAGS) for seed in range(6)]
    expected = [engine.run(batch).rows for batch in batches]
    pinned = cuda.num_pinned
    first, second = engine.start(batches[0]), engine.start(batches[1])
    rows = [first.result().rows]
    third = engine.start(batches[2])
    rows += [second.result().rows, third.result().rows]
    rows += [engine.run(batch).rows for batch in batches[3:]]
    assert cuda.num_pinned == pinned + 1  # of the second batch underway
    for got, want in zip(rows, expected, strict=True):
        for row, other in zip(got, want, strict=True):
            np.testing.assert_array_equal(row, other)


def test_a_thread_that_waits_sleeps_unless_the_batch_is_brief(engine: GpuEngine) -> None:
    for num_tokens, sleeps in ((8, False), (512, False), (513, True)):
        running = engine.start(pack(random_sequences((num_tokens,)), TAGS))
        assert cast(FakeEvent, running._landing._ended).is_blocking is sleeps


def test_idle_work_is_on_the_engines_stream_and_no_error_of_it_reaches_the_lane(
    cuda: FakeCuda, encoder: SmallEncoder, engine: GpuEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams: list[FakeStream] = []

    def trim() -> None:
        streams.append(cuda.stream)
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(encoder, "trim", trim)
    monkeypatch.setattr(engine, "_trim_at", 0.0)
    engine.idle()
    assert streams == [cast(FakeStream, engine._stream)]
    assert streams[0].num_synchronized == 1
    assert cuda.stream is cuda.default_stream


class Driver:
    """Refuses every launch with one code."""

    def __init__(self, code: int) -> None:
        self._code = code

    def cuLaunchKernelEx(self, *arguments: Any) -> int:
        return self._code

    def cuGetErrorName(self, code: int, name: Any) -> int:
        names = {1: b"CUDA_ERROR_INVALID_VALUE", 2: b"CUDA_ERROR_OUT_OF_MEMORY"}
        if code in names:
            name._obj.value = names[code]
        return 0 if code in names else 1


@pytest.mark.parametrize(
    ("code", "said"),
    [(1, "CUDA_ERROR_INVALID_VALUE at"), (2, "CUDA_ERROR_OUT_OF_MEMORY at"), (999, "CUDA error 999 at")],
)
def test_a_refused_launch_gives_the_drivers_name_for_it(monkeypatch: pytest.MonkeyPatch, code: int, said: str) -> None:
    monkeypatch.setattr(launching, "driver", lambda: Driver(code))
    with pytest.raises(RuntimeError, match=said):
        launching.launch(0, (1,), (32,), (np.int32(1),), 0, 0, (9, 0))


@pytest.mark.parametrize(
    "asked", [TaskOptions("embed"), TaskOptions("embed", dimensions=3), TaskOptions("embed", normalize=False)]
)
def test_vectors_are_cut_before_normalisation_where_a_request_asks_and_after_it_by_the_checkpoint(
    monkeypatch: pytest.MonkeyPatch, cuda: FakeCuda, asked: TaskOptions
) -> None:
    hidden = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))

    class OneBatch(SmallEncoder):
        def upload(self, batch: PackedBatch) -> Any:
            return SimpleNamespace(cu_seqlens=torch.from_numpy(batch.cu_seqlens))

        def forward(self, inputs: Any) -> Tensor:
            return hidden

    def pool_first(
        out: Tensor, hidden: Tensor, cu_seqlens: Tensor, pooling: str, normalize: bool, left_out: int
    ) -> None:
        rows = hidden[cu_seqlens[:-1].long()]
        out.copy_(torch.nn.functional.normalize(rows, dim=1) if normalize else rows)

    monkeypatch.setattr(engine_module, "pool", pool_first)
    info = replace(INFO, tasks=frozenset({"embed"}), labels=(), dim=2, dimensions=(2, 3, 4))
    tail = EmbeddingTail(pooling="cls", dense=(), normalize=True, dimensions=2)
    engine = GpuEngine(info, Path(), cast(GpuEncoder, OneBatch()), tail, {})
    rows = engine.run(pack(random_sequences((3, 5)), asked)).rows
    expected = hidden[[0, 3], : asked.dimensions]
    if asked.normalize is None:
        expected = torch.nn.functional.normalize(expected, dim=1)
    expected = expected if asked.dimensions else expected[:, :2]
    np.testing.assert_allclose(np.stack(rows), expected.numpy(), atol=1e-6)


@pytest.mark.parametrize(("pad_token", "expected"), [(None, [7, 7, 9, 8]), (7, [5, 7, 9, 8]), (6, [7, 7, 9, 8])])
def test_a_classifier_reads_the_last_token_that_is_no_padding(
    monkeypatch: pytest.MonkeyPatch, cuda: FakeCuda, pad_token: int | None, expected: list[int]
) -> None:
    """The first where all are, as on a CPU."""

    class States(SmallEncoder):
        def upload(self, batch: PackedBatch) -> Any:
            return SimpleNamespace(ids=torch.from_numpy(batch.token_ids), cu_seqlens=torch.from_numpy(batch.cu_seqlens))

        def forward(self, inputs: Any) -> Tensor:
            return super().forward(inputs.ids)

    def pool_last(
        out: Tensor, hidden: Tensor, cu_seqlens: Tensor, pooling: str, normalize: bool, *, left_out: int
    ) -> None:
        assert (pooling, normalize, left_out) == ("last", False, 0)
        out.copy_(hidden[cu_seqlens[1:].long() - 1])

    monkeypatch.setattr(engine_module, "pool", pool_last)
    head = Head((), "raw", INFO.labels, "last", pad_token)
    info = replace(INFO, tasks=frozenset({"classify"}))
    tail = EmbeddingTail(pooling="last", dense=(), normalize=False)
    engine = GpuEngine(info, Path(), cast(GpuEncoder, States()), tail, {"classify": head})
    sequences = [np.array(ids, np.int32) for ids in ([5, 7, 7], [7, 7], [7, 3, 9], [8])]
    rows = engine.run(pack(sequences, TaskOptions("classify"))).rows
    assert [row.tolist() for row in rows] == [[float(last)] * 4 for last in expected]
