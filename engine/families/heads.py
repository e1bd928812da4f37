"""Readers of classifiers: of a checkpoint's own, and of linear heads in a file of their own."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from penstock.engine.errors import CheckpointError, UnsupportedCheckpoint
from penstock.engine.families import family_of
from penstock.engine.families.bart import end_token
from penstock.engine.model.checkpoint import Checkpoint, Tensors
from penstock.engine.model.files import Config, read_json, read_safetensors, setting
from penstock.engine.model.module_list import LOGIT_SCORE
from penstock.engine.model.results import Head
from penstock.engine.model.weights import Dense, Norm
from penstock.engine.types import ENTAIL, entailment_of, is_entailment

_NUM_LABELS = {"bart": 3}  # of a config.json that does not state it; transformers' default of the others is 2
_SHOWN_NAMES = 3  # of the tensors of a file that is no head

_ACTIVATION = "activation_fn"
_LOGIT_SCORE_KEYS = {"true_token_id", "false_token_id", "module_input_name"}

# Activations that a CrossEncoder's configuration may name. Looked up, never imported.
_CROSS_ENCODER_SCORES = {
    "torch.nn.modules.activation.Sigmoid": "sigmoid",
    "torch.nn.modules.activation.Softmax": "softmax",
    "torch.nn.modules.linear.Identity": "raw",
}


def checkpoint_heads(checkpoint: Checkpoint, width: int) -> dict[str, Head]:
    """Heads of a checkpoint by task; empty for a bare encoder, whose states have `width` values.

    Raises CheckpointError, UnsupportedCheckpoint.
    """
    match checkpoint.task:
        case "classify":
            return _sequence_heads(checkpoint, width)
        case "token_classify":
            layers = family_of(checkpoint).token_classifier(checkpoint)
            _require_fit(layers, width)
            return {"token_classify": _of_tokens(_head(checkpoint, layers, _num_labels(layers), "tokens"))}
        case "rerank":
            return {"rerank": logit_score(checkpoint, width)}
        case _:
            return {}


def logit_score(checkpoint: Checkpoint, width: int) -> Head:
    """The head of sentence-transformers' LogitScore: of two tokens' logits, which are one row of weights.

    Raises CheckpointError, UnsupportedCheckpoint.
    """
    directory, logits = checkpoint.modules[1].directory, family_of(checkpoint).logits
    if logits is None:
        raise UnsupportedCheckpoint(f"{checkpoint.directory}: {LOGIT_SCORE} is implemented for decoders only.")
    stated, matrix = read_json(directory / "config.json"), logits(checkpoint)
    if unknown := sorted(stated.keys() - _LOGIT_SCORE_KEYS):
        raise UnsupportedCheckpoint(f"{directory}: {LOGIT_SCORE} with {', '.join(unknown)} is not implemented.")
    if stated.get("module_input_name", "causal_logits") != "causal_logits":
        raise UnsupportedCheckpoint(f"{directory}: {LOGIT_SCORE} reads causal_logits here, and nothing else.")
    row = _row_of(directory, matrix, setting(stated, "true_token_id", -1))
    if stated.get("false_token_id") is not None:
        row = row - _row_of(directory, matrix, setting(stated, "false_token_id", -1))
    layers = (Dense(row[None], None, "identity"),)
    _require_fit(layers, width)
    scores = _cross_encoder_scores(checkpoint) or "sigmoid"
    if scores == "softmax":
        raise UnsupportedCheckpoint(f"{checkpoint.directory}: the softmax of one score is always 1.")
    return Head(layers, scores, (), "last")


def _row_of(directory: Path, matrix: torch.Tensor, token: int) -> torch.Tensor:
    if not 0 <= token < len(matrix):
        raise CheckpointError(f"{directory}: the token {token} is not one of the model's {len(matrix)}.")
    return matrix[token]


def logit_heads(checkpoint: Checkpoint, num_labels: int, *, of_tokens: bool) -> dict[str, Head]:
    """Heads without layers, for logits of sequences or of tokens that are computed elsewhere.

    Raises UnsupportedCheckpoint for scores that are not implemented.
    """
    head = _head(checkpoint, (), num_labels, "logits")
    return {"token_classify": _of_tokens(head)} if of_tokens else _of_sequences(checkpoint, head)


def _sequence_heads(checkpoint: Checkpoint, width: int) -> dict[str, Head]:
    family = family_of(checkpoint)
    layers, reads = family.classifier(checkpoint), family.classifier_pooling(checkpoint)
    _require_fit(layers, width)
    head = _head(checkpoint, layers, _num_labels(layers), reads)
    if reads == "last" and checkpoint.config.get("pad_token_id", family.pad_token) is not None:
        head = replace(head, pad_token=setting(checkpoint.config, "pad_token_id", family.pad_token or 0))
    if reads == "end":
        head = replace(head, end_token=end_token(checkpoint))
    return _of_sequences(checkpoint, head)


def _of_tokens(head: Head) -> Head:
    """With the softmax, which transformers' pipeline takes of every token's logits, whatever the problem_type."""
    return replace(head, scores="softmax")


def _of_sequences(checkpoint: Checkpoint, classify: Head) -> dict[str, Head]:
    """`classify`; for a single label `rerank`, the score of a pair as CrossEncoder gives it; of inference ENTAIL.

    Several labels have the activation that CrossEncoder has stated, unless that is the identity.
    """
    stated = _cross_encoder_scores(checkpoint)
    if len(classify.labels) == 1:
        if stated == "softmax":
            raise UnsupportedCheckpoint(f"{checkpoint.directory}: the softmax of one label is always 1.")
        rerank = {"rerank": replace(classify, scores=stated or "sigmoid")}
        return rerank if checkpoint.has_template else {"classify": classify, **rerank}
    saved = checkpoint.sentence_transformers
    if checkpoint.has_template or setting(saved, "prompts", {}).get(setting(saved, "default_prompt_name", "")):
        raise UnsupportedCheckpoint(
            f"{checkpoint.directory}: a cross-encoder of several labels with a chat template or a default prompt is "
            "not implemented."
        )
    heads = {"classify": classify if stated in (None, "raw") else replace(classify, scores=stated)}
    if _is_of_inference(checkpoint.config, classify.labels):
        heads[ENTAIL] = replace(classify, scores="raw")
    return heads


def _is_of_inference(config: Config, labels: Sequence[str]) -> bool:
    """Whether one class is entailment, by id2label, and by label2id too, in which transformers looks for it.

    A checkpoint of which that is not certain classifies all the same, but not by labels of requests.
    """
    entailment, label2id = entailment_of(labels), config.get("label2id")
    if entailment is None or label2id is None:
        return entailment is not None
    return isinstance(label2id, dict) and [label2id[name] for name in label2id if is_entailment(name)] == [entailment]


def _head(checkpoint: Checkpoint, layers: tuple[Dense | Norm, ...], num_labels: int, reads: str) -> Head:
    return Head(layers, _kind_of_scores(checkpoint, num_labels), _labels(checkpoint.config, num_labels), reads)


def _require_fit(layers: tuple[Dense | Norm, ...], width: int) -> None:
    """Raise CheckpointError unless each layer takes as many values as the one before it gives."""
    for layer in layers:
        taken = layer.weight.shape[-1]
        if taken != width:
            raise CheckpointError(f"The classifier takes {taken} values, and what is before it gives {width}.")
        width = layer.weight.shape[0]


def _num_labels(layers: tuple[Dense | Norm, ...]) -> int:
    logits = layers[-1]
    if not isinstance(logits, Dense):
        raise RuntimeError("a classifier does not end in logits. This is a bug.")
    return logits.weight.shape[0]


def _cross_encoder_scores(checkpoint: Checkpoint) -> str | None:
    """The activation that one of sentence-transformers' versions states, if any."""
    config, saved = checkpoint.config, checkpoint.sentence_transformers
    own, old = setting(config, "sentence_transformers", {}), "sbert_ce_default_activation_function"
    names = [setting(of, key, "") for of, key in ((saved, _ACTIVATION), (own, _ACTIVATION), (config, old))]
    stated = next(filter(None, names), None)
    if stated is None:
        return None
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
    _require_linear(path, found, dim)
    tensors = Tensors(path, found)  # whose errors name the head, as the model's directory is not at fault
    weight = tensors.take("weight", -1, dim)
    num_labels = weight.shape[0]
    scores = metadata.get("scores", "softmax")
    if scores not in ("softmax", "sigmoid"):
        raise CheckpointError(f"{path}: metadata 'scores' must be softmax or sigmoid, not {scores!r}.")
    layer = Dense(weight, tensors.take("bias", num_labels), "identity")
    return Head((layer,), scores, _head_labels(path, metadata, num_labels), reads="embedding")


def require_head_file(path: Path) -> None:
    """Raise CheckpointError for a head that cannot be one by its name. Called before the model is read."""
    if path.suffix != ".safetensors":
        raise CheckpointError(f"The head {path} must be a safetensors file.")
    if not path.is_file():
        raise CheckpointError(f"The head {path} {'is not a regular file' if path.exists() else 'does not exist'}.")


def _require_linear(path: Path, found: dict[str, torch.Tensor], dim: int) -> None:
    weight, bias = found.get("weight"), found.get("bias")
    if weight is None or bias is None:
        names = ", ".join(sorted(found)[:_SHOWN_NAMES]) or "no tensor"
        raise CheckpointError(f"The head {path} must hold the tensors `weight` and `bias`. Found: {names}")
    if weight.ndim != 2 or weight.shape[1] != dim or bias.shape != weight.shape[:1]:
        raise CheckpointError(
            f"The head {path} does not fit the model: `weight` must be [labels, {dim}] and `bias` [labels]. "
            f"They are {tuple(weight.shape)} and {tuple(bias.shape)}."
        )


def _head_labels(path: Path, metadata: dict[str, str], num_labels: int) -> tuple[str, ...]:
    try:
        labels = json.loads(metadata["labels"])
    except (KeyError, ValueError):
        labels = None
    if not isinstance(labels, list) or len(labels) != num_labels or not all(isinstance(label, str) for label in labels):
        raise CheckpointError(
            f"{path}: metadata 'labels' must be a JSON list of {num_labels} strings, one for each row of `weight`."
        )
    return _encodable(path, labels)


def _labels(config: Config, num_labels: int) -> tuple[str, ...]:
    """id2label in order of id; without it transformers' LABEL_i. Raises CheckpointError unless it is of this head."""
    id2label = setting(config, "id2label", {})
    if not id2label:
        if config.get("num_labels", _NUM_LABELS.get(config["model_type"], 2)) != num_labels:
            raise CheckpointError(f"config.json has no id2label, and the classifier has {num_labels} rows.")
        return tuple(f"LABEL_{i}" for i in range(num_labels))
    if set(id2label) != {str(i) for i in range(num_labels)}:
        raise CheckpointError(
            f"config.json: id2label must have entries for 0 to {num_labels - 1}, the rows of the classifier; found "
            f"{', '.join(sorted(id2label)[:10])}."
        )
    return _encodable("config.json", [str(id2label[str(i)]) for i in range(num_labels)])


def _encodable(where: str | Path, labels: Sequence[str]) -> tuple[str, ...]:
    """Labels that replies can hold. Raises CheckpointError."""
    for label in labels:
        try:
            label.encode()
        except UnicodeEncodeError as error:
            raise CheckpointError(f"{where}: the label {label!r} holds half a surrogate pair.") from error
    return tuple(labels)


def _kind_of_scores(checkpoint: Checkpoint, num_labels: int) -> str:
    """As transformers' pipeline has them: the softmax of a single label would always be 1."""
    match checkpoint.config.get("problem_type"):
        case "multi_label_classification":
            return "sigmoid"
        case "regression":
            return "raw"
        case "single_label_classification" | None:
            return "sigmoid" if num_labels == 1 else "softmax"
        case other:
            raise UnsupportedCheckpoint(f"{checkpoint.directory}: problem_type {other!r} is not implemented.")
