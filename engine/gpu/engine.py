"""The engine on a GPU: batches queued on one stream, rows copied back asynchronously."""

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from penstock.engine.device_share import DeviceShare
from penstock.engine.errors import InvalidBatch
from penstock.engine.gpu.buckets import likely_batches
from penstock.engine.gpu.encoder import GpuEncoder
from penstock.engine.gpu.faults import DeviceFaults
from penstock.engine.gpu.inputs import Inputs
from penstock.engine.gpu.pinned import Landing, Landings
from penstock.engine.kernels.pool import pool
from penstock.engine.model.results import OWN, EmbeddingTail, Head
from penstock.engine.model.vectors import VectorHead, unattended_in
from penstock.engine.types import BatchOutput, Float32Array, ModelInfo, PackedBatch, TaskOptions

# Without a batch. Memory that is returned under load holds up every process of the device; batch caps bound it.
_TRIM_AFTER_S = 30.0
# The most tokens of a batch for which a thread spins. It takes the device less than a millisecond, and on a virtual
# machine a thread that sleeps wakes 0.1 to 0.5 ms late.
_BRIEF_TOKENS = 512
_EMBED = (TaskOptions("embed"),)
# Tokens of the longest sequence, and the least tokens in all, of batches that need every kind of kernel: products of
# few, some and many rows; attention of short and of longer sequences, both few and enough to fill the device; and of
# sequences that are long whatever the heads.
_WARM_UPS = ((8, 32), (64, 320), (64, 1280), (64, 3300), (200, 600), (200, 2400), (200, 3300), (600, 3300))

_Part = tuple[TaskOptions, int]  # one of the tensors that are computed for the sequences of equal options


@dataclass(frozen=True, slots=True)
class _Encoded:
    """A batch's hidden states and description. The next batch on the stream overwrites both."""

    hidden: Tensor  # [rows, H], at least as many rows as the batch has tokens
    inputs: Inputs


class GpuEngine:
    """Implements `penstock.engine.types.PipelinedEngine`. One thread calls it; another may wait for what it started."""

    def __init__(
        self,
        info: ModelInfo,
        directory: Path,
        encoder: GpuEncoder,
        tail: EmbeddingTail,
        heads: Mapping[str, Head | VectorHead],
    ) -> None:
        """`tail` and `heads` lie on the encoder's device."""
        self.info = info
        self.directory = directory  # of the checkpoint
        self._encoder = encoder
        self._tail = tail
        self._heads = heads
        self._unattended = unattended_in(heads)
        self._stream: torch.cuda.Stream = torch.cuda.Stream(encoder.device)  # type: ignore[no-untyped-call]  # torch
        # Weights were prepared on the current stream; nothing else orders this one after it.
        self._stream.wait_stream(torch.cuda.current_stream(encoder.device))
        self._landings = Landings()
        self._faults = DeviceFaults(lambda: torch.cuda.synchronize(encoder.device))
        self._trim_at = time.monotonic() + _TRIM_AFTER_S

    def warm_up(self) -> None:
        """Run a batch for every kind of kernel and every head, so that no request waits for a kernel's compilation.

        Takes seconds where no kernel was compiled on this machine before. Called at load. Raises as `run` does.
        """
        options = [TaskOptions(task) for task in sorted(self.info.tasks)]
        for most, rows in _WARM_UPS:
            length = min(most, self.info.max_tokens)
            self.run(_blank([length] * -(-rows // length), options))

    @torch.inference_mode()
    def prepare(self, share: DeviceShare, *, max_sequences: int, max_tokens: int, budget_s: float) -> None:
        """See `PreparedEngine.prepare`: captures the graphs of likely batches."""
        until = time.perf_counter() - share.rested_s + budget_s
        with self._faults.sorted(), torch.cuda.stream(self._stream):
            for lengths in likely_batches(max_tokens, self.info.max_tokens):
                if time.perf_counter() - share.rested_s > until:
                    break
                if len(lengths) <= max_sequences and not self._encoder.prepare(_blank(lengths, _EMBED), share):
                    break

    def run(self, batch: PackedBatch) -> BatchOutput:
        """See `Engine.run`. Called without lanes, so graphs are captured here, after the batch."""
        with torch.cuda.stream(self._stream):
            output = self.start(batch).result()
        self._capture_next()
        return output

    @torch.inference_mode()
    def start(self, batch: PackedBatch) -> "RunningBatch":
        """See `PipelinedEngine.start`. Raises InvalidBatch, and DeviceFailed from the device's first failure on.

        Leaves the engine's stream the calling thread's current one: a switch there and back costs every batch time.
        """
        self._faults.require_sound()
        if self._unattended is not None and self._unattended.attended(batch) is not None:
            raise InvalidBatch(
                "This model's queries are filled up with tokens that are not attended to. No kernel leaves them out. "
                "Documents are answered on a GPU; serve queries with device='cpu'."
            )
        try:
            torch.cuda.set_stream(self._stream)
            return self._start(batch)
        except RuntimeError as error:
            self._faults.sort(error)

    @torch.inference_mode()
    def idle(self) -> float | None:
        """See `PipelinedEngine.idle`: captures one graph; with none due, releases memory after some time of rest."""
        if self._faults.has_failed:
            return None
        # Errors of the device appear again in the next batch, which has a caller to raise them to.
        with contextlib.suppress(RuntimeError):
            if self._capture_next():
                return 0.0
            if time.monotonic() >= self._trim_at:
                self._trim_at = time.monotonic() + _TRIM_AFTER_S
                with torch.cuda.stream(self._stream):
                    self._trim()
        return max(0.0, self._trim_at - time.monotonic())

    @torch.inference_mode()
    def _capture_next(self) -> bool:
        if not self._encoder.is_capture_due:  # the usual case, at little cost
            return False
        with torch.cuda.stream(self._stream):
            return self._encoder.capture_next()

    def _trim(self) -> None:
        self._stream.synchronize()
        self._landings.clear()
        self._encoder.trim()

    def _start(self, batch: PackedBatch) -> "RunningBatch":
        self._trim_at = time.monotonic() + _TRIM_AFTER_S
        landing = self._landings.take()
        inputs = self._encoder.upload(batch)
        landing.started.record(self._stream)  # behind the upload: an idle device waits for the host's description
        encoded = _Encoded(self._encoder.forward(inputs), inputs)
        computed = {wanted: self._computed(encoded, batch, wanted) for wanted in _distinct(batch.options)}
        fetched = landing.fetch({(one, i): part for one, parts in computed.items() for i, part in enumerate(parts)})
        landing.end(self._stream, is_brief=len(batch.token_ids) <= _BRIEF_TOKENS)
        return RunningBatch(self, batch, fetched, landing)

    def _output(self, batch: PackedBatch, fetched: Mapping[_Part, Tensor], device_s: float) -> BatchOutput:
        """Copies of the results in the order of the batch's sequences."""
        parts: dict[TaskOptions, list[Float32Array]] = {}
        for (wanted, _), pinned in fetched.items():
            parts.setdefault(wanted, []).append(pinned.numpy().copy())
        blocks = [block for some in parts.values() for block in some]
        rows = {wanted: self._rows(batch, wanted, some) for wanted, some in parts.items()}
        if len(rows) == 1:  # the usual case, without a look at every option
            return BatchOutput(list(*rows.values()), device_s, blocks)
        return BatchOutput([rows[wanted][index] for index, wanted in enumerate(batch.options)], device_s, blocks)

    def _rows(self, batch: PackedBatch, wanted: TaskOptions, parts: Sequence[Float32Array]) -> Sequence[Float32Array]:
        """One array a sequence, of what `_computed` gave."""
        head = self._heads.get(wanted.task)
        match head:
            case Head(reads="tokens"):
                return np.split(parts[0], batch.cu_seqlens[1:-1])
            case Head() | None:
                return list(parts[0])
            case _:
                return head.rows(parts, batch.token_ids, np.diff(batch.cu_seqlens))

    def _computed(self, encoded: _Encoded, batch: PackedBatch, wanted: TaskOptions) -> tuple[Tensor, ...]:
        """float32 rows: one for each sequence, or for each token if the head reads tokens; or what a head computes."""
        if wanted.task == "embed" and "embed" in self.info.tasks:
            return (self._embeddings(encoded, batch, wanted),)
        head = self._heads.get(wanted.task)
        match head:
            case Head(reads="embedding"):
                return (head(self._embeddings(encoded, batch, OWN)),)
            case Head(reads="cls" | "mean" as pooling):
                return (head(self._pooled(encoded, batch, pooling, normalize=False)),)
            case Head(reads="last"):
                return (head(self._last(encoded, batch, head.pad_token)),)
            case Head(reads="tokens"):
                return (head(encoded.hidden[: len(batch.token_ids)].float()),)
            case Head() | None:
                raise ValueError(f"task {wanted.task!r} is not one of {sorted(self.info.tasks)}.")
            case _:
                hidden, bounds = encoded.hidden[: len(batch.token_ids)], encoded.inputs.cu_seqlens
                lengths = bounds[: len(batch.options) + 1].diff()
                return head.compute(hidden, lengths, lambda: self._embeddings(encoded, batch, OWN))

    def _embeddings(self, encoded: _Encoded, batch: PackedBatch, wanted: TaskOptions) -> Tensor:
        tail = self._tail
        pooling, is_last = wanted.pooling or tail.pooling, tail.only_pools(wanted)
        normalize = is_last and tail.normalizes(wanted)
        rows = self._pooled(encoded, batch, pooling, normalize=normalize, left_out=wanted.prompt_tokens)
        return rows if is_last else tail.after_pooling(rows, wanted)

    def _last(self, encoded: _Encoded, batch: PackedBatch, pad_token: int | None) -> Tensor:
        """As `pool_last` on a CPU. Almost no text ends in the pad token; where one does, its row is looked for here."""
        ids, starts, ends = batch.token_ids, batch.cu_seqlens[:-1], batch.cu_seqlens[1:]
        if pad_token is None or not (ids[ends - 1] == pad_token).any():
            return self._pooled(encoded, batch, "last", normalize=False)
        last = np.maximum.reduceat(np.where(ids == pad_token, 0, np.arange(len(ids))), starts)
        rows = torch.from_numpy(np.maximum(last, starts)).to(encoded.hidden.device)
        return encoded.hidden[rows].float()

    @staticmethod
    def _pooled(encoded: _Encoded, batch: PackedBatch, pooling: str, *, normalize: bool, left_out: int = 0) -> Tensor:
        hidden, num_sequences = encoded.hidden, len(batch.options)
        rows = torch.empty(num_sequences, hidden.shape[1], dtype=torch.float32, device=hidden.device)
        bounds = encoded.inputs.cu_seqlens[: num_sequences + 1]
        pool(rows, hidden, bounds, pooling, normalize=normalize, left_out=left_out)
        return rows


@dataclass(frozen=True, slots=True)
class RunningBatch:
    """A batch that the device works on."""

    _engine: GpuEngine
    _batch: PackedBatch
    _fetched: Mapping[_Part, Tensor]  # what each option's head computed, in `_landing`; filled once its end has come
    _landing: Landing

    def result(self) -> BatchOutput:
        """See `Running.result`. Waits without the GIL; sleeps unless the batch is brief. Raises DeviceFailed."""
        device_s = self._landing.wait(self._engine._faults)
        output = self._engine._output(self._batch, self._fetched, device_s)
        self._engine._landings.put(self._landing)
        return output


def _distinct(options: Sequence[TaskOptions]) -> Sequence[TaskOptions]:
    """The different options of a batch. Usually all are one object, which `count` compares without hashing any."""
    return options[:1] if options.count(options[0]) == len(options) else list(dict.fromkeys(options))


def _blank(lengths: Sequence[int], options: Sequence[TaskOptions]) -> PackedBatch:
    """Sequences of token 0, with each of the options in turn."""
    ends = np.cumsum((0, *lengths), dtype=np.int32)
    wanted = tuple(islice(cycle(options), len(lengths)))
    return PackedBatch(np.zeros(ends[-1], np.int32), ends, max(lengths), None, wanted)
