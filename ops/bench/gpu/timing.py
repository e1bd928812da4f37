"""Timing on the device: events, medians, and contestants in turn."""

import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial

import torch

REPEATS = 20
WARM_UPS = 4  # the engine captures a graph when a shape comes for the second time
_GRAPH_REPLAYS = 25

Work = Callable[[], object]


def interleaved_ms(contestants: Mapping[str, Work], repeats: int = REPEATS) -> dict[str, float]:
    """Median milliseconds of each, by events around a single call on an idle device.

    The first event passes before the call's host work begins, so whatever the device waits for is in the figure.
    """
    samples: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(repeats):
        for name, work in contestants.items():
            samples[name].append(once_ms(work))
    return {name: statistics.median(values) for name, values in samples.items()}


def once_ms(work: Work) -> float:
    """Milliseconds from before the call until the device is idle again."""
    start, end = _event(), _event()
    torch.cuda.synchronize()
    start.record()
    work()
    end.record()
    end.synchronize()
    milliseconds: float = start.elapsed_time(end)
    return milliseconds


def wall_s(work: Work) -> float:
    """Seconds of the host's clock, from before the call until the device is idle again."""
    torch.cuda.synchronize()
    started = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - started


class Recorder:
    """Captures CUDA graphs. One side stream for all, so that cuBLAS has one workspace, made before any capture."""

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def capture(self, work: Work) -> Work:
        """A function that replays `work`, which must only depend on memory that stays where it is."""
        graph = torch.cuda.CUDAGraph()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for _ in range(2):
                work()
            torch.cuda.synchronize()
            # Not torch.cuda.graph: it empties the allocator's cache at every capture.
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                work()
            finally:
                graph.capture_end()
        torch.cuda.current_stream().wait_stream(self._stream)
        return partial(_replay, graph, work)

    def kernel_us(self, work_on: Callable[[int], object], num_sets: int) -> float:
        """Median microseconds of one launch, within a graph of one launch on each of `num_sets` sets of buffers.

        The sets together should exceed the L2 cache, so that every launch finds its input in memory.
        """

        def round_trip() -> None:
            for index in range(num_sets):
                work_on(index)

        replay = self.capture(round_trip)
        for _ in range(3):
            replay()
        return statistics.median(once_ms(replay) for _ in range(_GRAPH_REPLAYS)) * 1e3 / num_sets


def _replay(graph: torch.cuda.CUDAGraph, _work: Work) -> None:
    """Replay a graph. It reads its inputs at fixed addresses, so the unused argument keeps the work alive."""
    graph.replay()


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch leaves it untyped


def num_sets(bytes_per_set: int) -> int:
    """Number of sets of buffers that together exceed the L2 cache four times; at least 4."""
    l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
    return min(128, max(4, -(-4 * l2_bytes // bytes_per_set)))
