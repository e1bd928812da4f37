"""From a record's rows to its reply: vectors and scores of pairs as they are, other scores as labels."""

from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.engine.types import Float32Array, ModelInfo
from penstock.producer.wire.messages import Classification, Reply, TokenTable
from penstock.worker.requests.record import InFlight


def make_reply(inflight: InFlight, info: ModelInfo) -> Reply:
    """The answer to a record whose rows are all there."""
    rows = [row for row in inflight.rows if row is not None]
    if len(rows) != len(inflight.rows):
        raise RuntimeError("A reply was made before all rows were there. This is a bug.")
    return Reply(
        model=info.name,
        revision=info.revision,
        cached=inflight.cached,
        timing=inflight.timing_ms,
        batch=inflight.batch,
        **_answer(inflight, info, rows),
    )


def _answer(inflight: InFlight, info: ModelInfo, rows: list[Float32Array]) -> dict[str, Any]:
    """The field of the reply that holds its rows."""
    options = inflight.request.options
    match inflight.request.task:
        case "embed":
            return {"vectors": _stack(rows).astype(options.dtype, copy=False)}
        case "classify":
            return {"classes": _classify(_stack(rows), info.labels, options.top_k)}
        case "rerank":
            return {"scores": tuple([float(row[0]) for row in rows])}
        case "token_classify":
            return {"tokens": _token_table(inflight, rows, info.labels)}
        case task:
            raise RuntimeError(f"No reply is known for the task {task!r}. This is a bug.")


def _stack(rows: list[Float32Array]) -> Float32Array:
    return rows[0].reshape(1, -1) if len(rows) == 1 else np.stack(rows)


def _classify(scores: Float32Array, labels: tuple[str, ...], top_k: int) -> tuple[Classification, ...]:
    best_first, best_scores = _best(scores, top_k)
    return tuple(
        [
            Classification(tuple([labels[index] for index in row]), tuple(row_scores))
            for row, row_scores in zip(best_first.tolist(), best_scores.tolist(), strict=True)
        ]
    )


def _token_table(inflight: InFlight, rows: list[Float32Array], labels: tuple[str, ...]) -> TokenTable:
    """Rows come from the engine as [L, C] and from the cache flat."""
    options = inflight.request.options
    scores = np.concatenate([row.reshape(-1, len(labels)) for row in rows])
    best_first, best_scores = _best(scores, options.top_k)
    return TokenTable(
        names=labels,
        lens=tuple([row.size // len(labels) for row in rows]),
        classes=best_first.astype(np.uint16),
        scores=best_scores.astype(options.dtype, copy=False),
        spans=np.concatenate(inflight.spans) if inflight.spans else None,
    )


def _best(scores: Float32Array, top_k: int) -> tuple[npt.NDArray[np.intp], Float32Array]:
    """Of each row the `top_k` (0: all) best columns, the best first, and their scores."""
    best_first = np.argsort(-scores, axis=1, kind="stable")[:, : top_k or scores.shape[1]]
    return best_first, np.take_along_axis(scores, best_first, axis=1)
