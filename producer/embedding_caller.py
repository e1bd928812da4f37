"""The calls for embeddings: one vector a text, sparse vectors, vectors of tokens, and all three of one pass."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from penstock.producer.caller import Caller
from penstock.producer.wire.messages import Options, Text, Vector
from penstock.producer.wire.vector_tables import Floats, SparseVector, TextVectors


class EmbeddingCaller(Caller):
    """The part of `Client` with the methods for embeddings."""

    async def embed(  # noqa: PLR0913 — options by keyword
        self,
        texts: str | Sequence[Text] | None = None,
        *,
        ids: Sequence[npt.ArrayLike] | None = None,
        pooling: str | None = None,
        normalize: bool | None = None,
        truncate: bool = False,
        dtype: str = "float32",
        prompt_name: str | None = None,
        prompt: str | None = None,
        dimensions: int | None = None,
        timeout_s: float | None = None,
    ) -> Vector:
        """Vectors of texts, or of sequences of token ids (special tokens included).

        Many texts are split over several records; concurrent calls share records (setting `batch_calls`).

        Args:
            prompt_name: name of the checkpoint's prompt that is prepended to each text; without it and `prompt`, the
                checkpoint's default. Token ids take no prompt.
            prompt: the prompt itself, in place of a name; "" for none.
            dimensions: length that vectors are cut to before they are normalised, for models trained so (Matryoshka).
            dtype: "float32" or "float16"; "ubinary" or "binary": the signs of the values, eight in a uint8 or int8, as
                sentence-transformers' `quantize_embeddings` has them; "int8" or "uint8": one byte a value, as that
                function makes it with the ranges that the worker has.

        Returns:
            [n, dim]; for a single text (not in a list) [dim]. The array may be read-only: it shares the reply's memory.

        Raises:
            PenstockError: the first sequence's error; use `map` to get the other results as well.
        """
        options = Options(
            pooling, normalize, truncate, dtype=dtype, prompt_name=prompt_name, prompt=prompt, dimensions=dimensions
        )
        rows = await self._rows("embed", texts, ids, options, timeout_s)
        if isinstance(texts, str):
            return rows[0]  # type: ignore[no-any-return]  # embed's rows are vectors
        return np.concatenate(rows).reshape(len(rows), rows[0].size) if len(rows) > 1 else rows[0][np.newaxis]

    async def embed_sparse(
        self,
        texts: str | Sequence[Text] | None = None,
        *,
        ids: Sequence[npt.ArrayLike] | None = None,
        top_k: int | None = None,
        truncate: bool = False,
        dtype: str = "float32",
        prompt_name: str | None = None,
        prompt: str | None = None,
        timeout_s: float | None = None,
    ) -> list[SparseVector]:
        """Token ids and their weights of each text or sequence of token ids, as SPLADE gives them.

        A single text gives one row.

        Args:
            top_k: keep so many of the largest weights of each; None or 0: all.
            dtype: of the weights, "float32" or "float16".
            prompt_name, prompt: as of `embed`.

        Returns:
            A vector without ids is a result, of a text with no word that the model knows.

        Raises:
            PenstockError: the first sequence's error; use `map` to get the other results as well.
        """
        options = Options(truncate=truncate, top_k=top_k, dtype=dtype, prompt_name=prompt_name, prompt=prompt)
        return await self._rows("embed_sparse", texts, ids, options, timeout_s)

    async def embed_tokens(
        self,
        texts: str | Sequence[Text] | None = None,
        *,
        ids: Sequence[npt.ArrayLike] | None = None,
        truncate: bool = False,
        dtype: str = "float32",
        prompt_name: str | None = None,
        prompt: str | None = None,
        timeout_s: float | None = None,
    ) -> list[Floats]:
        """A vector for each token, [n, token_dim], of each text or sequence of token ids, as ColBERT gives them.

        A single text gives one matrix. The checkpoint decides which tokens have a vector. The arrays are views of the
        reply's memory: copy one to keep it alone.

        Args:
            dtype: "float32" or "float16".
            prompt_name, prompt: as of `embed`. ColBERT's are "query" and "document".

        Raises:
            PenstockError: the first sequence's error; use `map` to get the other results as well.
        """
        options = Options(truncate=truncate, dtype=dtype, prompt_name=prompt_name, prompt=prompt)
        return await self._rows("embed_tokens", texts, ids, options, timeout_s)

    async def embed_all(
        self,
        texts: str | Sequence[Text] | None = None,
        *,
        ids: Sequence[npt.ArrayLike] | None = None,
        top_k: int | None = None,
        truncate: bool = False,
        dtype: str = "float32",
        prompt_name: str | None = None,
        prompt: str | None = None,
        timeout_s: float | None = None,
    ) -> list[TextVectors]:
        """The vector, the token vectors and the sparse vector of each text, of one pass of a model such as bge-m3.

        Arguments and errors are those of `embed_sparse`. A single text gives one row.
        """
        options = Options(truncate=truncate, top_k=top_k, dtype=dtype, prompt_name=prompt_name, prompt=prompt)
        return await self._rows("embed_all", texts, ids, options, timeout_s)
