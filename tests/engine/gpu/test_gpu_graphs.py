"""Shapes that are captured as graphs, and shapes that are not, with a fake of CUDA. No GPU needed."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from threading import get_ident
from typing import Any

import pytest
import torch
from structlog.testing import capture_logs
from torch import Tensor

from penstock.engine.gpu import graphs as module
from penstock.engine.gpu.choice import AttentionKernel
from penstock.engine.gpu.graphs import Graphs
from penstock.engine.gpu.inputs import Shape

MIB = 1 << 20


class Graph:
    """Runs nothing; says that it was replayed."""

    num_replays = 0

    def replay(self) -> None:
        self.num_replays += 1


class Cuda:
    """A fake of the part of torch.cuda that Graphs uses."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.graphs: list[Graph] = []
        self.cached_bytes = 0  # of torch's allocator, in no use
        self.pool_bytes = 0
        self.free_bytes = 1 << 40
        self.takes_bytes = 0  # each capture, of the allocator
        self.driver_bytes = 0  # each capture, beside it
        self.is_stuck = False  # as torch 2.8's allocator is, once the end of a capture has failed
        self.stream = "engine's"
        self.error: Exception | None = None  # of the next captures' ends
        self.context_threads: set[int] = set()  # that have used the device
        self.blas_threads: set[int] = set()  # that have a cuBLAS handle
        self.streams: list[object] = []  # of the captures
        for name, part in {
            "CUDAGraph": self._new_graph,
            "Stream": self._new_stream,
            "graph": self._capturing,
            "graph_pool_handle": lambda: (0, 1),
            "device": nullcontext,
            "current_blas_handle": self._make_blas_handle,
            "empty_cache": self._empty_cache,
            "memory_reserved": lambda device: self.cached_bytes + self.pool_bytes,
            "mem_get_info": self._mem_get_info,
            "current_stream": lambda device: self.stream,
            "set_stream": lambda stream: setattr(self, "stream", stream),
        }.items():
            monkeypatch.setattr(torch.cuda, name, part)

    def _new_graph(self) -> Graph:
        self.graphs.append(Graph())
        return self.graphs[-1]

    def _mem_get_info(self, device: object = None) -> tuple[int, int]:
        self.context_threads.add(get_ident())
        return self.free_bytes, 1 << 40

    def _make_blas_handle(self) -> None:
        """As torch 2.11 warns, and its tests' filters raise."""
        if get_ident() not in self.context_threads:
            raise UserWarning("Attempting to run cuBLAS, but there was no current CUDA context!")
        self.blas_threads.add(get_ident())

    def _new_stream(self, device: torch.device) -> object:
        return object()

    def _empty_cache(self) -> None:
        if self.is_stuck:
            raise RuntimeError("captures_underway.empty() INTERNAL ASSERT FAILED")
        self.free_bytes += self.cached_bytes
        self.cached_bytes = 0

    @contextmanager
    def _capturing(self, graph: Graph, pool: Any, stream: Any, *, capture_error_mode: str) -> Iterator[None]:
        """As of torch 2.8: it gives cached memory back, and a capture whose end fails leaves its stream current."""
        before, self.stream = self.stream, stream
        self.streams.append(stream)
        self._empty_cache()
        yield
        self.pool_bytes += self.takes_bytes
        self.free_bytes -= self.takes_bytes + self.driver_bytes
        if self.error is not None:
            raise self.error
        self.stream = before


class Work:
    """A forward pass that counts its launches; while it is captured it is launched too, as far as the host can see."""

    num_launched = 0

    def __call__(self) -> Tensor:
        self.num_launched += 1
        return torch.zeros(1)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    return Cuda(monkeypatch)


@pytest.fixture
def graphs(cuda: Cuda) -> Graphs[Shape]:
    return Graphs(torch.device("cpu"))


def shape(rows: int) -> Shape:
    return Shape(rows=rows, sequences=8, max_seqlen=32, has_types=True, kernel=AttentionKernel.SHORT)


def run(graphs: Graphs[Shape], rows: int, times: int, work: Callable[[], Tensor]) -> None:
    """So many batches of a shape, with some rest after each."""
    for _ in range(times):
        graphs.run(shape(rows), work)
        graphs.capture_next(lambda due: work)


def test_a_shape_that_came_twice_is_captured_at_rest_and_from_then_on_replayed(
    cuda: Cuda, graphs: Graphs[Shape]
) -> None:
    work = Work()
    run(graphs, 32, 1, work)
    assert (work.num_launched, len(graphs)) == (1, 0)
    run(graphs, 32, 5, work)
    assert (work.num_launched, len(graphs)) == (3, 1)
    assert [graph.num_replays for graph in cuda.graphs] == [4]


def test_nothing_is_captured_on_the_way_of_a_batch(cuda: Cuda, graphs: Graphs[Shape]) -> None:
    work = Work()
    for _ in range(10):
        graphs.run(shape(32), work)
    assert (work.num_launched, len(cuda.graphs)) == (10, 0)


def test_shapes_are_captured_one_at_a_time_in_the_order_in_which_they_came_twice(
    cuda: Cuda, graphs: Graphs[Shape]
) -> None:
    assert not graphs.is_due
    for rows in (32, 64, 96, 96, 64, 96):
        graphs.run(shape(rows), Work())
    captured: list[Shape] = []

    def work_of(due: Shape) -> Work:
        captured.append(due)
        return Work()

    assert [graphs.capture_next(work_of) for _ in range(3)] == [True, True, False]
    assert captured == [shape(96), shape(64)]
    assert not graphs.is_due


def test_a_shape_that_was_captured_ahead_is_replayed_from_the_first_time_on(cuda: Cuda, graphs: Graphs[Shape]) -> None:
    work = Work()
    for _ in range(2):
        graphs.capture(shape(32), work)
    assert (work.num_launched, len(graphs)) == (1, 1)
    run(graphs, 32, 3, work)
    assert work.num_launched == 1
    assert [graph.num_replays for graph in cuda.graphs] == [3]


def test_a_shape_whose_capture_ahead_fails_is_launched_and_not_tried_again(cuda: Cuda, graphs: Graphs[Shape]) -> None:
    cuda.error, work = RuntimeError("operation not permitted"), Work()
    with capture_logs() as logs:
        graphs.capture(shape(32), work)
        graphs.capture(shape(32), work)
        cuda.error = None
        run(graphs, 32, 3, work)
    assert [log["event"] for log in logs] == ["graph_not_captured"]
    assert (work.num_launched, len(graphs), len(cuda.graphs)) == (4, 0, 1)


def test_half_of_the_room_is_left_for_shapes_that_come(
    cuda: Cuda, graphs: Graphs[Shape], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_GRAPHS", 4)
    prepared = []
    for rows in (32, 64, 96):
        prepared.append(graphs.is_prepared)
        graphs.capture(shape(rows), Work())
    assert prepared == [False, False, True]
    run(graphs, 128, 2, Work())
    assert len(graphs) == 4


def test_a_failed_capture_is_logged_once_and_never_tried_again(cuda: Cuda, graphs: Graphs[Shape]) -> None:
    cuda.error, work = RuntimeError("operation not permitted\nwhen a stream is capturing"), Work()
    with capture_logs() as logs:
        run(graphs, 32, 2, work)
        cuda.error = None
        run(graphs, 32, 10, work)
    assert [(log["event"], log["error"]) for log in logs] == [("graph_not_captured", "operation not permitted")]
    assert len(cuda.graphs) == 1
    assert len(graphs) == 0
    assert work.num_launched == 13  # each batch, and the capture that failed
    run(graphs, 64, 2, work)
    assert len(graphs) == 1  # another shape's capture may succeed


def test_all_captures_on_a_device_are_on_one_stream(cuda: Cuda) -> None:
    """cuBLAS keeps a workspace of 32 MiB for each stream that it is captured on."""
    for owner in (Graphs[Shape](torch.device("cpu")), Graphs[Shape](torch.device("cpu"))):
        for rows in (1, 2):
            owner.capture(shape(rows), Work())
    assert len(cuda.streams) == 4
    assert len(set(cuda.streams)) == 1


def test_every_thread_has_its_own_cublas_handle_before_it_captures(cuda: Cuda) -> None:
    graphs: Graphs[Shape] = Graphs(torch.device("cuda", 0))

    def product() -> Tensor:
        if get_ident() not in cuda.blas_threads:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")
        return torch.zeros(1)

    graphs.capture(shape(1), product)
    with ThreadPoolExecutor(1) as other:
        other.submit(graphs.capture, shape(2), product).result(300)
    assert len(graphs) == 2


@pytest.mark.parametrize("error", [RuntimeError(""), ValueError("odd"), torch.OutOfMemoryError("CUDA out of memory.")])
def test_after_a_failed_capture_the_batch_is_launched_on_its_own_stream(
    cuda: Cuda, graphs: Graphs[Shape], error: Exception
) -> None:
    cuda.error, streams = error, []

    def work() -> Tensor:
        streams.append(cuda.stream)
        return torch.zeros(1)

    run(graphs, 32, 3, work)
    assert streams == ["engine's", "engine's", *cuda.streams, "engine's"]


def test_where_captures_fail_before_they_begin_batches_are_launched(cuda: Cuda, graphs: Graphs[Shape]) -> None:
    cuda.is_stuck, work = True, Work()
    for rows in (32, 64):
        run(graphs, rows, 5, work)
    assert work.num_launched == 10
    assert len(graphs) == 0


def test_beyond_the_bound_nothing_is_captured_and_nothing_is_captured_anew(
    cuda: Cuda, graphs: Graphs[Shape], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_GRAPHS", 3)
    work = Work()
    with capture_logs() as logs:
        for _ in range(10):
            for rows in (32, 64, 96, 128, 160):
                run(graphs, rows, 1, work)
    assert [log["event"] for log in logs] == ["graphs_full"]
    assert len(graphs) == len(cuda.graphs) == 3
    assert [graph.num_replays for graph in cuda.graphs] == [8, 8, 8]


def test_captured_memory_is_counted_with_the_drivers_and_bounded(cuda: Cuda, graphs: Graphs[Shape]) -> None:
    cuda.takes_bytes, cuda.driver_bytes = 200 * MIB, 2 * MIB
    for rows in range(32, 32 * 21, 32):
        cuda.cached_bytes += 300 * MIB  # what a capture gives back hides nothing of what it takes
        cuda.free_bytes -= 300 * MIB
        run(graphs, rows, 2, Work())
    assert graphs.held_bytes == 6 * 202 * MIB  # the sixth passed the bound of a GiB
    assert len(graphs) == 6


def test_memory_that_another_process_takes_meanwhile_is_not_the_graphs(cuda: Cuda, graphs: Graphs[Shape]) -> None:
    cuda.takes_bytes, cuda.driver_bytes = MIB, 10 << 30
    run(graphs, 32, 2, Work())
    assert graphs.held_bytes == 5 * MIB


def test_what_a_failed_capture_has_taken_counts(cuda: Cuda, graphs: Graphs[Shape]) -> None:
    cuda.takes_bytes, cuda.error = 7 * MIB, RuntimeError("no")
    run(graphs, 32, 5, Work())
    assert graphs.held_bytes == 7 * MIB
