"""Answers as records and rows of files hold them: vectors, labels and scores."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

UnitVector = npt.NDArray[np.float32]  # of length 1
RecordedAnswer = UnitVector | str | float  # a vector, the best label, or a score

_SHOWN_CHARS = 60
_OF_SEVERAL = {"labels", "scores"}  # beside the best label, where several were asked for


class NotComparable(ValueError):
    """An answer that cannot be compared, with its place. In a sample it stands for that of a record at fault."""

    def kept(self) -> "NotComparable":
        """The same for a sample, without what a traceback holds: the record."""
        return NotComparable(str(self))


@dataclass(frozen=True, slots=True)
class Unanswered:
    """Why a record has none. Not a fault: a tombstone, a row that failed, a record without text."""

    reason: str
    is_tombstone: bool = False


def read_answer(value: Any) -> RecordedAnswer:
    """The answer in a value of JSON: a list of numbers, an object with a label and its score, a label, or a score.

    Raises NotComparable, whose message begins with a verb, for any other value.
    """
    match value:
        case str():
            return value
        case int() | float() if not isinstance(value, bool):
            return _score(value)
        case {"label": str(label), "score": _, **others} if others.keys() <= _OF_SEVERAL:
            return label
        case dict():
            raise NotComparable(f"holds an object of {_shown(', '.join(value))}, which is not compared")
        case [_, *_]:
            return _unit_vector(value)
        case _:
            raise NotComparable(f"holds {_shown(value)}, which is no answer")


def kind_of(answer: object) -> str:
    """The kind of a RecordedAnswer, for a sentence: answers of two kinds are not compared."""
    if isinstance(answer, np.ndarray):
        return f"vectors of {len(answer):,} dimensions"
    return "labels" if isinstance(answer, str) else "scores"


def _score(value: float) -> float:
    try:
        score = float(value)
    except OverflowError:
        score = math.inf
    if not math.isfinite(score):
        raise NotComparable(f"holds {score}, which is no score")
    return score


def _unit_vector(values: Sequence[Any]) -> UnitVector:
    """The vector, divided by its length."""
    kinds = set(map(type, values))
    if kinds == {int}:
        raise NotComparable("holds a vector of integers, whose cosine says nothing if they are packed signs")
    if not kinds <= {int, float}:
        strange = next(value for value in values if type(value) not in (int, float))
        raise NotComparable(f"holds {_shown(strange)} among the numbers of its vector")
    try:
        vector = np.array(values, np.float64)
    except OverflowError:  # an integer beyond it
        vector = np.array([math.inf])
    if not np.isfinite(vector).all():
        raise NotComparable("holds NaN or an infinity in its vector")
    largest = np.max(np.abs(vector))
    if largest == 0.0:
        raise NotComparable("holds a vector of zeros, which has no direction")
    vector /= largest
    return (vector / np.linalg.norm(vector)).astype(np.float32)


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"
