"""Fakes of the torch.cuda functions that the engine uses: streams do nothing, events are complete at once."""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch

from penstock.engine.gpu import pinned
from penstock.engine.memory.lifetimes import ALIGNMENT


class FakeStream:
    """Remembers what it waited for."""

    def __init__(self, device: Any = None) -> None:
        self.waited_for: list[FakeStream] = []
        self.num_synchronized = 0

    def wait_stream(self, other: "FakeStream") -> None:
        self.waited_for.append(other)

    def synchronize(self) -> None:
        self.num_synchronized += 1


class FakeEvent:
    def __init__(self, enable_timing: bool = False, blocking: bool = False) -> None:
        self.error: RuntimeError | None = None
        self.is_blocking = blocking

    def record(self, stream: Any = None) -> None:
        pass

    def synchronize(self) -> None:
        if self.error is not None:
            raise self.error

    def elapsed_time(self, other: "FakeEvent") -> float:
        return 1.0


class FakeCuda:
    """broken, refused: what synchronising and giving back raise from now on.

    most_bytes: larger tensors of bytes are out of memory.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.broken: RuntimeError | None = None
        self.refused: RuntimeError | None = None
        self.most_bytes = 1 << 40
        self.num_emptied = 0
        self.num_pinned = 0  # tensors in pinned memory
        self.on_emptied: Callable[[], None] = lambda: None
        self.stream = self.default_stream = FakeStream()
        self._empty = torch.empty
        for name, part in {
            "Stream": FakeStream,
            "Event": FakeEvent,
            "stream": self._using,
            "set_stream": lambda stream: setattr(self, "stream", stream),
            "device": nullcontext,
            "current_stream": lambda device=None: self.stream,
            "synchronize": self._synchronize,
            "empty_cache": self._empty_cache,
            "graph_pool_handle": lambda: (0, 1),
        }.items():
            monkeypatch.setattr(torch.cuda, name, part)
        monkeypatch.setattr(torch, "empty", self._allocate)
        monkeypatch.setattr(pinned, "copy_to_device", lambda to, start, size, device: ctypes.memmove(to, start, size))

    @contextmanager
    def _using(self, stream: FakeStream) -> Iterator[None]:
        before, self.stream = self.stream, stream
        try:
            yield
        finally:
            self.stream = before

    def _synchronize(self, device: Any = None) -> None:
        if self.broken is not None:
            raise self.broken

    def _empty_cache(self) -> None:
        if self.refused is not None:
            raise self.refused
        self.num_emptied += 1
        self.on_emptied()

    def _allocate(self, *size: Any, pin_memory: bool = False, **more: Any) -> torch.Tensor:
        """Nothing is really pinned; chunks of bytes are aligned as cudaMalloc's are."""
        self.num_pinned += pin_memory
        if more.get("dtype") is not torch.uint8:
            return self._empty(*size, **more)
        (num_bytes,) = size
        if num_bytes > self.most_bytes:
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {num_bytes} bytes.")
        memory = self._empty(num_bytes + ALIGNMENT, **more)
        return memory[-memory.data_ptr() % ALIGNMENT :][:num_bytes]
