"""How to reach Kafka: the settings that clients and workers share."""

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
        if not host or not (port.isdigit() and 0 < int(port) < 65536):
            raise ValueError("must be host:port, several separated by commas")
    return servers


class Settings(BaseSettings):
    """Base of all settings: every field is also an environment variable, PENSTOCK_ and its name in capitals."""

    model_config = SettingsConfigDict(env_prefix="PENSTOCK_", env_ignore_empty=True, frozen=True, extra="forbid")


class KafkaSettings(Settings):
    """Connection settings."""

    bootstrap_servers: Annotated[str, AfterValidator(_check_addresses)] = Field(
        "localhost:9092", description="Kafka brokers, host:port, separated by commas."
    )
    fetch_max_wait_ms: int = Field(
        500, ge=1, description="Longest a broker holds back an empty fetch. librdkafka's mock holds every one: 5 there."
    )


class ClientSettings(KafkaSettings):
    """What a client needs to know besides its requests."""

    model: Annotated[str, AfterValidator(served_name_of), AfterValidator(check_served_name)] = Field(
        description="The model's served name: requests go to its request topic. Of a checkpoint's path or id, as "
        "workers take it, the last part counts."
    )
    topic: RequestTopic = Field(None, description="Request topic. Default: penstock.requests.<model>.")
    reply_topic: Annotated[str, AfterValidator(check_topic)] = Field(
        REPLY_TOPIC, description="Topic on which answers are awaited."
    )
    timeout_s: float = Field(30.0, gt=0, description="Deadline of a call, in seconds, sent along with the request.")
    max_in_flight: int = Field(
        512, ge=1, description="Most request records on their way at once, however many calls share one; more wait."
    )
    sequences_per_record: int = Field(
        64, ge=1, le=4096, description="Most sequences in one record, of one call or of several that share it."
    )
    gather: bool = Field(
        True,
        description="Calls made in the same turn of the event loop share records, which cost Kafka, client and worker "
        "less; none waits for another. Off: every call is a record of its own.",
    )
