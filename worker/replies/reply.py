"""The reply to a complete request: vectors and scores of pairs as they are, other scores as labels."""

from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.engine.types import Float32Array, ModelInfo
from penstock.producer.wire.messages import Classification, Reply, TokenTable
from penstock.worker.batching.batch import BatchStats
from penstock.worker.requests.request import PendingRequest, Results


def make_reply(request: PendingRequest, info: ModelInfo) -> Reply:
    """The reply with the results of all sequences, in the request's order."""
    results = [result for result in request.results if result is not None]
    if len(results) != len(request.results):
        raise RuntimeError("A reply was made before all results were there. This is a bug.")
    return Reply(
        model=info.name,
        revision=info.revision,
        cached=request.num_cached,
        timing=request.timing_ms,
        batch=request.batch,
        **_content(request, info, results),
    )


def _content(request: PendingRequest, info: ModelInfo, results: list[Float32Array]) -> dict[str, Any]:
    """The field of the reply that holds the results."""
    options = request.message.options
    match request.message.task:
        case "embed":
            return {"vectors": _stack(results).astype(options.dtype, copy=False)}
        case "classify":
            return {"classes": _classify(_stack(results), info.labels, options.top_k)}
        case "rerank":
            return {"scores": tuple([float(result[0]) for result in results])}
        case "token_classify":
            return {"tokens": _token_table(request, results, info.labels)}
        case task:
            raise RuntimeError(f"No reply is known for the task {task!r}. This is a bug.")


def _stack(results: list[Float32Array]) -> Float32Array:
    return results[0].reshape(1, -1) if len(results) == 1 else np.stack(results)


def _classify(scores: Float32Array, labels: tuple[str, ...], top_k: int) -> tuple[Classification, ...]:
    best_first, best_scores = _best(scores, top_k)
    return tuple(
        [
            Classification(tuple([labels[index] for index in row]), tuple(row_scores))
            for row, row_scores in zip(best_first.tolist(), best_scores.tolist(), strict=True)
        ]
    )


def _token_table(request: PendingRequest, results: list[Float32Array], labels: tuple[str, ...]) -> TokenTable:
    """Results come from the engine as [L, C] and from the cache flat."""
    options = request.message.options
    scores = np.concatenate([result.reshape(-1, len(labels)) for result in results])
    best_first, best_scores = _best(scores, options.top_k)
    return TokenTable(
        names=labels,
        lens=tuple([result.size // len(labels) for result in results]),
        classes=best_first.astype(np.uint16),
        scores=best_scores.astype(options.dtype, copy=False),
        spans=np.concatenate(request.spans) if request.spans else None,
    )


def _best(scores: Float32Array, top_k: int) -> tuple[npt.NDArray[np.intp], Float32Array]:
    """The `top_k` (0: all) best columns of each row, best first, and their scores: two arrays [rows, k]."""
    best_first = np.argsort(-scores, axis=1, kind="stable")[:, : top_k or scores.shape[1]]
    return best_first, np.take_along_axis(scores, best_first, axis=1)


def note_batch(stats: BatchStats, results: Results, now: float) -> None:
    """Note in the requests of these results, for their replies, which batch computed them and how long it took."""
    batch: dict[str, int | str] = {"size": stats.sums.count, "tokens": stats.sums.tokens, "trigger": stats.trigger}
    compute_ms = round(stats.device_s * 1e3, 3)
    for sequence, _ in results:
        request = sequence.request
        request.timing_ms["schedule"] = round(max(0.0, now - sequence.queued_at - stats.device_s) * 1e3, 3)
        request.timing_ms["compute"] = compute_ms
        request.batch = batch
