"""What travels, as plain data: requests, replies and error replies. `wire` turns them into bytes and back."""

import contextlib
import itertools
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.producer.errors import BackendError, EmptyInput, InvalidRequest, PenstockError, error_from_code

TASKS = ("embed", "classify", "rerank", "token_classify")
POOLINGS = ("cls", "mean", "max", "last")
DTYPES = ("float32", "float16")

Text = str | tuple[str, str]
Uint16Array = npt.NDArray[np.uint16]
Uint32Array = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Options:
    """How to compute, and how to present, the answer. Left out on the wire where equal to these defaults."""

    pooling: str | None = None  # embed: one of POOLINGS; None: the checkpoint's own
    normalize: bool | None = None  # embed: L2-normalise; None: the checkpoint's own
    truncate: bool = False  # cut sequences that are too long instead of refusing the request
    top_k: int = 1  # classify, token_classify: how many labels to return a sequence or token, best first; 0: all
    dtype: str = "float32"  # embed, token_classify: element type of the reply's data, one of DTYPES
    prompt_name: str | None = None  # embed of text: a prompt of the checkpoint; None: the checkpoint's default
    prompt: str | None = None  # embed of text: the prompt itself, in place of a name
    dimensions: int | None = None  # embed: leading values of each vector to keep; None: as the checkpoint says


@dataclass(frozen=True, slots=True)
class Tokens:
    """Token ids of 1…n sequences, end to end, special tokens included."""

    ids: Uint32Array  # [sum(lens)]
    lens: tuple[int, ...]  # one a sequence, each >= 1


@dataclass(frozen=True, slots=True)
class Request:
    """One request record: exactly one of `tokens` and `text` is there."""

    model: str
    task: str  # one of TASKS
    tokens: Tokens | None = None
    text: tuple[Text, ...] | None = None  # tokenized by the worker; a pair is (first, second): rerank has only pairs
    options: Options = field(default_factory=Options)

    @property
    def num_sequences(self) -> int:
        """How many sequences the record carries, and so how many rows its reply has."""
        if self.tokens is not None:
            return len(self.tokens.lens)
        return len(self.text or ())


@dataclass(frozen=True, slots=True)
class Classification:
    """Labels of one sequence, best first, with their scores."""

    labels: tuple[str, ...]
    scores: tuple[float, ...]

    @property
    def label(self) -> str:
        """The best label."""
        return self.labels[0]

    @property
    def score(self) -> float:
        """The best label's score."""
        return self.scores[0]


@dataclass(frozen=True, slots=True)
class TokenClass(Classification):
    """Labels of one token, best first, with their scores, and where the token stands in its text."""

    start: int | None = None  # characters (code points), as the tokenizer counts them; None: of an id, without a text
    end: int | None = None  # exclusive


class Ranked(NamedTuple):
    """A document's place in the list that was given, and its score."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody misses
    score: float


Vector = npt.NDArray[np.floating[Any]]
Row = Vector | Classification | float | list[TokenClass]  # what one sequence is answered with, by task


@dataclass(frozen=True, slots=True, eq=False)
class TokenTable:
    """Labels of the tokens of n sequences, end to end. T is the sum of `lens`; each token has k labels, best first."""

    names: tuple[str, ...]  # of all the labels that the model knows
    lens: tuple[int, ...]  # tokens of each sequence, special tokens included
    classes: Uint16Array  # [T, k], places in `names`
    scores: Vector  # [T, k]
    spans: Uint32Array | None  # [T, 2], first character and the one after the last; None: there was no text

    def rows(self) -> list[list[TokenClass]]:
        """The tokens of each sequence. With spans, those that cover no character, special tokens, are left out."""
        spans = [(None, None)] * len(self.classes) if self.spans is None else self.spans.tolist()
        tokens = zip(self.classes.tolist(), self.scores.tolist(), spans, strict=True)
        return [
            [
                TokenClass(tuple([self.names[index] for index in classes]), tuple(scores), start, end)
                for classes, scores, (start, end) in itertools.islice(tokens, length)
                if start is None or start < end
            ]
            for length in self.lens
        ]


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer: one of the four fields after `revision`; rows in the order of the request's sequences."""

    model: str
    revision: str
    vectors: Vector | None = None  # embed: [n, dim]
    classes: tuple[Classification, ...] | None = None  # classify: n of them
    scores: tuple[float, ...] | None = None  # rerank: n of them
    tokens: TokenTable | None = None  # token_classify: n sequences
    cached: int = 0  # how many of the rows came from the cache
    timing: Mapping[str, float] = field(default_factory=dict)  # stage -> ms
    batch: Mapping[str, int | str] = field(default_factory=dict)  # size, tokens, trigger of the last batch it was in

    def rows(self, task: str) -> Sequence[Row]:
        """What each sequence is answered with.

        Raises:
            BackendError: the reply is not one to this task.
        """
        rows: Any = {
            "embed": self.vectors,
            "classify": self.classes,
            "rerank": self.scores,
            "token_classify": self.tokens and self.tokens.rows(),
        }[task]
        if rows is None:
            raise BackendError(f"The worker answered {task!r} with rows of the wrong kind.")
        return rows  # type: ignore[no-any-return]  # an array is a sequence of its rows, which its type does not say


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """A refusal or a failure, as it travels."""

    code: str
    message: str
    retriable: bool
    rows: tuple[tuple[int, str, str], ...] = ()  # (sequence index, code, message) of the sequences at fault

    def exception(self) -> PenstockError:
        """The exception that this reply stands for."""
        error = error_from_code(self.code, self.message)
        error.rows = {index: error_from_code(code, message) for index, code, message in self.rows}
        return error


def join_tokens(sequences: Sequence[npt.ArrayLike]) -> Tokens:
    """Token ids of several sequences, end to end, as the wire carries them.

    Raises:
        EmptyInput: no sequence, or one of zero ids.
        InvalidRequest: an id is negative, not an integer or over 32 bits.
    """
    if len(sequences) == 0:
        raise EmptyInput("The request holds no sequence.")
    return concatenate_tokens([token_ids(sequence, index) for index, sequence in enumerate(sequences)])


def concatenate_tokens(sequences: Sequence[Uint32Array]) -> Tokens:
    """As `join_tokens`, of what `token_ids` gave, at least one."""
    ids = sequences[0] if len(sequences) == 1 else np.concatenate(sequences)
    return Tokens(ids, tuple([sequence.size for sequence in sequences]))


def token_ids(sequence: npt.ArrayLike, index: int) -> Uint32Array:
    """The ids of one sequence, a copy; `index` is for the message.

    Raises:
        EmptyInput: there are zero ids.
        InvalidRequest: it is no list, or an id is negative, not an integer or over 32 bits.
    """
    if isinstance(sequence, list) and sequence:
        with contextlib.suppress(TypeError, OverflowError):  # what is wrong with it is said below
            return np.frombuffer(array("I", sequence), np.uint32)  # several times faster than by way of int64
    try:
        given = np.asarray(sequence)
    except (ValueError, TypeError) as error:
        raise InvalidRequest(f"Sequence {index} must be a list of token ids: {error}") from error
    if given.size == 0 and given.ndim:
        raise EmptyInput(f"Sequence {index} has zero ids.")
    if given.ndim != 1 or not _fits_uint32(given):
        raise InvalidRequest(f"Sequence {index} must be a list of token ids, each an integer of 32 bits, unsigned.")
    return given.astype(np.uint32)


def _fits_uint32(array: npt.NDArray[Any]) -> bool:
    """Whether every element is an integer in [0, 2^32). One pass: seen as unsigned, a negative is a huge number."""
    kind, item_bytes = array.dtype.kind, array.dtype.itemsize
    if kind not in "iu":
        return False
    highest = int(array.view(f"{array.dtype.str[0]}u{item_bytes}").max())
    return highest < min(2**32, 2 ** (8 * item_bytes - 1) if kind == "i" else 2**32)
