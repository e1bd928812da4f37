"""The longest sequence that a checkpoint's files state, as sentence-transformers and CrossEncoder take it."""

from pathlib import Path

from penstock.engine.errors import CheckpointError
from penstock.engine.model.checkpoint import Checkpoint
from penstock.engine.model.config import Config
from penstock.engine.model.files import read_optional
from penstock.engine.model.module_list import TRANSFORMER_CONFIGS

_ARGUMENTS = ("processor_kwargs", "tokenizer_args")
_UNLIMITED = 10**20  # transformers takes larger limits for none


def stated_max_tokens(checkpoint: Checkpoint) -> int | None:
    """Tokens of the longest sequence; None where nothing is stated. Weights may have fewer positions.

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
    stated = next(filter(None, (read_optional(root / name) for name in TRANSFORMER_CONFIGS)), Config())
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
