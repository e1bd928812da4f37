"""Prompts of a sentence-transformers checkpoint: text that is prepended to each text before tokenization.

The rules are those of `SentenceTransformer.encode`, version 6.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from penstock.producer.errors import UnsupportedTask
from penstock.producer.pair_template import PairTemplate
from penstock.producer.wire.messages import EMBEDDING_TASKS, Request, Text, utf8_fault

_CONFIG, _MODULES = "config_sentence_transformers.json", "modules.json"
_EMBED, _RERANK = "embed", "rerank"  # kinds of tasks whose texts have prompts
_KINDS = {"SentenceTransformer": _EMBED, "SparseEncoder": _EMBED, "CrossEncoder": _RERANK}
# By kind: names that sentence-transformers knows in every model.
_ALWAYS_KNOWN: Mapping[str, Mapping[str, str]] = {_EMBED: {"query": "", "document": ""}, _RERANK: {}}


@dataclass(frozen=True, slots=True)
class Prompts:
    """Prompts by name, and the prompt of requests that ask for none."""

    by_name: Mapping[str, str] = field(default_factory=lambda: _ALWAYS_KNOWN[_EMBED])
    default: str = ""
    are_pooled: bool = True  # whether pooling reads the tokens of a prompt (`include_prompt`)
    kind: str = _EMBED  # of the tasks whose texts they are for; _RERANK of a cross-encoder
    template: PairTemplate | None = None  # which makes one text of a pair, with the prompt

    def apply(self, request: Request) -> Request:
        """Prepend the prompt to texts of requests for embeddings, and to the first text of each pair, of `rerank` too.

        With a template, each pair of `rerank` becomes the text that the model is given, and the prompt is part of it.
        Requests of token ids and of other tasks are returned unchanged.

        Raises:
            UnsupportedTask: the checkpoint has no prompt of the name that the request gives.
        """
        prompt = self._chosen(request)
        if self.template is not None and _kind_of(request) == self.kind:
            pairs = [text for text in request.text or () if isinstance(text, tuple)]
            return replace(request, text=tuple([self.template.text(pair, prompt) for pair in pairs]))
        if not prompt or request.text is None:
            return request
        return replace(request, text=tuple([_prepended(prompt, text) for text in request.text]))

    def left_out(self, request: Request) -> str:
        """The prompt whose tokens pooling leaves out of the request's vectors; "" for none. Raises as `apply`."""
        return "" if self.are_pooled or request.task != "embed" else self._chosen(request)

    def _chosen(self, request: Request) -> str:
        kind = _kind_of(request)
        if kind is None or request.text is None:
            return ""
        options, is_own = request.options, kind == self.kind
        if options.prompt is not None:
            return options.prompt
        if options.prompt_name is None:
            return self.default if is_own else ""
        by_name = self.by_name if is_own else _ALWAYS_KNOWN[kind]
        if options.prompt_name not in by_name:
            known = ", ".join(sorted(by_name)) or "none"
            given = repr(options.prompt_name[:40])
            raise UnsupportedTask(f"The model has no such prompt. Its prompts: {known}. Given: {given}")
        return by_name[options.prompt_name]


def _kind_of(request: Request) -> str | None:
    return _EMBED if request.task in EMBEDDING_TASKS else _RERANK if request.task == "rerank" else None


def read_prompts(directory: Path) -> Prompts:
    """The prompts of a checkpoint's directory; empty ones where it is no embedding model or cross-encoder.

    Raises:
        ValueError: the file is damaged, or its default prompt is not among its prompts.
    """
    path = directory / _CONFIG
    if not (directory / _MODULES).is_file():
        return Prompts()
    config = _read(path, dict)
    kind = _KINDS.get(str(config.get("model_type", "SentenceTransformer")))
    if kind is None:
        return Prompts()
    return replace(prompts_of(config, path, kind), are_pooled=_are_pooled(directory))


def prompts_of(config: Mapping[str, Any], path: Path, kind: str = _EMBED) -> Prompts:
    """Of a config_sentence_transformers.json, the file `path`; `kind` as in Prompts. Raises ValueError as above."""
    stated, default = config.get("prompts") or {}, config.get("default_prompt_name")
    if not isinstance(stated, dict) or not all(isinstance(text, str | None) for text in stated.values()):
        raise ValueError(f"{path}: `prompts` must map names to strings")
    if any(utf8_fault(text or "") for text in stated.values()):
        raise ValueError(f"{path}: a prompt is not valid UTF-8")
    by_name = {**_ALWAYS_KNOWN[kind]} | {name: text or "" for name, text in stated.items()}
    if default is not None and (not isinstance(default, str) or default not in by_name):
        raise ValueError(f"{path}: `default_prompt_name` {default!r} is not among its prompts, {', '.join(by_name)}")
    return Prompts(by_name, "" if default is None else by_name[default], kind=kind)


def _are_pooled(directory: Path) -> bool:
    """`include_prompt` of the Pooling module. Whether the modules can be run is not decided here."""
    for module in _read(directory / _MODULES, list):
        if isinstance(module, dict) and str(module.get("type")).endswith(".Pooling"):
            path = directory / str(module.get("path")) / "config.json"
            stated = _read(path, dict).get("include_prompt", True)
            if not isinstance(stated, bool):
                raise ValueError(f"{path}: `include_prompt` must be true or false")
            return stated
    return True


def _read(path: Path, kind: type) -> Any:
    """A file's JSON, of one kind; empty where there is no file. Raises ValueError."""
    if not path.is_file():
        return kind()
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError as error:
        raise ValueError(f"{path} is nested too deeply") from error
    if not isinstance(found, kind):
        raise ValueError(f"{path} must hold {'a JSON object' if kind is dict else 'a list'}")
    return found


def _prepended(prompt: str, text: Text) -> Text:
    return prompt + text if isinstance(text, str) else (prompt + text[0], text[1])
