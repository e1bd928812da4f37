"""Workspaces: where a batch's intermediates lie, and what becomes of the memory when less is needed. No GPU needed."""

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from structlog.testing import capture_logs
from torch.multiprocessing.reductions import StorageWeakRef

from penstock.engine import device_share
from penstock.engine.device_share import DeviceShare
from penstock.engine.families import family_of
from penstock.engine.gpu import GpuEncoder
from penstock.engine.gpu.buckets import GRAPH_ROWS
from penstock.engine.gpu.ops import prepare_for_gpu
from penstock.engine.gpu.workspace import Workspace
from penstock.engine.model.checkpoint import read_checkpoint
from penstock.engine.model.program import Program, record
from penstock.engine.model.weights import EncoderWeights
from tests.engine.gpu.fake_cuda import FakeCuda
from tests.engine.helpers import pack, random_sequences, save_encoder

CPU = torch.device("cpu")
HALF = torch.float16


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    properties = SimpleNamespace(shared_memory_per_block_optin=227 << 10)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    return FakeCuda(monkeypatch)


@pytest.fixture
def weights(tmp_path: Path) -> EncoderWeights:
    save_encoder(tmp_path, "bert", hidden_size=128)
    checkpoint = read_checkpoint(tmp_path)
    return family_of(checkpoint).encoder(checkpoint)


@pytest.fixture
def program(weights: EncoderWeights) -> Program:
    return record(prepare_for_gpu(weights, HALF, CPU), lambda dense: dense.width, HALF.itemsize)


@pytest.fixture
def workspace(cuda: FakeCuda, program: Program) -> Workspace:
    return Workspace(program, HALF, CPU)


def test_a_batchs_buffers_are_tensors_that_do_not_overlap_while_both_live(
    workspace: Workspace, program: Program
) -> None:
    for rows in (1, 7, 700, 33):
        buffers = workspace.buffers(rows)
        assert [tuple(buffer.shape) for buffer in buffers] == [(rows, width) for width in program.widths]
        assert {buffer.dtype for buffer in buffers} == {HALF}
        for step in range(len(program.steps)):
            alive = [
                buffer
                for buffer, lifetime in zip(buffers, program.lifetimes, strict=True)
                if lifetime.first <= step <= lifetime.last
            ]
            places = sorted((buffer.data_ptr(), buffer.nbytes) for buffer in alive)
            assert all(start + num_bytes <= following for (start, num_bytes), (following, _) in pairwise(places))


def test_after_the_largest_batch_nothing_is_allocated(workspace: Workspace) -> None:
    workspace.reserve(2000)
    for rows in range(1, 2001, 37):
        workspace.buffers(rows)
    assert len(workspace.arena.buffers) == 1


def test_a_burst_is_given_back_to_the_device_though_no_batch_follows(cuda: FakeCuda, workspace: Workspace) -> None:
    workspace.buffers(20_000)
    workspace.trim()
    assert cuda.num_emptied == 0  # it came since the last time
    reference: Any = StorageWeakRef  # torch leaves it untyped
    (chunk,) = (reference(chunk.untyped_storage()) for chunk in workspace.arena.buffers)
    was_free: list[bool] = []
    cuda.on_emptied = lambda: was_free.append(chunk.expired())
    workspace.trim()
    assert was_free == [True]  # when torch's cache was emptied
    assert workspace.arena.held_bytes == 0
    for _ in range(3):
        workspace.trim()
    assert cuda.num_emptied == 1


def test_what_recent_batches_needed_is_held_on_in_one_chunk(cuda: FakeCuda, workspace: Workspace) -> None:
    for rows in (100, 20_000):
        workspace.buffers(rows)
    workspace.trim()
    for rows in (900, 50, 2000):
        workspace.buffers(rows)
    held_when_emptied: list[int] = []
    cuda.on_emptied = lambda: held_when_emptied.append(workspace.arena.held_bytes)
    workspace.trim()
    assert held_when_emptied == [0]
    assert len(workspace.arena.buffers) == 1
    held = workspace.arena.buffers
    assert workspace.buffers(2000)[0].shape == (2000, 128)
    assert workspace.arena.buffers == held


def test_a_bursts_description_goes_with_its_intermediates(cuda: FakeCuda, weights: EncoderWeights) -> None:
    encoder = GpuEncoder(weights, device=CPU, graphs=False)
    uploaded = encoder.upload(pack(random_sequences((100,) * 50)))
    reference: Any = StorageWeakRef  # torch leaves it untyped
    memory = reference(uploaded.token_ids.untyped_storage())
    del uploaded
    assert not memory.expired()
    encoder.trim()
    assert memory.expired()
    assert encoder.upload(pack(random_sequences((3, 5)))).token_ids.shape == (8,)


def test_without_memory_for_graphs_batches_are_launched_one_by_one(cuda: FakeCuda, weights: EncoderWeights) -> None:
    encoder = GpuEncoder(weights, device=CPU)
    cuda.most_bytes = 1 << 20  # less than graphs need, more than a small batch does
    assert Workspace(encoder._program, HALF, CPU)._planner.plan(GRAPH_ROWS).used_bytes > cuda.most_bytes
    batch = pack(random_sequences((3, 5)))
    with capture_logs() as logs:
        inputs = [encoder.upload(batch) for _ in range(3)]
    assert [log["event"] for log in logs] == ["graphs_off"]
    assert [(upload.at_rest, upload.shape.rows) for upload in inputs] == [(False, 8)] * 3


def test_preparing_launches_each_number_of_rows_once_and_captures_each_shape(
    cuda: FakeCuda, weights: EncoderWeights, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = GpuEncoder(weights, device=CPU)
    launched, captured = [], []
    monkeypatch.setattr(encoder, "_launch", lambda inputs, workspace: launched.append(inputs.shape.rows))
    monkeypatch.setattr(encoder._graphs, "capture", lambda shape, work: captured.append(shape))
    for lengths in ((3, 5), (30,), (40,), (1,) * 30):
        assert encoder.prepare(pack(random_sequences(lengths)), DeviceShare())
    assert launched == [32, 64]
    assert [(shape.rows, shape.sequences) for shape in captured] == [(32, 8), (32, 8), (64, 8), (32, 32)]


def test_beside_others_a_launch_that_may_load_kernels_is_followed_by_a_rest(
    cuda: FakeCuda, weights: EncoderWeights, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = GpuEncoder(weights, device=CPU)
    now, share = [0.0], DeviceShare(0.25)
    monkeypatch.setattr(device_share, "time", SimpleNamespace(perf_counter=lambda: now[0], sleep=lambda seconds: None))
    monkeypatch.setattr(encoder, "_launch", lambda inputs, workspace: now.insert(0, now[0] + 0.02))
    monkeypatch.setattr(encoder._graphs, "capture", lambda shape, work: now.insert(0, now[0] + 0.5))
    for lengths in ((3, 5), (30,), (40,), (1,) * 30):
        encoder.prepare(pack(random_sequences(lengths)), share)
    assert share.rested_s == pytest.approx(2 * 0.06)  # two numbers of rows; captures are followed by none


def test_without_graphs_there_is_nothing_to_prepare(cuda: FakeCuda, weights: EncoderWeights) -> None:
    batch = pack(random_sequences((3, 5)))
    assert not GpuEncoder(weights, device=CPU, graphs=False).prepare(batch, DeviceShare())
    poor = GpuEncoder(weights, device=CPU)
    cuda.most_bytes = 1 << 20
    assert not poor.prepare(batch, DeviceShare())  # no memory for them


def test_with_memory_for_graphs_batches_lie_where_graphs_look(cuda: FakeCuda, weights: EncoderWeights) -> None:
    encoder = GpuEncoder(weights, device=CPU)
    batches = [pack(random_sequences((3, 5))), pack(random_sequences((4, 9), seed=1))]
    uploads = [encoder.upload(batch) for batch in batches]
    assert all(upload.at_rest for upload in uploads)
    assert uploads[0].shape == uploads[1].shape
    assert uploads[0].token_ids.data_ptr() == uploads[1].token_ids.data_ptr()
    assert uploads[1].token_ids[:13].tolist() == batches[1].token_ids.tolist()
