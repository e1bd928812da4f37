"""Replies from the results of a request."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import ZeroShotClassificationPipeline

from penstock.engine.int8_ranges import read_int8_ranges
from penstock.engine.types import ENTAIL, ModelInfo
from penstock.producer.wire.codec import decode_reply, encode_reply
from penstock.producer.wire.messages import Options, Reply
from penstock.worker.batching.batch import BatchStats, Sums
from penstock.worker.replies.reply import encode_replies
from penstock.worker.requests.request import StageTimes
from penstock.worker.requests.sequence_block import SequenceBlock
from tests.examples import examples
from tests.worker.conftest import sequence_maker

MakeSequences = Callable[..., list[SequenceBlock]]


def vector(*numbers: float) -> np.ndarray:
    return np.array(numbers, np.float32)


def reply_to(sequence: SequenceBlock, info: ModelInfo, stats: BatchStats | None = None, now: float = 0.0) -> Reply:
    """The reply to a sequence's request, as a client decodes it."""
    reply = decode_reply(encode_replies([sequence.request], info, stats, now)[0])
    assert isinstance(reply, Reply)
    return reply


def test_results_stand_in_the_requests_order_whatever_order_they_came_in(
    info: ModelInfo, make_sequences: MakeSequences
) -> None:
    sequences = make_sequences([1], [2], [3])
    assert [sequences[index].settle([vector(index, 0, 0, 0)]) for index in (2, 0, 1)] == [False, False, True]
    reply = reply_to(sequences[0], info)
    assert reply.vectors is not None
    assert reply.vectors[:, 0].tolist() == [0, 1, 2]
    assert (reply.model, reply.revision) == ("tiny", "r1")


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_vectors_have_the_requested_dtype(info: ModelInfo, make_sequences: MakeSequences, dtype: str) -> None:
    [sequence] = make_sequences([1], options=Options(dtype=dtype))
    sequence.settle([vector(0.5, -1, 0.1, 65504)])
    reply = reply_to(sequence, info)
    assert reply.vectors is not None
    assert reply.vectors.dtype == dtype
    np.testing.assert_array_equal(reply.vectors, [vector(0.5, -1, 0.1, 65504).astype(dtype)])


@pytest.mark.parametrize("dtype", ["binary", "ubinary"])
@pytest.mark.parametrize("dim", [1, 8, 21])
def test_signs_of_vectors_are_packed_as_sentence_transformers_does(
    info: ModelInfo, make_sequences: MakeSequences, dtype: Literal["binary", "ubinary"], dim: int
) -> None:
    from sentence_transformers.util.quantization import quantize_embeddings

    rows = np.random.default_rng(dim).standard_normal((2, dim)).astype(np.float32)
    rows[0, 0] = 0.0
    sequences = make_sequences([1], [2], options=Options(dtype=dtype))
    for sequence, row in zip(sequences, rows, strict=True):
        sequence.settle([row])
    reply = reply_to(sequences[0], info)
    assert reply.vectors is not None
    expected = quantize_embeddings(rows, dtype)
    assert reply.vectors.dtype == np.asarray(expected).dtype
    np.testing.assert_array_equal(reply.vectors, expected)


@pytest.mark.parametrize("vectors", ["float32", "int8"])
def test_answers_computed_in_int8_name_a_revision_of_their_own(
    info: ModelInfo, make_sequences: MakeSequences, vectors: Literal["float32", "int8"], tmp_path: Path
) -> None:
    """So that no call and no job mixes them with others."""
    np.save(tmp_path / "ranges.npy", np.stack([-np.ones(2, np.float32), np.ones(2, np.float32)]))
    asked = replace(info, int8_ranges=read_int8_ranges(tmp_path / "ranges.npy", 2))
    [sequence] = make_sequences([1], options=Options(dtype=vectors))
    sequence.settle([np.array([0.5, -0.5], np.float32)])
    revisions = {dtype: reply_to(sequence, replace(asked, dtype=dtype)).revision for dtype in ("float32", "int8")}
    assert revisions["int8"] == revisions["float32"].replace(info.revision, f"{info.revision}-int8")


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_values_are_one_byte_as_sentence_transformers_makes_them_with_ranges(
    info: ModelInfo, make_sequences: MakeSequences, dtype: Literal["int8", "uint8"], tmp_path: Path
) -> None:
    from sentence_transformers.util.quantization import quantize_embeddings

    rng = np.random.default_rng(0)
    sample, rows = (rng.standard_normal((count, 37)).astype(np.float32) for count in (50, 9))
    ranges = np.vstack([sample.min(axis=0), sample.max(axis=0)])
    ranges[:, 5] = 0.25  # a value that never changes
    rows[0], rows[1], rows[2] = ranges[0], ranges[1], 100.0
    np.save(tmp_path / "ranges.npy", ranges)
    quantising = replace(info, int8_ranges=read_int8_ranges(tmp_path / "ranges.npy", 37))
    sequences = make_sequences(*[[index + 1] for index in range(9)], options=Options(dtype=dtype))
    for sequence, row in zip(sequences, rows, strict=True):
        sequence.settle([row])
    reply = reply_to(sequences[0], quantising)
    assert reply.vectors is not None
    expected = quantize_embeddings(rows, dtype, ranges=ranges)
    assert reply.vectors.dtype == np.asarray(expected).dtype
    np.testing.assert_array_equal(reply.vectors, expected)
    np.save(tmp_path / "ranges.npy", ranges * 2)
    other = replace(info, int8_ranges=read_int8_ranges(tmp_path / "ranges.npy", 37))
    assert len({info.revision, reply.revision, reply_to(sequences[0], other).revision}) == 3


@pytest.mark.parametrize(
    ("top_k", "labels"),
    [(1, ["blue"]), (2, ["blue", "red"]), (0, ["blue", "red", "green"]), (9, ["blue", "red", "green"])],
)
def test_labels_are_the_best_first(
    info: ModelInfo, make_sequences: MakeSequences, top_k: int, labels: list[str]
) -> None:
    [sequence] = make_sequences([1], task="classify", options=Options(top_k=top_k))
    sequence.settle([vector(0.25, 0.125, 0.625)])
    reply = reply_to(sequence, info)
    assert reply.classes is not None
    assert list(reply.classes[0].labels) == labels
    assert list(reply.classes[0].scores) == [0.625, 0.25, 0.125][: len(labels)]


def test_equal_scores_keep_the_models_order(info: ModelInfo, make_sequences: MakeSequences) -> None:
    [sequence] = make_sequences([1], task="classify", options=Options(top_k=0))
    sequence.settle([vector(0.5, 0.5, 0.5)])
    reply = reply_to(sequence, info)
    assert reply.classes is not None
    assert reply.classes[0].labels == info.labels


@settings(max_examples=examples(150))
@given(
    rows=st.lists(st.sampled_from([(0.0, 0.0, 0.0), (0.0, 1.0, 0.0), (-30.0, 0.0, 30.0)]), min_size=1, max_size=40),
    multi_label=st.booleans(),
)
def test_equal_scores_of_a_requests_labels_have_the_order_of_transformers(
    rows: list[tuple[float, ...]], multi_label: bool
) -> None:
    """Whose order of equal scores is that of numpy on the processor, not the labels' own."""
    names = tuple([f"label {i}" for i in range(len(rows))])
    model = ModelInfo(
        "tiny", "r1", "float32", "cpu", 9, 9, frozenset({ENTAIL}), 0, ("contradiction", "n", "entailment")
    )
    options = Options(labels=names, multi_label=multi_label, top_k=0)
    [sequence] = sequence_maker()([1], task="classify", options=options)
    sequence.request.settle(range(len(rows)), [vector(*row) for row in rows])
    outputs = [
        {"candidate_label": name, "sequence": "a text", "logits": torch.tensor([row])}
        for name, row in zip(names, rows, strict=True)
    ]
    pipeline: Any = ZeroShotClassificationPipeline  # whose constructor would ask for a model
    expected = pipeline.postprocess(SimpleNamespace(entailment_id=2), outputs, multi_label=multi_label)
    reply = reply_to(sequence, model)
    assert reply.classes is not None
    assert list(reply.classes[0].labels) == expected["labels"]
    np.testing.assert_allclose(reply.classes[0].scores, expected["scores"], atol=1e-6)


def test_scores_of_pairs_are_numbers_in_the_requests_order(info: ModelInfo, make_sequences: MakeSequences) -> None:
    first, second = make_sequences([1], [2], task="rerank")
    second.settle([vector(-1.5)])
    first.settle([vector(0.25)])
    assert reply_to(first, info).scores == (0.25, -1.5)


@pytest.mark.parametrize(("top_k", "kept"), [(1, 1), (2, 2), (0, 3), (9, 3)])
@pytest.mark.parametrize("flat", [False, True], ids=["from the engine", "from the cache"])
def test_tokens_have_their_labels_and_spans(
    info: ModelInfo, make_sequences: MakeSequences, top_k: int, kept: int, flat: bool
) -> None:
    first, second = make_sequences([1, 2], [3], task="token_classify", options=Options(top_k=top_k, dtype="float16"))
    first.request.spans = [np.array([[0, 1], [2, 3]], np.uint32), np.array([[0, 0]], np.uint32)]
    scores = np.array([[0.25, 0.125, 0.625], [0.5, 0.5, 0.0]], np.float32)
    second.settle([vector(0.0, 1.0, 0.0)])
    first.settle([scores.ravel() if flat else scores])
    tokens = reply_to(first, info).tokens
    assert tokens is not None
    assert (tokens.names, tokens.lens) == (info.labels, (2, 1))
    assert tokens.classes.tolist() == [row[:kept] for row in ([2, 0, 1], [0, 1, 2], [1, 0, 2])]
    assert tokens.scores.tolist() == [row[:kept] for row in ([0.625, 0.25, 0.125], [0.5, 0.5, 0.0], [1.0, 0.0, 0.0])]
    assert tokens.scores.dtype == np.float16
    assert tokens.spans is not None
    assert tokens.spans.tolist() == [[0, 1], [2, 3], [0, 0]]


def test_a_reply_before_its_results_is_a_bug(info: ModelInfo, make_sequences: MakeSequences) -> None:
    sequences = make_sequences([1], [2])
    sequences[0].settle([vector(1, 2, 3, 4)])
    with pytest.raises(RuntimeError, match="This is a bug"):
        reply_to(sequences[0], info)


def test_a_sequence_settled_twice_is_a_bug(make_sequences: MakeSequences) -> None:
    sequences = make_sequences([1], [2])
    sequences[0].settle([vector(1, 2, 3, 4)])
    with pytest.raises(RuntimeError, match="This is a bug"):
        sequences[0].settle([vector(1, 2, 3, 4)])


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_vectors_are_encoded_as_every_other_reply(info: ModelInfo, make_sequences: MakeSequences, dtype: str) -> None:
    sequences = make_sequences([1], [2], options=Options(dtype=dtype))
    rows = [vector(1, 2, 3, 4), vector(5, 6, 7, 8)]
    for sequence, row in zip(sequences, rows, strict=True):
        sequence.settle([row])
    sequences[0].request.num_tokens = 70_000
    [value] = encode_replies([sequences[0].request], info, None, 0.0)
    timing, batch = {"queue": 0.0, "tokenize": 0.0, "cache": 0.0}, {"request_tokens": 70_000}
    vectors = np.stack(rows).astype(dtype)
    assert value == encode_reply(Reply("tiny", "r1", vectors=vectors, timing=timing, batch=batch))


def test_replies_tell_the_times_of_their_stages_their_batch_and_themselves(
    info: ModelInfo, make_sequences: MakeSequences
) -> None:
    times = StageTimes(arrived=10.0, arrived_unix_ms=2000.0, queued=10.5, tokenize_ms=1.5, cache_ms=0.25)
    requests = [make_sequences([n])[0] for n in range(3)]
    for sequence, timestamp in zip(requests, (1900, 1900, 1990), strict=True):
        sequence.request.times = times
        sequence.request.record.original.timestamp = timestamp
        sequence.settle([vector(1, 2, 3, 4)])
    requests[1].request.num_cached = 1
    for sequence, num_tokens in zip(requests, (5, 300, 0), strict=True):
        sequence.request.num_tokens = num_tokens
    stats = BatchStats("timeout", "fifo", 0.0, Sums(3, 3, 1, 3), 0.1, device_s=0.125)
    values = encode_replies([sequence.request for sequence in requests], info, stats, 11.0)
    replies = [reply for reply in map(decode_reply, values) if isinstance(reply, Reply)]
    shared = {"tokenize": 1.5, "cache": 0.25, "schedule": 375.0, "compute": 125.0}
    assert [reply.timing for reply in replies] == [{"queue": queue, **shared} for queue in (100.0, 100.0, 10.0)]
    assert [reply.cached for reply in replies] == [0, 1, 0]
    batch = {"size": 3, "tokens": 3, "trigger": "timeout"}
    assert [reply.batch for reply in replies] == [{**batch, "request_tokens": tokens} for tokens in (5, 300, 0)]
