"""Records in JSON: the text is found, and everything but the result stays as it was."""

import json
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from penstock.producer.errors import InvalidRequest
from penstock.worker.routes.json_format import add_json, read_json
from penstock.worker.routes.pointer import Pointer
from penstock.worker.routes.text_source import TextSource

VECTOR = np.array([0.1, -2.0, 3e-8], np.float32)
SHOWN = b"[0.1,-2.0,3e-8]"
DOCUMENTS = st.dictionaries(
    st.text(max_size=5),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=8,
    ),
)


@given(DOCUMENTS, st.booleans(), st.sampled_from(["", " ", "\n\t"]))
def test_a_new_field_leaves_every_byte_before_it(document: dict[str, Any], is_spaced: bool, end: str) -> None:
    document.pop("result", None)
    document = document if document.keys() != {"schema", "payload"} else {}
    value = json.dumps(document, indent=2 if is_spaced else None).encode()
    added = add_json(value + end.encode(), Pointer.parse("result"), VECTOR)
    assert added.startswith(value[:-1].rstrip())
    assert json.loads(added) == document | {"result": json.loads(SHOWN)}


@pytest.mark.parametrize(
    ("value", "place", "expected"),
    [
        (b"{}", "a/b", b'{"a/b":' + SHOWN + b"}"),
        (b'{"result": 1, "n": 18446744073709551615}', "result", b'{"result":' + SHOWN + b',"n":18446744073709551615}'),
        (
            b'{"after": {"x": 1796035371622048111}}',
            "/after/v",
            b'{"after":{"x":1796035371622048111,"v":' + SHOWN + b"}}",
        ),
        (b'["anything"]', "", SHOWN),
        (b'{"\\u0076": 1}', "v", b'{"v":' + SHOWN + b"}"),
        (b'{"a": {"v": 1}} ', "v", b'{"a": {"v": 1},"v":' + SHOWN + b"}"),
        (b' { "a": "v" } ', "v", b' { "a": "v","v":' + SHOWN + b"}"),
        (b'{"a": 1, "a": 2}', "v", b'{"a": 1, "a": 2,"v":' + SHOWN + b"}"),
    ],
)
def test_where_a_result_goes(value: bytes, place: str, expected: bytes) -> None:
    assert add_json(value, Pointer.parse(place), VECTOR) == expected


@pytest.mark.parametrize("rest", [b"[" * 300 + b"]" * 300, b"18446744073709551616", b"[-9223372036854775809]"])
@pytest.mark.parametrize("form", [b'{"after": %b}', b'{"schema": {"fields": []}, "payload": %b}'])
def test_a_document_that_cannot_be_written_again_as_it_was_is_refused(rest: bytes, form: bytes) -> None:
    inner = b'{"rest": %b}' % rest
    with pytest.raises(InvalidRequest):
        add_json(form % inner, Pointer.parse("v" if b"payload" in form else "/after/v"), VECTOR)
    unchanged = add_json(inner, Pointer.parse("v"), VECTOR)
    assert unchanged.startswith(inner[:-1])


TWICE = [b'{"a": 1, "a": 2}', b'[{"a": {}}, {"\\u003a": ":", "b": 1, "b": 1}]', b'{"a": 1, "\\u0061": "\\u003a:"}']


@pytest.mark.parametrize("rest", TWICE)
@pytest.mark.parametrize("form", [b'{"after": %b}', b'{"schema": {"fields": []}, "payload": %b}'])
def test_a_document_that_would_lose_one_of_two_equal_keys_is_refused(rest: bytes, form: bytes) -> None:
    inner = b'{"rest": %b}' % rest
    with pytest.raises(InvalidRequest, match="twice"):
        add_json(form % inner, Pointer.parse("v" if b"payload" in form else "/after/v"), VECTOR)
    assert add_json(inner, Pointer.parse("v"), VECTOR).startswith(inner[:-1])


@given(DOCUMENTS, st.booleans())
def test_a_document_with_different_keys_is_written_again(document: dict[str, Any], is_ascii: bool) -> None:
    value = json.dumps({"after": document}, ensure_ascii=is_ascii).encode()
    assume(re.search(rb"[0-9]{19}", value) is None)  # an integer of more than 64 bits is refused
    added = json.loads(add_json(value, Pointer.parse("/after/result"), VECTOR))
    assert added == {"after": document | {"result": json.loads(SHOWN)}}


def test_a_result_that_replaces_connects_payload_needs_nothing_of_it() -> None:
    value = b'{"schema": {"type": "struct", "fields": []}, "payload": {"n": 18446744073709551616, "n": 1}}'
    schema = {"type": "array", "items": {"type": "float"}, "optional": True}
    assert json.loads(add_json(value, Pointer.parse(""), VECTOR)) == {"schema": schema, "payload": json.loads(SHOWN)}


@pytest.mark.parametrize(("value", "place"), [(b"[1]", "v"), (b'{"a": null}', "/a/v"), (b"3", "/v"), (b"{", "v")])
def test_a_result_without_a_place_is_refused(value: bytes, place: str) -> None:
    with pytest.raises(InvalidRequest):
        add_json(value, Pointer.parse(place), VECTOR)


def connect_record(payload: Any) -> dict[str, Any]:
    row = {"type": "struct", "fields": [{"type": "string", "field": "body"}], "optional": True, "field": "after"}
    before = {**row, "field": "before"}
    return {"schema": {"type": "struct", "fields": [before, row], "name": "t.Envelope"}, "payload": payload}


def test_a_result_is_a_field_of_connects_schema_too() -> None:
    given = connect_record({"before": None, "after": {"body": "some text"}})
    value = json.dumps(given).encode()
    assert TextSource.parse("/after/body").read(read_json(value)) == "some text"
    added = json.loads(add_json(add_json(value, Pointer.parse("/after/v"), VECTOR), Pointer.parse("/after/v"), VECTOR))
    assert added["payload"] == {"before": None, "after": {"body": "some text", "v": json.loads(SHOWN)}}
    before, after = added["schema"]["fields"]
    assert before == given["schema"]["fields"][0]
    field = {"type": "array", "items": {"type": "float"}, "optional": True, "field": "v"}
    assert after == {**given["schema"]["fields"][1], "fields": [{"type": "string", "field": "body"}, field]}


def test_results_of_every_shape_have_a_schema() -> None:
    from penstock.worker.routes.connect_json import schema_of

    classes = {"label": "a", "score": np.float32(0.5), "labels": ["a", "b"], "n": 3, "bits": np.ones(2, np.uint8)}
    fields = [(one["field"], one["type"], one.get("items")) for one in schema_of(classes)["fields"]]
    assert fields == [
        ("label", "string", None),
        ("score", "float", None),
        ("labels", "array", {"type": "string"}),
        ("n", "int64", None),
        ("bits", "array", {"type": "int64"}),
    ]


@pytest.mark.parametrize("schema", [{}, {"fields": 3}, {"fields": [3]}, {"type": "string"}])
def test_a_schema_without_the_struct_of_its_payload_is_refused(schema: Any) -> None:
    value = json.dumps({"schema": schema, "payload": {"after": {"body": "x"}}}).encode()
    with pytest.raises(InvalidRequest, match="schema"):
        add_json(value, Pointer.parse("/after/v"), VECTOR)


@pytest.mark.parametrize(
    ("source", "document", "text"),
    [
        ("/a/b", {"a": {"b": "x"}}, "x"),
        ("b", {"a": {"b": "x"}}, None),
        ("/a~1b/0", {"a/b": ["x"]}, "x"),
        ("/a/1", {"a": ["x"]}, None),
        ("{title}: {/a/b}", {"title": "T", "a": {"b": "x"}}, "T: x"),
        ("{title}: {body}", {"title": "T", "body": None}, "T: "),
        ("{title}: {body}", {"other": 1}, None),
        ("{{{title}}}", {"title": "T"}, "{T}"),
        ("a", ["x"], None),
        ("a", "x", None),
        ("a", {"a": ""}, ""),
    ],
)
def test_where_a_text_is(source: str, document: Any, text: str | None) -> None:
    assert TextSource.parse(source).read(document) == text


@pytest.mark.parametrize("value", [1, 1.5, True, [], ["x"], {}])
def test_what_is_no_text_is_refused(value: Any) -> None:
    with pytest.raises(InvalidRequest, match="must be a string"):
        TextSource.parse("/a").read({"a": value})


@pytest.mark.parametrize("source", ["/after/body", "{/after/title}: {/after/body}", "Its body: {/after/body}"])
def test_a_long_text_that_a_change_event_lacks_is_refused_also_in_a_template(source: str) -> None:
    document = {"after": {"title": "a", "body": "__debezium_unavailable_value"}}
    with pytest.raises(InvalidRequest, match=r"'/after/body'.* REPLICA IDENTITY"):
        TextSource.parse(source).read(document)


@pytest.mark.parametrize("source", ["{", "{}", "{a!r}", "{a:>3}", "}", "/a~2", "{a} {/b~}", "{{a}}"])
def test_a_source_that_is_none_is_refused(source: str) -> None:
    with pytest.raises(ValueError, match="must be"):
        TextSource.parse(source)


def test_a_payload_of_connect_without_a_schema_gets_its_result_without_one() -> None:
    value = b'{"schema": null, "payload": {"text": "w"}}'
    assert read_json(value) == {"text": "w"}
    added = add_json(value, Pointer.parse("result"), VECTOR)
    assert added == b'{"schema":null,"payload":{"text":"w","result":' + SHOWN + b"}}"
