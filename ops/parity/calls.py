"""Calls that both sides answer, and how far two answers are apart."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.producer.wire.messages import Classification, Generation, Row, Vector
from penstock.producer.wire.vector_tables import SparseVector

# An answer in the form in which both sides can be compared: a vector, or one for each token; the score of each label,
# or the weight of each token id that has one; the score of a pair; of each token its place and the score of each label;
# or the ids of generated tokens.
TokenScores = tuple[int, int, Mapping[str, float]]
Answer = Vector | Mapping[str, float] | float | Sequence[TokenScores] | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """The question put to both sides for each text."""

    task: str
    prompt_name: str | None = None  # None: the checkpoint's default
    of_pairs: bool = False
    labels: tuple[str, ...] | None = None  # of the request; None: the checkpoint's own
    multi_label: bool = False

    @property
    def what(self) -> str:
        """Name of the call in the report."""
        pairs = " of pairs" if self.of_pairs and self.task != "rerank" else ""
        labels = "" if self.labels is None else " with labels"
        prompt = "" if self.prompt_name is None else f", prompt {self.prompt_name}"
        return f"{self.task}{pairs}{labels}{', multi-label' if self.multi_label else ''}{prompt}"


def answer_of(row: Row) -> Answer:
    """A row of a client, asked with all labels, in the form that is compared."""
    if isinstance(row, Generation):
        return tuple(row.tokens)
    if isinstance(row, SparseVector):
        return dict(zip(map(str, row.ids), row.weights.tolist(), strict=True))
    if isinstance(row, Classification):
        return dict(zip(row.labels, row.scores, strict=True))
    if isinstance(row, list):
        tokens = [token for token in row if token.start != token.end]  # without special tokens
        return [
            (token.start or 0, token.end or 0, dict(zip(token.labels, token.scores, strict=True))) for token in tokens
        ]
    return row  # type: ignore[return-value]  # `sequence`, whose rows are dicts, is not compared


def distance(task: str, got: Answer, want: Answer) -> float:
    """How far an answer is from the reference's: 0 if equal; infinity for other labels, lengths or tokens.

    Of vectors: the length of their difference, divided by the length of the reference's vector; of one for each token
    the largest. Of scores: the largest difference, divided by the largest score where that is above 1. Of sparse
    weights likewise, where an id that one side lacks has weight 0. Of generated tokens: the part that is not equal from
    the start.
    """
    match task:
        case "embed" | "embed_tokens":
            return _of_vectors(np.asarray(got, np.float64), np.asarray(want, np.float64))
        case "embed_sparse":
            return _of_weights(got, want)  # type: ignore[arg-type]  # as those of classify are
        case "rerank":
            return _of_scores({"": got}, {"": want})  # type: ignore[dict-item]  # rerank's answers are floats
        case "classify":
            return _of_scores(got, want)  # type: ignore[arg-type]  # classify's answers are mappings
        case "token_classify":
            return _of_tokens(got, want)  # type: ignore[arg-type]  # likewise sequences
        case "generate":
            return _of_ids(got, want)  # type: ignore[arg-type]  # likewise ids
        case other:
            raise RuntimeError(f"No answers of the task {other!r} are compared. This is a bug.")


def cosine(got: Answer, want: Answer) -> float:
    """Of two vectors; of one for each token the smallest. NaN if their lengths or numbers differ."""
    first, second = np.asarray(got, np.float64), np.asarray(want, np.float64)
    return float("nan") if first.shape != second.shape else float(np.min(cosines(first, second)))


def cosines(first: npt.NDArray[np.floating], second: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    """Of vectors of equal shapes, along their last axis."""
    first, second = first.astype(np.float64, copy=False), second.astype(np.float64, copy=False)
    lengths = np.linalg.norm(first, axis=-1) * np.linalg.norm(second, axis=-1)
    return np.asarray(np.sum(first * second, axis=-1) / lengths)


def _of_vectors(got: npt.NDArray[np.float64], want: npt.NDArray[np.float64]) -> float:
    if got.shape != want.shape:
        return float("inf")
    return _finite(float(np.max(np.linalg.norm(got - want, axis=-1) / np.linalg.norm(want, axis=-1))))


def _of_weights(got: Mapping[str, float], want: Mapping[str, float]) -> float:
    none = dict.fromkeys(got.keys() | want.keys(), 0.0)
    return _of_scores({**none, **got}, {**none, **want})


def _of_scores(got: Mapping[str, float], want: Mapping[str, float]) -> float:
    if got.keys() != want.keys():
        return float("inf")
    largest = max([1.0, *[abs(score) for score in want.values()]])
    differences = [abs(got[label] - score) for label, score in want.items()]
    return _finite(float(np.max(differences, initial=0.0)) / largest)  # numpy's: NaN is not lost in it


def _of_tokens(got: Sequence[TokenScores], want: Sequence[TokenScores]) -> float:
    if [place[:2] for place in got] != [place[:2] for place in want]:
        return float("inf")
    return max([_of_scores(mine[2], theirs[2]) for mine, theirs in zip(got, want, strict=True)], default=0.0)


def _of_ids(got: tuple[int, ...], want: tuple[int, ...]) -> float:
    equal = 0
    for mine, theirs in zip(got, want, strict=False):
        if mine != theirs:
            break
        equal += 1
    return 1 - equal / max(len(got), len(want), 1)


def _finite(value: float) -> float:
    """Infinity for what is not a number, which no bound admits."""
    return value if np.isfinite(value) else float("inf")
