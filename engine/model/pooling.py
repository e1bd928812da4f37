"""From hidden states to one vector a sequence: pooling, dense modules, L2 normalisation. All in float32."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.engine.cpu.linear import activate
from penstock.engine.model.layout import Group
from penstock.engine.model.weights import Dense, Norm

POOLINGS = frozenset({"cls", "mean", "max", "last"})


@dataclass(frozen=True, slots=True)
class EmbeddingTail:
    """What a checkpoint makes of hidden states, in this order."""

    pooling: str  # one of POOLINGS
    dense: tuple[Dense, ...]
    normalize: bool

    def __call__(self, hidden: Tensor, groups: Sequence[Group], pooling: str | None, normalize: bool | None) -> Tensor:
        """Embeddings [N, D] in the order of `groups`. None for `pooling` or `normalize` means the checkpoint's own."""
        rows = pool(hidden, groups, pooling or self.pooling)
        return self.after_pooling(rows, self.normalize if normalize is None else normalize)

    def after_pooling(self, rows: Tensor, normalize: bool) -> Tensor:
        """Pooled rows [N, H] to embeddings [N, D], wherever the rows and this tail's weights lie."""
        rows = apply_layers(rows, self.dense)
        return F.normalize(rows, dim=1) if normalize else rows


def pool(hidden: Tensor, groups: Sequence[Group], pooling: str) -> Tensor:
    """hidden [T, H] of any floating type, sorted as `groups` say, to float32 rows [N, H]."""
    if pooling not in POOLINGS:
        raise ValueError(f"pooling {pooling!r} is not one of {sorted(POOLINGS)}.")
    return torch.cat([_pool_group(hidden, group, pooling) for group in groups])


def _pool_group(hidden: Tensor, group: Group, pooling: str) -> Tensor:
    view = hidden[group.start : group.stop].view(group.count, group.length, hidden.shape[1])
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
            rows = activate(F.linear(rows, layer.weight, layer.bias), layer.activation)
    return rows
