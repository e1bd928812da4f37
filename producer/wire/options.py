"""What is said beside a request's sequences, checked alike where a caller says it and where the wire does.

Python holds 2 == 2.0 and 1 == True, and hashes them alike. Past these checks equal options are equal bytes, so that
calls can be gathered by them.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from penstock.producer.errors import InvalidRequest, UnsupportedTask
from penstock.producer.wire.messages import DTYPES, POOLINGS, TASKS, Options
from penstock.producer.wire.reply_rows import is_int

NO_OPTIONS = Options()

_LONGEST_S = 10 * 365 * 86400.0  # a deadline that the wire can carry
_PROMPT_CHARS = 4096  # a prompt is prepended to each of up to 4096 texts
_CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "pooling": (lambda v: v is None or (isinstance(v, str) and v in POOLINGS), f"one of {', '.join(POOLINGS)}"),
    "normalize": (lambda v: v is None or isinstance(v, bool), "true or false"),
    "truncate": (lambda v: isinstance(v, bool), "true or false"),
    "top_k": (lambda v: is_int(v) and 0 <= v <= 1_000_000, "a count, 0 for all"),
    "dtype": (lambda v: isinstance(v, str) and v in DTYPES, f"one of {', '.join(DTYPES)}"),
    "prompt_name": (lambda v: v is None or _is_short_text(v), f"a string of at most {_PROMPT_CHARS} characters"),
    "prompt": (lambda v: v is None or _is_short_text(v), f"a string of at most {_PROMPT_CHARS} characters"),
    "dimensions": (lambda v: v is None or (is_int(v) and 1 <= v <= 1_000_000), "a count, at least 1"),
}


def check_options(given: Mapping[str, object], prefix: str = "") -> Options:
    """Options by name, those left out at their defaults; names of later versions are passed over.

    Numpy's scalars become Python's. `prefix` is what the message puts before a name.

    Raises:
        InvalidRequest: one is of another type or out of range; the message names it.
    """
    asked: dict[str, Any] = {}
    for name, value in given.items():
        if name not in _CHECKS or value is getattr(NO_OPTIONS, name):  # the defaults themselves, as most calls have
            continue
        is_valid, expected = _CHECKS[name]
        plain = value.item() if isinstance(value, np.generic) else value
        if not is_valid(plain):
            raise InvalidRequest(f"`{prefix}{name}` must be {expected}. Given: {show(value)}")
        asked[name] = plain
    return Options(**asked) if asked else NO_OPTIONS


def check_applicable(options: Options, task: str, *, is_text: bool) -> None:
    """Check that the options fit the request that they come with.

    Raises:
        InvalidRequest: an option of `embed` with another task, a prompt for token ids, or two prompts.
    """
    prompts = [name for name in ("prompt_name", "prompt") if getattr(options, name) is not None]
    if not prompts and options.dimensions is None:
        return
    if task != "embed":
        raise InvalidRequest(f"`{(*prompts, 'dimensions')[0]}` is an option of `embed`, not of `{task}`.")
    if prompts and not is_text:
        raise InvalidRequest(f"`{prompts[0]}` needs texts: token ids are tokenized already, prompt included.")
    if len(prompts) > 1:
        raise InvalidRequest("Give at most one of `prompt_name` and `prompt`.")


def _is_short_text(value: object) -> bool:
    if not isinstance(value, str) or len(value) > _PROMPT_CHARS:
        return False
    return value.isascii() or not any("\ud800" <= character <= "\udfff" for character in value)


def recheck_options(options: Options | None) -> Options:
    """Options that a caller made, or None for the defaults, as `check_options` makes them.

    Raises:
        InvalidRequest: as there, or these are no Options.
    """
    if options is None:
        return NO_OPTIONS
    if not isinstance(options, Options):
        raise InvalidRequest(f"`options` must be Options. Given: {show(options)}")
    return check_options({name: getattr(options, name) for name in _CHECKS})


def check_task(task: str) -> str:
    """The task, if it is one.

    Raises:
        UnsupportedTask: it is not.
    """
    if not isinstance(task, str) or task not in TASKS:
        raise UnsupportedTask(f"`task` must be one of {', '.join(TASKS)}. Given: {show(task)}")
    return task


def check_timeout_s(timeout_s: float) -> float:
    """Seconds, within what the wire can carry.

    Raises:
        InvalidRequest: it is no number.
    """
    is_number = isinstance(timeout_s, int | float | np.integer | np.floating) and not isinstance(timeout_s, bool)
    if not is_number or timeout_s != timeout_s:
        raise InvalidRequest(f"`timeout_s` must be a number of seconds. Given: {show(timeout_s)}")
    return float(min(max(timeout_s, 0.0), _LONGEST_S))


def show(value: object) -> str:
    """A stranger's value, for a message: short, and never walked into, for it may be nested deeper than Python goes."""
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "a map"
    return repr(value[:40] if isinstance(value, str | bytes) else value)
