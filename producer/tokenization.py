"""Text to token ids, by the tokenizer of a checkpoint's directory."""

import asyncio
import functools
import re
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tokenizers

from penstock.producer.errors import PenstockError, TooLong
from penstock.producer.known_words import KnownWords
from penstock.producer.late_interaction import LateInteraction, TextsOfRole, prepare, read_late_interaction
from penstock.producer.pair_frame import PairFrame
from penstock.producer.pair_template import PairTemplate
from penstock.producer.prompts import Prompts, read_prompts
from penstock.producer.texts import RUN_CHARACTERS, members, num_characters, refusing_surrogates, runs
from penstock.producer.tokenizer_files import LoadedTokenizer, TokenizerError, frame_of
from penstock.producer.tokenizer_loading import load_backend
from penstock.producer.wire.messages import Text

Int32Array = npt.NDArray[np.int32]
Uint32Array = npt.NDArray[np.uint32]

# Below these, tokenizing takes less time than a switch to another thread and back (some 50 µs for 100 characters).
_FEW_TEXTS = 4
_FEW_CHARACTERS = 2000
_BYTE = re.compile("<0x[0-9A-F]{2}>")  # a token of one byte, as the library's ByteFallback names it


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """Tokens of one text or one pair of texts."""

    ids: Int32Array  # [n], with special tokens
    token_type_ids: Int32Array | None  # [n]; None: all zero, or not given to the model
    spans: Uint32Array | None = None  # [n, 2], each token's first character and the one after its last; if asked for


class Tokenizer:
    """A checkpoint's tokenizer, without padding, and without truncation unless asked for. Thread-safe.

    Truncation and padding stored in the tokenizer's file (all-MiniLM-L6-v2: cut and pad to 128) are removed on loading.
    """

    def __init__(self, loaded: LoadedTokenizer, prompts: Prompts, late: LateInteraction | None = None) -> None:
        """This object modifies the tokenizer that is loaded. Called by `from_directory`.

        late: of a checkpoint that tokenizes queries and documents in ways of their own.
        """
        template = loaded.template
        # Of the checkpoint; callers apply them before `encode`, and a chat template with them.
        self.prompts = replace(prompts, template=template)
        self._late = late
        self.languages = loaded.languages
        plain = loaded.backend
        plain.no_truncation()
        plain.no_padding()
        if late is not None:
            prepare(late, plain)
        self.frame = frame_of(plain, cuts_left=loaded.cuts_left)
        words = None if template else KnownWords.of(plain, cuts_left=loaded.cuts_left)
        self._whole = _Encoder(plain, None, words, loaded.gives_types, template, loaded.cuts_left)
        self._cutting: dict[int, _Encoder] = {}  # max_tokens -> one with a copy that truncates there
        self._copying = threading.Lock()
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tokenizer")
        self._long_texts = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tokenizer-long")

    @classmethod
    def from_directory(cls, path: str | Path) -> "Tokenizer":
        """The tokenizer of a checkpoint as transformers and sentence-transformers load it: see `load_backend`.

        Raises:
            MissingTokenizer: the directory has none.
            TokenizerError: it cannot be loaded, or the checkpoint's prompts cannot be read.
        """
        directory = Path(path)
        try:
            late = read_late_interaction(directory)
            prompts = read_prompts(directory) if late is None else late.prompts
        except TokenizerError:
            raise
        except (OSError, ValueError) as error:
            raise TokenizerError(f"The prompts of {directory} cannot be read: {error}.") from error
        return cls(load_backend(directory, has_roles=late is not None), prompts, late)

    @property
    def has_roles(self) -> bool:
        """Whether queries and documents are tokenized in ways of their own, and cut at lengths of their own."""
        return self._late is not None

    @functools.cached_property
    def pair_frame(self) -> PairFrame:
        """The frame of a pair, whose texts are tokenized one by one. Raises TokenizerError."""
        encoder = self._whole
        return PairFrame.of(encoder.plain, gives_types=encoder.gives_types, cuts_left=self.frame.cuts_left)

    def close(self) -> None:
        """End the threads of `encode_async` after their last calls, without waiting. `encode` remains usable."""
        self._executor.shutdown(wait=False)
        self._long_texts.shutdown(wait=False)

    def encode(
        self,
        texts: Sequence[Text],
        *,
        truncate: bool,
        max_tokens: int | None = None,
        spans: bool = False,
        language: str | None = None,
    ) -> list[Encoded]:
        """Token ids of each text or pair, in order. Blocks; several new texts are spread over the processor's cores.

        Args:
            truncate: cut sequences longer than `max_tokens`, on the side that the checkpoint states (the right one, if
                it states none), keeping the special tokens; of a pair, the longer member first.
            max_tokens: longest sequence, with special tokens. Required with `truncate`, ignored without it.
            spans: return each token's place in its text, or in its member of a pair.
            language: of the texts, one of `languages`; None: the tokenizer's own.

        Raises:
            InvalidRequest: a text holds half a surrogate pair, which no encoding of Unicode has.
            TooLong: without `truncate`, a text is longer than the length of its role, where roles have one.
            UnsupportedTask: the tokenizer has no such language.
            ValueError: `truncate` without `max_tokens`, or with too few for the special tokens.
        """
        with refusing_surrogates(texts):
            if self._late is None:
                return self._encode(texts, truncate, max_tokens, spans, language)
            parts = self._late.parts(texts, truncate, max_tokens)
            encoded = [self._encode(_at(texts, p), p.truncate, p.max_tokens, spans, language) for p in parts]
            return self._by_role(self._late, parts, encoded)

    def _encode(
        self, texts: Sequence[Text], truncate: bool, max_tokens: int | None, spans: bool, language: str | None
    ) -> list[Encoded]:
        encoder = self._encoder(truncate, max_tokens)
        found = encoder.find(texts, spans)
        return self._marked(_filled(found, encoder.encode_new(_missing(texts, found), spans)), language)

    def count_prompt(self, prompt: str, *, truncate: bool, max_tokens: int | None = None) -> int:
        """The leading tokens of a text that begins with a prompt, as sentence-transformers counts those of the prompt.

        It is tokenized alone, and loses its last token if that is special. The prompt's end may be other tokens in a
        text. Arguments and errors are those of `encode`.
        """
        [encoded] = self.encode([prompt], truncate=truncate, max_tokens=max_tokens)
        return len(encoded.ids) - (len(encoded.ids) > 0 and int(encoded.ids[-1]) in self._special_ids)

    def _by_role(
        self, late: LateInteraction, parts: Sequence[TextsOfRole], encoded: Sequence[Sequence[Encoded]]
    ) -> list[Encoded]:
        """Each text's tokens, in the order of all texts, those of queries filled up. Raises TooLong."""
        _require_lengths(parts, encoded)
        whole: dict[int, Encoded] = {}
        for part, some in zip(parts, encoded, strict=True):
            finished = [self._filled_up(one, late) for one in some] if part.is_query else some
            whole.update(zip(part.places, finished, strict=True))
        return [whole[place] for place in range(len(whole))]

    def _filled_up(self, query: Encoded, late: LateInteraction) -> Encoded:
        ids, types = late.expanded(query.ids, self._whole.plain), query.token_type_ids
        return Encoded(ids, None if types is None else np.pad(types, (0, len(ids) - len(types))), query.spans)

    def decode(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        """The text of each sequence of token ids, without special tokens. Ids outside the vocabulary have none."""
        decoded: list[str] = self._whole.plain.decode_batch(sequences, skip_special_tokens=True)
        return decoded

    def decode_part(self, tokens: Sequence[int]) -> str:
        """The text of the first tokens of a sequence, as far as no later token can change it.

        A character may take several tokens. Until all are there, the library has U+FFFD in its place, and with tokens
        of one byte each also in the place of those right before it.
        """
        end = len(tokens)
        while end and self._is_open(tokens[end - 1]):
            end -= 1
        return self.decode([tokens[:end]])[0].rstrip("\N{REPLACEMENT CHARACTER}")

    def _is_open(self, token: int) -> bool:
        """Whether a token is a byte, or has no text, so that a byte may continue the one before it."""
        name = self._whole.plain.id_to_token(token)
        return name is None or token in self._special_ids or _BYTE.fullmatch(name) is not None

    @functools.cached_property
    def _special_ids(self) -> frozenset[int]:
        added = self._whole.plain.get_added_tokens_decoder()
        return frozenset(id for id, token in added.items() if token.special)

    async def encode_async(
        self,
        texts: Sequence[Text],
        *,
        truncate: bool,
        max_tokens: int | None = None,
        spans: bool = False,
        language: str | None = None,
    ) -> list[Encoded]:
        """`encode`, here for texts of known words and for few others; for many others in this object's thread.

        Calls at the same time take turns there. A text that is longer than a turn has a thread of its own kind. Between
        two turns here the event loop has one.
        """
        with refusing_surrogates(texts):
            if self._late is None:
                return await self._encode_async(texts, truncate, max_tokens, spans, language)
            parts = self._late.parts(texts, truncate, max_tokens)
            encode = self._encode_async
            encoded = [await encode(_at(texts, p), p.truncate, p.max_tokens, spans, language) for p in parts]
            return self._by_role(self._late, parts, encoded)

    async def _encode_async(
        self, texts: Sequence[Text], truncate: bool, max_tokens: int | None, spans: bool, language: str | None
    ) -> list[Encoded]:
        encoder = self._encoder(truncate, max_tokens)
        found: list[Encoded | None] = []
        for chunk in runs(texts):
            if found:
                await asyncio.sleep(0)
            found += encoder.find(chunk, spans)
        new = _missing(texts, found)
        if len(new) <= _FEW_TEXTS and num_characters(new) <= _FEW_CHARACTERS:
            return self._marked(_filled(found, encoder.encode_new(new, spans)), language)
        loop = asyncio.get_running_loop()
        encoded: list[Encoded] = []
        for chunk in runs(new):
            is_long = num_characters(chunk[-1:]) > RUN_CHARACTERS
            executor = self._long_texts if is_long else self._executor
            encoded += await loop.run_in_executor(executor, encoder.encode_new, chunk, spans)
        return self._marked(_filled(found, encoded), language)

    def _marked(self, encoded: list[Encoded], language: str | None) -> list[Encoded]:
        if language is None:
            return encoded
        return [replace(one, ids=self.languages.marked(one.ids, language)) for one in encoded]

    def require_room(self, max_tokens: int) -> None:
        """Raise ValueError where `max_tokens` are taken by the special tokens of a pair, or by a template's ending."""
        template = self._whole.template
        taken = len(template.ending) if template else self._whole.plain.num_special_tokens_to_add(is_pair=True)
        if max_tokens <= taken:
            raise ValueError(f"max_tokens={max_tokens} leaves no room for text with the special tokens.")

    def _encoder(self, truncate: bool, max_tokens: int | None) -> "_Encoder":
        if not truncate:
            return self._whole
        if max_tokens is None:
            raise ValueError("`truncate` needs `max_tokens`: the length to cut at.")
        if self._whole.template is not None:
            return replace(self._whole, max_tokens=max_tokens)
        with self._copying:
            if max_tokens not in self._cutting:
                self.require_room(max_tokens)
                plain = self._whole.plain
                copy = tokenizers.Tokenizer.from_str(plain.to_str())
                copy.encode_special_tokens = plain.encode_special_tokens  # which the text of a tokenizer does not hold
                direction = "left" if self.frame.cuts_left else "right"
                copy.enable_truncation(max_tokens, strategy="longest_first", direction=direction)
                self._cutting[max_tokens] = replace(self._whole, plain=copy, max_tokens=max_tokens)
            return self._cutting[max_tokens]


def _require_lengths(parts: Sequence[TextsOfRole], encoded: Sequence[Sequence[Encoded]]) -> None:
    """Raise TooLong for texts of a role that is cut shorter, which their sender does not want cut."""
    rows: dict[int, PenstockError] = {}
    for part, some in zip(parts, encoded, strict=True):
        most = None if part.truncate else part.max_tokens
        for place, one in zip(part.places, some, strict=True):
            if most is not None and len(one.ids) > most:
                rows[place] = TooLong(f"Text {place} must have at most {most} tokens. Given: {len(one.ids)}")
    if rows:
        raise TooLong(next(iter(rows.values())).message, rows)


@dataclass(frozen=True, slots=True)
class _Encoder:
    """Encodes texts that are cut at one length, or at none."""

    plain: Any  # a `tokenizers.Tokenizer`
    max_tokens: int | None
    words: KnownWords | None
    gives_types: bool
    template: PairTemplate | None  # of which texts are: it has the special tokens, and cuts
    cuts_left: bool

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
        if len(texts) == 1 and num_characters(texts) <= _FEW_CHARACTERS:
            # A batch would wait for the library's threads. But only a batch lets other threads run Python meanwhile.
            encoding = self.plain.encode(*members(texts[0]), add_special_tokens=self.template is None)
            return [self._encoded(encoding, spans)]
        encode = self.plain.encode_batch if spans else self.plain.encode_batch_fast  # without spans
        encodings = encode(texts, add_special_tokens=self.template is None)
        return [self._encoded(encoding, spans) for encoding in encodings]

    def _encoded(self, encoding: Any, with_spans: bool) -> Encoded:
        types = np.array(encoding.type_ids, dtype=np.int32) if self.gives_types else None
        spans = np.array(encoding.offsets, dtype=np.uint32).reshape(-1, 2) if with_spans else None
        has_types = types is not None and types.any()
        ids = np.array(encoding.ids, dtype=np.int32)
        if self.template is not None and self.max_tokens is not None:
            ids = self.template.cut(ids, self.max_tokens, cuts_left=self.cuts_left)
        return Encoded(ids, types if has_types else None, spans)


def _at(texts: Sequence[Text], part: TextsOfRole) -> list[Text]:
    return [texts[place] for place in part.places]


def _missing(texts: Sequence[Text], found: Sequence[Encoded | None]) -> list[Text]:
    return [text for text, encoded in zip(texts, found, strict=True) if encoded is None]


def _filled(found: Sequence[Encoded | None], missing: Sequence[Encoded]) -> list[Encoded]:
    """All texts' tokens, in order: those that were found, and in the places between them those that were missing."""
    remaining = iter(missing)
    return [next(remaining) if encoded is None else encoded for encoded in found]


def _from_bytes(ids: bytes | None) -> Encoded | None:
    return None if ids is None else Encoded(np.frombuffer(ids, np.int32), None)
