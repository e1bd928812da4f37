"""The engine on CPU."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from penstock.engine.cpu.linear import Linear
from penstock.engine.cpu.ops import encode_on_cpu
from penstock.engine.model.layout import Layout, sort_by_length
from penstock.engine.model.results import EmbeddingTail, Head, apply_layers, pool, pool_end, pool_last
from penstock.engine.model.vectors import VectorHead, unattended_in
from penstock.engine.model.weights import Encoder
from penstock.engine.types import BatchOutput, Float32Array, ModelInfo, PackedBatch, TaskOptions


class CpuEngine:
    """Implements `penstock.engine.types.Engine`. Holds no state between batches, so lanes may call `run` at once."""

    def __init__(
        self,
        info: ModelInfo,
        directory: Path,
        encoder: Encoder[Linear],
        dtype: torch.dtype,
        tail: EmbeddingTail,
        heads: Mapping[str, Head | VectorHead],
        threads: int,
    ) -> None:
        self._info = info
        self.directory = directory  # of the checkpoint
        self._encoder = encoder
        self._dtype = dtype
        self._tail = tail
        self._heads = heads
        self._threads = threads
        self._unattended = unattended_in(heads)

    @property
    def info(self) -> ModelInfo:
        return self._info

    @torch.inference_mode()
    def run(self, batch: PackedBatch) -> BatchOutput:
        """See `Engine.run`. Sets the calling thread's torch thread count."""
        if torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)
        started = time.perf_counter()
        layout = sort_by_length(
            batch.cu_seqlens, None if self._unattended is None else self._unattended.attended(batch)
        )
        hidden = encode_on_cpu(self._encoder, batch, layout, self._dtype)
        rows = self._rows(hidden, layout, batch)
        return BatchOutput(rows=rows, device_s=time.perf_counter() - started)

    def _rows(self, hidden: Tensor, layout: Layout, batch: PackedBatch) -> list[Float32Array]:
        """One array a sequence, in the batch's order. Each distinct option runs the tail once."""
        options = batch.options
        rows: list[Float32Array | None] = [None] * len(options)
        for wanted in set(options):
            results = self._tail_of(wanted, batch)(hidden, layout)
            for place, index in enumerate(layout.order.tolist()):
                if options[index] == wanted:
                    rows[index] = results[place].numpy()
        if any(row is None for row in rows):
            raise RuntimeError("a sequence was left without a result. This is a bug.")
        return [row for row in rows if row is not None]

    def _tail_of(self, wanted: TaskOptions, batch: PackedBatch) -> Callable[[Tensor, Layout], Sequence[Tensor]]:
        """The function from hidden states to one result a sequence, in the layout's order."""
        if wanted.task == "embed" and "embed" in self._info.tasks:
            return lambda hidden, layout: self._tail(hidden, layout.groups, wanted).unbind()
        head = self._heads.get(wanted.task)
        match head:
            case Head(reads="embedding"):
                return lambda hidden, layout: head(self._tail(hidden, layout.groups)).unbind()
            case Head(reads="cls" | "mean" as pooling):
                return lambda hidden, layout: head(pool(hidden, layout.groups, pooling)).unbind()
            case Head(reads="last"):
                return lambda hidden, layout: head(
                    pool_last(hidden, layout.groups, torch.from_numpy(batch.token_ids[layout.tokens]), head.pad_token)
                ).unbind()
            case Head(reads="end"):
                return lambda hidden, layout: head(
                    pool_end(hidden, layout.groups, torch.from_numpy(batch.token_ids[layout.tokens]), head.end_token)
                ).unbind()
            case Head(reads="late"):
                return lambda hidden, layout: head.of_logits(
                    pool(apply_layers(hidden.float(), head.layers), layout.groups, "mean")
                ).unbind()
            case Head(reads="tokens"):
                return lambda hidden, layout: torch.split(head(hidden[: layout.num_tokens].float()), layout.lengths)
            case Head() | None:
                raise ValueError(f"task {wanted.task!r} is not one of {sorted(self._info.tasks)}.")
            case _:
                return lambda hidden, layout: self._vectors(head, hidden, layout, batch)

    def _vectors(self, head: VectorHead, hidden: Tensor, layout: Layout, batch: PackedBatch) -> list[Tensor]:
        """Rows of a head of several vectors, in the layout's order."""
        lengths, ids = np.array(layout.lengths, np.int32), batch.token_ids[layout.tokens[: layout.num_tokens]]
        computed = head.compute(
            hidden[: layout.num_tokens], torch.from_numpy(lengths), lambda: self._tail(hidden, layout.groups)
        )
        rows = head.rows([part.numpy() for part in computed], ids, lengths)
        return [torch.from_numpy(row) for row in rows]
