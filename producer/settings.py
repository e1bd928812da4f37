"""Settings of Kafka connections and of clients."""

import os
import shlex
import ssl
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, model_validator

from penstock.producer.keywords import IsolationLevel
from penstock.producer.secret_url import SecretUrl
from penstock.producer.settings_sources import FileSettings
from penstock.producer.tls import tls_context
from penstock.producer.wire.topics import (
    REPLY_TOPIC,
    check_request_topic,
    check_served_name,
    check_topic,
    served_name_of,
)

MSK_SIGNER = "aws_msk_iam_sasl_signer"  # a module of the extra `msk`
TOKEN_MECHANISMS = ("OAUTHBEARER", "AWS_MSK_IAM")
_TOKEN_SOURCES = (
    "sasl_oauthbearer_token_file",
    "sasl_oauthbearer_token_command",
    "sasl_oauthbearer_token_endpoint_url",
)

RequestTopic = Annotated[str | None, AfterValidator(check_request_topic)]


def _check_addresses(servers: str) -> str:
    for server in servers.split(","):
        host, _, port = server.strip().rpartition(":")
        is_closed = host.startswith("[") == host.endswith("]") and host.count("[") == host.count("]") < 2
        if not host or "@" in host or not is_closed or not (port.isdecimal() and 0 < int(port) < 65536):
            raise ValueError("must be host:port, several separated by commas")
    return servers


def _upper(value: object) -> object:
    return value.upper() if isinstance(value, str) else value


def _check_token_url(secret: SecretUrl | None) -> SecretUrl | None:
    if secret is None:
        return None
    try:
        url = urlsplit(secret.get_secret_value())
    except ValueError:  # its message may quote a password
        raise ValueError("must be a URL") from None
    if url.scheme not in ("https", "http"):
        raise ValueError("must begin with https: or http:. A token's file is sasl_oauthbearer_token_file")
    if "@" in url.netloc + url.path:  # of the path: behind a password with a slash
        raise ValueError("must not hold a user or a password: give sasl_oauthbearer_client_id and _client_secret")
    if url.scheme == "http" and not _is_loopback(url.hostname or ""):
        raise ValueError("must begin with https: unless its host is this machine: http: does not encrypt the secret")
    return secret


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:  # a name
        return False


def _check_command(command: str | None) -> str | None:
    if command is not None and ("\0" in command or not shlex.split(command)):
        raise ValueError("must be a program and its arguments")
    return command


class KafkaSettings(FileSettings):
    """Connection settings. Those of security have librdkafka's names."""

    table: ClassVar[str] = "kafka"

    bootstrap_servers: Annotated[str, AfterValidator(_check_addresses)] = Field(
        "localhost:9092", description="Kafka brokers, host:port, separated by commas."
    )
    security_protocol: Annotated[Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"], BeforeValidator(_upper)] = (
        Field("PLAINTEXT", description="SSL: encrypted by TLS. SASL: with authentication.")
    )
    sasl_mechanism: Annotated[
        Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "AWS_MSK_IAM"] | None,
        BeforeValidator(_upper),
    ] = Field(None, description="How the connection authenticates. AWS_MSK_IAM needs the extra msk.")
    sasl_username: str | None = Field(None, description="User, for PLAIN and SCRAM.")
    sasl_password: SecretStr | None = Field(
        None, description="Password, for PLAIN and SCRAM. Use the environment variable: other users see arguments."
    )
    sasl_oauthbearer_token_file: Path | None = Field(
        None, description="For OAUTHBEARER: file of an access token, which is read for each connection."
    )
    sasl_oauthbearer_token_command: Annotated[str | None, AfterValidator(_check_command)] = Field(
        None,
        description="For OAUTHBEARER: a program and its arguments, which prints an access token. It is run without a "
        "shell. Logs show it.",
    )
    sasl_oauthbearer_token_endpoint_url: Annotated[SecretUrl | None, AfterValidator(_check_token_url)] = Field(
        None, description="For OAUTHBEARER: the identity provider's token endpoint. Its query is not shown."
    )
    sasl_oauthbearer_client_id: str | None = Field(None, description="Client id at the token endpoint.")
    sasl_oauthbearer_client_secret: SecretStr | None = Field(None, description="Client secret at the token endpoint.")
    sasl_oauthbearer_scope: str | None = Field(None, description="Scope that is requested at the token endpoint.")
    sasl_aws_region: str | None = Field(
        None, pattern="^[a-z0-9-]+$", description="For AWS_MSK_IAM: region of the cluster. Default: AWS_REGION."
    )
    ssl_ca_location: Path | None = Field(
        None, description="PEM file of the certificate authorities that sign the brokers. Default: the system's."
    )
    ssl_certificate_location: Path | None = Field(None, description="PEM file of the client's certificate.")
    ssl_key_location: Path | None = Field(None, description="PEM file of the client's private key.")
    ssl_key_password: SecretStr | None = Field(None, description="Password of the private key.")
    ssl_endpoint_identification_algorithm: Literal["https", "none"] = Field(
        "https", description="https: the certificate must name the broker's host. none: any host."
    )
    connect_timeout_s: float | None = Field(
        30.0,
        gt=0,
        le=1e6,
        description="Longest wait for Kafka to answer when a client or a command connects, and in a command that reads "
        "or sends records.",
    )
    fetch_max_wait_ms: int = Field(
        500,
        ge=1,
        le=60_000,
        description="Longest time for which a broker holds an empty fetch. librdkafka's mock holds every fetch: use 5 "
        "there.",
    )

    @property
    def uses_sasl(self) -> bool:
        return self.security_protocol.startswith("SASL_")

    @property
    def uses_tls(self) -> bool:
        return self.security_protocol.endswith("SSL")

    @property
    def aws_region(self) -> str | None:
        return self.sasl_aws_region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")

    @property
    def tls_files(self) -> list[Path]:
        """The files that `tls_context` reads."""
        files = (self.ssl_ca_location, self.ssl_certificate_location, self.ssl_key_location)
        return [file for file in files if file is not None]

    def tls_context(self) -> ssl.SSLContext:
        """Read the files of the `ssl_…` settings. Raises ValueError that names the setting at fault."""
        password = self.ssl_key_password
        return tls_context(
            ca=self.ssl_ca_location,
            certificate=self.ssl_certificate_location,
            key=self.ssl_key_location,
            key_password="" if password is None else password.get_secret_value(),
            check_hostname=self.ssl_endpoint_identification_algorithm == "https",
        )

    @model_validator(mode="after")
    def _check_security(self) -> Self:
        protocol = self.security_protocol
        for prefix, is_used in (("sasl_", self.uses_sasl), ("ssl_", self.uses_tls)):
            given = [name for name, value in self if name.startswith(prefix) and value not in (None, "https")]
            if given and not is_used:
                raise ValueError(f"{', '.join(given)}: no effect with security_protocol {protocol}")
        if self.uses_sasl:
            self._check_sasl()
        if (self.ssl_certificate_location is None) != (self.ssl_key_location is None):
            raise ValueError("ssl_certificate_location and ssl_key_location: give both, or neither")
        if self.uses_tls:
            self.tls_context()
        return self

    def _check_sasl(self) -> None:
        mechanism, needed = self.sasl_mechanism, ["sasl_username", "sasl_password"]
        if mechanism is None:
            raise ValueError(f"sasl_mechanism: needed with security_protocol {self.security_protocol}")
        if mechanism == "OAUTHBEARER":
            sources = [name for name in _TOKEN_SOURCES if getattr(self, name) is not None]
            if len(sources) != 1:
                raise ValueError(f"{', '.join(_TOKEN_SOURCES)}: give one of them with sasl_mechanism OAUTHBEARER")
            is_endpoint = sources == ["sasl_oauthbearer_token_endpoint_url"]
            needed = ["sasl_oauthbearer_client_id", "sasl_oauthbearer_client_secret"] if is_endpoint else []
        if mechanism == "AWS_MSK_IAM":
            needed = []
            if self.aws_region is None:
                raise ValueError("sasl_aws_region: needed with sasl_mechanism AWS_MSK_IAM, or AWS_REGION")
            if find_spec(MSK_SIGNER) is None:
                raise ValueError("sasl_mechanism AWS_MSK_IAM: its signer is not installed: pip install 'penstock[msk]'")
        missing = [name for name in needed if getattr(self, name) is None]
        if missing:
            raise ValueError(f"{', '.join(missing)}: needed with sasl_mechanism {mechanism}")


class ClientSettings(KafkaSettings):
    """Settings of a client."""

    table: ClassVar[str] = "client"

    model: Annotated[str, AfterValidator(served_name_of), AfterValidator(check_served_name)] = Field(
        description="The model's served name, or its checkpoint's path or id, whose last part is the name."
    )
    topic: RequestTopic = Field(None, description="Request topic. Default: penstock.requests.<model>.")
    reply_topic: Annotated[str, AfterValidator(check_topic)] = Field(
        REPLY_TOPIC, description="Topic on which replies are read."
    )
    isolation_level: IsolationLevel = Field(
        "read_uncommitted",
        description="Replies that are read. read_committed: of workers with delivery exactly_once, only those whose "
        "transactions are committed.",
    )
    timeout_s: float = Field(30.0, gt=0, description="Deadline of a call, in seconds; sent with the request.")
    max_in_flight: int = Field(512, ge=1, description="Most request records in flight at once; further records wait.")
    sequences_per_record: int = Field(
        64, ge=1, le=4096, description="Most sequences in one record, of one call or several."
    )
    batch_calls: bool = Field(
        True,
        description="Calls of one turn of the event loop share records, which raises throughput and delays no call. "
        "Off: each call has its own record.",
    )
    allow_mixed_revisions: bool = Field(
        False,
        description="Answers of one call, stream or job may come from several revisions of the model. Otherwise it "
        "ends with an error that names both.",
    )
