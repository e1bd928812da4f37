"""The words of sentence-transformers' files on a checkpoint, as that library and CrossEncoder take it.

The modules after the transformer as one EmbeddingTail, the lengths of its vectors, and the longest sequence.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from penstock.engine.errors import CheckpointError, UnsupportedCheckpoint
from penstock.engine.model.admission import CAUSAL
from penstock.engine.model.checkpoint import Checkpoint, read_tensors
from penstock.engine.model.dense import require_activation
from penstock.engine.model.files import Config, read_json, read_optional, require_int, setting
from penstock.engine.model.module_list import Module, transformer_config
from penstock.engine.model.results import EmbeddingTail
from penstock.engine.model.weights import Dense

_POOLING_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "last",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}
# include_prompt is for those who prepend the prompt: `TaskOptions.prompt_tokens`.
_POOLING_KEYS = {"embedding_dimension", "word_embedding_dimension", "pooling_mode", "include_prompt", *_POOLING_FLAGS}
_POOLING_NAMES = {"cls": "cls", "mean": "mean", "max": "max", "lasttoken": "last"}
_CARD_DIMENSIONS = re.compile(r'"matryoshka_dims":\s*\[([\d,\s]+)\]')
_ACTIVATIONS = {
    "torch.nn.modules.activation.Tanh": "tanh",
    "torch.nn.modules.activation.ReLU": "relu",
    "torch.nn.modules.activation.GELU": "gelu",
    "torch.nn.modules.activation.SiLU": "silu",
    "torch.nn.modules.linear.Identity": "identity",
}
_ARGUMENTS = ("processor_kwargs", "tokenizer_args")
_UNSTATED_MAX_TOKENS = 512
_MOST_BEYOND = 1 << 17  # tokens, of a stated limit that is beyond max_position_embeddings
_UNLIMITED = 10**20  # transformers takes larger limits for none


def embedding_tail(checkpoint: Checkpoint) -> EmbeddingTail:
    """Pooling, dense layers, cutting, normalisation; pooling alone for a directory without modules.json.

    Of a model that makes no vector of a text nothing asks for the result. Raises UnsupportedCheckpoint for a pooling or
    an option that is not implemented.
    """
    if not checkpoint.embeds:
        return EmbeddingTail("mean", (), normalize=False)
    pooling, dense, normalize = _pooling_without_modules(checkpoint.config), list[Dense](), False
    for module in checkpoint.modules[1:]:
        if normalize:
            raise UnsupportedCheckpoint(
                f"{module.directory}: a {module.kind} module after Normalize is not implemented."
            )
        match module.kind:
            case "Pooling":
                pooling = _pooling(module)
            case "Dense":
                dense.append(dense_module(module))
            case "Normalize":
                normalize = True
            case "Dropout" | "LogitScore":
                pass  # no effect outside training; a head, which `checkpoint_heads` reads
            case other:
                raise RuntimeError(f"module {other!r} was admitted after the transformer. This is a bug.")
    return EmbeddingTail(pooling, tuple(dense), normalize, _truncate_dim(checkpoint))


def _pooling_without_modules(config: Config) -> str:
    """The last token of a model that predicts the next one, unless it attends to both sides; else the mean."""
    predicts = any(name.endswith(CAUSAL) for name in config.get("architectures") or [])
    return "last" if predicts and config.get("is_causal", True) else "mean"


def matryoshka_dimensions(checkpoint: Checkpoint, width: int) -> tuple[int, ...]:
    """Lengths that embeddings of this model may be cut to (Kusupati et al. 2022); empty if it states none.

    A checkpoint states them in `matryoshka_dimensions` of config.json, in `truncate_dim` of
    config_sentence_transformers.json, or in its README as sentence-transformers' trainer writes it. `width`, the whole
    embedding, is then one of them.
    """
    listed = checkpoint.config.get("matryoshka_dimensions") or []
    if not isinstance(listed, list) or not all(map(_is_length, listed)):
        raise CheckpointError(f"{checkpoint.directory}: matryoshka_dimensions must be a list of positive integers.")
    card = checkpoint.directory / "README.md"
    if card.is_file() and (found := _CARD_DIMENSIONS.search(card.read_text(encoding="utf-8", errors="replace"))):
        listed = [*listed, *map(int, re.findall(r"\b[1-9]\d{0,8}\b", found[1]))]
    stated = {*listed, _truncate_dim(checkpoint)} - {None}
    return tuple(sorted({dimension for dimension in stated if dimension < width} | {width})) if stated else ()


def _truncate_dim(checkpoint: Checkpoint) -> int | None:
    """The length that sentence-transformers cuts embeddings to when a caller names none."""
    value = checkpoint.sentence_transformers.get("truncate_dim")
    if value is not None and not _is_length(value):
        raise CheckpointError(f"{checkpoint.directory}: truncate_dim must be a positive integer, not {value!r}.")
    return value


def _is_length(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _pooling(module: Module) -> str:
    config = read_json(module.directory / "config.json")
    if unknown := sorted(config.keys() - _POOLING_KEYS):
        raise UnsupportedCheckpoint(f"{module.directory}: pooling with {', '.join(unknown)} is not implemented.")
    stated = config.get("pooling_mode")
    if stated is None:
        modes = [name for flag, name in _POOLING_FLAGS.items() if setting(config, flag, False)] or ["mean"]
    else:
        modes = [_POOLING_NAMES.get(m, m) for m in map(str, stated if isinstance(stated, list) else [stated])]
    if len(modes) != 1 or modes[0] not in _POOLING_NAMES.values():
        raise UnsupportedCheckpoint(
            f"{module.directory}: pooling {' + '.join(modes)} is not implemented, only one of cls, mean, max, last."
        )
    return modes[0]


def dense_module(module: Module) -> Dense:
    """The layer of a Dense module. Raises CheckpointError, UnsupportedCheckpoint."""
    config = read_json(module.directory / "config.json")
    if setting(config, "use_residual", False):
        raise UnsupportedCheckpoint(f"{module.directory}: Dense with use_residual is not implemented.")
    tensors = read_tensors(module.directory)
    if "linear.bias" in tensors and not setting(config, "bias", True):
        raise CheckpointError(f"{module.directory}: the weights have a bias, and config.json says that there is none.")
    weight = tensors.take("linear.weight", *(setting(config, key, -1) for key in ("out_features", "in_features")))
    bias = tensors.take("linear.bias", weight.shape[0]) if setting(config, "bias", True) else None
    return Dense(weight, bias, _activation(module, config))


def _activation(module: Module, config: Config) -> str:
    """The activation of a class path, from a fixed table; nothing is imported by name."""
    path = setting(config, "activation_function", "torch.nn.modules.activation.Tanh")
    name = _ACTIVATIONS.get(path)
    if name is None:
        raise UnsupportedCheckpoint(
            f"{module.directory}: activation {path!r} is not implemented. Supported: {', '.join(_ACTIVATIONS)}."
        )
    require_activation(name)
    return name


def max_tokens_of(checkpoint: Checkpoint, positions: int | None, of_roles: Sequence[int] = ()) -> int:
    """Tokens of the longest sequence: the stated limit, and at most the positions of the weights; None: any.

    of_roles: lengths that are stated for queries or documents, each of which may be above the other limit.
    Without any, a T5 has `n_positions`, which its reference ignores. Raises CheckpointError.
    """
    stated = _stated_max_tokens(checkpoint)
    stated = stated if stated is None else max(stated, *of_roles, 0)
    limits = [limit for limit in (stated, positions) if limit is not None]
    return min(limits) if limits else require_int(checkpoint.config, "n_positions", _UNSTATED_MAX_TOKENS)


def max_tokens_beyond(checkpoint: Checkpoint, positions: int, of_roles: Sequence[int] = ()) -> int:
    """`max_tokens_of`, where no table limits positions: a sequence may have more of them than config.json states.

    A sentence-transformers configuration counts beyond them, to 131,072 tokens.
    """
    is_stated = bool(checkpoint.modules) and _of_sentence_config(checkpoint.root) is not None
    return max_tokens_of(checkpoint, max(positions, _MOST_BEYOND) if is_stated else positions, of_roles)


def _stated_max_tokens(checkpoint: Checkpoint) -> int | None:
    """The limit that is stated, if any. Weights may have fewer positions.

    The limit of a sentence-transformers configuration counts alone. Without one, the tokenizer's limit counts, and at
    most `max_position_embeddings`. Raises CheckpointError for a limit that is no number.
    """
    root = checkpoint.root
    own = _of_sentence_config(root) if checkpoint.modules else None
    if own is not None:
        return own
    limits = [tokenizer_max_tokens(root), _limit(root, checkpoint.config.get("max_position_embeddings"), no_limit=-1)]
    return min(filter(None, limits), default=None)


def tokenizer_max_tokens(root: Path) -> int | None:
    """The tokenizer's limit, where transformers cuts if it is asked to; None where there is none.

    Raises CheckpointError for a limit that is no number.
    """
    options = read_optional(root / "tokenizer_config.json")
    return _limit(root, options.get("model_max_length", options.get("max_len")))


def _of_sentence_config(root: Path) -> int | None:
    stated = transformer_config(root)
    for key in _ARGUMENTS:
        arguments = stated.get(key)
        if isinstance(arguments, dict) and "model_max_length" in arguments:
            return _limit(root, arguments["model_max_length"])
    return _limit(root, stated.get("max_seq_length"))


def _limit(root: Path, stated: object, *, no_limit: int | None = None) -> int | None:
    if stated is None or stated == no_limit:
        return None
    if not isinstance(stated, int | float) or isinstance(stated, bool) or not stated >= 1:
        raise CheckpointError(f"{root}: a limit of {stated!r} tokens is stated (max_seq_length, model_max_length).")
    return None if stated > _UNLIMITED else int(stated)
