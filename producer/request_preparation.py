"""Requests of the sequences of a call, tokenized where the client has a tokenizer, and the rows of their replies."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.producer.errors import BackendError
from penstock.producer.languages import source_language
from penstock.producer.tokenization import Encoded, Tokenizer
from penstock.producer.wire.messages import (
    Generation,
    Options,
    Reply,
    Request,
    concatenate_tokens,
    join_tokens,
)


@dataclasses.dataclass(slots=True)  # not frozen: that would double the cost of making one
class PreparedRequest:
    """A request, and the tokens of its texts where the client has made them."""

    request: Request
    encoded: Sequence[Encoded] = ()
    tokenizer: Tokenizer | None = None  # of `encoded`

    def completed(self, reply: Reply) -> Reply:
        """Its reply, with the texts and spans that only the client knows."""
        if self.tokenizer is None:
            return reply
        if reply.generations is not None:
            return dataclasses.replace(reply, generations=_with_texts(reply.generations, self.tokenizer))
        return _with_spans(reply, self.encoded, self.tokenizer)


def request_of(model: str, task: str, options: Options, sequences: Sequence[Any]) -> Request:
    """The request of sequences of one kind: token ids as bytes, maps of fields, texts or pairs."""
    if isinstance(sequences[0], bytes):
        return Request(model, task, concatenate_tokens(sequences), None, options)
    if isinstance(sequences[0], dict):
        return Request(model, task, sequences=tuple(sequences))
    return Request(model, task, None, tuple(sequences), options)


async def tokenized(request: Request, tokenizer: Tokenizer) -> PreparedRequest:
    """A request with the ids of its texts."""
    # Pairs need token types, which `ids` does not carry: the worker tokenizes them, and texts that it makes pairs of.
    is_of_pairs = request.options.labels is not None or any(isinstance(text, tuple) for text in request.text or ())
    # Nor do they tell which tokens are of a prompt that pooling leaves out, or where the role of a text has it cut.
    is_cut_by_role = request.options.truncate and tokenizer.has_roles
    if request.text is None or is_of_pairs or is_cut_by_role or tokenizer.prompts.left_out(request):
        return PreparedRequest(request)
    prompted = tokenizer.prompts.apply(request)
    asked, spans = request.options, request.task == "token_classify"
    generation, language = tokenizer.languages.resolved(asked.generation), source_language(asked.generation)
    encoded = await tokenizer.encode_async(prompted.text or (), truncate=False, spans=spans, language=language)
    options = asked._replace(prompt_name=None, prompt=None, generation=generation)  # the rest is in the ids
    tokens = join_tokens([sequence.ids for sequence in encoded])
    return PreparedRequest(Request(request.model, request.task, tokens, None, options), encoded, tokenizer)


def _with_spans(reply: Reply, encoded: Sequence[Encoded], tokenizer: Tokenizer) -> Reply:
    """The reply with the spans of its tokens, which only the client knows when it has tokenized the texts."""
    spans = [sequence.spans for sequence in encoded if sequence.spans is not None]
    if not spans or reply.tokens is None:
        return reply
    lens = reply.tokens.lens
    if len(lens) != len(spans) or any(length > len(span) for length, span in zip(lens, spans, strict=True)):
        raise BackendError("The worker answered with other tokens than were sent.")
    cut = [tokenizer.frame.cut(span, length) for span, length in zip(spans, lens, strict=True)]
    return dataclasses.replace(reply, tokens=dataclasses.replace(reply.tokens, spans=np.concatenate(cut)))


def _with_texts(rows: Sequence[Generation], tokenizer: Tokenizer) -> tuple[Generation, ...]:
    texts = tokenizer.decode([row.tokens for row in rows])
    return tuple([dataclasses.replace(row, text=text) for row, text in zip(rows, texts, strict=True)])
