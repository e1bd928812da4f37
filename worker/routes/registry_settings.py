"""The settings of a schema registry, of whose schemas records of routes have the ids."""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr, model_validator

from penstock.producer.settings_sources import FileSettings
from penstock.producer.tls import tls_context

_LIBRARIES = ("confluent_kafka", "fastavro", "grpc_tools", "httpx2")  # of the extra `registry`
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def _check_urls(urls: str | None) -> str | None:
    for one in [] if urls is None else urls.split(","):
        try:
            url = urlsplit(one.strip())
        except ValueError:  # its message may quote a password
            raise ValueError("must be a URL, or several separated by commas") from None
        if url.scheme not in ("https", "http") or not url.hostname:
            raise ValueError("must begin with https:// or http://; several URLs are separated by commas")
        if "@" in url.netloc + url.path or url.query:
            raise ValueError("must not hold a user, a password or a query: give schema_registry_username and _password")
    return urls


class RegistrySettings(FileSettings):
    """Where schemas are, and how the worker authenticates there."""

    table: ClassVar[str] = "worker"

    schema_registry_url: Annotated[str | None, AfterValidator(_check_urls)] = Field(
        None,
        description="Schema registry with Confluent's interface, for routes in Avro, Protobuf or JSON Schema: one URL, "
        "or several of one registry, separated by commas. Needs the extra registry.",
    )
    schema_registry_username: str | None = Field(None, description="User at the schema registry.")
    schema_registry_password: SecretStr | None = Field(
        None, description="Password at the schema registry. Use the environment variable: other users see arguments."
    )
    schema_registry_token: SecretStr | None = Field(
        None, description="Bearer token for the schema registry, in place of user and password."
    )
    schema_registry_ca_location: Path | None = Field(
        None,
        description="PEM file of the certificate authorities that sign the schema registry's certificate. Default: "
        "those of certifi, or the file that SSL_CERT_FILE names.",
    )

    @model_validator(mode="after")
    def _check_registry(self) -> Self:
        given = [
            name
            for name, value in self
            if name.startswith("schema_registry_") and value is not None and name != "schema_registry_url"
        ]
        if self.schema_registry_url is None:
            if given:
                raise ValueError(f"{', '.join(given)}: no effect without schema_registry_url")
            return self
        if (self.schema_registry_username is None) != (self.schema_registry_password is None):
            raise ValueError("schema_registry_username and schema_registry_password: give both, or neither")
        has_secret = self.schema_registry_password is not None or self.schema_registry_token is not None
        if self.schema_registry_password is not None and self.schema_registry_token is not None:
            raise ValueError("schema_registry_password and schema_registry_token: give one of them")
        if has_secret and not all(map(_is_private, self.schema_registry_url.split(","))):
            raise ValueError(
                "schema_registry_url: must begin with https: unless its host is this machine: http: does not encrypt "
                "the secret"
            )
        if missing := [name for name in _LIBRARIES if find_spec(name) is None]:
            raise ValueError(f"schema_registry_url: {missing[0]} is not installed: pip install 'penstock[registry]'")
        if self.schema_registry_ca_location is not None:
            _check_ca(self.schema_registry_ca_location)
        return self

    @property
    def registry_client(self) -> dict[str, Any]:
        """The configuration of confluent-kafka's client. Only for settings with a URL."""
        client: dict[str, Any] = {"url": self.schema_registry_url}
        if self.schema_registry_ca_location is not None:
            client["ssl.ca.location"] = str(self.schema_registry_ca_location)
        if self.schema_registry_password is not None:
            secret = self.schema_registry_password.get_secret_value()
            client["basic.auth.user.info"] = f"{self.schema_registry_username}:{secret}"
        if self.schema_registry_token is not None:
            client |= {
                "bearer.auth.credentials.source": "STATIC_TOKEN",
                "bearer.auth.token": self.schema_registry_token.get_secret_value(),
                "bearer.auth.logical.cluster": "",
            }
        return client


def _is_private(url: str) -> bool:
    found = urlsplit(url.strip())
    return found.scheme == "https" or found.hostname in _LOOPBACK


def _check_ca(ca: Path) -> None:
    try:
        tls_context(ca=ca, certificate=None, key=None, key_password="", check_hostname=True)
    except ValueError as error:
        raise ValueError(f"schema_registry_{str(error).removeprefix('ssl_')}") from error
