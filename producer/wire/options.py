"""Checks of a request's task, options and timeout, for callers' arguments and for the wire.

Python's 2 == 2.0 and 1 == True. After these checks equal options are equal bytes, so calls can be batched by options.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from penstock.producer.errors import InvalidRequest, UnsupportedTask, WrongArgument
from penstock.producer.wire.generation import SOURCE_LANGUAGE, read_generation
from penstock.producer.wire.labels import TEMPLATE_RULE, is_template, read_labels
from penstock.producer.wire.messages import (
    DTYPES,
    EMBEDDING_TASKS,
    NO_OPTIONS,
    POOLINGS,
    PROMPTED_TASKS,
    TASKS,
    VECTOR_DTYPES,
    Options,
    utf8_fault,
)
from penstock.producer.wire.reply_rows import is_int

_LONGEST_S = 10 * 365 * 86400.0  # the wire can encode its deadline
_PROMPT_CHARS = 1024  # a prompt is prepended to each of up to 4096 texts, so a short record can mean much to tokenize
_SHORT_TEXT = f"a string of at most {_PROMPT_CHARS} characters"
_NONE = type(None)
# Option -> its types, its test, and what it must be.
_CHECKS: dict[str, tuple[tuple[type, ...], Callable[[Any], bool], str]] = {
    "pooling": ((str, _NONE), lambda v: v is None or v in POOLINGS, f"one of {', '.join(POOLINGS)}"),
    "normalize": ((bool, _NONE), lambda v: True, "true or false"),
    "truncate": ((bool,), lambda v: True, "true or false"),
    "top_k": ((int, _NONE), lambda v: v is None or (is_int(v) and 0 <= v <= 1_000_000), "a count, 0 for all"),
    "dtype": ((str,), lambda v: v in VECTOR_DTYPES, f"one of {', '.join(VECTOR_DTYPES)}"),
    "multi_label": ((bool,), lambda v: True, "true or false"),
    "template": ((str, _NONE), lambda v: v is None or is_template(v), TEMPLATE_RULE),
    "prompt_name": ((str, _NONE), lambda v: v is None or _is_short_text(v), _SHORT_TEXT),
    "prompt": ((str, _NONE), lambda v: v is None or _is_short_text(v), _SHORT_TEXT),
    "stream": ((bool,), lambda v: True, "true or false"),
    "dimensions": ((int, _NONE), lambda v: v is None or (is_int(v) and 1 <= v <= 1_000_000), "a count, at least 1"),
}


def check_options(given: Mapping[str, object], prefix: str = "") -> Options:
    """Options by name, with defaults for the rest; unknown names, of later versions, are ignored.

    Numpy's scalars become Python's. `prefix` precedes the name in messages.

    Raises:
        WrongArgument: an option has another type; the message names it.
        InvalidRequest: it is out of range.
    """
    asked: dict[str, Any] = {}
    for name, value in given.items():
        if name not in Options._fields or value is getattr(NO_OPTIONS, name):  # most calls have the defaults
            continue
        if name == "generation":
            asked[name] = read_generation(value, prefix)
            continue
        if name == "labels":
            asked[name] = read_labels(value, prefix)
            continue
        types, is_valid, expected = _CHECKS[name]
        plain = value.item() if isinstance(value, np.generic) else value
        is_typed = isinstance(plain, types)
        if not (is_typed and is_valid(plain)):
            raise (InvalidRequest if is_typed else WrongArgument)(
                f"`{prefix}{name}` must be {expected}. Given: {show(value)}"
            )
        asked[name] = plain
    return Options(**asked) if asked else NO_OPTIONS


def check_applicable(options: Options, task: str, *, is_text: bool) -> None:
    """Check that the options fit the request that they come with.

    Raises:
        InvalidRequest: an option of `embed` or of `generate` with another task, a prompt or a source's language for
            token ids, or two prompts; or as `_check_labels`.
    """
    if task != "embed" and options.dtype not in DTYPES:
        raise InvalidRequest(f"`dtype` {options.dtype!r} is for the vectors of `embed`, not for `{task}`.")
    _check_labels(options, task, is_text=is_text)
    if (options.generation or options.stream) and task != "generate":
        name = "generation" if options.generation else "stream"
        raise InvalidRequest(f"`{name}` is an option of `generate`, not of `{task}`.")
    if not is_text and any(name == SOURCE_LANGUAGE for name, _ in options.generation):
        raise InvalidRequest(f"`generation.{SOURCE_LANGUAGE}` needs texts: the language is one of the token ids.")
    of_embed = ("pooling", "normalize", "dimensions") if task in EMBEDDING_TASKS else ("dimensions",)
    given = [name for name in of_embed if getattr(options, name) is not None]
    if given and task != "embed":
        raise InvalidRequest(f"`{given[0]}` is an option of `embed`, not of `{task}`.")
    if options.top_k is not None and task == "embed_tokens":
        raise InvalidRequest("`top_k` is an option of labels and of sparse vectors, not of `embed_tokens`.")
    prompts = [name for name in ("prompt_name", "prompt") if getattr(options, name) is not None]
    if prompts and task not in PROMPTED_TASKS:
        raise InvalidRequest(f"`{prompts[0]}` is an option of `rerank` and of embeddings, not of `{task}`.")
    if prompts and not is_text:
        raise InvalidRequest(f"`{prompts[0]}` needs texts: token ids are tokenized already, prompt included.")
    if len(prompts) > 1:
        raise InvalidRequest("Give at most one of `prompt_name` and `prompt`.")


def _check_labels(options: Options, task: str, *, is_text: bool) -> None:
    """Raise InvalidRequest for labels with another task or with token ids, and for their options without labels."""
    if options.labels is None and options.template is None and not options.multi_label:
        return
    given = [name for name in ("labels", "template", "multi_label") if getattr(options, name) not in (None, False)]
    if task != "classify":
        raise InvalidRequest(f"`{given[0]}` is an option of `classify`, not of `{task}`.")
    if options.labels is None:
        raise InvalidRequest(f"`{given[0]}` needs `labels`.")
    if not is_text:
        raise InvalidRequest("`labels` need texts: token ids cannot be made into pairs.")


def _is_short_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= _PROMPT_CHARS and utf8_fault(value) is None


def recheck_options(options: Options | None, task: str, *, is_text: bool) -> Options:
    """A caller's Options, checked as the wire's; None stands for the defaults.

    Raises:
        WrongArgument: the argument is not of type Options, or as `check_options`.
        InvalidRequest: as `check_options` and `check_applicable`.
    """
    if options is None:
        return NO_OPTIONS
    if not isinstance(options, Options):
        raise WrongArgument(f"`options` must be Options. Given: {show(options)}")
    if options.generation:  # the types inside are no part of its hash
        return _checked.__wrapped__(task, is_text, *options)
    try:
        return _checked(task, is_text, *options)
    except TypeError:  # of a value that has no hash; the check names it
        return _checked.__wrapped__(task, is_text, *options)


@functools.lru_cache(maxsize=256, typed=True)  # callers repeat a few; typed, since True == 1 == 1.0
def _checked(task: str, is_text: bool, *values: object) -> Options:
    options = check_options(dict(zip(Options._fields, values, strict=True)))
    check_applicable(options, task, is_text=is_text)
    return options


def check_task(task: str) -> str:
    """Check that the task is one of TASKS, and return it. Raises UnsupportedTask."""
    if not isinstance(task, str) or task not in TASKS:
        raise UnsupportedTask(f"`task` must be one of {', '.join(TASKS)}. Given: {show(task)}")
    return task


def check_timeout_s(timeout_s: float) -> float:
    """Seconds, limited to deadlines that the wire can encode. Raises WrongArgument for anything but a number."""
    is_number = isinstance(timeout_s, int | float | np.integer | np.floating) and not isinstance(timeout_s, bool)
    if not is_number or timeout_s != timeout_s:
        raise WrongArgument(f"`timeout_s` must be a number of seconds. Given: {show(timeout_s)}")
    return float(min(max(timeout_s, 0.0), _LONGEST_S))


def show(value: object) -> str:
    """An untrusted value, shortened for a message. Containers are not entered, as they may be nested too deeply."""
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "a map"
    return repr(value[:40] if isinstance(value, str | bytes) else value)
