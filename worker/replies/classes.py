"""Labels of texts from their scores, best first, with equal scores in the order of transformers' pipelines."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from penstock.engine.types import Float32Array, entailment_of
from penstock.producer.wire.messages import Classification, Options


def classes(scores: Float32Array, labels: Sequence[str], top_k: int) -> tuple[Classification, ...]:
    """The `top_k` (0: all) best of the model's own labels for each row of scores [rows, labels]."""
    return _named(*best(scores, top_k), labels)


def best(scores: Float32Array, top_k: int) -> tuple[npt.NDArray[np.intp], Float32Array]:
    """The `top_k` (0: all) best columns of each row, best first, and their scores: two arrays [rows, k].

    Equal ones keep their order, as in transformers' text-classification.
    """
    return _cut(scores, np.argsort(-scores, axis=1, kind="stable"), top_k)


def classes_by_labels(logits: Float32Array, names: Sequence[str], options: Options) -> tuple[Classification, ...]:
    """Of the logits of each text's pairs, one for each label of the request; `names` are the model's classes.

    The scores are those of transformers' zero-shot-classification. Of several labels one holds: the softmax of their
    entailment. Otherwise each is scored against contradiction, for which transformers takes the first class, whatever
    its name, or the last one if the first is entailment. Equal scores have the order in which numpy sorts them on the
    processor, as there.
    """
    labels, entailment = options.labels, entailment_of(names)
    if labels is None or entailment is None:
        raise RuntimeError("labels were asked for of a model without entailment. This is a bug.")
    of_texts = logits.reshape(-1, len(labels), len(names))
    entailed = of_texts[..., entailment]
    if options.multi_label or len(labels) == 1:
        against = of_texts[..., -1 if entailment == 0 else 0]
        scores = _softmax(np.stack((against, entailed), axis=-1))[..., 1]
    else:
        scores = _softmax(entailed)
    return _named(*_cut(scores, scores.argsort(axis=1)[:, ::-1], options.most_labels), labels)


def _softmax(logits: Float32Array) -> Float32Array:
    """Over the last axis."""
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    shares: Float32Array = powers / powers.sum(axis=-1, keepdims=True)
    return shares


def _cut(
    scores: Float32Array, best_first: npt.NDArray[np.intp], top_k: int
) -> tuple[npt.NDArray[np.intp], Float32Array]:
    kept = best_first[:, : top_k or scores.shape[1]]
    return kept, np.take_along_axis(scores, kept, axis=1)


def _named(indices: npt.NDArray[np.intp], scores: Float32Array, labels: Sequence[str]) -> tuple[Classification, ...]:
    return tuple(
        [
            Classification(tuple([labels[index] for index in row]), tuple(row_scores))
            for row, row_scores in zip(indices.tolist(), scores.tolist(), strict=True)
        ]
    )
