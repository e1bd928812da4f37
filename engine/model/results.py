"""From hidden states to results, all in float32.

An embedding is made by pooling, dense modules, cutting and L2 normalisation. A head makes scores of labels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.engine.errors import CheckpointError
from penstock.engine.model.dense import activate, by_vectors, linear_by_row
from penstock.engine.model.layout import Group
from penstock.engine.model.weights import Dense, Norm, convert_weights
from penstock.engine.types import TaskOptions

POOLINGS = frozenset({"cls", "mean", "max", "last"})
AnyHead = TypeVar("AnyHead")
OWN = TaskOptions("embed")  # the checkpoint's own pooling, dimensions and normalisation


@dataclass(frozen=True, slots=True)
class EmbeddingTail:
    """A checkpoint's steps from hidden states to embeddings, in this order but for `dimensions`."""

    pooling: str  # one of POOLINGS
    dense: tuple[Dense, ...]
    normalize: bool
    # Leading values that are kept; None: all. As in sentence-transformers the cut follows a Normalize module, and comes
    # before the normalisation that a request asks for. It also does where a request names another number.
    dimensions: int | None = None

    def width(self, hidden_size: int) -> int:
        """Length of an embedding before it is cut. Raises CheckpointError where the dense modules do not fit."""
        width = hidden_size
        for dense in self.dense:
            if dense.weight.shape[1] != width:
                raise CheckpointError(f"A Dense module takes {dense.weight.shape[1]} values, but is given {width}.")
            width = dense.weight.shape[0]
        return width

    def __call__(self, hidden: Tensor, groups: Sequence[Group], wanted: TaskOptions = OWN) -> Tensor:
        """Embeddings [N, D] in the order of `groups`; `wanted` may differ from the checkpoint's own options."""
        return self.after_pooling(pool(hidden, groups, wanted.pooling or self.pooling, wanted.prompt_tokens), wanted)

    def after_pooling(self, rows: Tensor, wanted: TaskOptions) -> Tensor:
        """Pooled rows [N, H] to embeddings [N, D], on the device of the rows and of this tail's weights."""
        rows = apply_layers(rows, self.dense)
        if self.normalize and wanted.normalize is None and wanted.dimensions is None:
            return F.normalize(rows, dim=1)[:, : self.dimensions]
        rows = rows[:, : wanted.dimensions or self.dimensions]
        return F.normalize(rows, dim=1) if self.normalizes(wanted) else rows

    def normalizes(self, wanted: TaskOptions) -> bool:
        """True if the embeddings are L2-normalised."""
        return self.normalize if wanted.normalize is None else wanted.normalize

    def only_pools(self, wanted: TaskOptions) -> bool:
        """True if nothing but normalisation follows pooling."""
        return not self.dense and (wanted.dimensions or self.dimensions) is None


def pool(hidden: Tensor, groups: Sequence[Group], pooling: str, left_out: int = 0) -> Tensor:
    """hidden [T, H] of any floating type, in the order of `groups`, to float32 rows [N, H].

    left_out: leading tokens of each sequence that are left out; its last token stays.
    """
    if pooling not in POOLINGS:
        raise ValueError(f"pooling {pooling!r} is not one of {sorted(POOLINGS)}.")
    rows = [_pool_group(hidden, group, pooling, left_out) for group in groups]
    return rows[0] if len(rows) == 1 else torch.cat(rows)


def pool_end(hidden: Tensor, groups: Sequence[Group], token_ids: Tensor, end_token: int | None) -> Tensor:
    """As `pool` with "last", but the last of `token_ids` [T] that is `end_token`, where one is.

    Tokenizers end every text. transformers refuses ids without an end.
    """
    rows = []
    for group in groups:
        ids = token_ids[group.start : group.stop].view(group.count, group.length)
        last = ((ids == end_token) * group.length + torch.arange(group.length)).argmax(dim=1)
        rows.append(hidden[group.start + torch.arange(group.count) * group.length + last].float())
    return torch.cat(rows)


def pool_last(hidden: Tensor, groups: Sequence[Group], token_ids: Tensor, pad_token: int | None) -> Tensor:
    """As `pool` with "last", but the last of `token_ids` [T] that is not `pad_token`; the first where all are."""
    if pad_token is None:
        return pool(hidden, groups, "last")
    rows = []
    for group in groups:
        ids = token_ids[group.start : group.stop].view(group.count, group.length)
        last = ((ids != pad_token) * torch.arange(group.length)).argmax(dim=1)
        rows.append(hidden[group.start + torch.arange(group.count) * group.length + last].float())
    return torch.cat(rows)


def _pool_group(hidden: Tensor, group: Group, pooling: str, left_out: int) -> Tensor:
    view = hidden[group.start : group.stop].view(group.count, group.length, hidden.shape[1])
    view = view[:, min(left_out, group.length - 1) :]
    match pooling:
        case "cls":
            return view[:, 0].float()
        case "last":
            return view[:, -1].float()
        case "mean":
            return view.mean(dim=1, dtype=torch.float32)
        case "max":
            return view.amax(dim=1).float()
        case _:
            raise RuntimeError(f"pooling {pooling!r} passed the check in pool(). This is a bug.")


def apply_layers(rows: Tensor, layers: Sequence[Dense | Norm]) -> Tensor:
    """[N, in] through each layer in turn."""
    for layer in layers:
        if isinstance(layer, Norm):
            rows = F.layer_norm(rows, layer.weight.shape, layer.weight, layer.bias, layer.eps)
        else:
            rows = activate(linear_by_row(rows, layer.weight, layer.bias), layer.activation)
    return rows


@dataclass(frozen=True, slots=True)
class Head:
    """A classifier: dense layers, then logits to scores."""

    layers: tuple[Dense | Norm, ...]
    scores: str  # "softmax", "sigmoid" (multi-label), or "raw" (regression: the logit itself)
    labels: tuple[str, ...]  # label of each score
    reads: str
    """ "cls", "mean": pooled hidden states; "last": the last token that is no padding; "end": the last end of the text,
    or its last token; "late": each token, whose logits are averaged; "embedding": the checkpoint's embedding; "tokens":
    hidden states of each token; "logits": the layers' output, computed elsewhere."""
    pad_token: int | None = None  # passed over by "last", within a text too, as transformers does
    end_token: int | None = None  # of "end"

    def __call__(self, rows: Tensor) -> Tensor:
        """[N, D] float32 to scores [N, len(labels)]."""
        return self.of_logits(apply_layers(rows, self.layers))

    def of_logits(self, logits: Tensor) -> Tensor:
        """Scores of logits, both [N, len(labels)]."""
        match self.scores:
            case "softmax":
                return torch.softmax(logits, dim=1)
            case "sigmoid":
                return by_vectors(torch.sigmoid_, logits)
            case "raw":
                return logits
            case _:
                raise RuntimeError(f"unknown kind of scores {self.scores!r}. This is a bug.")


def on_device(
    tail: EmbeddingTail, heads: Mapping[str, AnyHead], device: torch.device
) -> tuple[EmbeddingTail, dict[str, AnyHead]]:
    """Copies with their tensors on the device."""

    def moved(weights: Any) -> Any:
        return convert_weights(weights, lambda dense: dense.apply(move), move)

    def move(tensor: Tensor) -> Tensor:
        return tensor.to(device)

    return moved(tail), {task: moved(head) for task, head in heads.items()}
