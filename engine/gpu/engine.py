"""The engine on a GPU: batches queued on one stream, one ahead of the other, rows fetched when they are there."""

import contextlib
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import NoReturn

import numpy as np
import torch
from torch import Tensor

from penstock.engine.errors import DeviceFailed
from penstock.engine.gpu.buckets import likely_batches
from penstock.engine.gpu.encoder import GpuEncoder
from penstock.engine.gpu.inputs import Inputs
from penstock.engine.gpu.memory import give_back
from penstock.engine.kernels.pool import pool
from penstock.engine.model.heads import Head
from penstock.engine.model.pooling import OWN, EmbeddingTail
from penstock.engine.types import BatchOutput, Float32Array, ModelInfo, PackedBatch, TaskOptions

_TRIM_EVERY = 4096  # batches
_EMBED = (TaskOptions("embed"),)
# Most tokens of a sequence, and at least so many in all, for every kind of kernel: products of few rows, of some and of
# many; attention of short sequences and of long ones, where those are few and where they fill the device.
_WARM_UPS = ((8, 32), (64, 320), (64, 1280), (300, 2400), (300, 3300))
# torch's allocator raises a type of its own; the driver, cuBLAS, cuDNN and torch's pinned memory have only words.
_OUT_OF_MEMORY = re.compile(r"out[ _]of[ _]memory|ALLOC_FAILED|MemoryAllocation", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Encoded:
    """Hidden states, and where the sequences lie in them. Both are overwritten by the next batch on the same stream."""

    hidden: Tensor  # [rows, H], at least as many rows as the batch has tokens
    inputs: Inputs


@dataclass(frozen=True, slots=True)
class _Fetched:
    """One option's results on their way to the host."""

    wanted: TaskOptions
    rows: Tensor  # pinned, a row a sequence or a token; filled once the batch's `ended` has come
    of_tokens: bool


class GpuEngine:
    """Implements `penstock.engine.types.PipelinedEngine`. One thread calls it: the only one that uses the device."""

    def __init__(
        self, info: ModelInfo, directory: Path, encoder: GpuEncoder, tail: EmbeddingTail, heads: Mapping[str, Head]
    ) -> None:
        """`tail` and `heads` lie on the encoder's device."""
        self.info = info
        self.directory = directory  # tokenizer.json lies here
        self._encoder = encoder
        self._tail = tail
        self._heads = heads
        self._stream: torch.cuda.Stream = torch.cuda.Stream(encoder.device)  # type: ignore[no-untyped-call]  # torch
        # Weights were prepared on the current stream, and nothing else makes this one wait for that.
        self._stream.wait_stream(torch.cuda.current_stream(encoder.device))
        self._failure: str | None = None
        self._num_batches = 0

    def warm_up(self) -> None:
        """Run a batch for every kind of kernel, and with every head: what a kernel's first launch costs is paid here.

        That is seconds where none was compiled on this machine before. Called at load, before the first batch. Raises
        what `run` raises.
        """
        options = [TaskOptions(task) for task in sorted(self.info.tasks)]
        for most, rows in _WARM_UPS:
            length = min(most, self.info.max_tokens)
            self.run(_blank([length] * -(-rows // length), options))

    @torch.inference_mode()
    def prepare(self, *, max_sequences: int, max_tokens: int, budget_s: float) -> None:
        """See `PreparedEngine.prepare`: captures the graphs of likely batches, up to `max_tokens` in all."""
        until = time.perf_counter() + budget_s
        try:
            with torch.cuda.stream(self._stream):
                for lengths in likely_batches(max_tokens, self.info.max_tokens):
                    if time.perf_counter() > until:
                        break
                    if len(lengths) <= max_sequences and not self._encoder.prepare(_blank(lengths, _EMBED)):
                        break
        except RuntimeError as error:
            self._raise(error)

    def run(self, batch: PackedBatch) -> BatchOutput:
        """See `Engine.run`."""
        return self.start(batch).result()

    @torch.inference_mode()
    def start(self, batch: PackedBatch) -> "RunningBatch":
        """See `PipelinedEngine.start`. Raises DeviceFailed from the device's first failure on."""
        if self._failure is not None:
            raise DeviceFailed(self._failure)
        try:
            with torch.cuda.stream(self._stream):
                return self._start(batch)
        except RuntimeError as error:
            self._raise(error)

    @torch.inference_mode()
    def rest(self) -> None:
        """Called by the lane when nothing has come for a while and nothing is underway: memory goes back."""
        if self._failure is None:
            # Whatever is wrong with the device, the next batch hears of it, and there is nobody here who could.
            with contextlib.suppress(RuntimeError), torch.cuda.stream(self._stream):
                self._trim()

    def _trim(self) -> None:
        self._stream.synchronize()
        self._encoder.trim()

    def _start(self, batch: PackedBatch) -> "RunningBatch":
        self._num_batches += 1
        if self._num_batches % _TRIM_EVERY == 0:
            self._trim()
        started, ended = _event(), _event()
        inputs = self._encoder.upload(batch)
        started.record()  # not before: while nothing else is underway, the device waits for the host's description
        encoded = _Encoded(self._encoder.forward(inputs), inputs)
        fetched = [self._fetch(encoded, batch, wanted) for wanted in dict.fromkeys(batch.options)]
        ended.record()
        return RunningBatch(self, batch, fetched, started, ended)

    def _fetch(self, encoded: _Encoded, batch: PackedBatch, wanted: TaskOptions) -> _Fetched:
        rows = self._rows(encoded, batch, wanted)
        pinned = torch.empty(rows.shape, dtype=torch.float32, pin_memory=True)
        pinned.copy_(rows, non_blocking=True)
        head = self._heads.get(wanted.task)
        return _Fetched(wanted, pinned, head is not None and head.reads == "tokens")

    def _rows(self, encoded: _Encoded, batch: PackedBatch, wanted: TaskOptions) -> Tensor:
        """float32, one row a sequence, or with a head that reads tokens one a token."""
        if wanted.task == "embed":
            return self._embeddings(encoded, batch, wanted)
        head = self._heads.get(wanted.task)
        match head:
            case Head(reads="embedding"):
                return head(self._embeddings(encoded, batch, OWN))
            case Head(reads="cls" | "mean" as pooling):
                return head(self._pooled(encoded, batch, pooling, normalize=False))
            case Head(reads="tokens"):
                return head(encoded.hidden[: len(batch.token_ids)].float())
            case _:
                raise ValueError(f"task {wanted.task!r} is not one of {sorted(self.info.tasks)}.")

    def _embeddings(self, encoded: _Encoded, batch: PackedBatch, wanted: TaskOptions) -> Tensor:
        tail = self._tail
        pooling, is_last = wanted.pooling or tail.pooling, tail.only_pools(wanted)
        rows = self._pooled(encoded, batch, pooling, normalize=is_last and tail.normalizes(wanted))
        return rows if is_last else tail.after_pooling(rows, wanted)

    @staticmethod
    def _pooled(encoded: _Encoded, batch: PackedBatch, pooling: str, *, normalize: bool) -> Tensor:
        hidden, num_sequences = encoded.hidden, len(batch.options)
        rows = torch.empty(num_sequences, hidden.shape[1], dtype=torch.float32, device=hidden.device)
        pool(rows, hidden, encoded.inputs.cu_seqlens[: num_sequences + 1], pooling, normalize=normalize)
        return rows

    def _raise(self, error: RuntimeError) -> NoReturn:
        """What became of a batch, as its caller should see it.

        Memory that ran out, in whatever words, is OutOfMemoryError: the caller runs the batch again in halves. After
        any other error the device is asked whether it still answers. If not, all use of it ends with DeviceFailed; if
        it does, the error is the batch's own.
        """
        if isinstance(error, torch.OutOfMemoryError) or _OUT_OF_MEMORY.search(str(error)):
            give_back()
            raise torch.OutOfMemoryError(str(error)) from error
        try:
            torch.cuda.synchronize(self._encoder.device)
        except RuntimeError as lasting:
            said = str(lasting).partition("\n")[0]
            self._failure = f"the device failed, and this process can use it no more: {said}"
            raise DeviceFailed(self._failure) from error
        raise error


class RunningBatch:
    """A batch that the device works on."""

    def __init__(
        self,
        engine: GpuEngine,
        batch: PackedBatch,
        fetched: Sequence[_Fetched],
        started: torch.cuda.Event,
        ended: torch.cuda.Event,
    ) -> None:
        self._engine = engine
        self._batch = batch
        self._fetched = fetched
        self._started = started
        self._ended = ended

    def ready(self) -> bool:
        """Whether `result` would return, or raise, at once."""
        try:
            return bool(self._ended.query())  # type: ignore[no-untyped-call]  # torch
        except RuntimeError:
            return True

    def result(self) -> BatchOutput:
        """Wait for the device. Raises DeviceFailed."""
        try:
            self._ended.synchronize()
        except RuntimeError as error:
            self._engine._raise(error)
        rows = {fetched.wanted: self._by_sequence(fetched) for fetched in self._fetched}
        results = [rows[wanted][index] for index, wanted in enumerate(self._batch.options)]
        return BatchOutput(rows=results, device_s=self._started.elapsed_time(self._ended) / 1e3)

    def _by_sequence(self, fetched: _Fetched) -> Sequence[Float32Array]:
        rows: Float32Array = fetched.rows.numpy().copy()
        return np.split(rows, self._batch.cu_seqlens[1:-1]) if fetched.of_tokens else list(rows)


def _blank(lengths: Sequence[int], options: Sequence[TaskOptions]) -> PackedBatch:
    """Sequences of token 0, with each of the options in turn."""
    ends = np.cumsum((0, *lengths), dtype=np.int32)
    wanted = tuple(islice(cycle(options), len(lengths)))
    return PackedBatch(np.zeros(ends[-1], np.int32), ends, max(lengths), None, wanted)


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch
