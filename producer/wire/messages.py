"""Messages as plain data: requests, replies and error replies. `codec` turns them into bytes and back."""

import contextlib
import itertools
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.producer.errors import (
    BackendError,
    EmptyInput,
    InvalidRequest,
    PenstockError,
    WrongArgument,
    error_from_code,
)
from penstock.producer.wire.generation import GivenOptions
from penstock.producer.wire.sequence_codec import EmissionTable, Emitted, Fields
from penstock.producer.wire.vector_tables import SparseTable, SparseVector, TextVectors, TokenVectorTable

# Task -> the fields of `Reply` that have its rows.
_ROWS_OF = {
    "embed": ("vectors",),
    "embed_sparse": ("sparse",),
    "embed_tokens": ("token_vectors",),
    "embed_all": ("vectors", "token_vectors", "sparse"),
    "classify": ("classes",),
    "rerank": ("scores",),
    "token_classify": ("tokens",),
    "generate": ("generations",),
    "sequence": ("emissions",),
}
TASKS = tuple(_ROWS_OF)
EMBEDDING_TASKS = frozenset({"embed", "embed_sparse", "embed_tokens", "embed_all"})
PROMPTED_TASKS = EMBEDDING_TASKS | {"rerank"}  # whose texts may have a prompt
TOKEN_VECTOR_TASKS = frozenset({"embed_tokens", "embed_all"})  # a row is as large as its text is long
STEPPED_TASKS = frozenset({"generate", "sequence"})  # of many steps: a request may take seconds, and can be cancelled
POOLINGS = ("cls", "mean", "max", "last")
DTYPES = ("float32", "float16")
BIT_DTYPES = {"binary": "int8", "ubinary": "uint8"}  # vectors as signs, eight a value: the value's type
INT8_DTYPES = ("int8", "uint8")  # vectors as one byte a value, by ranges that the worker has
VECTOR_DTYPES = (*DTYPES, *BIT_DTYPES, *INT8_DTYPES)
REQUEST_TOKENS = "request_tokens"  # key of a reply's `batch`: tokens of all rows of its request
FINISHES = ("stop", "length", "partial")  # of a generation: an end token; max_new_tokens; a partial reply, no end yet

Text = str | tuple[str, str]
Uint16Array = npt.NDArray[np.uint16]
Uint32Array = npt.NDArray[np.uint32]


class Options(NamedTuple):
    """Options of a request. The wire omits those that equal these defaults."""

    pooling: str | None = None  # embed: one of POOLINGS; None: the checkpoint's own
    normalize: bool | None = None  # embed: L2-normalise; None: the checkpoint's own
    truncate: bool = False  # cut sequences that are too long instead of rejecting the request
    # classify, token_classify: labels to return a sequence or token, best first; 0: all, None: 1. embed_sparse,
    # embed_all: the largest weights to return; 0, None: all.
    top_k: int | None = None
    dtype: str = "float32"  # embed: how the reply has vectors, one of VECTOR_DTYPES; other values: one of DTYPES
    labels: tuple[str, ...] | None = None  # classify of text: by `read_labels`; None: the model's own labels
    multi_label: bool = False  # classify with labels: each label is scored by itself; otherwise one of them holds
    template: str | None = None  # classify with labels: what is said of a text; None: DEFAULT_TEMPLATE
    prompt_name: str | None = None  # PROMPTED_TASKS, of text: a prompt of the checkpoint; None: its default
    prompt: str | None = None  # PROMPTED_TASKS, of text: the prompt itself, in place of a name
    dimensions: int | None = None  # embed: leading values of each vector to keep; None: as the checkpoint says
    generation: GivenOptions = ()  # generate: by `read_generation`; others are the model's own
    stream: bool = False  # generate: partial replies before the reply

    @property
    def most_labels(self) -> int:
        """`top_k` of labels; 0: all."""
        return 1 if self.top_k is None else self.top_k


NO_OPTIONS = Options()


@dataclass(slots=True)  # not frozen: that would double the cost of making one
class Tokens:
    """Token ids of 1…n sequences, end to end, with special tokens."""

    ids: Uint32Array  # [sum(lens)]
    lens: tuple[int, ...]  # one a sequence, each >= 1


@dataclass(slots=True)  # not frozen: that would double the cost of making one
class Request:
    """One request record, with exactly one of `tokens` and `text`; of the task `sequence`, with `sequences`."""

    model: str
    task: str  # one of TASKS
    tokens: Tokens | None = None
    text: tuple[Text, ...] | None = None  # tokenized by the worker; a pair is (first, second): rerank has only pairs
    options: Options = NO_OPTIONS
    sequences: tuple[Fields, ...] | None = None  # sequence: the fields of each, which the model made of cells unfolds

    @property
    def num_sequences(self) -> int:
        """Number of sequences that the worker runs."""
        return self.num_rows if self.options.labels is None else self.num_rows * len(self.options.labels)

    @property
    def sequences_per_row(self) -> int:
        """With labels the worker makes of each text a pair for each label, one after another: they have one row."""
        return 1 if self.options.labels is None else len(self.options.labels)

    @property
    def num_rows(self) -> int:
        """Number of texts, or of other sequences, in the record, and of rows in its reply."""
        if self.sequences is not None:
            return len(self.sequences)
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
    """Labels of one token, best first, with their scores and the token's place in its text."""

    start: int | None = None  # in code points, as the tokenizer counts them; None: the request held token ids
    end: int | None = None  # exclusive


@dataclass(frozen=True, slots=True)
class Generation:
    """Tokens that were generated for one sequence."""

    tokens: tuple[int, ...]  # without the start token, with the end token where there is one
    finish: str  # one of FINISHES
    text: str | None = None  # without special tokens; None: the request held token ids


class Ranked(NamedTuple):
    """A document's index in the given list, and its score."""

    index: int  # type: ignore[assignment]  # hides tuple.index
    score: float


Vector = npt.NDArray[np.floating[Any] | np.integer[Any]]
# Of a sequence, by task.
Row = Vector | SparseVector | TextVectors | Classification | float | list[TokenClass] | Generation | dict[str, Emitted]


@dataclass(frozen=True, slots=True, eq=False)
class TokenTable:
    """Labels of the tokens of n sequences, end to end: k labels a token, best first. T is the sum of `lens`."""

    names: tuple[str, ...]  # all labels of the model
    lens: tuple[int, ...]  # tokens of each sequence, with special tokens
    classes: Uint16Array  # [T, k], indices into `names`
    scores: Vector  # [T, k]
    spans: Uint32Array | None  # [T, 2], first character and the one after the last; None: the request held token ids

    def rows(self) -> list[list[TokenClass]]:
        """The tokens of each sequence. With spans, special tokens, which cover no character, are left out."""
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


_ROWS = (np.ndarray, tuple)  # fields of a reply that are its rows; others are tables of them


@dataclass(slots=True)  # not frozen: that would double the cost of making one
class Reply:
    """One reply, with the field of its rows, in the order of the request's sequences; of embed_all three of them."""

    model: str
    revision: str
    vectors: Vector | None = None  # embed, embed_all: [n, dim]
    sparse: SparseTable | None = None  # embed_sparse, embed_all: n sequences
    token_vectors: TokenVectorTable | None = None  # embed_tokens, embed_all: n sequences
    classes: tuple[Classification, ...] | None = None  # classify: n of them
    scores: tuple[float, ...] | None = None  # rerank: n of them
    tokens: TokenTable | None = None  # token_classify: n sequences
    generations: tuple[Generation, ...] | None = None  # generate: n of them
    emissions: EmissionTable | None = None  # sequence: of n sequences
    cached: int = 0  # rows that came from the cache
    timing: Mapping[str, float] = field(default_factory=dict)  # stage -> ms
    batch: Mapping[str, int | str] = field(
        default_factory=dict
    )  # of its last batch: size, tokens, trigger; REQUEST_TOKENS

    @property
    def request_tokens(self) -> int:
        """Tokens of all rows, those from the cache as well; 0 if the worker does not tell."""
        tokens = self.batch.get(REQUEST_TOKENS, 0)
        return tokens if isinstance(tokens, int) else 0

    def rows(self, task: str) -> Sequence[Row]:
        """The answer to each sequence.

        Raises:
            BackendError: the reply is one to another task.
        """
        if task == "embed_all":
            parts = [self._rows(task, name) for name in _ROWS_OF[task]]
            return [TextVectors(*row) for row in zip(*parts, strict=True)]
        return self._rows(task, *_ROWS_OF[task])

    def _rows(self, task: str, name: str) -> Sequence[Any]:
        rows: Any = getattr(self, name)
        if rows is None:
            raise BackendError(f"The worker answered {task!r} with rows of the wrong kind.")
        found: Any = rows if isinstance(rows, _ROWS) else rows.rows()
        return found  # type: ignore[no-any-return]  # an array is a sequence of rows


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """An error reply."""

    code: str
    message: str
    retriable: bool
    rows: tuple[tuple[int, str, str], ...] = ()  # (sequence index, code, message) of the sequences at fault

    def exception(self) -> PenstockError:
        """The reply as an exception."""
        error = error_from_code(self.code, self.message)
        error.rows = {index: error_from_code(code, message) for index, code, message in self.rows}
        return error


def utf8_fault(text: str) -> str | None:
    """The reason for which a text cannot be UTF-8, half a surrogate pair, or None."""
    try:
        text.isascii() or text.encode()
    except UnicodeEncodeError as error:
        return f"{error.reason} at character {error.start}"
    return None


def join_tokens(sequences: Sequence[npt.ArrayLike]) -> Tokens:
    """Token ids of several sequences, end to end.

    Raises:
        EmptyInput: no sequence, or one of zero ids.
        InvalidRequest: an id is negative, not an integer or over 32 bits.
    """
    if len(sequences) == 0:
        raise EmptyInput("The request holds no sequence.")
    return concatenate_tokens([token_bytes(sequence, index) for index, sequence in enumerate(sequences)])


def concatenate_tokens(sequences: Sequence[bytes]) -> Tokens:
    """`join_tokens` for results of `token_bytes`, of which there is at least one."""
    ids = np.frombuffer(b"".join(sequences), np.uint32)
    return Tokens(ids, tuple([len(sequence) // 4 for sequence in sequences]))


def token_bytes(sequence: npt.ArrayLike, index: int) -> bytes:
    """One sequence's ids, each a uint32; `index` is for the message.

    Raises:
        EmptyInput: there are zero ids.
        WrongArgument: not a list of integers.
        InvalidRequest: an id is negative, or over 32 bits.
    """
    if isinstance(sequence, list) and sequence:
        with contextlib.suppress(TypeError, OverflowError):  # reported below
            return array("I", sequence).tobytes()  # several times faster than through numpy
    if type(sequence) is np.ndarray and sequence.dtype == np.uint32 and sequence.ndim == 1 and sequence.size:
        return sequence.tobytes()  # nothing to check
    try:
        given = np.asarray(sequence)
    except (ValueError, TypeError) as error:
        raise WrongArgument(f"Sequence {index} must be a list of token ids: {error}") from error
    if given.size == 0 and given.ndim:
        raise EmptyInput(f"Sequence {index} has zero ids.")
    if given.ndim == 1 and given.dtype.kind in "iu":
        ids = given.astype(np.uint32)
        # Comparing bytes takes a third of the time of a maximum. An id of 2^63 or more wraps to a negative int64.
        if ids.astype(np.int64).tobytes() == given.astype(np.int64, copy=False).tobytes():
            return ids.tobytes()
    wrong = WrongArgument if given.ndim != 1 or given.dtype.kind not in "iu" else InvalidRequest
    raise wrong(f"Sequence {index} must be a list of token ids, each an integer of 32 bits, unsigned.")
