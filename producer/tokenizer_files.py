"""Reading of a tokenizer's files, and what is made of them: a tokenizer, and the frame of its special tokens."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
import tokenizers

from penstock.producer.languages import Languages
from penstock.producer.pair_template import PairTemplate

_Values = TypeVar("_Values", bound=npt.NDArray[Any])


class TokenizerError(ValueError):
    """The checkpoint's tokenizer cannot be used. The message names the remedy."""


class MissingTokenizer(TokenizerError):
    """The checkpoint has no tokenizer that can be used: it may be served by token ids."""


@dataclass(frozen=True, slots=True)
class LoadedTokenizer:
    """A tokenizer, and what transformers does with its encodings."""

    backend: Any  # a `tokenizers.Tokenizer`
    gives_types: bool  # whether the model is given token types; it takes all for 0 otherwise
    cuts_left: bool  # whether truncation removes the first tokens of a text, not the last ones
    languages: Languages = field(default_factory=Languages)
    template: PairTemplate | None = None  # through which the model is given pairs of texts, and nothing else


@dataclass(frozen=True, slots=True)
class SpecialFrame:
    """Numbers of special tokens before and after a text: the ids of one that is too long are cut between them.

    Without a tokenizer the last token ends a text, and the cut is before it.
    """

    before: int = 0
    after: int = 1
    cuts_left: bool = False

    def cut(self, values: _Values, max_tokens: int) -> _Values:
        """The values [n, ...] of the tokens that remain, as truncation by the tokenizer leaves them."""
        if len(values) <= max_tokens:
            return values
        first = self.before if self.cuts_left else max_tokens - self.after
        kept = np.concatenate([values[:first], values[len(values) - (max_tokens - first) :]])
        return cast("_Values", kept)


def _listed(tokens: Any) -> list[Any]:
    if not tokens:
        return []
    return tokens if isinstance(tokens, list) else [tokens]


def _is_text(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _is_tokens(value: Any) -> bool:
    return value is None or isinstance(value, list | dict)


def _is_side(value: Any) -> bool:
    return value in ("left", "right")


_Type = tuple[str, Callable[[Any], bool]]  # in words, and whether a value is of it
_TOKEN_LISTS = ("additional_special_tokens", "extra_special_tokens")
_CONFIG: Mapping[str, _Type] = dict.fromkeys(("model_type", "tokenizer_class"), ("a string", _is_text))
_OPTIONS: Mapping[str, _Type] = {
    "model_input_names": ("a list of strings", _is_names),
    "padding_side": ("'left' or 'right'", _is_side),
    "tokenizer_class": ("a string", _is_text),
    "truncation_side": ("'left' or 'right'", _is_side),
    **dict.fromkeys(_TOKEN_LISTS, ("a list of tokens, or an object of them by name", _is_tokens)),
}


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; an empty one where there is no file. Raises TokenizerError."""
    try:
        value = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (OSError, ValueError, RecursionError) as error:
        raise TokenizerError(f"{path} cannot be read as JSON ({error}). Download the checkpoint again.") from error
    if not isinstance(value, dict):
        raise TokenizerError(f"{path} must hold a JSON object.")
    return value


def read_options(root: Path) -> dict[str, Any]:
    """The options of transformers' tokenizer: tokenizer_config.json, and special_tokens_map.json over it.

    The latter counts where the former has no `added_tokens_decoder`. Special tokens without a name are lists, of both
    files; an object of tokens is one item of them. Raises TokenizerError.
    """
    options = _read_typed(root / "tokenizer_config.json", _OPTIONS)
    over = {} if "added_tokens_decoder" in options else _read_typed(root / "special_tokens_map.json", _OPTIONS)
    further = {key: [*_listed(options.get(key)), *_listed(over.get(key))] for key in _TOKEN_LISTS}
    return {**options, **over, **further, "tokenizer_class": options.get("tokenizer_class")}


def read_config(root: Path) -> dict[str, Any]:
    """The config.json of a directory, of which transformers takes the tokenizer's class. Raises TokenizerError."""
    return _read_typed(root / "config.json", _CONFIG)


def _read_typed(path: Path, types: Mapping[str, _Type]) -> dict[str, Any]:
    """The JSON object in a file, as `read_object` gives it, with values of the types. Raises TokenizerError."""
    content = read_object(path)
    for key, (wanted, is_one) in types.items():
        if key in content and not is_one(content[key]):
            raise TokenizerError(f"{path}: `{key}` must be {wanted}.")
    return content


def read_backend(file: Path) -> Any:
    """The `tokenizers.Tokenizer` of a tokenizer.json. Raises TokenizerError."""
    try:
        return tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception for a file that it cannot parse
        raise TokenizerError(
            f"{file} cannot be read as a tokenizer ({error}). Download the checkpoint again."
        ) from error


def frame_of(plain: Any, *, cuts_left: bool) -> SpecialFrame:
    """The frame of a `tokenizers.Tokenizer` without truncation. Called once for each."""
    num_special: int = plain.num_special_tokens_to_add(is_pair=False)
    for text in ("a", *(token.content for token in plain.get_added_tokens_decoder().values())):
        try:
            mask = plain.encode(text).special_tokens_mask
        except Exception:  # the library's error where the vocabulary has no token for what it does not know
            continue
        if 0 in mask:
            before = mask.index(0)
            return SpecialFrame(before, num_special - before, cuts_left)
    return SpecialFrame(0, num_special, cuts_left)
