"""The tokenizer that transformers and sentence-transformers make of a checkpoint's files."""

import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import normalizers

from penstock.producer.languages import Languages
from penstock.producer.m2m100_tokenizer import m2m100_tokenizer
from penstock.producer.pair_template import PairTemplate, pair_template
from penstock.producer.plain_tokenizer import plain_tokenizer
from penstock.producer.tokenizer_files import (
    LoadedTokenizer,
    MissingTokenizer,
    TokenizerError,
    read_backend,
    read_object,
)

# Of which sentence-transformers reads the first that says anything.
_SENTENCE_CONFIGS = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
# Of a sentence config: they change the tokens of a text in ways that are not implemented.
_NOT_IMPLEMENTED = ("tokenizer_name_or_path",)
OF_ROLES = ("query_length", "document_length", "query_expansion")  # of models that tell queries from documents
ARGUMENTS = ("processor_kwargs", "tokenizer_args")
_HARMLESS_ARGUMENTS = {"model_max_length", "trust_remote_code"}  # the first is read with the model
_NAMED_TOKENS = tuple(f"{name}_token" for name in ("bos", "cls", "eos", "mask", "pad", "sep", "unk"))
_OLDER_FILES = ("vocab*", "*.model", "*.spm")
_ADVICE = "Save one with AutoTokenizer.from_pretrained(...).save_pretrained(directory)."


def load_backend(directory: Path, *, has_roles: bool = False) -> LoadedTokenizer:
    """The tokenizer of a checkpoint: of the transformer's own directory, where modules.json names one.

    has_roles: whether the caller knows the settings of queries and documents (`producer.late_interaction`).

    tokenizer.json is read by `tokenizers` alone where `plain_tokenizer` knows that transformers takes it as it is;
    otherwise transformers applies tokenizer_config.json and the other files to it.

    Raises:
        MissingTokenizer: there are no files of a tokenizer, or none that transformers makes a fast one of.
        TokenizerError: files are damaged, or ask for what is not implemented.
    """
    root = transformer_directory(directory)
    stated = {} if root is None else sentence_config(root)
    _refuse(stated, directory, (*_NOT_IMPLEMENTED, *(() if has_roles else OF_ROLES)))
    source = directory if root is None else root
    loaded = None if _has_template(stated) else plain_tokenizer(source)
    loaded = loaded or _from_transformers(source, stated)
    if stated.get("do_lower_case"):
        _lower(loaded.backend)
    return loaded


def transformer_directory(directory: Path) -> Path | None:
    """The directory of the first module of modules.json; None without that file."""
    path = directory / "modules.json"
    if not path.is_file():
        return None
    try:
        root: Path = directory / json.loads(path.read_text(encoding="utf-8"))[0]["path"]
        is_inside = root.resolve().is_relative_to(directory.resolve())
    except (OSError, ValueError, KeyError, IndexError, TypeError, RecursionError) as error:
        raise TokenizerError(f"{path} is not a sentence-transformers module list: {error!r}") from error
    if not is_inside:
        raise TokenizerError(f"{path} names a module outside the model's directory.")
    return root


def sentence_config(root: Path) -> dict[str, Any]:
    """The options of a Transformer module, of its directory. Raises TokenizerError."""
    return next(filter(None, (read_object(root / name) for name in _SENTENCE_CONFIGS)), {})


def _refuse(stated: dict[str, Any], directory: Path, not_implemented: tuple[str, ...]) -> None:
    asked = [key for key in not_implemented if stated.get(key)]
    of_processing = stated.get("processing_kwargs") or {}
    if of_processing and not (_has_template(stated) and _is_of_template(of_processing)):
        asked.append("processing_kwargs")
    for key in ARGUMENTS:
        arguments = stated.get(key) or {}
        if not isinstance(arguments, dict):
            raise TokenizerError(f"{directory}: {key} of the transformer's configuration must be an object.")
        asked += [f"{key}.{name}" for name in arguments if name not in _HARMLESS_ARGUMENTS]
    if asked:
        raise TokenizerError(f"{directory}: the transformer's configuration has {', '.join(asked)}: not implemented.")


def _has_template(stated: dict[str, Any]) -> bool:
    """Whether texts go through the tokenizer's chat template."""
    modalities = stated.get("modality_config")
    return isinstance(modalities, dict) and isinstance(modalities.get("message"), dict)


def _is_of_template(of_processing: object) -> bool:
    """Whether it says nothing but what a chat template is given."""
    if not isinstance(of_processing, dict) or list(of_processing) != ["chat_template"]:
        return False
    return isinstance(of_processing["chat_template"], dict)


def _lower(backend: Any) -> None:
    """Lower-case all text before all else, as sentence-transformers does for `do_lower_case`."""
    present: Any = backend.normalizer
    is_sequence = isinstance(present, normalizers.Sequence)
    parts = list(present) if is_sequence else [present] * (present is not None)
    if not any(isinstance(part, normalizers.Lowercase) for part in parts):
        backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *parts])


def _from_transformers(root: Path, stated: dict[str, Any]) -> LoadedTokenizer:
    """The tokenizer of AutoTokenizer, from any of the files that it reads. stated: the transformer's configuration."""
    if not root.is_dir():
        raise MissingTokenizer(f"{root} is not a directory: there is no tokenizer to load.")
    missing = MissingTokenizer(f"{root} has no tokenizer.json, nor files to build one from. {_ADVICE}")
    file = root / "tokenizer.json"
    if file.is_file():
        read_backend(file)  # its error names the file, which that of transformers does not
    elif not any(path.is_file() for pattern in _OLDER_FILES for path in root.glob(pattern)):
        raise missing
    try:
        from transformers import AutoTokenizer  # takes seconds to import, and few checkpoints need it
    except ImportError:
        raise TokenizerError(
            f"{root} needs transformers, which applies tokenizer_config.json to the tokenizer: pip install transformers"
        ) from None
    try:
        wrapped = AutoTokenizer.from_pretrained(str(root), trust_remote_code=False, local_files_only=True)
    except Exception as error:  # transformers raises many unrelated types
        reason = str(error).strip().partition("\n")[0][:300]
        raise MissingTokenizer(f"{root}: transformers cannot load the tokenizer: {reason}") from error
    if not any((root / name).exists() for name in wrapped.vocab_files_names.values()):
        raise missing  # it was built from config.json alone: each word is unknown to it
    backend = getattr(wrapped, "backend_tokenizer", None)
    if not isinstance(backend, tokenizers.Tokenizer):
        if (loaded := m2m100_tokenizer(wrapped)) is not None:
            return loaded
        raise MissingTokenizer(f"The tokenizer in {root} has no fast form. {_ADVICE}")
    gives_types, cuts_left = "token_type_ids" in wrapped.model_input_names, wrapped.truncation_side == "left"
    template = _template(root, wrapped, stated) if _has_template(stated) else None
    return LoadedTokenizer(backend, gives_types, cuts_left, _languages(wrapped, backend), template)


def _template(root: Path, wrapped: Any, stated: dict[str, Any]) -> PairTemplate:
    options = (stated.get("processing_kwargs") or {}).get("chat_template") or {}
    try:
        return pair_template(wrapped, str(stated["modality_config"]["message"].get("format")), options)
    except ValueError as error:
        raise TokenizerError(f"{root}: {error}") from error


def _languages(wrapped: Any, backend: Any) -> Languages:
    """Languages of a tokenizer that marks texts with their own: its special tokens that have no other meaning."""
    if getattr(wrapped, "src_lang", None) is None:
        return Languages()
    own: int = wrapped.convert_tokens_to_ids(wrapped.src_lang)
    before: list[int] = wrapped.prefix_tokens
    after: list[int] = wrapped.suffix_tokens
    if own not in before and own not in after:
        return Languages()
    named = {getattr(wrapped, name) for name in _NAMED_TOKENS}
    added = backend.get_added_tokens_decoder().items()
    tokens = {token.content: index for index, token in added if token.special and token.content not in named}
    return Languages(tokens, before.index(own) if own in before else after.index(own) - len(after))
