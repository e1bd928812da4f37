"""Reading of a tokenizer's files, and what is made of them."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers


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


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; an empty one where there is no file. Raises TokenizerError."""
    try:
        value = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (OSError, ValueError, RecursionError) as error:
        raise TokenizerError(f"{path} cannot be read as JSON ({error}). Download the checkpoint again.") from error
    if not isinstance(value, dict):
        raise TokenizerError(f"{path} must hold a JSON object.")
    return value


def read_backend(file: Path) -> Any:
    """The `tokenizers.Tokenizer` of a tokenizer.json. Raises TokenizerError."""
    try:
        return tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception for a file that it cannot parse
        raise TokenizerError(
            f"{file} cannot be read as a tokenizer ({error}). Download the checkpoint again."
        ) from error
