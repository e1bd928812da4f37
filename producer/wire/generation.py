"""Options of the task `generate`, by the names of transformers' generation_config.json, and their checks.

A request has them as sorted pairs, so that equal options are equal values. The wire has them as a map.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from penstock.producer.errors import InvalidRequest, WrongArgument, did_you_mean

GivenOptions = tuple[tuple[str, Any], ...]  # sorted by name; lists are tuples

SOURCE_LANGUAGE, TARGET_LANGUAGE = "source_language", "target_language"
MAX_TOKENS_LISTED = 4096  # of one option that lists tokens
_MAX_TOKEN = 2**31 - 1
_MAX_SEED = 2**63 - 1
_MAX_NAME = 64  # characters
_Read = Callable[[object], Any]  # the value in its one form; raises TypeError or ValueError


def read_generation(given: object, prefix: str = "") -> GivenOptions:
    """The options of a map, or of a caller's pairs. A value of None is the model's own.

    Which numbers a model allows is for its worker to say.

    Raises:
        WrongArgument: an option is unknown or not implemented, or has another type; the message names it.
        InvalidRequest: `given` is no map, or an option is out of range.
    """
    if isinstance(given, tuple):
        given = dict(given) if all(isinstance(pair, tuple) and len(pair) == 2 for pair in given) else None
    if not isinstance(given, Mapping):
        raise InvalidRequest(f"`{prefix}generation` must be a map of options.")
    read: dict[str, Any] = {}
    for name, value in given.items():
        if _is_neutral(name, value):
            continue
        if name not in GENERATION_OPTIONS:
            shown = repr(name[:40]) if isinstance(name, str) else "no name"
            near = did_you_mean(name, GENERATION_OPTIONS) if isinstance(name, str) and len(name) <= 40 else ""
            fault = "an option is none of `generate`, or not implemented"
            raise WrongArgument(f"`{prefix}generation`: {fault}. Given: {shown}{near and '.' + near}")
        if value is None:
            continue
        expected, read_value = GENERATION_OPTIONS[name]
        try:
            read[name] = read_value(value.item() if isinstance(value, np.generic) else value)
        except (TypeError, ValueError, OverflowError) as error:
            shown = repr(value)[:40] if isinstance(value, str | int | float | bool) else "another type"
            wrong = WrongArgument if isinstance(error, TypeError) else InvalidRequest
            raise wrong(f"`{prefix}generation.{name}` must be {expected}. Given: {shown}") from None
    return tuple(sorted(read.items()))


def _is_neutral(name: object, value: object) -> bool:
    """Whether it is an option that is not implemented, with the value that changes nothing."""
    if not isinstance(name, str) or name not in NEUTRAL_OPTIONS:
        return False
    return value is None or (isinstance(value, bool | int | float) and value == NEUTRAL_OPTIONS[name])


def _bool(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _int(value: object, most: int = _MAX_TOKEN) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError
    if not 0 <= value <= most:
        raise ValueError
    return value


def _seed(value: object) -> int:
    return _int(value, _MAX_SEED)


def _float(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError
    if not math.isfinite(value):
        raise ValueError
    return float(value)


def _name(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    if not value.isprintable() or not 1 <= len(value) <= _MAX_NAME:
        raise ValueError
    return value


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
    if not isinstance(value, list | tuple) or not all(isinstance(word, list | tuple) for word in value):
        raise TypeError
    if max(len(value), sum(map(len, value))) > MAX_TOKENS_LISTED:
        raise ValueError
    return tuple([_tokens(word) for word in value])


_COUNT = ("a count", _int)
_TOKEN = ("a token", _int)
_TOKENS = ("a token, or a list of them", _tokens)
_NUMBER = ("a number", _float)
_SWITCH = ("true or false", _bool)
_LANGUAGE = (f"the name of a language, of at most {_MAX_NAME} characters", _name)
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
    SOURCE_LANGUAGE: _LANGUAGE,
    "suppress_tokens": _TOKENS,
    TARGET_LANGUAGE: _LANGUAGE,
    "temperature": _NUMBER,
    "top_k": _COUNT,
    "top_p": _NUMBER,
}
# Options of transformers that are not implemented -> the value that changes nothing. A request may have them so.
NEUTRAL_OPTIONS: dict[str, bool | int | float] = {
    "diversity_penalty": 0.0,
    "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "guidance_scale": 1.0,
    "min_p": 0.0,
    "num_beam_groups": 1,
    "num_return_sequences": 1,
    "penalty_alpha": 0.0,
    "remove_invalid_values": False,
    "token_healing": False,
    "typical_p": 1.0,
}
