"""How far results in one precision are from those in float32, of the same sequences."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields

import numpy as np
import numpy.typing as npt

from penstock.engine.types import Engine, Float32Array, Int32Array, PackedBatch, TaskOptions
from penstock.engine.vector_rows import split_sparse

Sequences = Sequence[tuple[Int32Array, Int32Array | None]]  # token ids of each, and its token types

NEIGHBOURS = 10
_AS_NEAR = 1e-6  # of a cosine: texts that differ in case alone may be the same to a model
_LEAST_COSINE, _LEAST_KEPT, _MOST_SCORE, _MOST_CHANGED = 0.999, 0.97, 0.02, 0.02
_OF_SCORES = ("classify", "rerank", "token_classify")


@dataclass(frozen=True, slots=True)
class PrecisionLoss:
    """Figures of the tasks that a model has; None: it has no such task, or there are too few sequences."""

    num_sequences: int
    cosine: float | None = None  # the least, of vectors of sequences and of tokens
    kept: float | None = None  # see `neighbours_kept`
    score: float | None = None  # the largest difference of a score or a sparse weight, relative to those above 1
    labels_changed: int | None = None  # sequences whose label of the highest score is another

    def excess(self) -> str:
        """The first figure beyond its bound, in words; empty if there is none. NaN is beyond."""
        if self.cosine is not None and not self.cosine >= _LEAST_COSINE:
            return f"the least cosine to float32 is {self.cosine:.5f}, and must be {_LEAST_COSINE}"
        if self.kept is not None and not self.kept >= _LEAST_KEPT:
            return f"{self.kept:.1%} of the nearest neighbours are those of float32, and must be {_LEAST_KEPT:.0%}"
        if self.score is not None and not self.score <= _MOST_SCORE:
            return f"a score differs by {self.score:.4f} from float32's, and may by {_MOST_SCORE}"
        if self.labels_changed is not None and not self.labels_changed <= _MOST_CHANGED * self.num_sequences:
            return f"{self.labels_changed} of {self.num_sequences} labels changed, and {_MOST_CHANGED:.0%} may"
        return ""

    def is_finite(self) -> bool:
        """Whether no figure is NaN or infinite, as of vectors that are zero."""
        return all(value is None or math.isfinite(value) for value in self.to_dict().values())

    def to_dict(self) -> dict[str, float | int | None]:
        """Plain JSON data, from which `from_dict` makes an equal object."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> "PrecisionLoss | None":
        """Inverse of `to_dict`; None for other data, which a damaged file may hold."""
        are_numbers = all(value is None or isinstance(value, int | float) for value in data.values())
        if data.keys() != {field.name for field in fields(cls)} or not are_numbers or data["num_sequences"] is None:
            return None
        return cls(**data)  # type: ignore[arg-type]  # checked above


def measure_loss(ours: Engine, exact: Engine, sequences: Sequences) -> PrecisionLoss:
    """Losses of `ours` against `exact`, the same model in float32. Blocks while both run each sequence for each task.

    The logits of `entail` are those of `classify`, and rows of `embed_all` are those of the tasks that it joins.
    """
    cosines, scores, found = list[float](), list[float](), dict[str, float | int]()
    for task in sorted(ours.info.tasks):
        mine, want = _rows(ours, task, sequences), _rows(exact, task, sequences)
        if task in ("embed", "embed_tokens"):
            size = ours.info.dim if task == "embed" else ours.info.token_dim
            cosines += [_least_cosine(*pair, size) for pair in zip(mine, want, strict=True)]
        if task == "embed" and len(sequences) > NEIGHBOURS:
            found["kept"] = neighbours_kept(np.stack(mine), np.stack(want))
        if task == "embed_sparse":
            mine, want = (_dense(rows, ours.info.vocab_size) for rows in (mine, want))
        if task in (*_OF_SCORES, "embed_sparse"):
            scores += [_largest_difference(*pair) for pair in zip(mine, want, strict=True)]
        if task == "classify":
            pairs = zip(mine, want, strict=True)
            found["labels_changed"] = sum([int(one.argmax()) != int(other.argmax()) for one, other in pairs])
    if cosines:
        found["cosine"] = float(np.min(cosines))
    if scores:
        found["score"] = float(np.max(scores))
    return PrecisionLoss(len(sequences), **found)  # type: ignore[arg-type]  # each by the type of its field


def neighbours_kept(vectors: npt.NDArray[np.floating], exact: npt.NDArray[np.floating]) -> float:
    """The mean part of the ten nearest of each of more than ten vectors that are as near among the exact ones.

    By cosine, both [n, dim]. Where several of the exact ones are equally near, any of them will do.
    """
    mine, want = _cosines(vectors), _cosines(exact)
    nearest = np.argsort(-mine, axis=1, kind="stable")[:, :NEIGHBOURS]
    least = np.sort(want, axis=1)[:, -NEIGHBOURS, None]
    return float(np.mean(np.take_along_axis(want, nearest, axis=1) >= least - _AS_NEAR))


def _cosines(vectors: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    """Of each with each, [n, n]; of each with itself less than any."""
    rows = vectors.astype(np.float64)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    similar = np.asarray(rows @ rows.T)
    np.fill_diagonal(similar, -np.inf)
    return similar


def _rows(engine: Engine, task: str, sequences: Sequences) -> list[Float32Array]:
    batches = [PackedBatch.of([ids], [TaskOptions(task)], [types]) for ids, types in sequences]
    return [engine.run(batch).rows[0] for batch in batches]


def _least_cosine(mine: Float32Array, want: Float32Array, size: int) -> float:
    """Of vectors of this size, that lie end to end."""
    one, other = (row.reshape(-1, size).astype(np.float64) for row in (mine, want))
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    return float(np.min((one * other).sum(axis=1) / lengths))


def _dense(rows: Sequence[Float32Array], vocab_size: int) -> list[Float32Array]:
    """Sparse rows as weights of all token ids."""
    dense = np.zeros((len(rows), vocab_size), np.float32)
    for row, sparse in zip(dense, map(split_sparse, rows), strict=True):
        row[sparse[0]] = sparse[1]
    return list(dense)


def _largest_difference(mine: Float32Array, want: Float32Array) -> float:
    return float(np.abs(mine - want).max() / max(1.0, float(np.abs(want).max())))
