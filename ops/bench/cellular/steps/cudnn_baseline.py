"""nn.LSTM on whole sentences: sorted and packed offline, and padded with length buckets. On a GPU, cuDNN's."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from penstock.ops.bench.cellular.steps.closed_loop import Sentences
from penstock.ops.bench.cellular.workloads.lstm_models import LstmModel

_BUCKET = 10  # tokens: the paper's bucket width
_SMALLER = 128  # rows for which cuDNN has its persistent kernels
_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class _Batch:
    """Token ids on the device, packed by time step, or padded: [B, L]."""

    tokens: Tensor
    batch_sizes: Tensor | None  # of packed steps, on the host


def sorted_requests_per_s(model: LstmModel, sentences: Sentences, rows: int) -> dict[str, float]:
    """Batches of sentences sorted by length and packed. Tokens are on the device already; embeddings are timed."""
    order = np.argsort(-sentences.lengths, kind="stable")
    groups = [order[first : first + rows] for first in range(0, len(order), rows)]
    batches = [_packed(sentences, group, model.words.device) for group in groups]
    return {"requests_per_s": len(order) / _best_s(model, lambda: _run_all(model, batches)), "batches": len(batches)}


def padded_requests_per_s(model: LstmModel, sentences: Sentences, rows: int) -> dict[str, float]:
    """Batches from buckets of 10 tokens, padded to the bucket's end, for `rows` and 128 rows. As above otherwise."""
    figures = {}
    for size in sorted({rows, min(_SMALLER, rows)}):
        batches = [_padded(sentences, group, model.words.device) for group in _bucketed(sentences, size)]
        seconds = _best_s(model, lambda batches=batches: _run_all(model, batches))  # type: ignore[misc]  # bound now
        figures[f"requests_per_s_{size}_rows"] = len(sentences.lengths) / seconds
    return figures


def _bucketed(sentences: Sentences, rows: int) -> list[np.ndarray[tuple[int, ...], np.dtype[np.int64]]]:
    buckets = -(-sentences.lengths // _BUCKET)
    members = [np.flatnonzero(buckets == bucket) for bucket in np.unique(buckets)]
    return [own[first : first + rows] for own in members for first in range(0, len(own), rows)]


def _packed(
    sentences: Sentences, group: np.ndarray[tuple[int, ...], np.dtype[np.int64]], device: torch.device
) -> _Batch:
    """Longest first, as cuDNN takes them."""
    lengths = sentences.lengths[group]
    sizes = (lengths[None] > np.arange(lengths[0])[:, None]).sum(1)
    positions = [sentences.starts[group[:size]] + step for step, size in enumerate(sizes)]
    tokens = sentences.tokens[np.concatenate(positions)]
    return _Batch(torch.from_numpy(tokens).to(device), torch.from_numpy(sizes))


def _padded(
    sentences: Sentences, group: np.ndarray[tuple[int, ...], np.dtype[np.int64]], device: torch.device
) -> _Batch:
    """Padded with whatever tokens follow: their results are not read."""
    longest = -(-int(sentences.lengths[group].max()) // _BUCKET) * _BUCKET
    at = np.minimum(sentences.starts[group][:, None] + np.arange(longest), len(sentences.tokens) - 1)
    return _Batch(torch.from_numpy(sentences.tokens[at]).to(device), None)


def _run_all(model: LstmModel, batches: list[_Batch]) -> None:
    for batch in batches:
        embedded = torch.nn.functional.embedding(batch.tokens, model.words)
        if batch.batch_sizes is None:
            model.module(embedded)
        else:
            model.module(PackedSequence(embedded, batch.batch_sizes))


def _best_s(model: LstmModel, work: Callable[[], None]) -> float:
    """Seconds of the fastest of three rounds after one to warm up."""
    seconds = []
    for _ in range(1 + _ROUNDS):
        _wait(model)
        started = time.perf_counter()
        work()
        _wait(model)
        seconds.append(time.perf_counter() - started)
    return min(seconds[1:])


def _wait(model: LstmModel) -> None:
    if model.words.is_cuda:
        torch.cuda.synchronize()
