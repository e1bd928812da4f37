"""From one vector a sequence to one score a label."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from penstock.engine.checkpoint import Checkpoint, Config, Tensors, read_safetensors
from penstock.engine.errors import CheckpointError, UnsupportedCheckpoint
from penstock.engine.families import family_of
from penstock.engine.pooling import apply_dense
from penstock.engine.weights import Dense


@dataclass(frozen=True, slots=True)
class Head:
    """A classifier: dense layers, then logits to scores."""

    layers: tuple[Dense, ...]
    scores: str  # "softmax", "sigmoid" (multi-label), or "raw" (regression: the logit itself)
    labels: tuple[str, ...]  # label of each score
    on_embedding: (
        bool  # input: the embedding with the checkpoint's own pooling (true) or the first token's state (false)
    )

    def __call__(self, rows: Tensor) -> Tensor:
        """[N, D] float32 to scores [N, len(labels)]."""
        logits = apply_dense(rows, self.layers)
        match self.scores:
            case "softmax":
                return torch.softmax(logits, dim=1)
            case "sigmoid":
                return torch.sigmoid(logits)
            case "raw":
                return logits
            case _:
                raise RuntimeError(f"unknown kind of scores {self.scores!r}. This is a bug.")


def sequence_classifier(checkpoint: Checkpoint) -> Head | None:
    """The head of a ...ForSequenceClassification checkpoint; None for any other."""
    architectures = checkpoint.config.get("architectures") or []
    if not any(str(name).endswith("ForSequenceClassification") for name in architectures):
        return None
    layers = family_of(checkpoint).classifier(checkpoint)
    num_labels = layers[-1].weight.shape[0]
    return Head(
        layers, _kind_of_scores(checkpoint, num_labels), _labels(checkpoint.config, num_labels), on_embedding=False
    )


def linear_head(path: Path, dim: int) -> Head:
    """A linear classifier on embeddings: tensors `weight` [C, dim], `bias` [C]; metadata `labels`, JSON of C strings.

    Metadata `scores` may say "sigmoid" for multi-label heads; without it, "softmax". Raises CheckpointError.
    """
    found, metadata = read_safetensors(path)
    tensors = Tensors(path.parent, found)
    weight = tensors.take("weight", -1, dim)
    num_labels = weight.shape[0]
    scores = metadata.get("scores", "softmax")
    if scores not in ("softmax", "sigmoid"):
        raise CheckpointError(f"{path}: metadata 'scores' must be softmax or sigmoid, not {scores!r}.")
    layer = Dense(weight, tensors.take("bias", num_labels), "identity")
    return Head((layer,), scores, _head_labels(path, metadata, num_labels), on_embedding=True)


def _head_labels(path: Path, metadata: dict[str, str], num_labels: int) -> tuple[str, ...]:
    try:
        labels = json.loads(metadata["labels"])
    except (KeyError, ValueError):
        labels = None
    if not isinstance(labels, list) or len(labels) != num_labels or not all(isinstance(label, str) for label in labels):
        raise CheckpointError(
            f"{path}: metadata 'labels' must be a JSON list of {num_labels} strings, one for each row of `weight`."
        )
    return tuple(labels)


def _labels(config: Config, num_labels: int) -> tuple[str, ...]:
    """id2label in order of id; transformers' own LABEL_i where config.json names none."""
    id2label = config.get("id2label") or {str(i): f"LABEL_{i}" for i in range(num_labels)}
    try:
        return tuple(str(id2label[str(i)]) for i in range(num_labels))
    except KeyError as error:
        raise CheckpointError(
            f"config.json: id2label has no entry {error} although the classifier has {num_labels} rows."
        ) from error


def _kind_of_scores(checkpoint: Checkpoint, num_labels: int) -> str:
    match checkpoint.config.get("problem_type"):
        case "multi_label_classification":
            return "sigmoid"
        case "regression":
            return "raw"
        case "single_label_classification":
            return "softmax"
        case None:
            return (
                "raw" if num_labels == 1 else "softmax"
            )  # transformers' rule: one label without a type is a regression
        case other:
            raise UnsupportedCheckpoint(f"{checkpoint.directory}: problem_type {other!r} is not implemented.")
