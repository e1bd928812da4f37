"""Classifiers: one score a label, for a sequence or for each of its tokens."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from penstock.engine.model.dense import by_vectors
from penstock.engine.model.pooling import EmbeddingTail, apply_layers
from penstock.engine.model.weights import Dense, Norm


@dataclass(frozen=True, slots=True)
class Head:
    """A classifier: dense layers, then logits to scores."""

    layers: tuple[Dense | Norm, ...]
    scores: str  # "softmax", "sigmoid" (multi-label), or "raw" (regression: the logit itself)
    labels: tuple[str, ...]  # label of each score
    reads: str
    """ "cls", "mean": pooled hidden states; "embedding": the checkpoint's embedding; "tokens": hidden states of each
    token; "logits": the layers' output, computed elsewhere."""

    def __call__(self, rows: Tensor) -> Tensor:
        """[N, D] float32 to scores [N, len(labels)]."""
        logits = apply_layers(rows, self.layers)
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
    tail: EmbeddingTail, heads: Mapping[str, Head], device: torch.device
) -> tuple[EmbeddingTail, dict[str, Head]]:
    """Copies with their tensors on the device."""

    def moved(layer: Any) -> Any:
        values = {field.name: getattr(layer, field.name) for field in fields(layer)}
        return replace(layer, **{name: value.to(device) for name, value in values.items() if isinstance(value, Tensor)})

    heads = {task: replace(head, layers=tuple(map(moved, head.layers))) for task, head in heads.items()}
    return replace(tail, dense=tuple(map(moved, tail.dense))), heads
