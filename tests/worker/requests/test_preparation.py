"""The prepare stage: sequences whole, cut to fit or rejected by name; keys; one tokenizer call for equal options."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.types import ModelInfo, TaskOptions
from penstock.producer.errors import (
    BackendError,
    BadTokenId,
    EmptyInput,
    InvalidRequest,
    TooLong,
    UnsupportedTask,
)
from penstock.producer.prompts import Prompts
from penstock.producer.tokenization import Encoded
from penstock.producer.tokenizer_files import SpecialFrame
from penstock.producer.wire.headers import ReplyAddress
from penstock.producer.wire.messages import EMBEDDING_TASKS, Options, Request, Text, join_tokens
from penstock.worker.replies.reply import encode_replies
from penstock.worker.requests.preparation import RequestPreparer
from penstock.worker.requests.record import PendingRecord
from penstock.worker.requests.reply_bounds import ReplyBounds
from penstock.worker.requests.request import PendingRequest, StageTimes
from penstock.worker.requests.sequence_block import SequenceBlock
from tests.worker.conftest import one_by_one

TINY = ModelInfo("tiny", "r", "float32", "cpu", 100, 8, frozenset({"embed"}), 4, ())


class FakeTokenizer:
    """One token for each character; the second member of a pair has type 1. Fails on `!`, refuses texts with a `?`."""

    prompts = Prompts({"query": "q: "}, are_pooled=False)

    def __init__(self, frame: SpecialFrame = SpecialFrame()) -> None:  # noqa: B008 -- frozen
        self.frame = frame
        self.calls: list[tuple[list[Text], bool, bool]] = []  # texts, truncate, spans

    def count_prompt(self, prompt: str, *, truncate: bool, max_tokens: int) -> int:
        return min(len(prompt), max_tokens - 1) if truncate else len(prompt)

    async def encode_async(
        self,
        texts: Sequence[Text],
        *,
        truncate: bool,
        max_tokens: int | None = None,
        spans: bool = False,
        language: str | None = None,
    ) -> list[Encoded]:
        self.calls.append((list(texts), truncate, spans))
        if any("!" in text for text in texts):
            raise ValueError("cannot tokenize this")
        if rows := {row: TooLong("too long for a document") for row, text in enumerate(texts) if "?" in text}:
            raise TooLong("too long for a document", rows)
        return [self._encode(text, spans) for text in texts]

    def _encode(self, text: Text, spans: bool) -> Encoded:
        first, second = (text, "") if isinstance(text, str) else text
        ids = np.array([ord(character) % 100 for character in first + second], np.int32)
        types = np.array([0] * len(first) + [1] * len(second), np.int32)
        places = np.array([[i, i + 1] for i in range(len(ids))], np.uint32).reshape(-1, 2)
        return Encoded(ids, types if second else None, places if spans else None)


class FakeOriginal:
    timestamp = 0
    key = value = None
    headers = ()


def request_of(message: Request) -> PendingRequest:
    record = PendingRecord(FakeOriginal(), ("requests", 0), from_bulk_topic=False)  # type: ignore[arg-type]  # a part of it
    address = ReplyAddress("replies", 0, None, None)
    return PendingRequest(record, address, message, None, False, StageTimes(0.0, 0.0))


def make_preparer(
    info: ModelInfo = TINY, tokenizer: Any = None, max_reply_bytes: int = 1024, *, has_cache: bool = True
) -> RequestPreparer:
    return RequestPreparer(info, ReplyBounds(info, max_reply_bytes), tokenizer, has_cache=has_cache)


def prepare(preparer: RequestPreparer, message: Request) -> list[SequenceBlock]:
    """The sequences of one request; raises the error of its rejection."""
    sequences, rejections = asyncio.run(preparer.prepare([request_of(message)]))
    for rejection in rejections:
        raise rejection.error
    return one_by_one(sequences)


def ids_of(sequences: Sequence[SequenceBlock]) -> list[list[int]]:
    return [sequence.token_ids.tolist() for sequence in sequences]


def tokens_of(*sequences: list[int], truncate: bool = False, task: str = "embed") -> Request:
    return Request("tiny", task, tokens=join_tokens(sequences), options=Options(truncate=truncate))


def texts_of(*texts: Text, truncate: bool = False, task: str = "embed") -> Request:
    return Request("tiny", task, text=texts, options=Options(truncate=truncate))


def test_cut_and_whole_vectors_have_different_options_and_keys() -> None:
    whole, cut = (
        prepare(make_preparer(), Request("tiny", "embed", tokens=join_tokens([[1]]), options=Options(dimensions=n)))[0]
        for n in (None, 2)
    )
    assert (whole.options.dimensions, cut.options.dimensions) == (None, 2)
    assert whole.keys[0] != cut.keys[0]


def test_sequences_come_apart_where_lens_say() -> None:
    assert ids_of(prepare(make_preparer(), tokens_of([1, 2], [3], [4, 5, 6]))) == [[1, 2], [3], [4, 5, 6]]
    assert ids_of(prepare(make_preparer(), tokens_of([99]))) == [[99]]


@pytest.mark.parametrize("bad", [100, 2**31, 2**32 - 1])
def test_ids_outside_the_vocabulary_are_named_by_their_sequences(bad: int) -> None:
    with pytest.raises(BadTokenId, match=rf"Sequence 1 \(and 1 more\).*below 100. Given: {bad}") as rejected:
        prepare(make_preparer(), tokens_of([0, 99], [1, bad], [3], [bad]))
    assert list(rejected.value.rows) == [1, 3]
    assert all(type(error) is BadTokenId for error in rejected.value.rows.values())


def test_sequences_that_are_too_long_are_named() -> None:
    with pytest.raises(TooLong, match=r"Sequence 2: `inputs` must have at most 8 tokens\. Given: 9") as rejected:
        prepare(make_preparer(), tokens_of([1] * 8, [2], [3] * 9))
    assert list(rejected.value.rows) == [2]


def test_truncation_keeps_the_last_id() -> None:
    long = list(range(20, 40))
    sequences = prepare(make_preparer(), tokens_of([1, 2], long, truncate=True))
    assert ids_of(sequences) == [[1, 2], [*long[:7], 39]]


@pytest.mark.parametrize(
    ("frame", "kept"),
    [
        (SpecialFrame(1, 1, cuts_left=True), [20, *range(33, 40)]),
        (SpecialFrame(1, 2), [*range(20, 26), 38, 39]),
        (SpecialFrame(0, 0), list(range(20, 28))),
        (SpecialFrame(0, 0, cuts_left=True), list(range(32, 40))),
    ],
)
def test_ids_are_cut_between_the_special_tokens_on_the_side_of_the_tokenizer(
    frame: SpecialFrame, kept: list[int]
) -> None:
    preparer = make_preparer(tokenizer=FakeTokenizer(frame))
    assert ids_of(prepare(preparer, tokens_of(list(range(20, 40)), truncate=True))) == [kept]


def test_truncation_cuts_token_types_alike() -> None:
    [sequence] = prepare(make_preparer(tokenizer=FakeTokenizer()), texts_of(("abcde", "vwxyz"), truncate=True))
    assert ids_of([sequence]) == [[ord(character) % 100 for character in "abcdevwz"]]
    assert sequence.token_type_ids is not None
    assert sequence.token_type_ids.tolist() == [0, 0, 0, 0, 0, 1, 1, 1]


def test_a_pair_is_rejected_where_the_model_has_no_second_token_type() -> None:
    """A RoBERTa with BERT's tokenizer, say: transformers ends there with an IndexError."""
    pair, text = ("ab", "c"), "abc"
    for num_types in (None, 2):  # None: the model has no types, and ignores them
        info = replace(TINY, num_token_types=num_types)
        assert len(prepare(make_preparer(info, FakeTokenizer()), texts_of(text, pair))) == 2
    preparer = make_preparer(replace(TINY, num_token_types=1), FakeTokenizer())
    assert len(prepare(preparer, texts_of(text, text))) == 2
    with pytest.raises(InvalidRequest, match=r"Sequence 1.*token type.*below 1\. Given: 1") as rejected:
        prepare(preparer, texts_of(text, pair))
    assert list(rejected.value.rows) == [1]


def test_a_text_without_any_token_is_rejected() -> None:
    """Some tokenizers add no special tokens and drop what they do not know."""
    with pytest.raises(EmptyInput, match="Sequence 1") as rejected:
        prepare(make_preparer(tokenizer=FakeTokenizer()), texts_of("a", ""))
    assert list(rejected.value.rows) == [1]


@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=16),
    truncate=st.booleans(),
    data=st.data(),
)
def test_every_sequence_is_whole_cut_to_fit_or_named(lengths: list[int], truncate: bool, data: st.DataObject) -> None:
    ids = [data.draw(st.lists(st.integers(0, 99), min_size=n, max_size=n)) for n in lengths]
    message = tokens_of(*ids, truncate=truncate)
    too_long = [index for index, n in enumerate(lengths) if n > 8]
    if too_long and not truncate:
        with pytest.raises(TooLong) as rejected:
            prepare(make_preparer(), message)
        assert list(rejected.value.rows) == too_long
    else:
        assert ids_of(prepare(make_preparer(), message)) == [
            one if len(one) <= 8 else [*one[:7], one[-1]] for one in ids
        ]


def tagger(num_labels: int) -> ModelInfo:
    labels = tuple(f"{n:05}" for n in range(num_labels))
    return ModelInfo("tiny", "r", "float32", "cpu", 100, 1000, frozenset({"token_classify"}), 4, labels)


@pytest.mark.parametrize(
    ("options", "num_labels", "bytes_a_token"),
    [
        (Options(dtype="float32"), 1, 6),
        (Options(dtype="float16"), 1, 4),
        (Options(top_k=0), 3, 18),
        (Options(top_k=2, dtype="float16"), 2, 8),
        (Options(), 30, 120),
    ],
)
def test_tokens_are_counted_before_they_are_classified(options: Options, num_labels: int, bytes_a_token: int) -> None:
    """Bounded by the reply, or by the scores of all labels, which wait in memory until the request is complete."""
    info = tagger(num_labels)
    preparer = make_preparer(info, max_reply_bytes=4000)
    at_most = (4000 - 10 * num_labels - 2 * 4) // bytes_a_token

    def reply_bytes(num_tokens: int) -> int:
        lengths = [num_tokens // 2, num_tokens - num_tokens // 2]
        message = Request("tiny", "token_classify", tokens=join_tokens([[1] * n for n in lengths]), options=options)
        sequences = prepare(preparer, message)
        for sequence in sequences:
            sequence.settle([np.ones((len(sequence.token_ids), num_labels), np.float32)])
        return len(encode_replies([sequences[0].request], info, None, 0.0)[0])

    assert reply_bytes(at_most) < 4000 + 256  # what every reply has: names of fields, timing
    with pytest.raises(
        InvalidRequest, match=rf"{at_most + 1:,} tokens would exceed 4,000 .* at most {at_most:,} tokens"
    ):
        reply_bytes(at_most + 1)


def test_tokens_that_are_cut_off_do_not_count() -> None:
    preparer = make_preparer(replace(tagger(1), max_tokens=8))
    message = tokens_of([1] * 1000, task="token_classify", truncate=True)
    assert ids_of(prepare(preparer, message)) == [[1] * 8]


@pytest.mark.parametrize("task", ["embed_tokens", "embed_all"])
@pytest.mark.parametrize(("dtype", "itemsize"), [("float32", 4), ("float16", 2)])
def test_vectors_of_tokens_are_counted_before_they_are_computed(task: str, dtype: str, itemsize: int) -> None:
    info = replace(TINY, max_tokens=1000, tasks=frozenset({task}), token_dim=3)
    preparer = make_preparer(info, max_reply_bytes=1200)
    at_most = (1200 - 2 * (4 * itemsize + 8 if task == "embed_all" else 4)) // (3 * itemsize)
    options = Options(dtype=dtype)
    fitting = Request("tiny", task, tokens=join_tokens([[1] * (at_most - 1), [2]]), options=options)
    first, _ = prepare(preparer, fitting)
    assert first.request.num_counted == max(2, at_most * 3 * 4 // 1024)  # of float32, which wait for each other
    too_many = replace(fitting, tokens=join_tokens([[1] * at_most, [2]]))
    with pytest.raises(InvalidRequest, match=rf"vectors of {at_most + 1} tokens would exceed 1,200 .* most {at_most} "):
        prepare(preparer, too_many)


def test_results_of_one_task_are_not_those_of_another() -> None:
    """Equal ids in the tasks of one model have keys of their own, for the cache and for single flight."""
    for has_cache in (True, False):
        preparer = make_preparer(replace(TINY, token_dim=2), has_cache=has_cache)
        found = [prepare(preparer, tokens_of([1, 2], task=task))[0] for task in sorted(EMBEDDING_TASKS)]
        assert len({one.keys[0] for one in found}) == len(EMBEDDING_TASKS)
        assert [one.options for one in found] == [TaskOptions(task) for task in sorted(EMBEDDING_TASKS)]
        smaller = Request(
            "tiny", "embed_sparse", tokens=join_tokens([[1, 2]]), options=Options(top_k=3, dtype="float16")
        )
        [again] = prepare(preparer, smaller)
        assert again.keys in [one.keys for one in found]  # `top_k` and `dtype` concern the reply alone


def test_labels_that_16_bits_cannot_name_are_rejected() -> None:
    preparer = make_preparer(tagger(65_537), max_reply_bytes=1 << 30)
    with pytest.raises(UnsupportedTask, match=r"65,537 labels; a reply can name 65,536"):
        prepare(preparer, tokens_of([1], task="token_classify"))


def test_texts_with_equal_options_are_tokenized_in_one_call() -> None:
    tokenizer = FakeTokenizer()
    info = replace(TINY, labels=("a", "b"))
    messages = [
        texts_of("ab", "c"),
        tokens_of([1]),
        texts_of("d", truncate=True),
        texts_of("ef"),
        texts_of("gh", task="token_classify"),
    ]
    requests = [request_of(message) for message in messages]
    sequences, rejections = asyncio.run(make_preparer(info, tokenizer).prepare(requests))
    assert rejections == []
    assert tokenizer.calls == [(["ab", "c", "ef"], False, False), (["d"], True, False), (["gh"], False, True)]
    assert [(requests.index(one.request), one.indices[0]) for one in one_by_one(sequences)] == [
        (1, 0),
        (0, 0),
        (0, 1),
        (3, 0),
        (2, 0),
        (4, 0),
    ]
    assert [request.spans == () for request in requests] == [True, True, True, True, False]


def test_a_text_on_which_the_tokenizer_fails_stops_no_other() -> None:
    requests = [request_of(texts_of(text)) for text in ("good", "bad!", "fine")]
    sequences, rejections = asyncio.run(make_preparer(tokenizer=FakeTokenizer()).prepare(requests))
    assert [sequence.request for sequence in sequences] == [requests[0], requests[2]]
    [rejection] = rejections
    assert (rejection.record, type(rejection.error)) == (requests[1].record, BackendError)
    assert "cannot tokenize this" in rejection.error.message


def test_a_text_that_the_tokenizer_refuses_fails_its_request_alone_by_its_row() -> None:
    requests = [request_of(texts_of("fine")), request_of(texts_of("a", "b?"))]
    sequences, rejections = asyncio.run(make_preparer(tokenizer=FakeTokenizer()).prepare(requests))
    assert ids_of(one_by_one(sequences)) == [[ord(character) % 100 for character in "fine"]]
    (rejection,) = rejections
    assert isinstance(rejection.error, TooLong)
    assert list(rejection.error.rows) == [1]


def test_without_a_tokenizer_texts_are_rejected_and_ids_are_not() -> None:
    with pytest.raises(UnsupportedTask, match="send token ids"):
        prepare(make_preparer(), texts_of("a"))
    assert prepare(make_preparer(), tokens_of([1]))


def test_keys_are_equal_where_results_are() -> None:
    def key(message: Request, revision: str = "r") -> bytes:
        [sequence] = prepare(make_preparer(replace(TINY, revision=revision), FakeTokenizer()), message)
        return sequence.keys[0]

    base = key(tokens_of([1, 2]))
    assert base == key(tokens_of([1, 2], truncate=True))
    different = [
        key(tokens_of([2, 1])),
        key(tokens_of([1, 2]), revision="another"),
        key(tokens_of([1, 2], task="classify")),
        key(Request("tiny", "embed", tokens=join_tokens([[1, 2]]), options=Options(pooling="cls"))),
        key(Request("tiny", "embed", tokens=join_tokens([[1, 2]]), options=Options(normalize=False))),
    ]
    assert len({base, *different}) == len(different) + 1
    assert key(texts_of("ab")) != key(texts_of(("a", "b")))  # equal ids of other types
    beside = prepare(make_preparer(tokenizer=FakeTokenizer()), texts_of("ab", ("a", "b")))
    assert [one.keys[0] for one in beside] == [key(texts_of("ab")), key(texts_of(("a", "b")))]


def test_without_a_cache_keys_still_tell_sequences_apart() -> None:
    preparer = make_preparer(tokenizer=FakeTokenizer(), has_cache=False)

    def key(message: Request) -> bytes:
        return prepare(preparer, message)[0].keys[0]

    pair = texts_of(("a", "b"))
    typed = [ord("a"), ord("b") % 100]
    messages = [
        tokens_of([1, 2]),
        tokens_of([2, 1]),
        tokens_of([1, 2], task="classify"),
        Request("tiny", "embed", tokens=join_tokens([[1, 2]]), options=Options(pooling="cls")),
        pair,
        tokens_of([*typed, 0, 1]),  # the ids and types of the pair
    ]
    assert len(set(map(key, messages))) == len(messages)
    assert key(messages[0]) == key(tokens_of([1, 2], truncate=True))


def test_a_token_of_a_text_that_the_model_lacks_is_refused_with_its_text() -> None:
    """A checkpoint's tokenizer may have more tokens than its table of embeddings."""
    preparer = make_preparer(replace(TINY, vocab_size=98), FakeTokenizer())  # "b" is 98
    assert len(prepare(preparer, Request("m", "embed", text=("a", "aa")))) == 2
    with pytest.raises(BadTokenId, match=r"must be below 98\. Given: 98") as refused:
        prepare(preparer, Request("m", "embed", text=("a", "ab", "a")))
    assert list(refused.value.rows) == [1]


@pytest.mark.parametrize("has_cache", [True, False])
def test_pooling_is_told_the_tokens_of_a_prompt_that_it_leaves_out(has_cache: bool) -> None:
    """The same texts have other keys with another prompt, or with none."""
    preparer = make_preparer(tokenizer=FakeTokenizer(), has_cache=has_cache)
    options = [Options(prompt_name="query"), Options(prompt="q"), Options()]
    blocks = [prepare(preparer, Request("tiny", "embed", text=("q: ab",), options=asked)) for asked in options]
    assert [block.options.prompt_tokens for [block] in blocks] == [3, 1, 0]
    assert len({key for [block] in blocks for key in block.keys}) == 3


def test_a_text_without_a_token_beside_its_prompt_is_rejected() -> None:
    request = Request("tiny", "embed", text=("q: a", "q: "), options=Options(prompt_name="query"))
    with pytest.raises(EmptyInput, match=r"Sequence 1: Pooling leaves out the 3 tokens of the prompt"):
        prepare(make_preparer(tokenizer=FakeTokenizer()), request)
