"""Replies to complete requests: vectors and scores of pairs as they are, other scores as labels."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.engine.cells.emissions import split
from penstock.engine.types import Emission, Float32Array, ModelInfo
from penstock.producer.tokenization import Tokenizer
from penstock.producer.wire.codec import encode_reply, encode_shared_notes, encode_vectors, own_notes
from penstock.producer.wire.json_codec import encode_json_reply
from penstock.producer.wire.messages import (
    BIT_DTYPES,
    INT8_DTYPES,
    REQUEST_TOKENS,
    Generation,
    Reply,
    Row,
    TokenTable,
    Vector,
)
from penstock.producer.wire.reply_rows import sign_bits
from penstock.producer.wire.sequence_codec import EmissionColumn, EmissionTable
from penstock.worker.batching.batch import BatchStats
from penstock.worker.replies.classes import best, classes, classes_by_labels
from penstock.worker.replies.embeddings import all_embeddings, sparse_table, token_vectors
from penstock.worker.requests.request import PendingRequest, StageTimes
from penstock.worker.requests.sequence_block import SequenceBlock
from penstock.worker.stepping.generation_work import read_generation_row


def encode_replies(
    requests: Sequence[PendingRequest],
    info: ModelInfo,
    stats: BatchStats | None,
    now: float,
    tokenizer: Tokenizer | None = None,
) -> list[bytes]:
    """The values of the replies to requests that one batch completed, or the cache: `stats` is None.

    `tokenizer`: the model's, which makes text of generated tokens.
    What requests that were validated together have in common is encoded once.
    """
    encoded: dict[tuple[StageTimes, int, int], bytes] = {}
    values = []
    for request in requests:
        if request.num_missing:
            raise RuntimeError("A reply was made before all results were there. This is a bug.")
        if request.address.is_json:
            values.append(_encode_json(request, info, stats, now, tokenizer))
            continue
        notes_key = request.times, request.record.original.timestamp, request.num_cached
        notes = encoded.get(notes_key)
        if notes is None:
            notes = encoded[notes_key] = encode_shared_notes(request.num_cached, *_notes(request, stats, now))
        values.append(_encode(request, info, own_notes(notes, request.num_tokens), tokenizer))
    return values


def encode_partial(
    sequence: SequenceBlock, result: Float32Array, info: ModelInfo, tokenizer: Tokenizer | None
) -> bytes:
    """The value of a partial reply: one row, what is generated so far for a sequence.

    Its text begins the text of each later one, and of the reply.
    """
    row = read_generation_row(result)
    if sequence.request.message.text is not None and tokenizer is not None:
        row = dataclasses.replace(row, text=tokenizer.decode_part(row.tokens))
    reply = Reply(info.name, info.answers_revision, generations=(row,))
    return encode_json_reply("generate", reply) if sequence.request.address.is_json else encode_reply(reply)


def result_rows(request: PendingRequest, info: ModelInfo, tokenizer: Tokenizer | None) -> Sequence[Row]:
    """The answers to the texts of a complete request."""
    task = request.message.task
    if task == "embed" and request.message.options.dtype == "float32":
        return _results(request)
    return _reply(request, info, tokenizer).rows(task)


def _notes(
    request: PendingRequest, stats: BatchStats | None, now: float
) -> tuple[dict[str, float], dict[str, int | str]]:
    """`timing` and `batch` of a reply, but for the tokens of its request."""
    times = request.times
    timing_ms = {
        "queue": round(max(0.0, times.arrived_unix_ms - request.record.original.timestamp), 3),
        "tokenize": times.tokenize_ms,
        "cache": times.cache_ms,
    }
    if stats is None:
        return timing_ms, {}
    timing_ms["schedule"] = round(max(0.0, now - times.queued - stats.device_s) * 1e3, 3)
    timing_ms["compute"] = round(stats.device_s * 1e3, 3)
    return timing_ms, {"size": stats.sums.count, "tokens": stats.sums.tokens, "trigger": stats.trigger}


def _encode_json(
    request: PendingRequest, info: ModelInfo, stats: BatchStats | None, now: float, tokenizer: Tokenizer | None
) -> bytes:
    reply = _reply(request, info, tokenizer)
    timing_ms, batch = _notes(request, stats, now)
    reply.cached, reply.timing = request.num_cached, timing_ms
    reply.batch = {**batch, REQUEST_TOKENS: request.num_tokens}
    return encode_json_reply(request.message.task, reply)


def _encode(request: PendingRequest, info: ModelInfo, notes: bytes, tokenizer: Tokenizer | None) -> bytes:
    dtype = request.message.options.dtype
    if request.message.task == "embed" and dtype not in INT8_DTYPES:
        return encode_vectors(info.name, info.answers_revision, _results(request), dtype, notes)
    return encode_reply(_reply(request, info, tokenizer), notes)


def _reply(request: PendingRequest, info: ModelInfo, tokenizer: Tokenizer | None) -> Reply:
    """The reply without its notes."""
    results, dtype = _results(request), request.message.options.dtype
    if dtype in INT8_DTYPES:
        return _quantised(results, info, dtype)
    return Reply(info.name, info.answers_revision, **_rows(request, results, info, tokenizer))


def _results(request: PendingRequest) -> list[Float32Array]:
    return request.results  # type: ignore[return-value]  # none is missing


def _quantised(results: list[Float32Array], info: ModelInfo, dtype: str) -> Reply:
    """The revision tells the ranges too: others make other bytes of the same vectors."""
    ranges = info.int8_ranges
    if ranges is None:
        raise RuntimeError(f"{dtype} vectors were computed without ranges. This is a bug.")
    return Reply(
        info.name, f"{info.answers_revision}-{ranges.digest}", vectors=ranges.quantised(np.stack(results), dtype)
    )


def _rows(
    request: PendingRequest, results: list[Float32Array], info: ModelInfo, tokenizer: Tokenizer | None
) -> dict[str, Any]:
    """The fields of the reply that hold its rows."""
    options = request.message.options
    match request.message.task:
        case "embed":
            return {"vectors": _vectors(np.stack(results), options.dtype)}
        case "embed_sparse":
            return {"sparse": sparse_table(results, options)}
        case "embed_tokens":
            return {"token_vectors": token_vectors(results, info, options)}
        case "embed_all":
            return all_embeddings(results, info, options)
        case "classify" if options.labels is not None:
            return {"classes": classes_by_labels(np.stack(results), info.labels, options)}
        case "classify":
            return {"classes": classes(np.stack(results), info.labels, options.most_labels)}
        case "rerank":
            return {"scores": tuple([float(result[0]) for result in results])}
        case "token_classify":
            return {"tokens": _token_table(request, results, info.labels)}
        case "generate":
            return {"generations": _generations(request, results, tokenizer)}
        case "sequence":
            return {"emissions": _emissions(results, info.emissions)}
        case task:
            raise RuntimeError(f"No reply is known for the task {task!r}. This is a bug.")


def _vectors(matrix: Float32Array, dtype: str) -> Vector:
    return sign_bits(matrix, dtype) if dtype in BIT_DTYPES else matrix.astype(dtype, copy=False)


def _generations(
    request: PendingRequest, results: list[Float32Array], tokenizer: Tokenizer | None
) -> tuple[Generation, ...]:
    rows = [read_generation_row(result) for result in results]
    if request.message.text is None or tokenizer is None:
        return tuple(rows)
    texts = tokenizer.decode([row.tokens for row in rows])
    return tuple([dataclasses.replace(row, text=text) for row, text in zip(rows, texts, strict=True)])


def _emissions(results: list[Float32Array], emissions: Sequence[Emission]) -> EmissionTable:
    """The columns of all sequences, without those that none of them has."""
    rows = [split(result, emissions) for result in results]
    columns = {
        name: EmissionColumn(np.concatenate([row[name] for row in rows]), tuple([len(row[name]) for row in rows]))
        for name, _, _ in emissions
    }
    return EmissionTable(len(rows), {name: column for name, column in columns.items() if len(column.values)})


def _token_table(request: PendingRequest, results: list[Float32Array], labels: tuple[str, ...]) -> TokenTable:
    """Results come from the engine as [L, C] and from the cache flat."""
    options = request.message.options
    scores = np.concatenate([result.reshape(-1, len(labels)) for result in results])
    best_first, best_scores = best(scores, options.most_labels)
    return TokenTable(
        names=labels,
        lens=tuple([result.size // len(labels) for result in results]),
        classes=best_first.astype(np.uint16),
        scores=best_scores.astype(options.dtype, copy=False),
        spans=np.concatenate(request.spans) if request.spans else None,
    )
