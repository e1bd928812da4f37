"""Text to token ids, by the tokenizer of a checkpoint's directory."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tokenizers

from penstock.producer.errors import InvalidRequest
from penstock.producer.known_words import KnownWords
from penstock.producer.prompts import Prompts, read_prompts
from penstock.producer.wire.messages import Text, utf8_fault

Int32Array = npt.NDArray[np.int32]
Uint32Array = npt.NDArray[np.uint32]

# Below these, tokenizing takes less time than a switch to another thread and back (some 50 µs for 100 characters).
_FEW_TEXTS = 4
_FEW_CHARACTERS = 2000
_CHUNK_CHARACTERS = 1 << 16
_KNOWN_CHARACTERS = 1 << 16  # looking up so many takes 1.5 ms, which the event loop can wait


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
        self._whole = _Encoder(plain, None, KnownWords.of(plain))
        self._cutting: dict[int, _Encoder] = {}  # max_tokens -> one with a copy that truncates there
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
        """Token ids of each text or pair, in order. Blocks; several new texts are spread over the processor's cores.

        Args:
            truncate: cut sequences longer than `max_tokens` on the right, keeping the special tokens; of a pair, the
                longer member first.
            max_tokens: longest sequence, with special tokens. Required with `truncate`, ignored without it.
            spans: return each token's place in its text, or in its member of a pair.

        Raises:
            InvalidRequest: a text holds half a surrogate pair, which no encoding of Unicode has.
            ValueError: `truncate` without `max_tokens`, or with too few for the special tokens.
        """
        encoder = self._encoder(truncate, max_tokens)
        with _refusing_surrogates(texts):
            found = encoder.find(texts, spans)
            return _filled(found, encoder.encode_new(_missing(texts, found), spans))

    def decode(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        """The text of each sequence of token ids, without special tokens. Ids outside the vocabulary have none."""
        decoded: list[str] = self._whole.plain.decode_batch(sequences, skip_special_tokens=True)
        return decoded

    async def encode_async(
        self, texts: Sequence[Text], *, truncate: bool, max_tokens: int | None = None, spans: bool = False
    ) -> list[Encoded]:
        """`encode`, at once for texts of known words and for few others; for many others in this object's thread.

        Calls at the same time take turns there.
        """
        encoder = self._encoder(truncate, max_tokens)
        with _refusing_surrogates(texts):
            is_short = _num_characters(texts) <= _KNOWN_CHARACTERS
            found = encoder.find(texts, spans) if is_short else [None] * len(texts)
            new = _missing(texts, found)
            if len(new) <= _FEW_TEXTS and _num_characters(new) <= _FEW_CHARACTERS:
                return _filled(found, encoder.encode_new(new, spans))
            loop = asyncio.get_running_loop()
            encoded: list[Encoded] = []
            for chunk in _chunks(new):
                encoded += await loop.run_in_executor(self._executor, encoder.encode_new, chunk, spans)
            return _filled(found, encoded)

    def _encoder(self, truncate: bool, max_tokens: int | None) -> "_Encoder":
        if not truncate:
            return self._whole
        if max_tokens is None:
            raise ValueError("`truncate` needs `max_tokens`: the length to cut at.")
        with self._copying:
            if max_tokens not in self._cutting:
                plain = self._whole.plain
                if max_tokens <= plain.num_special_tokens_to_add(is_pair=True):
                    raise ValueError(f"max_tokens={max_tokens} leaves no room for text with the special tokens.")
                copy = tokenizers.Tokenizer.from_str(plain.to_str())
                copy.enable_truncation(max_tokens, strategy="longest_first", direction="right")
                self._cutting[max_tokens] = _Encoder(copy, max_tokens, self._whole.words)
            return self._cutting[max_tokens]


@dataclass(frozen=True, slots=True)
class _Encoder:
    """Encodes texts that are cut at one length, or at none."""

    plain: Any  # a `tokenizers.Tokenizer`
    max_tokens: int | None
    words: KnownWords | None

    def find(self, texts: Sequence[Text], spans: bool) -> list[Encoded | None]:
        """The texts whose words are all known."""
        if self.words is None or spans:
            return [None] * len(texts)
        return [_from_bytes(self.words.find(text, self.max_tokens)) for text in texts]

    def encode_new(self, texts: Sequence[Text], spans: bool) -> list[Encoded]:
        """Encode texts with new words, and learn some of the words."""
        found: list[Encoded | None] = [None] * len(texts)
        if self.words is not None and not spans:
            found = [_from_bytes(self.words.learn(text, self.max_tokens)) for text in texts]
        return _filled(found, self._encode_whole(_missing(texts, found), spans))

    def _encode_whole(self, texts: Sequence[Text], spans: bool) -> list[Encoded]:
        if not texts:
            return []
        if len(texts) == 1:  # a batch would wait for the library's threads
            return [_encoded(self.plain.encode(*_parts(texts[0])), spans)]
        encode = self.plain.encode_batch if spans else self.plain.encode_batch_fast  # without spans
        return [_encoded(encoding, spans) for encoding in encode(texts)]


def _chunks(texts: Sequence[Text]) -> Iterator[Sequence[Text]]:
    """Runs of texts that take some 10 ms each, so that calls which come meanwhile wait no longer than that."""
    chunk: list[Text] = []
    num_characters = 0
    for text in texts:
        chunk.append(text)
        num_characters += _num_characters((text,))
        if num_characters >= _CHUNK_CHARACTERS:
            yield chunk
            chunk, num_characters = [], 0
    if chunk:
        yield chunk


def _missing(texts: Sequence[Text], found: Sequence[Encoded | None]) -> list[Text]:
    return [text for text, encoded in zip(texts, found, strict=True) if encoded is None]


def _filled(found: Sequence[Encoded | None], missing: Sequence[Encoded]) -> list[Encoded]:
    """All texts' tokens, in order: those that were found, and in the places between them those that were missing."""
    remaining = iter(missing)
    return [next(remaining) if encoded is None else encoded for encoded in found]


def _from_bytes(ids: bytes | None) -> Encoded | None:
    return None if ids is None else Encoded(np.frombuffer(ids, np.int32), None)


def _parts(text: Text) -> tuple[str, ...]:
    return text if isinstance(text, tuple) else (text,)


def _num_characters(texts: Sequence[Text]) -> int:
    return sum([len(text) if isinstance(text, str) else sum(map(len, text)) for text in texts])


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
    if not any((directory / name).exists() for name in wrapped.vocab_files_names.values()):
        # It was built from config.json alone: each word is unknown to it.
        raise TokenizerError(f"{directory} has no tokenizer.json, nor files to build one from. {advice}")
    backend = getattr(wrapped, "backend_tokenizer", None)
    if not isinstance(backend, tokenizers.Tokenizer):
        raise TokenizerError(f"The tokenizer in {directory} has no fast form. {advice}")
    return backend


def _encoded(encoding: Any, with_spans: bool) -> Encoded:
    types = np.array(encoding.type_ids, dtype=np.int32)
    spans = np.array(encoding.offsets, dtype=np.uint32).reshape(-1, 2) if with_spans else None
    return Encoded(np.array(encoding.ids, dtype=np.int32), types if types.any() else None, spans)


@contextlib.contextmanager
def _refusing_surrogates(texts: Sequence[Text]) -> Iterator[None]:
    """Raise InvalidRequest where the library raises TypeError for text that is not Unicode."""
    try:
        yield
    except TypeError:
        faults = {index: utf8_fault("".join(text)) for index, text in enumerate(texts)}
        rows = {i: InvalidRequest(f"Text {i} cannot be UTF-8: {fault}.") for i, fault in faults.items() if fault}
        if rows:
            raise InvalidRequest(next(iter(rows.values())).message, rows) from None
        raise
