"""Records without a text: passed as they are, passed with a null, or rejected. Deletes are always passed."""

import json
from typing import Any, Literal

import pytest

from penstock.engine import NullEngine
from penstock.producer.errors import InvalidRequest
from penstock.worker.routes.route import Route
from penstock.worker.routes.settings import RouteSettings

Missing = Literal["pass", "null", "reject"]


def route(missing: Missing) -> Route:
    given: Any = {"text": "/after/body", "result_field": "/after/v", "missing_text": missing}
    settings = RouteSettings(input_topic="in", output_topic="out", **given)
    return Route(settings, NullEngine(4, name="null", vocab_size=100).info, None)


def connect(payload: Any) -> bytes:
    row = {"type": "struct", "fields": [{"type": "string", "field": "body"}], "optional": True, "field": "after"}
    return json.dumps({"schema": {"type": "struct", "fields": [row]}, "payload": payload}).encode()


DELETES = [
    b"null",
    b'{"before": {"body": ""}, "after": null, "op": "d"}',
    connect({"after": None}),
    connect(None),
]
WITHOUT_TEXT = [b'{"after": {"body": null}}', b'{"after": {}}', connect({"after": {"body": None}})]


@pytest.mark.parametrize("missing", ["pass", "null", "reject"])
@pytest.mark.parametrize("value", DELETES)
def test_a_delete_is_passed_as_it_is(value: bytes, missing: Missing) -> None:
    made = route(missing)
    assert made.request(value) is None
    assert made.passed(value) == value
    assert made.passed(None) is None


@pytest.mark.parametrize("value", WITHOUT_TEXT)
def test_a_row_without_a_text_is_passed_with_a_null_or_rejected(value: bytes) -> None:
    assert route("pass").request(value) is None
    assert route("pass").passed(value) == value
    assert route("null").request(value) is None
    before, after = json.loads(value), json.loads(route("null").passed(value) or b"")
    before.get("payload", before)["after"]["v"] = None
    assert after.get("payload", after) == before.get("payload", before)
    with pytest.raises(InvalidRequest, match="no text"):
        route("reject").request(value)


def test_a_null_has_the_type_that_a_result_would_have() -> None:
    value = connect({"after": {"body": None}})
    made = route("null")
    (null,) = json.loads(made.passed(value) or b"")["schema"]["fields"]
    (vector,) = json.loads(made.format.write(value, [0.5]))["schema"]["fields"]
    assert null == vector
    assert null["fields"][-1] == {"type": "array", "items": {"type": "float"}, "optional": True, "field": "v"}


def test_a_null_without_a_place_is_refused() -> None:
    value = json.dumps({"schema": {"type": "string"}, "payload": {"after": {"body": None}}}).encode()
    with pytest.raises(InvalidRequest, match="no struct"):
        route("null").passed(value)
