"""An engine for any encoder of transformers, which pads each batch to its longest sequence.

It serves architectures that the packed runtime does not know, and is the baseline for packed batches. Its time follows
count * longest, so the partition into batches matters much more than on the packed engine. A batch of more tokens than
a worker's by default is computed in several passes of like lengths, which bounds its memory and its padding.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from penstock.engine.model.results import OWN, POOLINGS, EmbeddingTail, Head
from penstock.engine.types import (
    BatchOutput,
    Float32Array,
    Int32Array,
    ModelInfo,
    PackedBatch,
    TaskOptions,
    require_valid,
)

_PASS_TOKENS = {"cpu": 4096, "cuda": 16_384}  # with padding; no fewer than the most of a worker's batch by default


@dataclass(frozen=True, slots=True)
class _Padded:
    """The model's output for n sequences of at most L tokens."""

    output: Tensor  # hidden states [n, L, H], or logits [n, C] or [n, L, C]
    valid: Tensor  # [n, L] bool: True at tokens, False at padding


class PaddedEngine:
    """Implements `penstock.engine.types.Engine`. Holds no state between batches, so lanes may call `run` at once."""

    def __init__(
        self,
        info: ModelInfo,
        directory: Path,
        model: Any,
        tail: EmbeddingTail,
        heads: Mapping[str, Head],
        threads: int,
    ) -> None:
        """`model`: a transformers model in eval mode; `tail` and `heads` are on its device."""
        self.info = info
        self.directory = directory  # of the checkpoint
        self._model = model
        self._tail = tail
        self._heads = heads
        self._threads = threads
        self._device = model.device
        pad = model.config.pad_token_id
        self._pad_token = pad if isinstance(pad, int) and 0 <= pad < info.vocab_size else 0
        self._takes_types = info.num_token_types != 1 and "token_type_ids" in signature(model.forward).parameters

    @torch.inference_mode()
    def run(self, batch: PackedBatch) -> BatchOutput:
        """See `Engine.run`. Sets the calling thread's torch thread count."""
        if torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)
        started = time.perf_counter()
        require_valid(batch, num_types=None)  # types are checked where the model takes them
        rows: list[Float32Array | None] = [None] * len(batch.options)
        for of_logits in (False, True):
            indices = [i for i, wanted in enumerate(batch.options) if self._reads_logits(wanted) == of_logits]
            for some in passes(np.diff(batch.cu_seqlens), indices, _PASS_TOKENS[self._device.type]):
                self._fill(rows, batch, some, of_logits=of_logits)
        if any(row is None for row in rows):
            raise RuntimeError("a sequence was left without a result. This is a bug.")
        return BatchOutput([row for row in rows if row is not None], time.perf_counter() - started)

    def _reads_logits(self, wanted: TaskOptions) -> bool:
        head = self._heads.get(wanted.task)
        return head is not None and head.reads == "logits"

    def _fill(
        self, rows: list[Float32Array | None], batch: PackedBatch, indices: list[int], *, of_logits: bool
    ) -> None:
        """One pass of the model for these sequences; each distinct option runs the tail once."""
        padded = self._forward(batch, indices, of_logits=of_logits)
        options = [batch.options[index] for index in indices]
        for wanted in dict.fromkeys(options):
            places = [place for place, option in enumerate(options) if option == wanted]
            chosen = padded if len(places) == len(options) else _Padded(padded.output[places], padded.valid[places])
            for place, row in zip(places, self._results(wanted, chosen), strict=True):
                rows[indices[place]] = row

    def _forward(self, batch: PackedBatch, indices: list[int], *, of_logits: bool) -> _Padded:
        bounds = batch.cu_seqlens
        places = [slice(bounds[index], bounds[index + 1]) for index in indices]
        lengths = torch.tensor([place.stop - place.start for place in places])
        valid = torch.arange(int(lengths.max())) < lengths[:, None]
        inputs = {
            "input_ids": self._padded(batch.token_ids, places, valid, self._pad_token),
            "attention_mask": valid.long().to(self._device),
        }
        if batch.token_type_ids is not None and self._takes_types:
            self._check_types(batch.token_type_ids)
            inputs["token_type_ids"] = self._padded(batch.token_type_ids, places, valid, 0)
        if of_logits:
            return _Padded(self._logits(inputs), valid.to(self._device))
        return _Padded(self._model.base_model(**inputs).last_hidden_state, valid.to(self._device))

    def _logits(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """The model's logits. A classifier on an encoder-decoder reads the decoder's state of each text's last end.

        transformers does so too, but refuses texts without one, and of different numbers in one batch.
        """
        if not self._model.config.is_encoder_decoder:
            logits: Tensor = self._model(**inputs).logits
            return logits
        ids, valid = inputs["input_ids"], inputs["attention_mask"].bool()
        is_end = (ids == self._model.config.eos_token_id) & valid
        is_read = torch.where(is_end.any(dim=1, keepdim=True), is_end, valid)
        last = (is_read * torch.arange(ids.shape[1], device=ids.device)).argmax(dim=1)
        states = self._model.base_model(**inputs).last_hidden_state
        logits = self._model.classification_head(states[torch.arange(len(ids), device=ids.device), last])
        return logits

    def _padded(self, values: Int32Array, places: Sequence[slice], valid: Tensor, fill: int) -> Tensor:
        """[n, L] on the device."""
        padded = torch.full(valid.shape, fill)
        padded[valid] = torch.from_numpy(np.concatenate([values[place] for place in places])).long()
        return padded.to(self._device)

    def _check_types(self, types: Int32Array) -> None:
        """Raise ValueError for types beyond the table, which would make a GPU unusable for the process."""
        num_types = self.info.num_token_types
        if num_types is not None and not 0 <= types.min() <= types.max() < num_types:
            raise ValueError(f"token types must lie in [0, {num_types}); found {types.min()} to {types.max()}.")

    def _results(self, wanted: TaskOptions, padded: _Padded) -> Sequence[Float32Array]:
        """One array a sequence."""
        if wanted.task == "embed":
            return list(self._embeddings(padded, wanted).cpu().numpy())
        head = self._heads.get(wanted.task)
        match head:
            case Head(reads="embedding"):
                return list(head(self._embeddings(padded, OWN)).cpu().numpy())
            case Head(reads="last"):
                return list(head(_pool(padded, "last", 0)).cpu().numpy())
            case Head(reads="logits") if padded.output.ndim == 2:
                return list(head(padded.output.float()).cpu().numpy())
            case Head(reads="logits"):
                scores = head(padded.output[padded.valid].float()).cpu().numpy()
                return np.split(scores, padded.valid.sum(dim=1).cumsum(dim=0)[:-1].tolist())
            case _:
                raise ValueError(f"task {wanted.task!r} is not one of {sorted(self.info.tasks)}.")

    def _embeddings(self, padded: _Padded, wanted: TaskOptions) -> Tensor:
        pooled = _pool(padded, wanted.pooling or self._tail.pooling, wanted.prompt_tokens)
        return self._tail.after_pooling(pooled, wanted)


def passes(lengths: Int32Array, indices: Sequence[int], most_tokens: int) -> list[list[int]]:
    """The sequences `indices` in passes of at most `most_tokens` with padding, a longer sequence alone.

    lengths: of all sequences. What fits into one pass stays in order; else passes are of like lengths.
    """
    if not indices or len(indices) * lengths[indices].max() <= most_tokens:
        return [list(indices)] if indices else []
    filled: list[list[int]] = [[]]
    for index in sorted(indices, key=lengths.__getitem__):
        if filled[-1] and (len(filled[-1]) + 1) * lengths[index] > most_tokens:
            filled.append([])
        filled[-1].append(index)
    return filled


def _pool(padded: _Padded, pooling: str, left_out: int) -> Tensor:
    """float32 rows [n, H]; `penstock.engine.model.results.pool` is the same for packed hidden states."""
    hidden, lengths = padded.output, padded.valid.sum(dim=1)
    rows, first = torch.arange(len(hidden), device=hidden.device), (lengths - 1).clamp(max=left_out)
    pooled = padded.valid & (torch.arange(hidden.shape[1], device=hidden.device) >= first[:, None])
    match pooling:
        case "cls":
            return hidden[rows, first].float()
        case "last":
            return hidden[rows, lengths - 1].float()
        case "mean":
            total = torch.where(pooled[..., None], hidden, 0).sum(dim=1, dtype=torch.float32)
            return total / (lengths - first)[:, None]
        case "max":
            return hidden.masked_fill(~pooled[..., None], -torch.inf).amax(dim=1).float()
        case _:
            raise ValueError(f"pooling {pooling!r} is not one of {sorted(POOLINGS)}.")
