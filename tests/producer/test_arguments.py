"""Arguments of the wrong type, unknown keywords and foreign event loops end a call at once. Nothing is sent."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, get_type_hints

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pytest

from penstock import Client, InvalidRequest, Options, PenstockError, SyncClient, WrongArgument, WrongLoop
from penstock.producer.caller import raise_first
from penstock.producer.keywords import ClientKeywords, GenerationKeywords
from penstock.producer.settings import ClientSettings
from penstock.producer.wire.generation import GENERATION_OPTIONS
from penstock.producer.wire.messages import Request
from tests.producer.helpers import connected, first_ids

Call = Callable[[Any], Awaitable[Any]]  # with a client, of a call that a type checker refuses


async def listed(stream: Any) -> list[Any]:
    return [one async for one in stream]


async def raised(results: Awaitable[Any]) -> None:
    raise_first(await results)


async def raised_of(rows: Any) -> None:
    raise_first([result async for _, result in rows])


WRONG: dict[str, tuple[Call, str]] = {
    "a map": (lambda client: client.embed({"text": "a"}), "`texts` must be a list, each a string or a pair.*: dict"),
    "bytes": (lambda client: client.embed(b"a text"), "`texts` must be a list.* Given: bytes"),
    "nothing": (lambda client: client.embed(None), "Give either `texts`.*Neither was given"),
    "both": (lambda client: client.embed("a", ids=[[1]]), "Both were given"),
    "a number": (lambda client: client.embed(5), "`texts` must be a list.* Given: int"),
    "a set": (lambda client: client.embed({"a", "b"}), "`texts` must be a list.* Given: set"),
    "a generator": (lambda client: client.embed(text for text in "ab"), "`texts` must be a list.* Given: generator"),
    "a frame": (lambda client: client.embed(pd.DataFrame({"text": ["a"]})), "`texts` must be.* Given: DataFrame"),
    "nested lists": (lambda client: client.embed([["a", "b"]]), "item 0 must be a string or a pair.* Given: list"),
    "a number among texts": (lambda client: client.classify(["a", 5]), "`texts` item 1 must be.* Given: int"),
    "None among texts": (lambda client: client.classify(["a", None]), "`texts` item 1 must be.* Given: NoneType"),
    "bytes among texts": (lambda client: client.classify([b"a"]), "`texts` item 0 must be.* Given: bytes"),
    "a triple": (lambda client: client.classify([("a", "b", "c")]), "`texts` item 0 must be.* Given: tuple"),
    "flat ids": (lambda client: client.embed(ids=[1, 2, 3]), "Sequence 0 must be a list of token ids"),
    "ids in a map": (lambda client: client.embed(ids={"ids": [1]}), "`ids` must be a list.* Given: dict"),
    "ids of bytes": (lambda client: client.embed(ids=b"12"), "`ids` must be a list.* Given: bytes"),
    "fractions for ids": (lambda client: client.embed(ids=[[1.5]]), "Sequence 0 must be a list of token ids"),
    "words for ids": (lambda client: client.embed(ids=[["a"]]), "Sequence 0 must be a list of token ids"),
    "an array of three axes": (lambda client: client.embed(ids=np.ones((1, 1, 1))), "`ids` must be.* Given: ndarray"),
    "a query that is none": (lambda client: client.rerank(5, ["a"]), "`query` must be a string. Given: int"),
    "a list of queries": (lambda client: client.rerank(["q"], ["a"]), "`query` must be a string. Given: list"),
    "one document": (lambda client: client.rerank("q", "a"), "`documents` must be a list of strings. Given: str"),
    "documents in a map": (lambda client: client.rerank("q", {"a": 1}), "`documents` must be a list.* Given: dict"),
    "a pair for a document": (lambda client: client.rerank("q", [("a", "b")]), "`documents` item 0 must be a string"),
    "a string for a pair": (lambda client: raised(client.map("rerank", ["q"])), "item 0 must be a pair.* Given: str"),
    "a list for a pair": (lambda client: raised(client.map("rerank", [["q", "d"]])), "must be a pair.* Given: list"),
    "a pair to generate": (lambda client: client.generate([("a", "b")]), "item 0 must be a string. Given: tuple"),
    "a pair of tokens": (lambda client: client.token_classify([("a", "b")]), "item 0 must be a string. Given: tuple"),
    "a list to stream": (lambda client: listed(client.stream(["a"])), "`text` must be a string. Given: list"),
    "nothing to stream": (lambda client: listed(client.stream()), "Neither was given"),
    "one map of fields": (lambda client: client.sequence({"tokens": [1]}), "`sequences` must be a list.* Given: dict"),
    "no map of fields": (lambda client: client.sequence([5]), "Sequence 0 must be a map of fields. Given: int"),
    "a text of fields": (lambda client: client.sequence("text"), "`sequences` must be a list of maps.* Given: str"),
    "a text to map": (lambda client: client.map("embed", "text"), "`texts` must be a list.* Given: str"),
    "other options": (lambda client: client.map("embed", ["a"], options={"top_k": 2}), "`options` must be Options"),
    "rows that are a text": (lambda client: raised_of(client.map_rows("embed", "text")), "`rows` must be an iterable"),
    "rows that are None": (lambda client: raised_of(client.map_rows("embed", None)), "`rows` must be an iterable"),
    "a row that is none": (lambda client: raised_of(client.map_rows("embed", [5])), "A text must be a string.*: int"),
    "a column of numbers": (lambda client: raised_of(client.map_rows("embed", [], column=3)), "`column` must be"),
    "no request": (lambda client: client.request({"model": "m"}), "`request` must be a Request. Given: dict"),
    "truncate": (lambda client: client.embed("a", truncate="yes"), "`truncate` must be true or false. Given: 'yes'"),
    "top_k": (lambda client: client.classify("a", top_k="3"), "`top_k` must be a count"),
    "prompt": (lambda client: client.embed("a", prompt=5), "`prompt` must be a string"),
    "timeout_s": (lambda client: client.embed("a", timeout_s="soon"), "`timeout_s` must be a number of seconds"),
    "beams": (lambda client: client.generate("a", num_beams="4"), "`generation.num_beams` must be a count"),
    "a slip": (lambda client: client.generate("a", num_beam=4), "Given: 'num_beam'. Did you mean `num_beams`?"),
    "a slip in a stream": (lambda client: listed(client.stream("a", temprature=1)), "Did you mean `temperature`?"),
}


@pytest.mark.parametrize("name", WRONG)
async def test_a_wrong_argument_is_a_type_error_that_says_what_is_wanted(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    call, message = WRONG[name]
    async with connected(monkeypatch, first_ids) as (client, loop):
        with pytest.raises(TypeError, match=message) as caught:
            await call(client)
    assert isinstance(caught.value, InvalidRequest)  # it is also one of the tree
    assert loop.requests == []


async def test_what_is_wrong_otherwise_is_no_type_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected(monkeypatch, first_ids) as (client, _):
        for call in (client.embed([]), client.embed(""), client.classify("a", top_k=-1), client.generate("a", seed=-1)):
            with pytest.raises(InvalidRequest) as caught:
                await call
            assert not isinstance(caught.value, TypeError)


async def test_lists_of_any_kind_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected(monkeypatch, first_ids) as (client, _):
        for ids in ([[1, 2]], ((1, 2),), np.array([[1, 2]]), [np.array([1, 2])], pd.Series([[1, 2]])):
            assert (await client.embed(ids=ids)).tolist() == [[1, 2, 0]]  # type: ignore[arg-type]  # a series


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"bogus": 1}, "A client has no argument `bogus`"),
        ({"time_out_s": 1}, "no argument `time_out_s`. Did you mean `timeout_s`?"),
        ({"bootstrap_server": "k:1"}, "Did you mean `bootstrap_servers`?"),
        ({"tokeniser": "."}, "Did you mean `tokenizer`?"),
        ({"timeout_s": "x"}, "`timeout_s`: Input should be a valid number"),
        ({"model": 5}, "`model`: Input should be a valid string"),
    ],
)
def test_keywords_of_a_client(keywords: dict[str, Any], message: str) -> None:
    for make in (Client, SyncClient):
        with pytest.raises(WrongArgument, match=message.replace("?", r"\?")):
            make(**{"model": "m", **keywords})


def test_the_typed_keywords_are_those_of_the_settings() -> None:
    assert get_type_hints(ClientKeywords).keys() == ClientSettings.model_fields.keys()
    assert get_type_hints(GenerationKeywords).keys() == GENERATION_OPTIONS.keys()


CALLS: dict[str, Call] = {
    "start": lambda client: client.start(),
    "close": lambda client: client.close(),
    "embed": lambda client: client.embed("x"),
    "embed_sparse": lambda client: client.embed_sparse("x"),
    "embed_tokens": lambda client: client.embed_tokens("x"),
    "embed_all": lambda client: client.embed_all("x"),
    "classify": lambda client: client.classify("x"),
    "rerank": lambda client: client.rerank("x", ["y"]),
    "token_classify": lambda client: client.token_classify("x"),
    "generate": lambda client: client.generate("x"),
    "stream": lambda client: listed(client.stream("x")),
    "sequence": lambda client: client.sequence([{"tokens": [1]}]),
    "map": lambda client: client.map("embed", ["x"], options=Options()),
    "map_rows": lambda client: listed(client.map_rows("embed", ["x"])),
    "request": lambda client: client.request(Request("m", "embed", text=("x",))),
}


def test_every_method_is_among_the_calls() -> None:
    methods = inspect.getmembers(Client, inspect.isfunction)
    assert {name for name, _ in methods if not name.startswith("_")} == CALLS.keys()


@pytest.mark.parametrize("name", CALLS)
async def test_a_call_from_a_foreign_loop_raises_at_once_and_names_the_cause(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    async with connected(monkeypatch, first_ids) as (client, loop):
        with pytest.raises(WrongLoop, match=r"started on another event loop.*use SyncClient") as caught:
            await asyncio.to_thread(lambda: asyncio.run(CALLS[name](client)))  # type: ignore[arg-type]  # a coroutine
        assert isinstance(caught.value, PenstockError | RuntimeError)
        assert loop.requests == []
        assert (await client.embed(ids=[[5]])).tolist() == [[5, 1, 0]]  # the client itself goes on
