"""Options of the task `generate`, by the names of transformers' generation_config.json, and their checks.

A request has them as sorted pairs, so that equal options are equal values. The wire has them as a map.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from penstock.producer.errors import InvalidRequest

GivenOptions = tuple[tuple[str, Any], ...]  # sorted by name; lists are tuples

MAX_TOKENS_LISTED = 4096  # of one option that lists tokens
_MAX_TOKEN = 2**31 - 1
_MAX_SEED = 2**63 - 1
_Read = Callable[[object], Any]  # the value in its one form; raises ValueError


def read_generation(given: object, prefix: str = "") -> GivenOptions:
    """The options of a map, or of a caller's pairs. A value of None is the model's own.

    Which numbers a model allows is for its worker to say.

    Raises:
        InvalidRequest: an option is unknown or not implemented, or has another type; the message names it.
    """
    if isinstance(given, tuple):
        given = dict(given) if all(isinstance(pair, tuple) and len(pair) == 2 for pair in given) else None
    if not isinstance(given, Mapping):
        raise InvalidRequest(f"`{prefix}generation` must be a map of options.")
    read: dict[str, Any] = {}
    for name, value in given.items():
        if name not in GENERATION_OPTIONS:
            shown = repr(name[:40]) if isinstance(name, str) else "no name"
            fault = "an option is none of `generate`, or not implemented"
            raise InvalidRequest(f"`{prefix}generation`: {fault}. Given: {shown}")
        if value is None:
            continue
        expected, read_value = GENERATION_OPTIONS[name]
        try:
            read[name] = read_value(value.item() if isinstance(value, np.generic) else value)
        except (ValueError, OverflowError):
            shown = repr(value)[:40] if isinstance(value, str | int | float | bool) else "another type"
            raise InvalidRequest(f"`{prefix}generation.{name}` must be {expected}. Given: {shown}") from None
    return tuple(sorted(read.items()))


def _bool(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


def _int(value: object, most: int = _MAX_TOKEN) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise ValueError
    return value


def _seed(value: object) -> int:
    return _int(value, _MAX_SEED)


def _float(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise ValueError
    return float(value)


def _stopping(value: object) -> bool | str:
    return "never" if isinstance(value, str) and value == "never" else _bool(value)


def _tokens(value: object) -> tuple[int, ...]:
    """One token, or a list of them."""
    if not isinstance(value, list | tuple):
        return (_int(value),)
    if len(value) > MAX_TOKENS_LISTED:
        raise ValueError
    return tuple([_int(token) for token in value])


def _words(value: object) -> tuple[tuple[int, ...], ...]:
    if not isinstance(value, list | tuple) or len(value) > MAX_TOKENS_LISTED:
        raise ValueError
    if not all(isinstance(word, list | tuple) for word in value) or sum(map(len, value)) > MAX_TOKENS_LISTED:
        raise ValueError
    return tuple([_tokens(word) for word in value])


_COUNT = ("a count", _int)
_TOKEN = ("a token", _int)
_TOKENS = ("a token, or a list of them", _tokens)
_NUMBER = ("a number", _float)
_SWITCH = ("true or false", _bool)
# Name -> what it must be, and the function that reads it.
GENERATION_OPTIONS: dict[str, tuple[str, _Read]] = {
    "bad_words_ids": ("a list of lists of tokens", _words),
    "begin_suppress_tokens": _TOKENS,
    "decoder_start_token_id": _TOKEN,
    "do_sample": _SWITCH,
    "early_stopping": ("true, false or never", _stopping),
    "eos_token_id": _TOKENS,
    "forced_bos_token_id": _TOKEN,
    "forced_eos_token_id": _TOKENS,
    "length_penalty": _NUMBER,
    "max_length": _COUNT,
    "max_new_tokens": _COUNT,
    "min_length": _COUNT,
    "min_new_tokens": _COUNT,
    "no_repeat_ngram_size": _COUNT,
    "num_beams": _COUNT,
    "renormalize_logits": _SWITCH,
    "repetition_penalty": _NUMBER,
    "seed": ("a number from 0 to 2^63 - 1", _seed),
    "suppress_tokens": _TOKENS,
    "temperature": _NUMBER,
    "top_k": _COUNT,
    "top_p": _NUMBER,
}
