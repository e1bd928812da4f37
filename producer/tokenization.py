"""Text to token ids, with the tokenizer that lies in the checkpoint's directory."""

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
from penstock.producer.wire.messages import Text

Int32Array = npt.NDArray[np.int32]
Uint32Array = npt.NDArray[np.uint32]

# Tokenizing these takes less than handing them to another thread and back (some 50 µs a text of 100 characters).
_FEW_TEXTS = 4
_FEW_CHARACTERS = 2000


class TokenizerError(ValueError):
    """The checkpoint has no tokenizer, or one that cannot be used. The text says what to do."""


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """One text, or one pair of texts, as the model reads it."""

    ids: Int32Array  # [n], special tokens included
    token_type_ids: Int32Array | None  # [n]; None: all zero
    # [n, 2], where each token stands in its text, in characters, the end exclusive; [0, 0] for special tokens. None:
    # not asked for.
    spans: Uint32Array | None = None


class Tokenizer:
    """A checkpoint's tokenizer. Gives each text its own ids: no padding, and no truncation unless it is asked for.

    Checkpoints store truncation and padding in the tokenizer's file (all-MiniLM-L6-v2: cut and pad to 128); both are
    taken off on loading. Safe to call from several threads: nothing changes after it is made.
    """

    def __init__(self, plain: Any, prompts: Prompts) -> None:
        """`plain` is a `tokenizers.Tokenizer`, which this object owns from now on. Called by `from_directory`."""
        self.prompts = prompts  # of the checkpoint; callers apply them before `encode`
        plain.no_truncation()
        plain.no_padding()
        self._plain = plain
        self._cutting: dict[int, Any] = {}  # max_tokens -> a copy that truncates there
        self._copying = threading.Lock()
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tokenizer")

    @classmethod
    def from_directory(cls, path: str | Path) -> "Tokenizer":
        """Load `tokenizer.json`; without one, ask transformers to build it from the older files.

        Raises:
            TokenizerError: neither works, or the checkpoint's prompts cannot be read.
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
                f"{file} cannot be read as a tokenizer ({error}). Download the checkpoint anew."
            ) from error

    def close(self) -> None:
        """End the thread of `encode_async`, once it is through; does not wait for it. `encode` works on."""
        self._executor.shutdown(wait=False)

    def encode(
        self, texts: Sequence[Text], *, truncate: bool, max_tokens: int | None = None, spans: bool = False
    ) -> list[Encoded]:
        """Token ids of each text or pair, in order. Blocks; a batch is spread over the processor's cores.

        Args:
            truncate: cut what is longer than `max_tokens` on the right, keeping the special tokens; of a pair, the
                longer member is cut first. False: nothing is cut, and the caller refuses what is too long.
            max_tokens: longest sequence, special tokens included. Needed when `truncate`, not read otherwise.
            spans: say of each token where it stands in its text; of a pair, in its member.

        Raises:
            InvalidRequest: a text holds half a surrogate pair, which no encoding of Unicode can carry.
            ValueError: `truncate` without `max_tokens`, or with one that leaves no room beside the special tokens.
        """
        tokenizer = self._cutting_at(max_tokens) if truncate else self._plain
        try:
            if len(texts) == 1:  # a batch would go to the library's own threads, and wait for them
                encodings = [tokenizer.encode(*_parts(texts[0]), add_special_tokens=True)]
            elif spans:
                encodings = tokenizer.encode_batch(list(texts), add_special_tokens=True)
            else:  # does not keep track of places in the text
                encodings = tokenizer.encode_batch_fast(list(texts), add_special_tokens=True)
        except TypeError:  # what the library makes of text that is not Unicode
            _refuse_surrogates(texts)
            raise
        return [_encoded(encoding, spans) for encoding in encodings]

    async def encode_async(
        self, texts: Sequence[Text], *, truncate: bool, max_tokens: int | None = None, spans: bool = False
    ) -> list[Encoded]:
        """`encode` in this object's own thread, so that the event loop goes on; at once if that is quicker."""
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
                    raise ValueError(f"max_tokens={max_tokens} leaves no room for text beside the special tokens.")
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
    from transformers import AutoTokenizer  # here, for it takes seconds and few checkpoints need it

    try:
        wrapped = AutoTokenizer.from_pretrained(str(directory), trust_remote_code=False, local_files_only=True)
    except Exception as error:  # whatever is wrong with the files, in transformers' many ways
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
    rows: dict[int, Any] = {}
    for index, text in enumerate(texts):
        try:
            "".join(text).encode()
        except UnicodeEncodeError as error:
            rows[index] = InvalidRequest(f"Text {index} cannot be UTF-8: {error.reason} at character {error.start}.")
    if rows:
        raise InvalidRequest(next(iter(rows.values())).message, rows)
