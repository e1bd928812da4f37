"""Settings of a schema registry: what is refused, and what is never shown."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from penstock.worker import WorkerSettings

URL = "https://registry.example.com"
ROUTE = {"model": "m", "input_topic": "a", "output_topic": "b", "text": "t", "record_format": "avro"}


def made(**values: Any) -> WorkerSettings:
    return WorkerSettings(**{**ROUTE, "schema_registry_url": URL, **values})


def test_secrets_reach_the_client_and_nothing_else() -> None:
    settings = made(schema_registry_username="me", schema_registry_password="hidden")
    assert settings.registry_client == {"url": URL, "basic.auth.user.info": "me:hidden"}
    assert "hidden" not in str(settings.model_dump(mode="json")) + repr(settings)
    settings = made(schema_registry_token="hidden")
    assert settings.registry_client["bearer.auth.token"] == "hidden"
    assert "hidden" not in str(settings.model_dump(mode="json")) + repr(settings)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"schema_registry_url": None}, "schema_registry_url is the registry of routes"),
        ({"record_format": "json"}, "schema_registry_url is the registry of routes"),
        ({"schema_registry_url": "registry:8081"}, "must begin with https"),
        ({"schema_registry_url": "https://me:hidden@registry"}, "must not hold a user"),
        ({"schema_registry_username": "me"}, "give both, or neither"),
        ({"schema_registry_url": "http://registry", "schema_registry_token": "hidden"}, "does not encrypt"),
        (
            {"schema_registry_token": "a", "schema_registry_username": "b", "schema_registry_password": "c"},
            "give one of them",
        ),
        ({"schema_registry_ca_location": Path("none.pem")}, "schema_registry_ca_location: no certificates"),
        ({"output_format": "protobuf"}, "output_format must be json, or the format of the records"),
        ({"record_format": "json", "output_format": "json-schema"}, "of the records: json, or avro, or protobuf"),
        (
            {"record_format": "json", "output_format": "avro", "schema_registry_url": None},
            "schema_registry_url is the registry of routes",
        ),
    ],
)
def test_settings_that_do_not_fit_are_refused_and_show_no_secret(values: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason) as refused:
        made(**values)
    assert "hidden" not in str(refused.value)


@pytest.mark.parametrize("output_format", ["avro", "protobuf"])
@pytest.mark.parametrize("given", [{"record_format": "json"}, {"record_format": "text", "text": None}])
def test_a_route_that_writes_with_schemas_has_a_registry(output_format: str, given: dict[str, Any]) -> None:
    assert made(output_format=output_format, **given).all_routes[0].has_schemas


def test_a_token_is_taken_by_the_client() -> None:
    from penstock.worker.routes.schema_registry import SchemaRegistry

    SchemaRegistry(made(schema_registry_token="hidden").registry_client)
