"""How a late-interaction model (ColBERT) has its queries and documents tokenized: the rules of MultiVectorEncoder.

A query begins with one prompt and a document with another, each is cut at a length of its own, and a query may be
expanded: filled up with [MASK] tokens, which have vectors as its words do (Khattab and Zaharia 2020, section 3.2).
Three layouts are read as sentence-transformers 6 reads them: its own, PyLate's and Stanford's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tokenizers

from penstock.producer.prompts import Prompts, prompts_of
from penstock.producer.tokenizer_files import TokenizerError, read_object, read_options
from penstock.producer.tokenizer_loading import ARGUMENTS, OF_ROLES, sentence_config, transformer_directory

Int32Array = npt.NDArray[np.int32]

_CONFIG = "config_sentence_transformers.json"
_PREFIXES = ("query_prefix", "document_prefix")
_ATTEND = ("attend_to_expansion_tokens", "attend_to_mask_tokens")
# Of PyLate, in that file; a MultiVectorEncoder has them in the files of its modules.
_PYLATE_KEYS = frozenset({*OF_ROLES, *_PREFIXES, *_ATTEND, "do_query_expansion", "skiplist_words"})
_MARKERS = {"query_token_id": "[unused0]", "doc_token_id": "[unused1]"}  # of Stanford's artifact.metadata
_OF_LENGTHS = (*OF_ROLES, *ARGUMENTS, "max_seq_length")  # of the transformer's module
_QUERY_LENGTH = 32  # where none is stated
_UNLIMITED = 10**20  # transformers takes larger limits for none


@dataclass(frozen=True, slots=True)
class Expansion:
    """Filling up of a query to a length, with one token."""

    length: int
    cuts: bool  # whether a longer query is cut, whatever its sender asks for ("fixed"), or stays as it is ("min")
    token: str


@dataclass(frozen=True, slots=True)
class TextsOfRole:
    """Texts of one role, and where they are cut; or the most that they may have, where they are not cut."""

    places: Sequence[int]  # among all texts
    truncate: bool
    max_tokens: int | None
    is_query: bool


@dataclass(frozen=True, slots=True)
class LateInteraction:
    """The rules of one checkpoint. A text's role is told by the prompt that it begins with."""

    prompts: Prompts
    markers: tuple[str, ...]  # prompts that were one token in training, and may need to be told to the tokenizer
    length: int | None  # of texts whose role has no length of its own; None: any
    query_length: int | None
    document_length: int | None
    expansion: Expansion | None

    def parts(self, texts: Sequence[Any], truncate: bool, max_tokens: int | None) -> list[TextsOfRole]:
        """The texts by role. truncate, max_tokens: what their sender asks for; the second counts with the first."""
        max_tokens = max_tokens if truncate else None
        query, document = (self.prompts.by_name[role] for role in ("query", "document"))
        places: dict[str, list[int]] = {"query": [], "document": [], "": []}
        for place, text in enumerate(texts):
            first = text if isinstance(text, str) else text[0]
            is_query = bool(query) and first.startswith(query)
            is_document = bool(document) and first.startswith(document)
            places["query" if is_query else "document" if is_document else ""].append(place)
        expansion, query_length = self.expansion, self.query_length
        if expansion is not None and query_length is not None:
            query_length = max(query_length, expansion.length)
        parts = [
            TextsOfRole(places["query"], truncate, _least(max_tokens, query_length or self.length), is_query=True),
            TextsOfRole(
                places["document"], truncate, _least(max_tokens, self.document_length or self.length), is_query=False
            ),
            TextsOfRole(places[""], truncate, _least(max_tokens, self.length), is_query=False),
        ]
        if expansion is not None and expansion.cuts:
            parts[0] = replace(parts[0], truncate=True, max_tokens=expansion.length)
        return [part for part in parts if part.places]

    def expanded(self, ids: Int32Array, backend: Any) -> Int32Array:
        """The ids of a query, filled up."""
        if self.expansion is None or len(ids) >= self.expansion.length:
            return ids
        fill = np.full(self.expansion.length - len(ids), backend.token_to_id(self.expansion.token), np.int32)
        return np.concatenate((ids, fill))


def read_late_interaction(directory: Path) -> LateInteraction | None:
    """The rules of a checkpoint; None for one that is no late-interaction model. Raises TokenizerError, ValueError."""
    root = transformer_directory(directory)
    if root is None:
        is_stanford = read_object(directory / "config.json").get("architectures") == ["HF_ColBERT"]
        return _stanford(directory, read_object(directory / "artifact.metadata")) if is_stanford else None
    saved = read_object(directory / _CONFIG)
    stated = {key: value for key, value in sentence_config(root).items() if key in _OF_LENGTHS}
    match saved.get("model_type"):
        case "MultiVectorEncoder":
            if unknown := sorted(_PYLATE_KEYS & saved.keys()):
                raise TokenizerError(f"{directory / _CONFIG}: {', '.join(unknown)} of a MultiVectorEncoder: not known.")
            return _late(root, prompts_of(saved, directory / _CONFIG), (), stated)
        case "ColBERT":
            prefixes, prompts = _prefixed(directory, saved)
            whole = prompts_of({**saved, "prompts": prompts}, directory / _CONFIG)
            return _late(root, whole, prefixes, {**_of_pylate(saved), **stated})
        case _:
            return None


def prepare(late: LateInteraction, backend: Any) -> None:
    """Make a tokenizer emit each marker as the one token that it was in training. Called once, before other use.

    As text [unused0] would be split into four. A marker that the vocabulary lacks stays text. Raises TokenizerError.
    """
    if late.expansion is not None and backend.token_to_id(late.expansion.token) is None:
        raise TokenizerError(f"queries are expanded with {late.expansion.token!r}, which the tokenizer does not have.")
    new = []
    for marker in late.markers:
        known = [name for name in (marker, *marker.split(None, 1)[:1]) if backend.token_to_id(name) is not None]
        if known and backend.encode(known[0], add_special_tokens=False).tokens != known[:1]:
            new.append(tokenizers.AddedToken(known[0], normalized=False, special=True))
    if new:
        backend.add_special_tokens(new)


def _stanford(directory: Path, metadata: dict[str, Any]) -> LateInteraction:
    """As artifact.metadata states it: markers and lengths; queries are always expanded."""
    markers = [f"{metadata.get(key) or default} " for key, default in _MARKERS.items()]
    expansion = {"strategy": "fixed", "length": metadata.get("query_maxlen") or _QUERY_LENGTH}
    knobs = {"document_length": metadata.get("doc_maxlen"), "query_expansion": expansion}
    return _late(directory, Prompts(dict(zip(("query", "document"), markers, strict=True))), tuple(markers), knobs)


def _prefixed(directory: Path, saved: Mapping[str, Any]) -> tuple[tuple[str, ...], dict[str, Any]]:
    """PyLate's prefixes, and the prompts, which follow them."""
    stated, prefixes = saved.get("prompts") or {}, []
    prompts = dict(stated) if isinstance(stated, dict) else {}
    for key in _PREFIXES:
        if key in saved:
            prefix, role = saved[key] or "", key.removesuffix("_prefix")
            prompt = prompts.get(role) or ""
            if not isinstance(prefix, str) or not isinstance(prompt, str):
                raise TokenizerError(f"{directory / _CONFIG}: {key} and the prompt {role!r} must be strings.")
            prefixes.append(prefix)
            prompts[role] = prefix + prompt.removeprefix(prefix)
    return tuple(prefix for prefix in prefixes if prefix), prompts


def _of_pylate(saved: Mapping[str, Any]) -> dict[str, Any]:
    """PyLate's settings under the names of sentence-transformers. Expansion is on, unless it is turned off."""
    knobs = {key: saved[key] for key in ("query_length", "document_length") if saved.get(key) is not None}
    if "query_expansion" in saved:
        return knobs | {"query_expansion": saved["query_expansion"]}
    if _PYLATE_KEYS.isdisjoint(saved) or saved.get("do_query_expansion") is False:
        return knobs
    length = knobs.pop("query_length", None) or _QUERY_LENGTH
    return knobs | {"query_expansion": {"strategy": "fixed", "length": length}}


def _late(root: Path, prompts: Prompts, markers: tuple[str, ...], knobs: Mapping[str, Any]) -> LateInteraction:
    """Rules of settings under the names of sentence-transformers. root: the tokenizer's directory."""
    expansion: Any = knobs.get("query_expansion")
    lengths = [knobs.get("query_length"), knobs.get("document_length")]
    if expansion is not None:
        if not isinstance(expansion, dict) or expansion.get("strategy") not in ("fixed", "min"):
            raise TokenizerError(f"{root}: query_expansion must have the strategy 'fixed' or 'min', not {expansion!r}.")
        lengths.append(expansion.get("length") or 0)
    if wrong := [length for length in lengths if length is not None and (type(length) is not int or length < 1)]:
        raise TokenizerError(f"{root}: lengths of queries and documents must be positive integers, not {wrong[0]!r}.")
    query, document = prompts.by_name["query"], prompts.by_name["document"]
    # A text of one role may begin with the other's prompt where its own is empty, or one prompt begins with the other.
    are_told = bool(query and document) and not (document.startswith(query) or query.startswith(document))
    if lengths != [None, None] and not are_told:
        raise TokenizerError(
            f"{root}: queries or documents have a length of their own and no prompt of their own, so a text does not "
            "tell which it is. Add the prompts `query` and `document` to config_sentence_transformers.json."
        )
    filled = None
    if expansion is not None:
        token = str(expansion.get("token") or _mask_token(root))
        filled = Expansion(expansion["length"], expansion["strategy"] == "fixed", token)
    return LateInteraction(prompts, markers, _own_length(root, knobs), lengths[0], lengths[1], filled)


def _own_length(root: Path, knobs: Mapping[str, Any]) -> int | None:
    """Where the transformer's module, or else the tokenizer, cuts texts of any role."""
    options = read_options(root)
    arguments = [knobs[key] for key in ARGUMENTS if isinstance(knobs.get(key), dict)]
    limits = [one.get("model_max_length") for one in arguments]
    for stated in (*limits, knobs.get("max_seq_length"), options.get("model_max_length", options.get("max_len"))):
        if isinstance(stated, int | float):
            return int(stated) if stated <= _UNLIMITED else None
    return None


def _mask_token(root: Path) -> str:
    stated = read_options(root).get("mask_token")
    token = stated.get("content") if isinstance(stated, dict) else stated
    if not isinstance(token, str):
        raise TokenizerError(f"{root / 'tokenizer_config.json'}: there is no mask_token to expand queries with.")
    return token


def _least(*limits: int | None) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)
