"""Keys and seeds of generation: equal keys mean equal results, and what the model does not allow is rejected early."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from penstock.engine.errors import InvalidOption
from penstock.engine.generation_options import GenerationOptions
from penstock.engine.types import ModelInfo
from penstock.producer.errors import InvalidRequest, UnsupportedTask
from penstock.producer.languages import Languages
from penstock.producer.prompts import Prompts
from penstock.producer.wire.codec import decode_reply, encode_request
from penstock.producer.wire.generation import read_generation
from penstock.producer.wire.messages import Generation, Options, Reply, Request, join_tokens
from penstock.worker.replies.reply import encode_replies
from penstock.worker.requests.generation import GenerationRequests
from penstock.worker.requests.preparation import RequestPreparer
from penstock.worker.requests.record import PendingRecord
from penstock.worker.requests.reply_bounds import ReplyBounds
from penstock.worker.requests.request import PendingRequest
from penstock.worker.requests.sequence_block import SequenceBlock
from penstock.worker.requests.validation import RequestValidator
from penstock.worker.stepping.generation_work import generation_row
from tests.worker.conftest import FakeRecord

OWN = {"decoder_start_token_id": 0, "eos_token_id": 1, "max_new_tokens": 12}


class Bench:
    """The stages before the queue, for a model that generates."""

    def __init__(self, info: ModelInfo, max_reply_bytes: int = 10_000) -> None:
        self.info = replace(info, tasks=frozenset({"generate"}))
        self.asked: list[Mapping[str, Any]] = []
        generation = GenerationRequests(self.info, self._read, Languages({"fra_Latn": 9}))
        bounds = ReplyBounds(self.info, max_reply_bytes)
        self._validator = RequestValidator(
            self.info, bounds, Prompts(), reply_topics=".*", slo_s=None, max_sequences=8, generation=generation
        )
        self._preparer = RequestPreparer(self.info, bounds, None, has_cache=True, generation=generation)

    def _read(self, changes: Mapping[str, Any]) -> GenerationOptions:
        self.asked.append(changes)
        options = GenerationOptions.of({**OWN, **changes})
        if options.max_new_tokens > 100:
            raise InvalidOption("max_new_tokens must be at most 100")
        return options

    async def sequences(self, *ids: list[int], offset: int = 0, **options: Any) -> list[SequenceBlock]:
        """The sequences of one request. Raises its rejection."""
        asked = Options(generation=read_generation(options))
        value = encode_request(Request(self.info.name, "generate", join_tokens(ids), options=asked))
        record = PendingRecord(FakeRecord(value, offset=offset), ("t", 0), from_bulk_topic=False)
        requests, rejections = self._validator.validate([record], 1.0, 1.0)
        prepared, more = await self._preparer.prepare(requests)
        for rejection in (*rejections, *more):
            raise rejection.error
        return prepared


@pytest.fixture
def bench(info: ModelInfo) -> Bench:
    return Bench(info)


async def test_the_models_own_options_complete_those_of_the_request(bench: Bench) -> None:
    (one,) = await bench.sequences([5, 6], num_beams=3)
    assert one.options.generation == GenerationOptions.of({**OWN, "num_beams": 3})
    assert (one.options.task, one.options.seed, one.is_stored) == ("generate", 0, True)
    assert bench.asked == [{"num_beams": 3}]


async def test_keys_differ_with_everything_that_decides_the_tokens(bench: Bench) -> None:
    ways: list[dict[str, Any]] = [
        {},
        {"max_new_tokens": 5},
        {"num_beams": 2},
        {"target_language": "fra_Latn"},
        {"do_sample": True, "seed": 1},
        {"do_sample": True, "seed": 2},
    ]
    keys = [(await bench.sequences([5, 6], **way))[0].keys[0] for way in ways]
    assert len(set(keys)) == len(ways)
    assert (await bench.sequences([5, 7]))[0].keys[0] not in keys
    for way, key in zip(ways, keys, strict=True):
        assert (await bench.sequences([5, 6], **way))[0].keys[0] == key
    assert (await bench.sequences([5, 6], max_new_tokens=12))[0].keys[0] == keys[0]  # the model's own, said aloud
    assert (await bench.sequences([5, 6], seed=7))[0].keys[0] == keys[0]  # nothing is drawn


async def test_sampling_without_a_seed_has_that_of_its_record_so_that_a_second_run_gives_the_same_tokens(
    bench: Bench,
) -> None:
    first, again = [await bench.sequences([5, 6], [5, 6], do_sample=True) for _ in range(2)]
    assert [one.options.seed for one in first] == [one.options.seed for one in again]
    (elsewhere,) = await bench.sequences([5, 6], offset=8, do_sample=True)
    assert elsewhere.options.seed != first[0].options.seed


async def test_sampling_without_a_seed_is_neither_shared_nor_stored(bench: Bench) -> None:
    sequences = await bench.sequences([5, 6], [5, 6], do_sample=True)
    assert len({one.keys[0] for one in sequences}) == len({one.options.seed for one in sequences}) == 2
    assert not any(one.is_stored for one in sequences)
    assert all(0 <= one.options.seed < 2**63 for one in sequences)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_new_tokens": 101}, "`opts.generation`: max_new_tokens must be at most 100"),
        ({"max_new_tokens": 0}, "`opts.generation`: max_new_tokens must be at least 1"),
        ({"do_sample": True, "num_beams": 2}, "`opts.generation`: do_sample with num_beams above 1"),
        ({"target_language": "fra_Lat"}, "The model has no such language. Given: 'fra_Lat'."),
    ],
)
async def test_what_the_model_does_not_allow_is_rejected_by_name(
    bench: Bench, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(UnsupportedTask) as caught:
        await bench.sequences([5, 6], **options)
    assert caught.value.message.startswith(says)


async def test_a_reply_that_would_be_too_large_is_rejected_before_it_is_computed(info: ModelInfo) -> None:
    bench = Bench(info, max_reply_bytes=1024)
    assert len(await bench.sequences(*[[5]] * 4, max_new_tokens=50)) == 4
    with pytest.raises(InvalidRequest, match="send at most 4 sequences"):
        await bench.sequences(*[[5]] * 5, max_new_tokens=50)


async def test_a_reply_has_the_tokens_of_each_sequence_as_they_were_cached(bench: Bench) -> None:
    sequences = await bench.sequences([5, 6], [7])
    generated = [Generation((9, 2**31 - 1, 1), "stop"), Generation((0,), "length")]
    for sequence, row in zip(sequences, generated, strict=True):
        stored = generation_row(row.tokens, row.finish).tobytes()
        sequence.settle([np.frombuffer(stored, np.float32)])
    request: PendingRequest = sequences[0].request
    reply = decode_reply(encode_replies([request], bench.info, None, 1.0)[0])
    assert isinstance(reply, Reply)
    assert reply.rows("generate") == tuple(generated)


async def test_long_options_are_read_and_not_kept(bench: Bench) -> None:
    for _ in range(2):
        await bench.sequences([1], suppress_tokens=[5, 6])
    assert len(bench.asked) == 1
    listed = list(range(1000))
    first, second = [await bench.sequences([1], [2], suppress_tokens=listed) for _ in range(2)]
    assert len(bench.asked) > 2
    assert [one.keys[0] for one in first] == [one.keys[0] for one in second]
    assert first[0].keys[0] != first[1].keys[0]
    (other,) = await bench.sequences([1], suppress_tokens=listed[1:])
    assert other.keys[0] != first[0].keys[0]
