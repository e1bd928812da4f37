"""Text to token ids, by the tokenizer of a checkpoint's directory."""

import asyncio
import functools
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tokenizers

from penstock.producer.errors import InvalidRequest
from penstock.producer.prompts import Prompts, read_prompts
from penstock.producer.wire.messages import Text, utf8_fault

Int32Array = npt.NDArray[np.int32]
Uint32Array = npt.NDArray[np.uint32]

# Below these, tokenizing takes less time than a switch to another thread and back (some 50 µs for 100 characters).
_FEW_TEXTS = 4
_FEW_CHARACTERS = 2000


class TokenizerError(ValueError):
    """The checkpoint has no usable tokenizer. The message names the remedy."""


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """Tokens of one text or one pair of texts."""

    ids: Int32Array  # [n], with special tokens
    token_type_ids: Int32Array | None  # [n]; None: all zero
    spans: Uint32Array | None = None  # [n, 2], each token's first character and the one after its last; if asked for


class Tokenizer:
    """A checkpoint's tokenizer, without padding, and without truncation unless asked for. Thread-safe.

    Truncation and padding stored in the tokenizer's file (all-MiniLM-L6-v2: cut and pad to 128) are removed on loading.
    """

    def __init__(self, plain: Any, prompts: Prompts) -> None:
        """`plain` is a `tokenizers.Tokenizer`, which this object modifies. Called by `from_directory`."""
        self.prompts = prompts  # of the checkpoint; callers apply them before `encode`
        plain.no_truncation()
        plain.no_padding()
        self._plain = plain
        self._cutting: dict[int, Any] = {}  # max_tokens -> a copy that truncates there
        self._copying = threading.Lock()
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tokenizer")

    @classmethod
    def from_directory(cls, path: str | Path) -> "Tokenizer":
        """Load `tokenizer.json`, or without one the older files, by transformers.

        Raises:
            TokenizerError: both fail, or the checkpoint's prompts cannot be read.
        """
        directory = Path(path)
        file = directory / "tokenizer.json"
        try:
            prompts = read_prompts(directory)
        except (OSError, ValueError) as error:
            raise TokenizerError(f"The prompts of {directory} cannot be read: {error}.") from error
        if not file.is_file():
            return cls(_from_transformers(directory), prompts)
        try:
            return cls(tokenizers.Tokenizer.from_file(str(file)), prompts)
        except Exception as error:  # the library raises bare Exception for a file that it cannot parse
            raise TokenizerError(
                f"{file} cannot be read as a tokenizer ({error}). Download the checkpoint again."
            ) from error

    def close(self) -> None:
        """End the thread of `encode_async` after its last call, without waiting. `encode` remains usable."""
        self._executor.shutdown(wait=False)

    def encode(
        self, texts: Sequence[Text], *, truncate: bool, max_tokens: int | None = None, spans: bool = False
    ) -> list[Encoded]:
        """Token ids of each text or pair, in order. Blocks; several texts are spread over the processor's cores.

        Args:
            truncate: cut sequences longer than `max_tokens` on the right, keeping the special tokens; of a pair, the
                longer member first.
            max_tokens: longest sequence, with special tokens. Required with `truncate`, ignored without it.
            spans: return each token's place in its text, or in its member of a pair.

        Raises:
            InvalidRequest: a text holds half a surrogate pair, which no encoding of Unicode has.
            ValueError: `truncate` without `max_tokens`, or with too few for the special tokens.
        """
        tokenizer = self._cutting_at(max_tokens) if truncate else self._plain
        try:
            if len(texts) == 1:  # a batch would wait for the library's threads
                encodings = [tokenizer.encode(*_parts(texts[0]), add_special_tokens=True)]
            elif spans:
                encodings = tokenizer.encode_batch(list(texts), add_special_tokens=True)
            else:  # without spans
                encodings = tokenizer.encode_batch_fast(list(texts), add_special_tokens=True)
        except TypeError:  # the library's error for text that is not Unicode
            _refuse_surrogates(texts)
            raise
        return [_encoded(encoding, spans) for encoding in encodings]

    async def encode_async(
        self, texts: Sequence[Text], *, truncate: bool, max_tokens: int | None = None, spans: bool = False
    ) -> list[Encoded]:
        """`encode` in this object's thread, or at once if that is quicker."""
        if len(texts) <= _FEW_TEXTS and sum([_num_characters(text) for text in texts]) <= _FEW_CHARACTERS:
            return self.encode(texts, truncate=truncate, max_tokens=max_tokens, spans=spans)
        call = functools.partial(self.encode, texts, truncate=truncate, max_tokens=max_tokens, spans=spans)
        return await asyncio.get_running_loop().run_in_executor(self._executor, call)

    def _cutting_at(self, max_tokens: int | None) -> Any:
        if max_tokens is None:
            raise ValueError("`truncate` needs `max_tokens`: the length to cut at.")
        with self._copying:
            if max_tokens not in self._cutting:
                room = max_tokens - self._plain.num_special_tokens_to_add(is_pair=True)
                if room < 1:
                    raise ValueError(f"max_tokens={max_tokens} leaves no room for text with the special tokens.")
                copy = tokenizers.Tokenizer.from_str(self._plain.to_str())
                copy.enable_truncation(max_tokens, strategy="longest_first", direction="right")
                self._cutting[max_tokens] = copy
            return self._cutting[max_tokens]


def _parts(text: Text) -> tuple[str, ...]:
    return text if isinstance(text, tuple) else (text,)


def _num_characters(text: Text) -> int:
    return sum(map(len, _parts(text)))


def _from_transformers(directory: Path) -> Any:
    """The `tokenizers.Tokenizer` that transformers builds from vocab.txt, sentencepiece.bpe.model and the like."""
    advice = "Save one with AutoTokenizer.from_pretrained(...).save_pretrained(directory)."
    if not directory.is_dir():
        raise TokenizerError(f"{directory} is not a directory: there is no tokenizer to load.")
    from transformers import AutoTokenizer  # takes seconds to import, and few checkpoints need it

    try:
        wrapped = AutoTokenizer.from_pretrained(str(directory), trust_remote_code=False, local_files_only=True)
    except Exception as error:  # transformers raises many unrelated types
        raise TokenizerError(f"{directory} has no tokenizer.json, nor files to build one from. {advice}") from error
    backend = getattr(wrapped, "backend_tokenizer", None)
    if not isinstance(backend, tokenizers.Tokenizer):
        raise TokenizerError(f"The tokenizer in {directory} has no fast form. {advice}")
    return backend


def _encoded(encoding: Any, with_spans: bool) -> Encoded:
    types = np.array(encoding.type_ids, dtype=np.int32)
    spans = np.array(encoding.offsets, dtype=np.uint32).reshape(-1, 2) if with_spans else None
    return Encoded(np.array(encoding.ids, dtype=np.int32), types if types.any() else None, spans)


def _refuse_surrogates(texts: Sequence[Text]) -> None:
    faults = {index: utf8_fault("".join(text)) for index, text in enumerate(texts)}
    rows = {i: InvalidRequest(f"Text {i} cannot be UTF-8: {fault}.") for i, fault in faults.items() if fault}
    if rows:
        raise InvalidRequest(next(iter(rows.values())).message, rows)
