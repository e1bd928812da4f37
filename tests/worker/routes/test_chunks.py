"""Chunks of texts: spans that cover a text, each with few enough tokens, whatever the tokenizer and the text."""

import asyncio
import itertools
import json
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, normalizers, pre_tokenizers, processors, trainers

from penstock.engine.types import ModelInfo
from penstock.producer.errors import InvalidRequest, PenstockError, TooLong, UnsupportedTask, WrongArgument
from penstock.producer.prompts import Prompts
from penstock.producer.tokenization import Tokenizer
from penstock.producer.tokenizer_files import LoadedTokenizer
from penstock.producer.wire.headers import ReplyAddress
from penstock.producer.wire.messages import Request
from penstock.worker.enrichment.chunker import Chunker
from penstock.worker.enrichment.router import Router
from penstock.worker.requests.request import PendingRequest, StageTimes
from penstock.worker.routes.chunks import ChunkSize
from penstock.worker.routes.route import Route
from penstock.worker.routes.settings import RouteSettings
from tests.examples import examples

SENTENCES = [
    "The able seaman sailed. ",
    "Was it unbelievable? ",
    "«Oui!» ",
    "行こう。",
    "One\n\n",
    "e.g. 3.14 v1.2 ",
    "...... ",
]
ODD = [
    "👩‍👩‍👧‍👦",
    "e\u0301\u0302",
    "\u200b",
    "\u00a0",
    "　",
    "\x00",
    "漢字仮名",
    "ﷺ",
    "x" * 150,
    " " * 40,
    "\n",
    "able",
    "\u0301" * 9,
]
parts = st.one_of(st.sampled_from(SENTENCES), st.sampled_from(ODD), st.text(max_size=5))
texts = st.lists(parts, max_size=60).map("".join)
sizes = st.tuples(st.integers(70, 100), st.integers(0, 30)).map(lambda pair: ChunkSize(*pair))  # "ﷺ" alone has 66 bytes


def _word_piece() -> Any:
    words = [*"abcdefghijklmnopqrstuvwxyz.?!,漢字", "the", "able", "seaman", "unbelievable", "one", "##able", "##ment"]
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *words, *(f"##{letter}" for letter in words[:26])]
    plain: Any = tokenizers.Tokenizer(models.WordPiece({w: i for i, w in enumerate(vocabulary)}, unk_token="[UNK]"))
    plain.normalizer = normalizers.BertNormalizer()
    plain.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    plain.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return plain


def _byte_pairs() -> Any:
    plain: Any = tokenizers.Tokenizer(models.BPE())
    plain.normalizer = normalizers.NFKC()
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=alphabet, special_tokens=["<s>"], show_progress=False
    )
    plain.train_from_iterator(SENTENCES * 20, trainer)
    plain.post_processor = processors.TemplateProcessing(single="<s> $A <s>", special_tokens=[("<s>", 0)])
    return plain


def _unigram() -> Any:
    pieces = [
        ("<unk>", 0.0),
        ("▁", -2.0),
        ("▁able", -3.0),
        ("able", -9.0),
        ("▁The", -3.0),
        *((c, -5.0) for c in "abelimnstuv."),
    ]
    plain: Any = tokenizers.Tokenizer(models.Unigram(pieces, 0))
    plain.normalizer = normalizers.NFKC()
    plain.pre_tokenizer = pre_tokenizers.Metaspace()
    return plain


def tokenizer_of(plain: Any, prompts: Prompts = Prompts()) -> Tokenizer:  # noqa: B008 -- frozen
    return Tokenizer(LoadedTokenizer(plain, gives_types=False, cuts_left=False), prompts)


ENCODER = ModelInfo("m", "r", "float32", "cpu", 100, 16, frozenset({"embed", "classify", "rerank"}), 4, ("a",))
TOKENIZERS = {make.__name__: tokenizer_of(make()) for make in (_word_piece, _byte_pairs, _unigram)}


class Chunked(NamedTuple):
    spans: Sequence[tuple[int, int]]
    texts: Sequence[str]  # with the prompt


def split_all(texts: Sequence[str], size: ChunkSize, tokenizer: Tokenizer, max_chunks: int = 4096) -> list[Any]:
    """The chunks of each text, or its error: all in one call."""
    address, times = ReplyAddress("out", None, None, None), StageTimes(0.0, 0.0)
    record: Any = None
    messages = [Request("m", "embed", text=(text,)) for text in texts]
    asked = [(PendingRequest(record, address, message, None, False, times), size) for message in messages]
    chunker = Chunker(tokenizer, lambda message, is_json: tokenizer.prompts.apply(message), max_chunks)
    chunked, rejected = asyncio.run(chunker.split(asked))
    found = [Chunked(one.chunks or (), cast("tuple[str, ...]", one.message.text)) for one in chunked]
    return [*found, *[one.error for one in rejected]]


def split(text: str, size: ChunkSize, tokenizer: Tokenizer, max_chunks: int = 4096) -> Chunked:
    [found] = split_all([text], size, tokenizer, max_chunks)
    if isinstance(found, PenstockError):
        raise found
    assert isinstance(found, Chunked)
    return found


def num_tokens(tokenizer: Tokenizer, texts: Sequence[str]) -> list[int]:
    return [len(one.ids) for one in tokenizer.encode(texts, truncate=False)]


def check(text: str, size: ChunkSize, tokenizer: Tokenizer) -> Sequence[tuple[int, int]]:
    spans, chunks = split(text, size, tokenizer)
    assert list(chunks) == [text[start:end] for start, end in spans]
    assert all(chunk == chunk.strip() for chunk in chunks)
    assert max(num_tokens(tokenizer, chunks)) <= size.max_tokens
    covered = bytearray(len(text))
    for start, end in spans:
        covered[start:end] = b"\1" * (end - start)
    assert all(text[place].isspace() for place in range(len(text)) if not covered[place])
    for one, following in itertools.pairwise(spans):
        assert one[0] < following[0]
        assert one[1] < following[1]
    assert split(text, size, tokenizer).spans == spans
    return spans


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=examples(300), deadline=None)
@given(text=texts, size=sizes)
def test_chunks_cover_the_text_and_each_fits(name: str, text: str, size: ChunkSize) -> None:
    check(text, size, TOKENIZERS[name])


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=examples(100), deadline=None)
@given(text=texts, size=sizes)
def test_chunks_have_no_more_tokens_in_common_than_they_may(name: str, text: str, size: ChunkSize) -> None:
    tokenizer = TOKENIZERS[name]
    spans = split(text, size, tokenizer).spans
    places = tokenizer.encode([text], truncate=False, spans=True)[0].spans
    assert places is not None
    for one, following in itertools.pairwise(spans):
        shared = [1 for start, end in places.tolist() if start < end and following[0] <= start and end <= one[1]]
        assert len(shared) <= size.overlap


@settings(max_examples=examples(50), deadline=None)
@given(several=st.lists(texts, min_size=1, max_size=5), size=sizes)
def test_texts_that_are_split_together_have_the_chunks_that_each_has_alone(several: list[str], size: ChunkSize) -> None:
    tokenizer = TOKENIZERS["_byte_pairs"]
    assert split_all(several, size, tokenizer) == [split(text, size, tokenizer) for text in several]


@pytest.mark.slow
@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize(
    "text",
    [
        "able" * 50_000,
        "漢字仮名" * 20_000,
        "👩‍👩‍👧‍👦" * 5_000,
        "e\u0301" * 50_000,
        "." * 100_000,
        "\n" * 100_000 + "end",
        "able " + " " * 200_000 + "seaman",
        "Was it unbelievable? The able seaman sailed. " * 3_000,
    ],
    ids=lambda text: f"{text[:8]}",
)
def test_long_texts_of_all_kinds(name: str, text: str) -> None:
    check(text, ChunkSize(256, 32), TOKENIZERS[name])


@pytest.mark.slow
def test_a_megabyte_of_one_word() -> None:
    assert len(check("x" * (1 << 20), ChunkSize(512, 64), TOKENIZERS["_word_piece"])) > 1
    check("unbelievable" * (1 << 16), ChunkSize(512, 64), TOKENIZERS["_byte_pairs"])


def test_chunks_end_at_sentences_where_there_are_some_near() -> None:
    text = "The able seaman sailed one. " * 100
    spans = check(text, ChunkSize(100, 0), TOKENIZERS["_word_piece"])
    assert len(spans) > 2
    assert all(text[:end].endswith("one.") for _, end in spans)
    text = "the able seaman " * 100
    assert all(text[end : end + 1] in ("", " ") for _, end in check(text, ChunkSize(50, 10), TOKENIZERS["_word_piece"]))


def test_chunks_overlap_by_words_as_far_as_they_may() -> None:
    text = " ".join(["able"] * 300)
    spans = check(text, ChunkSize(102, 20), TOKENIZERS["_word_piece"])
    assert [one[1] - following[0] for one, following in itertools.pairwise(spans)] == [len("able " * 20) - 1] * 3


@pytest.mark.parametrize("text", ["", " \n\t" * 5_000])
def test_a_text_without_words_is_one_empty_chunk(text: str) -> None:
    assert split(text, ChunkSize(8, 2), TOKENIZERS["_word_piece"]) == ([(0, 0)], ("",))


def test_a_short_text_is_one_chunk() -> None:
    assert split(" The seaman. ", ChunkSize(8, 2), TOKENIZERS["_word_piece"]).spans == [(1, 12)]


def test_prompts_have_their_place_in_every_chunk() -> None:
    tokenizer = tokenizer_of(_word_piece(), Prompts({"": "the able: "}, "the able: "))
    _, chunks = split("seaman " * 100, ChunkSize(20, 0), tokenizer)
    assert all(chunk.startswith("the able: seaman") for chunk in chunks)
    assert max(num_tokens(tokenizer, chunks)) == 20
    chunker = Chunker(tokenizer, lambda message, is_json: tokenizer.prompts.apply(message), 9)
    with pytest.raises(WrongArgument, match="chunk_overlap and the 5 special tokens"):
        chunker.require_room(Request("m", "embed", text=("",)), ChunkSize(20, 15))


def test_more_chunks_than_a_record_may_have_are_an_error_of_that_text_alone() -> None:
    tokenizer, size = TOKENIZERS["_word_piece"], ChunkSize(10, 0)
    short, error = split_all(["able " * 100, "seaman"], size, tokenizer, max_chunks=3)
    assert short.spans == [(0, 6)]
    assert isinstance(error, InvalidRequest)
    assert "at most 3 chunks" in error.message
    assert len(split("able " * 24, size, tokenizer, max_chunks=3).spans) == 3


def test_what_cannot_be_cut_and_does_not_fit_is_an_error() -> None:
    with pytest.raises(TooLong, match="Characters 3 to 4 "):
        split("ab ﷺ cd", ChunkSize(20, 2), TOKENIZERS["_byte_pairs"])


def test_a_text_that_is_too_long_to_tokenize_is_an_error() -> None:
    with pytest.raises(TooLong, match="8,388,608 characters"):
        split("x" * ((1 << 23) + 1), ChunkSize(20, 2), TOKENIZERS["_byte_pairs"])


def size_of(info: ModelInfo = ENCODER, **more: Any) -> ChunkSize | None:
    fields = {"input_topic": "in", "output_topic": "out", "text": "text", "task": "embed"}
    settings = RouteSettings.model_validate(fields | more)
    return Route(settings, info).chunks


def test_chunks_are_of_routes_that_ask_for_them() -> None:
    assert size_of() is None
    assert size_of(chunk_tokens=12, chunk_overlap=4) == ChunkSize(12, 4)
    assert size_of(chunk_tokens=12, task="classify") == ChunkSize(12, 0)


def test_a_null_in_place_of_chunks_has_their_schema() -> None:
    fields = {"output_topic": "out", "text": "text", "task": "embed", "chunk_tokens": 12, "missing_text": "null"}
    route = Route(RouteSettings.model_validate({"input_topic": "in", **fields}), ENCODER)
    schema = {"type": "struct", "fields": [{"field": "text", "type": "string", "optional": True}]}
    passed = json.loads(route.passed(json.dumps({"schema": schema, "payload": {"text": None}}).encode()) or b"")
    rows = [{"start": 0, "end": 3, "embedding": np.ones(4, np.float32)}]
    value = route.format.write(json.dumps({"schema": schema, "payload": {"text": "one"}}).encode(), rows)
    assert passed["payload"] == {"text": None, "result": None}
    assert passed["schema"] == json.loads(value)["schema"]


def test_chunks_that_the_model_or_the_task_cannot_have_are_refused() -> None:
    with pytest.raises(WrongArgument, match=r"chunk_tokens must be at most 16, .* Given: 17"):
        size_of(chunk_tokens=17)
    with pytest.raises(UnsupportedTask, match="chunk_tokens is for embed, embed_sparse, classify"):
        size_of(chunk_tokens=12, task="rerank", query="q")
    with pytest.raises(UnsupportedTask, match="chunk_tokens is for embed, embed_sparse, classify"):
        size_of(chunk_tokens=12, task="classify", request_options={"labels": ["a", "b"]})
    for tokens in (None, 12):
        with pytest.raises(ValueError, match="chunk_overlap must be less than chunk_tokens"):
            size_of(chunk_tokens=tokens, chunk_overlap=12)
    fields = {"input_topic": "in", "output_topic": "out", "text": "text", "task": "embed", "chunk_tokens": 12}
    settings = RouteSettings.model_validate(fields)
    with pytest.raises(WrongArgument, match="The route from in: chunk_tokens needs the model's tokenizer"):
        Router([settings], ENCODER, lambda message, is_json: message)
