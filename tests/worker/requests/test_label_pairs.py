"""Labels of requests in the worker: what is refused before any work, the pairs, and the scores of their logits."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.engine.types import ENTAIL, ModelInfo
from penstock.producer.errors import InvalidRequest, PenstockError, TooLong, UnsupportedTask
from penstock.producer.tokenization import Tokenizer
from penstock.producer.wire.codec import decode_reply, encode_request
from penstock.producer.wire.messages import Classification, Options, Reply, Request, Text
from penstock.worker.replies.reply import encode_replies
from penstock.worker.requests import label_pairs
from penstock.worker.requests.preparation import RequestPreparer
from penstock.worker.requests.reply_bounds import ReplyBounds
from penstock.worker.requests.request import PendingRequest
from penstock.worker.requests.sequence_block import SequenceBlock
from tests.producer.tokenizer_makers import MAKERS
from tests.worker.requests.test_preparation import request_of
from tests.worker.requests.test_validation import accept, make_validator

LABELS = ("a", "b c")
CLASSES = ("contradiction", "neutral", "entailment")
INFO = ModelInfo("tiny", "r", "float32", "cpu", 300, 16, frozenset({"classify", ENTAIL}), 4, CLASSES)


def request(*texts: str, **options: Any) -> Request:
    return Request("tiny", "classify", text=texts, options=Options(**{"labels": LABELS, "template": "{}"} | options))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """BERT's, which knows single letters."""
    directory: Path = tmp_path_factory.mktemp("tokenizer")
    MAKERS["bert"](directory)
    return Tokenizer.from_directory(directory)


def prepared(
    message: Request, tokenizer: Tokenizer | None, info: ModelInfo = INFO
) -> tuple[PendingRequest, SequenceBlock]:
    """One request and its block; raises the error of its rejection."""
    pending = request_of(message)
    preparer = RequestPreparer(info, ReplyBounds(info, 1 << 20), tokenizer, has_cache=True)
    blocks, rejections = asyncio.run(preparer.prepare([pending]))
    for rejection in rejections:
        raise rejection.error
    [block] = blocks
    return pending, block


def whole_pairs(tokenizer: Tokenizer, *texts: Text) -> list[list[int]]:
    """Ids of texts and pairs as the library makes them."""
    return [one.ids.tolist() for one in tokenizer.encode(texts, truncate=False)]


def ids_of(block: SequenceBlock) -> list[list[int]]:
    return [ids.tolist() for ids in np.split(block.token_ids, np.cumsum(block.lengths)[:-1])]


class TestValidation:
    def test_texts_times_labels_are_bounded(self, make_record: Callable[..., Any]) -> None:
        validator = make_validator(INFO, max_sequences=16)
        accepted = accept(validator, make_record(encode_request(request(*["text"] * 8))))
        assert (accepted.message.num_rows, len(accepted.results), accepted.num_missing) == (8, 16, 16)
        with pytest.raises(InvalidRequest, match=r"at most 16 sequences, one for each text and label\. Given: 18"):
            accept(validator, make_record(encode_request(request(*["text"] * 9))))

    def test_a_reply_has_the_labels_of_the_request(self, make_record: Callable[..., Any]) -> None:
        """A label of 100 bytes takes 114 in a row: its score has 9, and its length 5. One of a byte takes 15."""
        labels = ("b", "a" * 100)
        for top_k, fits in ((0, 7), (1, 8)):
            for n in (fits, fits + 1):
                record = make_record(encode_request(request(*["text"] * n, labels=labels, top_k=top_k)))
                if n == fits:
                    accept(make_validator(INFO, max_sequences=64), record)
                    continue
                with pytest.raises(InvalidRequest, match=f"send at most {fits} sequences"):
                    accept(make_validator(INFO, max_sequences=64), record)

    def test_a_model_without_entailment_says_what_it_has(self, make_record: Callable[..., Any]) -> None:
        info = replace(INFO, tasks=frozenset({"classify"}), labels=tuple(f"LABEL_{i}" for i in range(9)))
        with pytest.raises(UnsupportedTask, match=r"begins with 'entail' in id2label of config.json.*LABEL_7, …$"):
            accept(make_validator(info), make_record(encode_request(request("text"))))

    def test_entail_is_no_task_of_requests(self, make_record: Callable[..., Any]) -> None:
        with pytest.raises(UnsupportedTask, match=r"'tiny' can classify\. Asked for: 'embed'"):
            accept(make_validator(INFO), make_record(encode_request(Request("tiny", "embed", text=("a",)))))


class TestPairs:
    def test_each_text_has_a_pair_with_each_label(self, tokenizer: Tokenizer) -> None:
        _, block = prepared(request("the card", "my"), tokenizer)
        pairs = [("the card", "a"), ("the card", "b c"), ("my", "a"), ("my", "b c")]
        assert ids_of(block) == whole_pairs(tokenizer, *pairs)
        assert block.token_type_ids is not None
        assert block.token_type_ids.tolist()[:6] == [0, 0, 0, 0, 1, 1]
        assert block.options.task == ENTAIL

    def test_equal_pairs_have_equal_keys_which_are_not_those_of_classify(self, tokenizer: Tokenizer) -> None:
        _, block = prepared(request("card", "my", "card"), tokenizer)
        _, switched = prepared(request("card", labels=LABELS[::-1], multi_label=True, top_k=0), tokenizer)
        assert block.keys[:2] == block.keys[4:] == switched.keys[::-1]
        pair = Request("tiny", "classify", text=(("card", "a"),))
        _, plain = prepared(pair, tokenizer)
        assert plain.token_ids.tolist() == block.token_ids[: len(plain.token_ids)].tolist()
        assert plain.keys[0] != block.keys[0]

    def test_texts_with_and_without_labels_are_tokenized_together(self, tokenizer: Tokenizer) -> None:
        requests = [request_of(request("my")), request_of(Request("tiny", "classify", text=("card", ("a", "b"))))]
        preparer = RequestPreparer(INFO, ReplyBounds(INFO, 1 << 20), tokenizer, has_cache=False)
        blocks, rejections = asyncio.run(preparer.prepare(requests))
        assert rejections == []
        assert [ids_of(block) for block in blocks] == [
            whole_pairs(tokenizer, ("my", "a"), ("my", "b c")),
            whole_pairs(tokenizer, "card", ("a", "b")),
        ]

    def test_the_text_is_cut_and_the_label_is_not(self, tokenizer: Tokenizer) -> None:
        long = "the card " * 20
        with pytest.raises(
            TooLong, match=r"Sequence 1: A text and a label's .* at most 16 tokens\. Given: 45"
        ) as caught:
            prepared(request("my", long), tokenizer)
        assert list(caught.value.rows) == [1]
        _, block = prepared(request(long, truncate=True), tokenizer)
        kept = " ".join(long.split()[:12])
        assert ids_of(block) == whole_pairs(tokenizer, (kept, "a"), (kept.rpartition(" ")[0], "b c"))
        assert list(block.lengths) == [16, 16]

    @pytest.mark.parametrize("text", ["my", "the card " * 20])
    def test_a_label_that_leaves_no_room_for_a_text_is_too_long_with_every_one(
        self, tokenizer: Tokenizer, text: str
    ) -> None:
        fits, long = " ".join("a" * 12), " ".join("a" * 13)
        _, block = prepared(request(text, labels=("a", fits), truncate=True), tokenizer)
        assert block.lengths[1] == 16
        with pytest.raises(TooLong):
            prepared(request(text, labels=("a", long), truncate=True), tokenizer)

    def test_all_pairs_are_bounded_in_tokens(self, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(label_pairs, "MAX_PAIR_TOKENS", 26)
        prepared(request("my", "my"), tokenizer)  # of 5 and of 6 tokens
        with pytest.raises(InvalidRequest, match=r"at most 26 tokens.*Given: 33") as caught:
            prepared(request("my", "my", "my"), tokenizer)
        assert caught.value.rows == {}  # so that a client sends fewer texts

    def test_tokens_that_the_model_does_not_have_are_those_of_their_text(self, tokenizer: Tokenizer) -> None:
        highest = tokenizer.encode(["the"], truncate=False)[0].ids.max()
        with pytest.raises(PenstockError) as caught:
            prepared(request("a", "the"), tokenizer, replace(INFO, vocab_size=int(highest)))
        assert list(caught.value.rows) == [1]

    def test_without_a_tokenizer_there_are_no_pairs(self) -> None:
        with pytest.raises(UnsupportedTask, match="no tokenizer"):
            prepared(request("my"), None)


class TestScores:
    """Of logits by hand: [contradiction, neutral, entailment] of each pair."""

    LOGITS = np.array([[[0, 9, 1], [2, 9, 2]], [[1, 9, 3], [0, 9, 3]]], np.float32)  # of two texts and two labels

    def _rows(self, tokenizer: Tokenizer, info: ModelInfo, logits: Any = LOGITS, **options: Any) -> tuple[Any, ...]:
        pending, block = prepared(request("my", "card", top_k=0, **options), tokenizer, info)
        assert block.settle(list(logits.reshape(len(block.keys), -1)))
        reply = decode_reply(encode_replies([pending], info, None, 0.0)[0])
        assert isinstance(reply, Reply)
        assert reply.classes is not None
        return reply.classes

    def test_one_label_holds(self, tokenizer: Tokenizer) -> None:
        first, second = self._rows(tokenizer, INFO)
        assert (first.labels, second.labels) == (("b c", "a"), ("b c", "a"))  # equal: the last first, as there
        assert first.scores == pytest.approx((1 / (1 + np.exp(-1)), 1 / (1 + np.exp(1))))
        assert second.scores == pytest.approx((0.5, 0.5))

    def test_each_label_by_itself_is_scored_against_contradiction(self, tokenizer: Tokenizer) -> None:
        rows = self._rows(tokenizer, INFO, multi_label=True)
        assert [dict(zip(row.labels, row.scores, strict=True)) for row in rows] == [
            pytest.approx({"a": 1 / (1 + np.exp(-1)), "b c": 0.5}),
            pytest.approx({"a": 1 / (1 + np.exp(-2)), "b c": 1 / (1 + np.exp(-3))}),
        ]
        alone = self._rows(tokenizer, INFO, self.LOGITS[:, :1], labels=("a",))
        assert [row.scores[0] for row in alone] == pytest.approx([1 / (1 + np.exp(-1)), 1 / (1 + np.exp(-2))])

    def test_contradiction_is_the_last_class_where_entailment_is_the_first(self, tokenizer: Tokenizer) -> None:
        info = replace(INFO, labels=("ENTAILMENT", "neutral", "contradiction"))
        rows = self._rows(tokenizer, info, self.LOGITS[..., ::-1], multi_label=True)
        assert rows == self._rows(tokenizer, INFO, multi_label=True)

    def test_large_logits_do_not_overflow(self, tokenizer: Tokenizer) -> None:
        rows = self._rows(tokenizer, INFO, self.LOGITS * 1e30, multi_label=True)
        assert [row.scores for row in rows] == [(1.0, 0.5), (1.0, 1.0)]
        one = self._rows(tokenizer, INFO, self.LOGITS * 1e30)
        assert isinstance(one[0], Classification)
        assert one[0].scores == (1.0, 0.0)
