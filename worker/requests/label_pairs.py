"""Labels of a request: each text with each label's hypothesis becomes a pair, one sequence of a request's block."""

from collections.abc import Sequence

import numpy as np

from penstock.engine.types import Int32Array
from penstock.producer.errors import InvalidRequest, TooLong
from penstock.producer.tokenization import Encoded, Tokenizer
from penstock.producer.wire.labels import hypotheses
from penstock.producer.wire.messages import Request, Text
from penstock.worker.requests.validation import first_error

# Of the pairs of one record: no fewer than a record of the largest size can hold as texts.
MAX_PAIR_TOKENS = 1 << 22


def texts_of(request: Request) -> Sequence[Text]:
    """Inputs that are tokenized for a request: its texts, and then the hypothesis of each label, once for all texts."""
    texts = request.text or ()
    return texts if request.options.labels is None else [*texts, *hypotheses(request.options)]


def label_pairs(
    request: Request, encoded: Sequence[Encoded], tokenizer: Tokenizer, most_tokens: int
) -> tuple[Int32Array, list[int], Int32Array | None]:
    """Ids, lengths and token types of the pairs: of the first text with each label, then of the next text.

    `encoded`: of `texts_of`. With the option `truncate` a text is cut and its hypothesis is not, as transformers'
    zero-shot pipeline does it.

    Raises:
        TooLong: with the texts at fault. A text that is cut keeps one token at least.
        InvalidRequest: the pairs have more than MAX_PAIR_TOKENS.
    """
    frame, single = tokenizer.pair_frame, tokenizer.frame
    ids = [one.ids[single.before : len(one.ids) - single.after] for one in encoded]
    firsts, seconds = ids[: request.num_rows], ids[request.num_rows :]
    text_tokens = np.array([len(first) for first in firsts])[:, None]
    other_tokens = np.array([len(second) + frame.num_special for second in seconds])
    whole = text_tokens + other_tokens
    is_too_long = whole > most_tokens
    if request.options.truncate:
        is_too_long &= other_tokens >= most_tokens
    if is_too_long.any():
        rule = f"A text and a label's hypothesis must have at most {most_tokens} tokens."
        longest = whole.max(axis=1).tolist()
        at_fault = np.flatnonzero(is_too_long.any(axis=1)).tolist()
        raise first_error({index: TooLong(f"{rule} Given: {longest[index]}") for index in at_fault})
    lengths = np.minimum(whole, most_tokens)
    if (num_tokens := int(lengths.sum())) > MAX_PAIR_TOKENS:
        raise InvalidRequest(
            f"The pairs of a record's texts and labels have at most {MAX_PAIR_TOKENS:,} tokens; send fewer texts a "
            f"record, or fewer labels. Given: {num_tokens:,}"
        )
    pair_ids, types = frame.pairs(firsts, seconds, lengths - other_tokens)
    return pair_ids, lengths.ravel().tolist(), types
