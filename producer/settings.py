"""Settings of Kafka connections and of clients."""

from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from penstock.producer.wire.topics import (
    REPLY_TOPIC,
    check_request_topic,
    check_served_name,
    check_topic,
    served_name_of,
)

RequestTopic = Annotated[str | None, AfterValidator(check_request_topic)]


def _check_addresses(servers: str) -> str:
    for server in servers.split(","):
        host, _, port = server.strip().rpartition(":")
        if not host or "@" in host or not (port.isdigit() and 0 < int(port) < 65536):
            raise ValueError("must be host:port, several separated by commas")
    return servers


class Settings(BaseSettings):
    """Base of all settings. Each field is also an environment variable: PENSTOCK_ and its name in capitals."""

    model_config = SettingsConfigDict(env_prefix="PENSTOCK_", env_ignore_empty=True, frozen=True, extra="forbid")


class KafkaSettings(Settings):
    """Connection settings."""

    bootstrap_servers: Annotated[str, AfterValidator(_check_addresses)] = Field(
        "localhost:9092", description="Kafka brokers, host:port, separated by commas."
    )
    fetch_max_wait_ms: int = Field(
        500,
        ge=1,
        le=60_000,
        description="Longest time a broker delays an empty fetch. librdkafka's mock delays each: 5 there.",
    )


class ClientSettings(KafkaSettings):
    """Settings of a client."""

    model: Annotated[str, AfterValidator(served_name_of), AfterValidator(check_served_name)] = Field(
        description="The model's served name, or its checkpoint's path or id, whose last part is the name."
    )
    topic: RequestTopic = Field(None, description="Request topic. Default: penstock.requests.<model>.")
    reply_topic: Annotated[str, AfterValidator(check_topic)] = Field(
        REPLY_TOPIC, description="Topic on which replies are read."
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
