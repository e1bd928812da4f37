"""JSON Schemas that cannot be derived from are refused with the reason."""

import pytest

from penstock.producer.errors import WrongArgument
from penstock.worker.routes.json_schema import JsonSchema
from penstock.worker.routes.pointer import Pointer


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("nope", "not JSON"),
        ("true", "must be an object"),
        ('{"properties": {"result": {}}}', "has a property 'result' already"),
        ('{"properties": {"a": ' * 300 + "{}" + "}}" * 300, "cannot be used"),
    ],
)
def test_a_schema_that_has_no_place_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(WrongArgument, match=reason):
        JsonSchema(text, Pointer(("result",)), "float")
