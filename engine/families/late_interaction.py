"""Readers of late-interaction models (ColBERT): sentence-transformers' own layout, PyLate's and Stanford's.

What they say of tokenization is read in `producer.late_interaction`. Here are the projection of each token, the tokens
of documents that have no vector, and what a query is told by.
"""

import string
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from penstock.engine.errors import CheckpointError, UnsupportedCheckpoint
from penstock.engine.model.admission import EMBED_TOKENS
from penstock.engine.model.checkpoint import Checkpoint
from penstock.engine.model.files import read_json, read_optional, setting
from penstock.engine.model.module_list import PYLATE, transformer_config
from penstock.engine.model.modules import dense_module
from penstock.engine.model.vectors import KeptTokens, Marker, TokenVectors, Unattended
from penstock.engine.model.weights import (
    Dense,
    DisentangledAttention,
    DistanceAttention,
    EncoderWeights,
    RotaryAttention,
)

_PUNCTUATION = list(string.punctuation)  # left out of documents by PyLate and Stanford, unless they say otherwise
_MASK_KEYS = {"skiplist_words", "skiplist_tasks", "keep_only_token_ids"}


@dataclass(frozen=True, slots=True)
class _Stated:
    """The settings of any layout."""

    layers: tuple[Dense, ...]
    normalize: bool
    query: str  # prompts
    document: str
    skipped: list[str]  # words that have no vector in documents
    expansion: Mapping[str, Any] | None  # of queries, under the names of sentence-transformers
    marks: bool  # whether a prompt that is in the vocabulary is made one token, where the tokenizer would split it


def token_vectors(checkpoint: Checkpoint, weights: EncoderWeights) -> TokenVectors:
    """The head of a late-interaction model. Raises CheckpointError, UnsupportedCheckpoint."""
    if not checkpoint.modules:
        stated = _stanford(checkpoint, weights.hidden_size)
    elif checkpoint.sentence_transformers["model_type"] == PYLATE:
        stated = _pylate(checkpoint)
    else:
        stated = _own(checkpoint)
    if not all(isinstance(word, str) for word in stated.skipped):
        raise CheckpointError(f"{checkpoint.directory}: skiplist_words must be a list of strings.")
    vocabulary = _Vocabulary(checkpoint.root)
    skipped = [index for word in stated.skipped if (index := vocabulary.id_of(word)) is not None]
    is_unattended = stated.expansion is not None and not stated.expansion.get("attend")
    marker = None
    if skipped or is_unattended:
        query, document = (vocabulary.marker(prompt, marks=stated.marks) for prompt in (stated.query, stated.document))
        if query is None or query == document:
            raise UnsupportedCheckpoint(
                f"{checkpoint.directory}: queries and documents are computed differently (punctuation, or expansion), "
                f"and are told by the first token of the query's prompt, which {stated.query!r} does not state."
            )
        if not stated.document:  # its texts may begin with the query's prompt
            raise UnsupportedCheckpoint(
                f"{checkpoint.directory}: queries and documents are computed differently (punctuation, or expansion), "
                "and documents have no prompt by which they are told."
            )
        marker = Marker(query, vocabulary.marker(stated.document, marks=True))
    length = 0 if stated.expansion is None else setting(stated.expansion, "length", 0)
    if weights.max_tokens is not None and length > weights.max_tokens:
        raise UnsupportedCheckpoint(
            f"{checkpoint.directory}: queries are filled up to {length} tokens, and the model takes "
            f"{weights.max_tokens}."
        )
    unattended = None
    if is_unattended and marker is not None and stated.expansion is not None:
        _require_short_of_keys(checkpoint, weights, length)
        token = vocabulary.require(stated.expansion.get("token") or vocabulary.mask_token)
        unattended = Unattended(marker, token, length)
    kept = KeptTokens(skipped=np.array(skipped, np.int32), query=marker)
    return TokenVectors(stated.layers, stated.normalize, kept, unattended)


def stated_lengths(checkpoint: Checkpoint) -> list[int]:
    """The lengths of queries and documents, of which each may be longer than what the transformer states.

    Empty for a model of another task.
    """
    if checkpoint.task != EMBED_TOKENS:
        return []
    saved, expansion = checkpoint.sentence_transformers, _expansion(checkpoint)
    stated = transformer_config(checkpoint.root) if checkpoint.modules else read_optional(_metadata(checkpoint))
    keys = ("query_length", "document_length", "query_maxlen", "doc_maxlen")
    lengths = [setting(config, key, 0) for config in (stated, saved) for key in keys]
    return [*lengths, 0 if expansion is None else setting(expansion, "length", 0)]


def _own(checkpoint: Checkpoint) -> _Stated:
    """MultiVectorEncoder, as version 6 saves it."""
    kinds = {module.kind: module for module in checkpoint.modules}
    mask = read_json(kinds["MultiVectorMask"].directory / "config.json")
    unknown = sorted(mask.keys() - _MASK_KEYS)
    if setting(mask, "keep_only_token_ids", []) or unknown or mask.get("skiplist_tasks") not in (None, ["document"]):
        raise UnsupportedCheckpoint(
            f"{mask.path}: MultiVectorMask is implemented with skiplist_words, of documents alone. Found: "
            f"{', '.join(unknown) or mask}."
        )
    prompts = setting(checkpoint.sentence_transformers, "prompts", {})
    query, document = (prompts.get(role) or "" for role in ("query", "document"))
    words = setting(mask, "skiplist_words", [])
    return _Stated(_layers(checkpoint), "Normalize" in kinds, query, document, words, _expansion(checkpoint), False)


def _pylate(checkpoint: Checkpoint) -> _Stated:
    """PyLate's ColBERT: version 6 appends the mask and Normalize."""
    saved = checkpoint.sentence_transformers
    query, document = (setting(saved, f"{role}_prefix", "") for role in ("query", "document"))
    words = _PUNCTUATION if saved.get("skiplist_words") is None else setting(saved, "skiplist_words", [])
    return _Stated(_layers(checkpoint), True, query, document, words, _expansion(checkpoint), True)


def _stanford(checkpoint: Checkpoint, hidden_size: int) -> _Stated:
    """HF_ColBERT: the projection among the weights, the rest in artifact.metadata."""
    metadata = read_optional(_metadata(checkpoint))
    weight = checkpoint.weights.take("linear.weight", -1, hidden_size)
    # Null is false, as in the reference.
    skips = "mask_punctuation" not in metadata or setting(metadata, "mask_punctuation", False)
    return _Stated(
        layers=(Dense(weight, None, "identity"),),
        normalize=True,
        query=setting(metadata, "query_token_id", "[unused0]"),
        document=setting(metadata, "doc_token_id", "[unused1]"),
        skipped=_PUNCTUATION if skips else [],
        expansion=_expansion(checkpoint),
        marks=True,
    )


def _metadata(checkpoint: Checkpoint) -> Path:
    return checkpoint.directory / "artifact.metadata"


def _expansion(checkpoint: Checkpoint) -> Mapping[str, Any] | None:
    """How queries are expanded, with `attend` and `length`; None: they are not."""
    saved = checkpoint.sentence_transformers
    if not checkpoint.modules:
        metadata = read_optional(_metadata(checkpoint))
        attend, length = metadata.get("attend_to_mask_tokens"), metadata.get("query_maxlen")
        return {"attend": bool(attend), "length": length or 32}
    for config in (transformer_config(checkpoint.root), saved):
        if "query_expansion" in config:
            return setting(config, "query_expansion", {}) or None
    if saved["model_type"] != PYLATE or saved.get("do_query_expansion") is False:
        return None
    attend = saved.get("attend_to_expansion_tokens", saved.get("attend_to_mask_tokens"))
    return {"attend": bool(attend), "length": saved.get("query_length") or 32}


def _layers(checkpoint: Checkpoint) -> tuple[Dense, ...]:
    return tuple([dense_module(module) for module in checkpoint.modules[1:] if module.kind.endswith("Dense")])


def _require_short_of_keys(checkpoint: Checkpoint, weights: EncoderWeights, length: int) -> None:
    """Raise UnsupportedCheckpoint for attention in which a token cannot look at the first tokens alone."""
    for layer in weights.layers:
        match layer.attention:
            case DistanceAttention() | DisentangledAttention():
                is_plain = False
            case RotaryAttention(is_causal=is_causal, window=window):
                is_plain = not is_causal and (window is None or window >= length - 1)
            case _:
                is_plain = True
        if not is_plain:
            raise UnsupportedCheckpoint(
                f"{checkpoint.directory}: queries whose expansion is not attended to are not implemented with relative "
                "positions, a causal mask or a window that is shorter than a query."
            )


class _Vocabulary:
    """Tokens by their ids, of tokenizer.json."""

    def __init__(self, root: Path) -> None:
        self._root = root
        content = read_optional(root / "tokenizer.json")
        vocab, added = setting(content, "model", {}).get("vocab"), setting(content, "added_tokens", [])
        try:
            pieces = vocab if isinstance(vocab, dict) else {piece: i for i, (piece, _) in enumerate(vocab or ())}
            self._ids: dict[str, int] = {**pieces, **{token["content"]: token["id"] for token in added}}
            self._whole = {token["content"] for token in added if not token.get("normalized")}  # found in any text
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(f"{content.path} does not hold a tokenizer's vocabulary: {error!r}.") from error

    def id_of(self, token: str) -> int | None:
        """As convert_tokens_to_ids; None for one that the vocabulary lacks."""
        return self._ids.get(token)

    def require(self, token: str) -> int:
        """As `id_of`. Raises UnsupportedCheckpoint."""
        index = self.id_of(token)
        if index is None:
            raise UnsupportedCheckpoint(f"{self._root / 'tokenizer.json'} has no token {token!r}, which is needed.")
        return index

    def marker(self, prompt: str, *, marks: bool) -> int | None:
        """The token that a prompt is or begins with; None where it begins with text. marks: see `_Stated`."""
        for token in (prompt, *prompt.split(None, 1)[:1]):
            if token in self._ids:
                return self._ids[token] if marks or token in self._whole else None
        return None

    @property
    def mask_token(self) -> str:
        """The mask token that tokenizer_config.json states."""
        stated = read_optional(self._root / "tokenizer_config.json").get("mask_token")
        return str(stated.get("content") if isinstance(stated, dict) else stated)
