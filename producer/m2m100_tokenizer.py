"""The fast tokenizer of M2M100, of which transformers has a slow one: a SentencePiece model with ids of its own."""

import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, processors

from penstock.producer.languages import Languages
from penstock.producer.tokenizer_files import LoadedTokenizer

_NORMAL, _UNKNOWN, _CONTROL = 1, 2, 3  # types of pieces in a SentencePiece model
_PAIRS = 2  # its type of a model of byte pairs


def m2m100_tokenizer(slow: Any) -> LoadedTokenizer | None:
    """A fast tokenizer in place of a slow one; None where it is not M2M100's, or may give other tokens."""
    if type(slow).__name__ != "M2M100Tokenizer":
        return None
    try:
        from transformers.convert_slow_tokenizer import SpmConverter, import_protobuf

        protobuf: Any = import_protobuf  # untyped there, as is the next
        build: Any = SpmConverter.build_tokenizer_from_spm_proto
    except (ImportError, AttributeError):  # an earlier version of transformers
        return None
    model = protobuf().ModelProto()
    model.ParseFromString(Path(slow.spm_file).read_bytes())
    kinds = {piece.piece: piece.type for piece in model.pieces}
    has_known_parts = model.trainer_spec.model_type == _PAIRS and {*kinds.values()} <= {_NORMAL, _UNKNOWN, _CONTROL}
    if not has_known_parts or any(kind == _NORMAL and piece not in slow.encoder for piece, kind in kinds.items()):
        return None
    state = json.loads(build(model, {piece: index for index, piece in enumerate(kinds)}).to_str())
    state["model"] |= {"vocab": slow.encoder, "unk_token": slow.unk_token}
    backend = tokenizers.Tokenizer.from_str(json.dumps(state))
    added = sorted(slow.added_tokens_decoder.items())
    backend.add_special_tokens([token for _, token in added])
    languages: dict[str, int] = slow.lang_code_to_id
    known = {index for index, token in added if backend.token_to_id(token.content) == index}
    if len(known) < len(added) or not known.issuperset(languages.values()):
        return None
    backend.post_processor = _template(slow)
    ends = decoders.Replace(tokenizers.Regex(r"\A +| +\z"), "")
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), ends])
    return LoadedTokenizer(backend, False, slow.truncation_side == "left", Languages(languages, place=0))


def _template(slow: Any) -> Any:
    """The token of the language, a text and the end token."""
    (language,), (end,) = slow.prefix_tokens, slow.suffix_tokens
    first, last = slow.convert_ids_to_tokens([language, end])
    return processors.TemplateProcessing(
        single=[first, "$A", last], pair=[first, "$A", "$B", last], special_tokens=[(first, language), (last, end)]
    )
