"""Readers of classifiers: of a checkpoint's own, and of linear heads in a file of their own."""

import json
from dataclasses import replace
from pathlib import Path

from penstock.engine.errors import CheckpointError, UnsupportedCheckpoint
from penstock.engine.families import family_of
from penstock.engine.model.checkpoint import Checkpoint, Config, Tensors, read_safetensors
from penstock.engine.model.heads import Head
from penstock.engine.model.weights import Dense, Norm

# Activations that a CrossEncoder's configuration may name. Looked up, never imported.
_CROSS_ENCODER_SCORES = {
    "torch.nn.modules.activation.Sigmoid": "sigmoid",
    "torch.nn.modules.linear.Identity": "raw",
}
_BARE = ("Model", "ForMaskedLM", "ForPreTraining")  # architectures whose heads serve training only


def checkpoint_heads(checkpoint: Checkpoint) -> dict[str, Head]:
    """Heads of a checkpoint by task; empty for a bare encoder.

    Raises UnsupportedCheckpoint for an architecture whose head is not implemented.
    """
    heads: dict[str, Head] = {}
    for architecture in map(str, checkpoint.config.get("architectures") or ()):
        if architecture.endswith("ForSequenceClassification"):
            heads |= _sequence_heads(checkpoint)
        elif architecture.endswith("ForTokenClassification"):
            layers = family_of(checkpoint).token_classifier(checkpoint)
            heads["token_classify"] = _head(checkpoint, layers, _num_labels(layers), "tokens")
        elif not architecture.endswith(_BARE):
            raise UnsupportedCheckpoint(
                f"{checkpoint.directory}: architecture {architecture!r} is not implemented. Supported of model_type "
                f"{checkpoint.config.get('model_type')!r}: ...{', ...'.join(_BARE)} (the encoder alone), "
                "...ForSequenceClassification, ...ForTokenClassification."
            )
    return heads


def logit_heads(checkpoint: Checkpoint, num_labels: int, *, of_tokens: bool) -> dict[str, Head]:
    """Heads without layers, for logits of sequences or of tokens that are computed elsewhere.

    Raises UnsupportedCheckpoint for scores that are not implemented.
    """
    head = _head(checkpoint, (), num_labels, "logits")
    return {"token_classify": head} if of_tokens else _with_rerank(checkpoint, head)


def _sequence_heads(checkpoint: Checkpoint) -> dict[str, Head]:
    layers = family_of(checkpoint).classifier(checkpoint)
    return _with_rerank(checkpoint, _head(checkpoint, layers, _num_labels(layers), _classifier_pooling(checkpoint)))


def _with_rerank(checkpoint: Checkpoint, classify: Head) -> dict[str, Head]:
    """`classify`, and for a single label `rerank`, the score of a pair as CrossEncoder gives it."""
    if len(classify.labels) != 1:
        return {"classify": classify}
    return {"classify": classify, "rerank": replace(classify, scores=_cross_encoder_scores(checkpoint))}


def _head(checkpoint: Checkpoint, layers: tuple[Dense | Norm, ...], num_labels: int, reads: str) -> Head:
    return Head(layers, _kind_of_scores(checkpoint, num_labels), _labels(checkpoint.config, num_labels), reads)


def _num_labels(layers: tuple[Dense | Norm, ...]) -> int:
    logits = layers[-1]
    if not isinstance(logits, Dense):
        raise RuntimeError("a classifier does not end in logits. This is a bug.")
    return logits.weight.shape[0]


def _classifier_pooling(checkpoint: Checkpoint) -> str:
    """ModernBERT's classifier_pooling; the first token everywhere else."""
    pooling = str(checkpoint.config.get("classifier_pooling", "cls"))
    if pooling not in ("cls", "mean"):
        raise UnsupportedCheckpoint(f"{checkpoint.directory}: classifier_pooling {pooling!r} is not implemented.")
    return pooling


def _cross_encoder_scores(checkpoint: Checkpoint) -> str:
    """sentence-transformers' rule: the activation that one of its versions states, else a sigmoid."""
    config, saved = checkpoint.config, checkpoint.sentence_transformers
    if (saved.get("prompts") or {}).get(saved.get("default_prompt_name")):
        raise UnsupportedCheckpoint(f"{checkpoint.directory}: a cross-encoder's default prompt is not implemented.")
    stated = (
        saved.get("activation_fn")
        or (config.get("sentence_transformers") or {}).get("activation_fn")
        or config.get("sbert_ce_default_activation_function")
    )
    if stated is None:
        return "sigmoid"
    if stated not in _CROSS_ENCODER_SCORES:
        raise UnsupportedCheckpoint(
            f"{checkpoint.directory}: the cross-encoder's activation {stated!r} is not implemented. "
            f"Supported: {', '.join(_CROSS_ENCODER_SCORES)}."
        )
    return _CROSS_ENCODER_SCORES[stated]


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
    return Head((layer,), scores, _head_labels(path, metadata, num_labels), reads="embedding")


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
    """id2label in order of id; without it transformers' LABEL_i."""
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
            return "raw" if num_labels == 1 else "softmax"  # as in transformers, one label means a regression
        case other:
            raise UnsupportedCheckpoint(f"{checkpoint.directory}: problem_type {other!r} is not implemented.")
