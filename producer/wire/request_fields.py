"""The sequences of a request's value: token ids with lengths, texts, and pairs of texts."""

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from penstock.producer.errors import EmptyInput, InvalidRequest
from penstock.producer.wire.messages import Text, Tokens

_UINT32 = np.dtype("<u4")


def decode_tokens(body: Mapping[str, Any], max_sequences: int) -> Tokens | None:
    """`ids` and `lens`, or None if the request has neither."""
    ids, lens = body.get("ids"), body.get("lens")
    if ids is None and lens is None:
        return None
    if not isinstance(ids, bytes) or not isinstance(lens, bytes) or len(ids) % 4 or len(lens) % 4:
        raise InvalidRequest("`ids` and `lens` must both be bytes of little-endian uint32.")
    if len(lens) > 4 * max_sequences:
        raise InvalidRequest(f"A record holds at most {max_sequences} sequences. Given: {len(lens) // 4}")
    lengths = (int.from_bytes(lens, "little"),) if len(lens) == 4 else struct.unpack(f"<{len(lens) // 4}I", lens)
    if not lengths:
        raise EmptyInput("`lens` is empty: the request holds no sequence.")
    if 0 in lengths:
        raise EmptyInput(f"Sequence {lengths.index(0)} has zero ids.")
    if sum(lengths) * 4 != len(ids):
        raise InvalidRequest(f"`lens` add up to {sum(lengths)}, but `ids` holds {len(ids) // 4} ids.")
    return Tokens(np.frombuffer(ids, _UINT32), lengths)


def decode_text(body: Mapping[str, Any]) -> tuple[Text, ...] | None:
    """`text` as a tuple of strings and pairs, or None if the request has none."""
    text = body.get("text")
    if text is None:
        return None
    if isinstance(text, str):
        text = [text]
    if not isinstance(text, list):
        raise InvalidRequest("`text` must be a string, or a list of strings and pairs of strings.")
    if not text:
        raise EmptyInput("`text` is an empty list: the request holds no sequence.")
    return tuple([_decode_one_text(item, index) for index, item in enumerate(text)])


def check_pairs(task: str, text: Sequence[Text] | None) -> None:
    """Check that `rerank` has pairs, whose halves only the tokenizer can mark, and tasks of tokens single texts."""
    if task not in ("rerank", "token_classify", "generate"):
        return
    if task == "rerank" and text is None:
        raise InvalidRequest("`rerank` needs `text`: `ids` cannot say where the second text of a pair begins.")
    expected = "a pair of strings" if task == "rerank" else "a single string"
    at_fault = [index for index, item in enumerate(text or ()) if isinstance(item, str) is (task == "rerank")]
    if at_fault:
        errors = {index: InvalidRequest(f"For `{task}`, a text must be {expected}.") for index in at_fault}
        raise InvalidRequest(f"For `{task}`, `text` item {at_fault[0]} must be {expected}.", errors)


def _decode_one_text(item: object, index: int) -> Text:
    if isinstance(item, str):
        if not item.strip():
            raise EmptyInput(f"Text {index} is empty.")
        return item
    if isinstance(item, list) and len(item) == 2 and isinstance(item[0], str) and isinstance(item[1], str):
        if not (item[0].strip() and item[1].strip()):
            raise EmptyInput(f"Text pair {index} has an empty member.")
        return (item[0], item[1])
    raise InvalidRequest(f"`text` item {index} must be a string or a pair of strings.")
