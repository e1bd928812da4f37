"""Labels of a request: what is refused where it is made and where it is read, and how many texts share a record."""

from typing import Any

import msgpack
import pytest

from penstock.producer.errors import InvalidRequest, WrongArgument
from penstock.producer.wire.codec import decode_request
from penstock.producer.wire.labels import hypotheses
from penstock.producer.wire.messages import Classification, Options, Reply, Request
from tests.producer.helpers import connected

REQUEST = {"v": 1, "model": "m", "task": "classify", "text": ["hello"]}
MANY = [str(number) for number in range(4097)]
TEMPLATE = "a string of at most 1024 characters with one {}"
# Options of a request, and a part of the error's message.
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "none": ({"labels": []}, "labels` must be 1 to 4,096 labels. Given: 0"),
    "too many": ({"labels": MANY}, "Given: 4,097"),
    "equal ones": ({"labels": ["a", "b", "a"]}, "labels` item 2 equals one before it. Given: 'a'"),
    "an empty one": ({"labels": ["a", " \n"]}, "labels` item 1 is empty"),
    "a long one": ({"labels": ["a" * 1025]}, "labels` item 0 has more than 1,024 characters"),
    "a string": ({"labels": "a,b"}, "labels` must be a list of strings"),
    "a number": ({"labels": ["a", 5]}, "labels` must be a list of strings"),
    "a map": ({"labels": {"a": 1}}, "labels` must be a list of strings"),
    "a template without a place": ({"labels": ["a"], "template": "no place"}, TEMPLATE),
    "a template with two places": ({"labels": ["a"], "template": "{} {}"}, TEMPLATE),
    "a template with a name": ({"labels": ["a"], "template": "{label}"}, TEMPLATE),
    "a template with a brace": ({"labels": ["a"], "template": "{} {"}, TEMPLATE),
    "a template that is long": ({"labels": ["a"], "template": "{}" + "a" * 1023}, TEMPLATE),
    "a template of no string": ({"labels": ["a"], "template": 5}, TEMPLATE),
    "a template alone": ({"template": "{}"}, "`template` needs `labels`"),
    "a switch alone": ({"multi_label": True}, "`multi_label` needs `labels`"),
    "a switch of no bool": ({"labels": ["a"], "multi_label": 1}, "multi_label` must be true or false"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_labels_that_cannot_be_answered_are_refused_by_name(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    options, says = REFUSED[name]
    with pytest.raises(InvalidRequest) as caught:
        decode_request(msgpack.packb(REQUEST | {"opts": options}))
    # A list that is longer than any ends the reader.
    assert (says if name != "too many" else "4097 exceeds max_array_len") in caught.value.message
    async with connected(monkeypatch, lambda request: None) as (client, loop):
        with pytest.raises(InvalidRequest) as caught:
            await client.classify("hello", **options)
        assert says in caught.value.message
        assert loop.requests == []


async def test_half_a_surrogate_pair_is_refused_before_it_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected(monkeypatch, lambda request: None) as (client, _):
        for wrong in ({"labels": ["a", "\ud800"]}, {"labels": ["a"], "template": "\ud800 {}"}):
            with pytest.raises(InvalidRequest, match=r"labels` item 1 cannot be UTF-8|template` must be"):
                await client.classify("hello", **wrong)


@pytest.mark.parametrize("task", ["embed", "rerank", "token_classify"])
def test_labels_are_of_classify_alone(task: str) -> None:
    text = [["a", "b"]] if task == "rerank" else ["a"]
    with pytest.raises(InvalidRequest, match=r"`labels` is an option of `classify`|must be a single string"):
        decode_request(msgpack.packb(REQUEST | {"task": task, "text": text, "opts": {"labels": ["a"]}}))


async def test_labels_need_single_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidRequest, match="For `classify` with labels, `text` item 1 must be a single") as caught:
        decode_request(msgpack.packb(REQUEST | {"text": ["a", ["a", "b"]], "opts": {"labels": ["a"]}}))
    assert list(caught.value.rows) == [1]
    ids = {"ids": b"\1\0\0\0", "lens": b"\1\0\0\0"}
    with pytest.raises(InvalidRequest, match="`labels` need texts"):
        decode_request(msgpack.packb({"v": 1, "model": "m", "task": "classify", **ids, "opts": {"labels": ["a"]}}))
    async with connected(monkeypatch, lambda request: None) as (client, loop):
        with pytest.raises(WrongArgument, match=r"item 0 must be a string\. Given: tuple"):
            await client.classify([("a", "b")], labels=["a"])
        with pytest.raises(InvalidRequest, match="`labels` need texts"):
            await client.classify(ids=[[1]], labels=["a"])
        assert loop.requests == []


def test_the_label_stands_in_the_templates_place_as_it_is() -> None:
    assert hypotheses(Options(labels=("a", "{}"))) == ["This example is a.", "This example is {}."]
    assert hypotheses(Options(labels=("b",), template="{}?")) == ["b?"]


async def test_a_record_has_fewer_texts_where_each_has_many_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(request: Request) -> Reply:
        return Reply("m", "r", classes=(Classification(("a",), (1.0,)),) * request.num_rows)

    async with connected(monkeypatch, answer) as (client, loop):
        for num_labels, texts_each in ((1, 64), (3, 21), (64, 1), (1000, 1)):
            loop.requests.clear()
            assert len(await client.classify(["hello"] * 64, labels=MANY[:num_labels])) == 64
            assert max(request.num_rows for request in loop.requests) == texts_each
            assert {request.options.labels for request in loop.requests} == {tuple(MANY[:num_labels])}
            assert sum(request.num_sequences for request in loop.requests) == 64 * num_labels
