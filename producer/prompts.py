"""Prompts of a sentence-transformers checkpoint: text that is prepended to each text before tokenization.

The rules are those of `SentenceTransformer.encode`, version 6.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from penstock.producer.errors import UnsupportedTask
from penstock.producer.wire.messages import EMBEDDING_TASKS, Options, Request, Text, utf8_fault

_CONFIG = "config_sentence_transformers.json"
_EMBEDDERS = ("SentenceTransformer", "SparseEncoder")
_ALWAYS_KNOWN = {"query": "", "document": ""}  # sentence-transformers knows these names in every model


@dataclass(frozen=True, slots=True)
class Prompts:
    """Prompts by name, and the prompt of requests that ask for none."""

    by_name: Mapping[str, str] = field(default_factory=_ALWAYS_KNOWN.copy)
    default: str = ""

    def apply(self, request: Request) -> Request:
        """Prepend the prompt to the texts of a request for embeddings, and to the first text of each pair.

        Requests of token ids and of other tasks are returned unchanged.

        Raises:
            UnsupportedTask: the checkpoint has no prompt of the name that the request gives.
        """
        if request.task not in EMBEDDING_TASKS or request.text is None:
            return request
        prompt = self._chosen(request.options)
        return replace(request, text=tuple([_prepended(prompt, text) for text in request.text])) if prompt else request

    def _chosen(self, options: Options) -> str:
        if options.prompt is not None:
            return options.prompt
        if options.prompt_name is None:
            return self.default
        if options.prompt_name not in self.by_name:
            known = ", ".join(sorted(self.by_name))
            given = repr(options.prompt_name[:40])
            raise UnsupportedTask(f"The model has no such prompt. Its prompts: {known}. Given: {given}")
        return self.by_name[options.prompt_name]


def read_prompts(directory: Path) -> Prompts:
    """The prompts of a checkpoint's directory; empty ones where it is no sentence-transformers embedding model.

    Raises:
        ValueError: the file is damaged, or its default prompt is not among its prompts.
    """
    path = directory / _CONFIG
    if not path.is_file() or not (directory / "modules.json").is_file():
        return Prompts()
    try:
        config: Any = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError as error:
        raise ValueError(f"{path} is nested too deeply") from error
    if not isinstance(config, dict):
        raise ValueError(f"{path} must hold a JSON object")
    if config.get("model_type", "SentenceTransformer") not in _EMBEDDERS:
        return Prompts()
    stated, default = config.get("prompts") or {}, config.get("default_prompt_name")
    if not isinstance(stated, dict) or not all(isinstance(text, str | None) for text in stated.values()):
        raise ValueError(f"{path}: `prompts` must map names to strings")
    if any(utf8_fault(text or "") for text in stated.values()):
        raise ValueError(f"{path}: a prompt is not valid UTF-8")
    by_name = _ALWAYS_KNOWN | {name: text or "" for name, text in stated.items()}
    if default is not None and (not isinstance(default, str) or default not in by_name):
        raise ValueError(f"{path}: `default_prompt_name` {default!r} is not among its prompts, {', '.join(by_name)}")
    return Prompts(by_name, "" if default is None else by_name[default])


def _prepended(prompt: str, text: Text) -> Text:
    return prompt + text if isinstance(text, str) else (prompt + text[0], text[1])
