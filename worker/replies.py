"""From a record's rows to its reply: vectors as they are, scores as labels."""

import numpy as np

from penstock.engine.types import ModelInfo
from penstock.producer.messages import Classification, Reply
from penstock.worker.inflight import InFlight


def make_reply(inflight: InFlight, info: ModelInfo) -> Reply:
    """The answer to a record whose rows are all there."""
    rows = [row for row in inflight.rows if row is not None]
    if len(rows) != len(inflight.rows):
        raise RuntimeError("A reply was made before all rows were there. This is a bug.")
    options = inflight.request.options
    table = rows[0].reshape(1, -1) if len(rows) == 1 else np.stack(rows)
    if inflight.request.task == "embed":
        vectors, classes = table.astype(options.dtype, copy=False), None
    else:
        vectors, classes = None, _classify(table, info.labels, options.top_k)
    return Reply(
        model=info.name,
        revision=info.revision,
        vectors=vectors,
        classes=classes,
        cached=inflight.cached,
        timing=inflight.timing_ms,
        batch=inflight.batch,
    )


def _classify(scores: np.ndarray, labels: tuple[str, ...], top_k: int) -> tuple[Classification, ...]:
    kept = min(top_k or len(labels), len(labels))
    best_first = np.argsort(-scores, axis=1, kind="stable")[:, :kept]
    best_scores = np.take_along_axis(scores, best_first, axis=1)
    return tuple(
        [
            Classification(tuple([labels[index] for index in row]), tuple(row_scores))
            for row, row_scores in zip(best_first.tolist(), best_scores.tolist(), strict=True)
        ]
    )
