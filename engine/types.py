"""Types of the engine's interface: flat arrays in, rows out. They know nothing of requests, Kafka or torch."""

import math
from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from penstock.engine.device_share import DeviceShare
from penstock.engine.errors import InvalidBatch
from penstock.engine.generation_options import GenerationOptions
from penstock.engine.int8_ranges import Int8Ranges

ENTAIL = "entail"  # of classifiers of natural language inference: the logits of a pair's classes. No task of requests
# Tasks of requests, those of a head first: a model with one is asked for what it was trained for.
_HEADS_FIRST = (
    *("token_classify", "rerank", "classify"),
    *("embed", "embed_sparse", "embed_tokens", "embed_all", "generate", "sequence"),
)
Int32Array = npt.NDArray[np.int32]
Float32Array = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """The task and options of one sequence. Equal options share one pass through the tail of the model."""

    task: str  # one of ModelInfo.tasks
    pooling: str | None = None  # embed only: "cls", "mean", "max", "last"; None: the checkpoint's own
    normalize: bool | None = None  # embed only: L2-normalise; None: the checkpoint's own
    dimensions: int | None = None  # embed only: leading values to keep, before normalising; None: the checkpoint's own
    prompt_tokens: int = 0  # embed only: leading tokens that pooling leaves out; the last token of a sequence stays
    generation: GenerationOptions | None = None  # generate only
    seed: int = 0  # generate only: of sampling


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """N sequences end to end, no padding anywhere. T is the sum of their lengths."""

    token_ids: Int32Array  # [T], each in [0, vocab_size)
    cu_seqlens: Int32Array  # [N+1], starts at 0, strictly increasing, ends at T
    max_seqlen: int  # longest sequence, <= ModelInfo.max_tokens
    token_type_ids: Int32Array | None  # [T]; None: all zero
    options: Sequence[TaskOptions]  # [N]

    @classmethod
    def of(
        cls,
        token_ids: Sequence[Int32Array | npt.NDArray[np.uint32]],
        options: Sequence[TaskOptions],
        token_type_ids: Sequence[Int32Array | None] = (),
    ) -> "PackedBatch":
        """Lay sequences end to end: at least one, each with its options. Without type ids a sequence is of type 0."""
        lengths = [len(ids) for ids in token_ids]
        cu_seqlens = np.zeros(len(lengths) + 1, np.int32)
        np.cumsum(lengths, out=cu_seqlens[1:])
        types = None
        if any(one is not None for one in token_type_ids):
            pairs = zip(token_type_ids, lengths, strict=True)
            types = np.concatenate([np.zeros(length, np.int32) if one is None else one for one, length in pairs])
        return cls(np.concatenate(token_ids).astype(np.int32, copy=False), cu_seqlens, max(lengths), types, options)

    @classmethod
    def probe(cls, options: TaskOptions) -> "PackedBatch":
        """The smallest clean batch: one sequence of one token. Its result is finite with every model that is loaded."""
        return cls(np.zeros(1, np.int32), np.array([0, 1], np.int32), 1, None, [options])


def require_valid(batch: PackedBatch, num_types: int | None) -> None:
    """Raise InvalidBatch where a kernel would read outside of its tables or buffers, or a sequence has no options.

    Token ids are not checked here: the caller has checked them against the vocabulary.
    num_types: rows of the model's table of token types; None: it has no table, and types are ignored.
    """
    bounds, num_tokens = batch.cu_seqlens, len(batch.token_ids)
    lengths = np.diff(bounds)
    if len(lengths) == 0 or bounds[0] != 0 or bounds[-1] != num_tokens or lengths.min() < 1:
        raise InvalidBatch(f"cu_seqlens must increase from 0 to {num_tokens}, the number of tokens.")
    if lengths.max() != batch.max_seqlen:
        raise InvalidBatch(f"max_seqlen is {batch.max_seqlen}; the longest sequence has {lengths.max()} tokens.")
    if len(batch.options) != len(lengths):
        raise InvalidBatch(f"options must be {len(lengths)}, one for each sequence; found {len(batch.options)}.")
    types = batch.token_type_ids
    if types is None or num_types is None:
        return
    if len(types) != num_tokens or types.min() < 0 or types.max() >= num_types:
        raise InvalidBatch(
            f"token_type_ids must be {num_tokens} values in [0, {num_types}); "
            f"found {len(types)} from {types.min()} to {types.max()}."
        )


@dataclass(frozen=True, slots=True)
class BatchOutput:
    """Results in the order of the batch's sequences. Rows that `not_finite` names are no results."""

    # N arrays: the vector (embed) [D], a score for each label (classify) [C], the logit of each class (entail) [C], the
    # pair's score (rerank) [1], such scores for each token (token_classify) [L, C], a vector of each token that has one
    # (embed_tokens) [n, token_dim] with n >= 1, K token ids and their K weights above 0 (embed_sparse) [2K], or vector,
    # token vectors and such a sparse row joined by `engine.vector_rows` (embed_all) [D + 1 + n * token_dim + 2K]
    rows: Sequence[Float32Array]
    device_s: float  # seconds the device worked on this batch
    # Arrays that hold the values of all rows, where the engine has them so. Without, the rows are copied into one.
    blocks: InitVar[Sequence[Float32Array]] = ()
    not_finite: tuple[int, ...] = field(init=False)  # indices of rows that hold NaN or infinity

    def __post_init__(self, blocks: Sequence[Float32Array]) -> None:
        """Looks at all rows, of any engine, on the thread that made them.

        The least and the greatest value tell of NaN and infinity without an array of the batch's size: a new one costs
        more than the look.
        """
        bad: tuple[int, ...] = ()
        whole = blocks or ([np.concatenate(self.rows, axis=None)] if len(self.rows) else [])
        if not all(math.isfinite(one.max(initial=0.0)) and math.isfinite(one.min(initial=0.0)) for one in whole):
            bad = tuple([index for index, row in enumerate(self.rows) if not np.isfinite(row).all()])
        object.__setattr__(self, "not_finite", bad)


class Emission(NamedTuple):
    """A named value that a model made of cells emits at steps."""

    name: str
    width: int
    dtype: str  # "float32" or "int32", where it has left the device


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Facts of a model that validate requests and that replies name."""

    name: str  # the name requests use
    revision: str  # strong hash of the weights, head and configuration files: all that decides results but the dtype
    dtype: str  # "float32", "bfloat16", "float16" or "int8": the arithmetic's precision
    device: str  # "cpu", or the GPU's name
    vocab_size: int
    max_tokens: int  # longest sequence the model accepts, special tokens included
    # Of embed, embed_sparse, embed_tokens, embed_all, classify, entail, rerank, token_classify; or generate or sequence
    # alone.
    tasks: frozenset[str]
    dim: int  # length of an embedding; of a model that generates the width of its encoder
    labels: tuple[str, ...]  # label of each score; empty when the model cannot classify
    dimensions: tuple[int, ...] = ()  # lengths that embeddings may be cut to (Matryoshka); empty: none
    emissions: tuple[Emission, ...] = ()  # of a model made of cells
    cut_tokens: int | None = None  # longest sequence that `truncate` leaves, where the model accepts longer ones
    num_token_types: int | None = None  # rows of the table of token types; None: no table, and types are ignored
    int8_ranges: Int8Ranges | None = None  # of embeddings that are sent as one byte a value; None: they cannot be
    padded: bool = False  # whether a batch is padded to its longest sequence: its time follows count * longest
    wider_layers: tuple[str, ...] = ()  # names of the matrices of an int8 model that are in more bits
    token_dim: int = 0  # length of a token's vector (embed_tokens, embed_all); 0: the model makes none

    @property
    def answers_revision(self) -> str:
        """The revision that answers name. Eight bits are told apart: they differ by more than rounding does."""
        return f"{self.revision}-int8" if self.dtype == "int8" else self.revision

    @property
    def request_tasks(self) -> list[str]:
        """The tasks that requests name, sorted: what people are told. ENTAIL is of `classify` with labels."""
        return sorted(self.tasks - {ENTAIL})

    @property
    def natural_task(self) -> str:
        """The task that a request means which names none: that of the model's head, else the vector of a text."""
        return min(self.request_tasks, key=_HEADS_FIRST.index)


def is_entailment(label: str) -> bool:
    """Whether a class says that a pair's second text follows from its first: the rule of zero-shot-classification."""
    return label.lower().startswith("entail")


def entailment_of(labels: Sequence[str]) -> int | None:
    """The class of entailment; None unless there is one, and another class beside it."""
    found = [index for index, label in enumerate(labels) if is_entailment(label)]
    return found[0] if len(found) == 1 and len(labels) > 1 else None


@runtime_checkable
class Engine(Protocol):
    """A model that runs packed batches."""

    @property
    def info(self) -> ModelInfo: ...

    def run(self, batch: PackedBatch) -> BatchOutput:
        """Compute one batch. Called from lanes, possibly several at once; blocks the caller.

        The caller has validated token ids and lengths against `info`. A row's result does not depend on the other rows.
        Raises InvalidBatch for token types that the model does not have.
        """
        ...


@runtime_checkable
class PreparedEngine(Engine, Protocol):
    """An engine that can prepare for batches before they come."""

    def prepare(self, share: DeviceShare, *, max_sequences: int, max_tokens: int, budget_s: float) -> None:
        """Prepare for batches up to these limits, the likeliest first, for about `budget_s`. The rest is done later.

        Called by one thread, while nothing else runs here. `share`: what keeps others from the device rests by it,
        which does not count against the budget. Raises as `run` does.
        """
        ...


class Running(Protocol):
    """A batch that was started."""

    def result(self) -> BatchOutput:
        """Wait for the batch. Called once, by any thread, in the order in which batches were started."""
        ...


@runtime_checkable
class PipelinedEngine(Engine, Protocol):
    """An engine that can queue the next batch on its device while one is computed."""

    def start(self, batch: PackedBatch) -> Running:
        """As `run`, but returns once the work is queued. Called by one thread; at most two batches are underway."""
        ...

    def idle(self) -> float | None:
        """Do a bounded piece of deferred work. Called by the thread that calls `start`, with no batch underway.

        Returns the seconds after which to call again if no batch comes; None: not before the next batch has ended.
        """
        ...
