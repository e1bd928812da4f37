"""Checkpoints whose tokenizer.json transformers is known to take as it is, so that `tokenizers` alone reads them.

transformers makes most tokenizers anew, of the vocabulary in tokenizer.json and the options in tokenizer_config.json.
Here the parts that it would make are compared with those of the file.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from penstock.producer.tokenizer_files import LoadedTokenizer, read_backend, read_config, read_object, read_options

_Options = Mapping[str, Any]
_Named = Mapping[str, tuple[str, int]]  # a special token and its id, by its name
_Parts = tuple[Any, Any, Any, Any]  # normalizer, pre-tokenizer, post-processor, decoder

# Of tokenizer_config.json: these change no part of the tokenizer, or are compared below.
_KNOWN_OPTIONS = frozenset(
    """
    add_prefix_space added_tokens_decoder additional_special_tokens backend bos_token clean_up_tokenization_spaces
    cls_token do_basic_tokenize do_lower_case eos_token errors extra_special_tokens is_local local_files_only
    mask_token max_length model_input_names model_max_length name_or_path never_split pad_to_multiple_of pad_token
    pad_token_type_id padding_side processor_class sep_token special_tokens_map_file stride strip_accents
    tokenize_chinese_chars tokenizer_class trim_offsets truncation_side truncation_strategy unk_token
    """.split()  # noqa: SIM905 -- a list would take a line for each
)
_TOKEN_FLAGS = ("lstrip", "normalized", "rstrip", "single_word")


@dataclass(frozen=True, slots=True)
class _Kind:
    """A class of tokenizers in transformers."""

    tokens: Mapping[str, str]  # special tokens that it adds of itself, by name
    gives_types: bool  # where `model_input_names` says nothing
    makes: Callable[[_Options, _Named], _Parts] | None  # None: the file's parts
    has_model: Callable[[Any, _Named], bool]  # whether the file's model is the one that it makes


def _bert(options: _Options, named: _Named) -> _Parts:
    first, last = named["cls_token"][0], named["sep_token"][0]
    post = processors.TemplateProcessing(
        single=f"{first}:0 $A:0 {last}:0",
        pair=f"{first}:0 $A:0 {last}:0 $B:1 {last}:1",
        special_tokens=[named["cls_token"], named["sep_token"]],
    )
    return _bert_normalizer(options), pre_tokenizers.BertPreTokenizer(), post, decoders.WordPiece(prefix="##")


def _mpnet(options: _Options, named: _Named) -> _Parts:
    post = processors.RobertaProcessing(named["sep_token"], named["cls_token"], True, False)
    return _bert_normalizer(options), pre_tokenizers.BertPreTokenizer(), post, decoders.WordPiece(prefix="##")


def _roberta(options: _Options, named: _Named) -> _Parts:
    prefix, trim = options.get("add_prefix_space", False), options.get("trim_offsets", True)
    post = processors.RobertaProcessing(named["sep_token"], named["cls_token"], trim, prefix)
    return None, pre_tokenizers.ByteLevel(add_prefix_space=prefix), post, decoders.ByteLevel()


def _bert_normalizer(options: _Options) -> Any:
    return normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=options.get("tokenize_chinese_chars", True),
        strip_accents=options.get("strip_accents"),
        lowercase=options.get("do_lower_case", True),
    )


def _is_word_piece(model: Any, named: _Named) -> bool:
    if not isinstance(model, models.WordPiece):
        return False
    kept: Any = model
    is_made = kept.continuing_subword_prefix == "##" and kept.max_input_chars_per_word == 100  # its defaults
    return bool(is_made and kept.unk_token == named["unk_token"][0])


def _is_byte_pairs(model: Any, named: _Named) -> bool:
    if not isinstance(model, models.BPE):
        return False
    kept: Any = model
    has_affixes = kept.continuing_subword_prefix or kept.end_of_word_suffix
    return not (
        has_affixes or kept.dropout or kept.unk_token or kept.fuse_unk or kept.byte_fallback or kept.ignore_merges
    )


_SQUARE = {f"{name.lower()}_token": f"[{name}]" for name in ("UNK", "SEP", "PAD", "CLS", "MASK")}
_ANGLE = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "sep_token": "</s>",
    "cls_token": "<s>",
    "unk_token": "<unk>",
    "pad_token": "<pad>",
    "mask_token": "<mask>",
}
_KINDS = {
    "BertTokenizer": _Kind(_SQUARE, True, _bert, _is_word_piece),
    "MPNetTokenizer": _Kind(_ANGLE | {"unk_token": "[UNK]"}, False, _mpnet, _is_word_piece),
    "RobertaTokenizer": _Kind(_ANGLE, False, _roberta, _is_byte_pairs),
    "TokenizersBackend": _Kind({}, False, None, lambda model, named: True),
}
_OF_MODELS = {  # the tokenizer of a config.json's model_type, for those whose own tokenizer_class is believed
    "bert": "BertTokenizer",
    "distilbert": "BertTokenizer",
    "electra": "BertTokenizer",
    "mpnet": "MPNetTokenizer",
    "roberta": "RobertaTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
}
_BACKENDS = ("PreTrainedTokenizer", "PreTrainedTokenizerFast", "TokenizersBackend")


def plain_tokenizer(root: Path) -> LoadedTokenizer | None:
    """The tokenizer of a directory's tokenizer.json; None where it is not known that transformers makes the same.

    Raises TokenizerError for damaged files, and for values of other types than transformers takes.
    """
    options, file = read_options(root), root / "tokenizer.json"
    if not file.is_file():
        return None
    kind = _KINDS.get(_class_name(options, read_config(root)))
    if kind is None or not options.keys() <= _KNOWN_OPTIONS:
        return None
    content, backend = read_object(file), read_backend(file)
    named = _named_tokens(root, options, kind, backend)
    if named is None or not _has_parts(backend, kind, options, named):
        return None
    side = options.get("truncation_side") or (content.get("truncation") or {}).get("direction", "right")
    names = options.get("model_input_names")
    gives_types = kind.gives_types if names is None else "token_type_ids" in names
    return LoadedTokenizer(backend, gives_types, str(side).lower() == "left")


def _class_name(options: _Options, config: _Options) -> str:
    """The class that AutoTokenizer takes; empty where that is not simple."""
    own = _OF_MODELS.get(config.get("model_type", ""), "")
    stated = options.get("tokenizer_class") or config.get("tokenizer_class")
    if not config:  # a directory without a model
        own = own or "TokenizersBackend"
    if stated is None or not own:
        return own
    name = str(stated).removesuffix("Fast")
    return "TokenizersBackend" if name in _BACKENDS else name


def _named_tokens(root: Path, options: _Options, kind: _Kind, backend: Any) -> _Named | None:
    """The special tokens by name. None where transformers would add a token to the file's, or change one."""
    added = backend.get_added_tokens_decoder()
    by_content = {token.content: (index, token) for index, token in added.items()}
    if "added_tokens_decoder" in options:
        is_of_file = _are_equal(options["added_tokens_decoder"], added)
    else:
        further = read_object(root / "added_tokens.json")
        is_of_file = all(key in by_content and by_content[key][0] == index for key, index in further.items())
    if not is_of_file:
        return None
    size = backend.get_vocab_size(with_added_tokens=False)
    beyond = sorted(index for index in added if index >= size)
    if beyond != list(range(size, size + len(beyond))):
        return None
    more = [*options["extra_special_tokens"], *options["additional_special_tokens"]]
    if any(not isinstance(token, str) or token not in by_content or not by_content[token][1].special for token in more):
        return None
    named: dict[str, tuple[str, int]] = {}
    for name in {*kind.tokens, *(key for key in options if key.endswith("_token"))}:
        stated = options.get(name, kind.tokens.get(name))
        if stated is None and name not in kind.tokens:
            continue
        content = stated.get("content") if isinstance(stated, dict) else stated
        if not isinstance(content, str) or content not in by_content:
            return None
        index, token = by_content[content]
        flags = dict.fromkeys(_TOKEN_FLAGS, False)  # of a token that only the class names
        flags |= {"lstrip": name == "mask_token" and kind.makes is _mpnet} if name not in options else {}
        if isinstance(stated, dict):
            flags |= {key: value for key, value in stated.items() if key in _TOKEN_FLAGS}
        is_checked = isinstance(stated, dict) or name not in options
        if not token.special or (is_checked and any(getattr(token, flag) != flags[flag] for flag in _TOKEN_FLAGS)):
            return None
        named[name] = (content, index)
    return named


def _are_equal(listed: Any, added: Mapping[int, Any]) -> bool:
    """Whether `added_tokens_decoder` has the added tokens of the file."""
    if not isinstance(listed, dict) or {str(index) for index in added} != listed.keys():
        return False
    keys = ("content", "special", *_TOKEN_FLAGS)
    return all(
        isinstance(stated, dict) and all(stated.get(key) == getattr(added[int(index)], key) for key in keys)
        for index, stated in listed.items()
    )


def _has_parts(backend: Any, kind: _Kind, options: _Options, named: _Named) -> bool:
    if backend.post_processor is None or not kind.has_model(backend.model, named):
        return False
    if kind.makes is None:
        return "add_prefix_space" not in options
    try:
        parts = kind.makes(options, named)
    except (TypeError, ValueError):  # an option of another type than the class takes
        return False
    found = backend.normalizer, backend.pre_tokenizer, backend.post_processor, backend.decoder
    return all(_content(made) == _content(own) for made, own in zip(parts, found, strict=True))


def _content(part: Any) -> Any:
    return None if part is None else part.__getstate__()
