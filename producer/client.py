"""The async client: texts or token ids in; vectors, labels or scores out.

async with Client(bootstrap_servers="localhost:9092", model="all-MiniLM-L6-v2") as client:
    vectors = await client.embed(["a text", "another"])
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Unpack

import numpy.typing as npt

from penstock.producer.caller import raise_first
from penstock.producer.embedding_caller import EmbeddingCaller
from penstock.producer.errors import WrongArgument
from penstock.producer.keywords import GenerationKeywords
from penstock.producer.transport.attempts import Attempts
from penstock.producer.wire.generation import read_generation
from penstock.producer.wire.messages import (
    NO_OPTIONS,
    Classification,
    Generation,
    Options,
    Ranked,
    Reply,
    Row,
    Text,
    TokenClass,
)
from penstock.producer.wire.options import recheck_options
from penstock.producer.wire.sequence_codec import Emitted
from penstock.producer.wire.sequences import check, check_list

__all__ = ["Client", "Row"]


class Client(EmbeddingCaller):
    """Client of one model. Use as an async context manager, from one event loop; calls may run concurrently.

    Methods raise errors of `penstock.producer.errors`: `MixedRevisions` where two revisions of the model answer one
    call. Each call ends by its deadline (`timeout_s`, which is sent with it). After `close`, pending and later calls
    fail with `ShuttingDown`.
    """

    async def classify(
        self,
        texts: str | Sequence[Text] | None = None,
        *,
        ids: Sequence[npt.ArrayLike] | None = None,
        labels: Sequence[str] | None = None,
        template: str | None = None,
        multi_label: bool = False,
        top_k: int | None = None,
        truncate: bool = False,
        timeout_s: float | None = None,
    ) -> list[Classification]:
        """The best label, or the best `top_k` (0: all), of each text or sequence of token ids.

        A single text gives one row.

        Args:
            labels: what to choose from, in place of the model's own labels. The model is one of natural language
                inference; scores are those of transformers' zero-shot-classification.
            template: with labels, what is said of a text, with {} for the label; None: "This example is {}."
            multi_label: with labels, score each by itself. Otherwise the scores of all labels add up to 1.

        Raises:
            PenstockError: the first sequence's error; use `map` to get the other results as well.
        """
        asked = None if labels is None else tuple(check_list("labels", labels, "a list of strings"))
        options = Options(truncate=truncate, top_k=top_k, labels=asked, multi_label=multi_label, template=template)
        return await self._rows("classify", texts, ids, options, timeout_s)

    async def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        truncate: bool = False,
        prompt_name: str | None = None,
        prompt: str | None = None,
        timeout_s: float | None = None,
    ) -> list[Ranked]:
        """Each document's index in `documents` and its score for the query, best first: `for index, score in …`.

        Scores are those of sentence-transformers' CrossEncoder. For scores in the documents' order, or of pairs with
        different queries, use `map("rerank", [(query, document), …])`. `prompt` is what the model is told to do, where
        it was trained with instructions; `prompt_name` names one of the checkpoint's. Others have it before the query.

        Raises:
            PenstockError: the first pair's error; use `map` to get the other results as well.
        """
        if not isinstance(query, str):
            raise WrongArgument(f"`query` must be a string. Given: {type(query).__name__}")
        pairs = [(query, document) for document in check_list("documents", documents, "a list of strings")]
        for index, (_, document) in enumerate(pairs):
            if not isinstance(document, str):
                raise WrongArgument(f"`documents` item {index} must be a string. Given: {type(document).__name__}")
        options = Options(truncate=truncate, prompt_name=prompt_name, prompt=prompt)
        scores = await self._rows("rerank", pairs, None, options, timeout_s)
        ranked = [Ranked(index, score) for index, score in enumerate(scores)]
        return sorted(ranked, key=lambda one: one.score, reverse=True)

    async def token_classify(
        self,
        texts: str | Sequence[str] | None = None,
        *,
        ids: Sequence[npt.ArrayLike] | None = None,
        top_k: int | None = None,
        truncate: bool = False,
        timeout_s: float | None = None,
    ) -> list[list[TokenClass]]:
        """The best label, or the best `top_k` (0: all), of each token of each text or sequence of token ids.

        Tokens of a text have their place in it, and special tokens are left out. Token ids have labels and no place.
        A single text gives one row.

        Raises:
            PenstockError: the first sequence's error; use `map` to get the other results as well.
        """
        return await self._rows("token_classify", texts, ids, Options(top_k=top_k, truncate=truncate), timeout_s)

    async def generate(
        self,
        texts: str | Sequence[str] | None = None,
        *,
        ids: Sequence[npt.ArrayLike] | None = None,
        truncate: bool = False,
        timeout_s: float | None = None,
        **generation: Unpack[GenerationKeywords],
    ) -> list[Generation]:
        """Generate with an encoder-decoder model from each text or sequence of token ids; a single text gives one row.

        `generation`: options by their names in transformers' generation_config.json, such as max_new_tokens, num_beams,
        do_sample, temperature and seed. The others are the model's own. Sampling without a seed differs at each call.
        `source_language` and `target_language` are names that the model's tokenizer has, such as eng_Latn of NLLB-200.

        Raises:
            PenstockError: the first sequence's error; use `map` to get the other results as well.
        """
        options = Options(truncate=truncate, generation=read_generation(generation))
        return await self._rows("generate", texts, ids, options, timeout_s)

    async def stream(
        self,
        text: str | None = None,
        *,
        ids: npt.ArrayLike | None = None,
        truncate: bool = False,
        timeout_s: float | None = None,
        **generation: Unpack[GenerationKeywords],
    ) -> AsyncGenerator[Generation, None]:
        """`generate` for one text, or one sequence of token ids: `async for so_far in client.stream(…)`.

        Each item has all tokens so far, and begins with those of the item before it. The last item is the answer, and
        the only one that is certain to come; `finish` of all others is "partial". If the request is run again, because
        its worker ended or rejected it, the next item comes once there are more tokens. With sampling the tokens of
        the answer may then differ from those shown.

        Closing the iterator (`contextlib.aclosing`) takes the request back.
        """
        self._check_loop()
        options = recheck_options(
            Options(truncate=truncate, generation=read_generation(generation), stream=True),
            "generate",
            is_text=ids is None,
        )
        if text is not None and not isinstance(text, str):
            raise WrongArgument(f"`text` must be a string. Given: {type(text).__name__}")
        _, checked = check("generate", None if text is None else [text], None if ids is None else [ids])
        raise_first(checked)
        partials: asyncio.Queue[tuple[Reply, Generation] | None] = asyncio.Queue()

        def show(reply: Reply) -> None:
            partials.put_nowait((reply, _generated(reply)))

        attempts = Attempts.within(self._timeout_s(timeout_s))
        asking = asyncio.create_task(self._ask("generate", options, checked, attempts, show))
        asking.add_done_callback(lambda _: partials.put_nowait(None))
        shown: tuple[int, ...] = ()
        revision = self._one_revision()
        try:
            while (so_far := await partials.get()) is not None:
                reply, row = so_far
                revision.check(reply.model, reply.revision)
                if len(row.tokens) > len(shown) and row.tokens[: len(shown)] == shown:
                    shown = row.tokens
                    yield row
            reply = await asking
            self._on_reply(reply, 1)
            row = _generated(reply)
            revision.check(reply.model, reply.revision)
            yield row
        finally:
            asking.cancel()

    async def sequence(
        self, sequences: Sequence[Mapping[str, Any]], *, timeout_s: float | None = None
    ) -> list[dict[str, Emitted]]:
        """Arrays that the cells of a model emit for each sequence: by name [rows, width].

        Rows are those of the first node that emits the name, step after step, then those of the next node.

        Args:
            sequences: of each a map of the fields that the model reads, such as {"tokens": [5, 6, 7]}.

        Raises:
            PenstockError: the first sequence's error; use `map("sequence", …)` to get the other results as well.
        """
        check_list("sequences", sequences, "a list of maps of fields")
        return await self._rows("sequence", sequences, None, NO_OPTIONS, timeout_s)


def _generated(reply: Reply) -> Generation:
    """The answer to one text. Raises BackendError where the reply is one to another task."""
    return reply.rows("generate")[0]  # type: ignore[return-value]  # generate's rows are generations
