"""`penstock broker`: Kafka for development, in the foreground."""

import time
from collections.abc import Callable
from typing import Literal

from pydantic import Field

from penstock.ops.cli.setting_options import takes
from penstock.ops.cli.terminal import EXIT_PROBLEM, fail, say
from penstock.ops.kafka import KafkaBroker, MockBroker
from penstock.ops.kafka.ports import is_free
from penstock.producer.settings_sources import Settings

DEFAULT_PORT = 9092  # that of a client and a worker without settings
MOCK_FETCH_MAX_WAIT_MS = 5  # the mock holds each fetch for this time, even if there are records
ABOUT = {
    "kafka": "A real Apache Kafka of one node. Its data is removed when it stops.",
    "mock": "librdkafka's mock, for development only. It stores nothing on disk, drops the oldest records beyond 5 MB "
    "per partition, and serves one worker at a time.",
}


class BrokerSettings(Settings):
    """Settings of the local broker."""

    kind: Literal["kafka", "mock"] = Field(
        "mock", description="mock: starts at once, needs no Java. kafka: Apache Kafka, needs Java 17 and Maven."
    )
    port: int | None = Field(
        None, ge=1, le=65535, description=f"Port of 127.0.0.1. Default: {DEFAULT_PORT}, or a free one if it is taken."
    )


def default_port(is_free: Callable[[int], bool]) -> int | None:
    """The port of a broker without `--port`; None: any that is free."""
    return DEFAULT_PORT if is_free(DEFAULT_PORT) else None


@takes(BrokerSettings)
def broker(settings: BrokerSettings) -> int:
    """Run a Kafka broker for development on this machine until Ctrl-C."""
    if settings.kind == "kafka":
        say("Starting Kafka. The first start downloads its jars with Maven.")
    if settings.port is not None and not is_free(settings.port):
        fail(f"Port {settings.port} of 127.0.0.1 is taken. Give another --port, or none.")
        return EXIT_PROBLEM
    port = settings.port or default_port(is_free)
    if port is None:
        say(f"Port {DEFAULT_PORT} is taken, so this Kafka has another.", "yellow")
    with KafkaBroker(port=port) if settings.kind == "kafka" else MockBroker(port) as running:
        say(f"Kafka is at {running.bootstrap_servers}", "bold")
        say(ABOUT[settings.kind])
        say("In other terminals:")
        say(f"  export PENSTOCK_BOOTSTRAP_SERVERS={running.bootstrap_servers}")
        if settings.kind == "mock":
            say(f"  export PENSTOCK_FETCH_MAX_WAIT_MS={MOCK_FETCH_MAX_WAIT_MS} PENSTOCK_PROCESSES=1")
        say("Ctrl-C stops it.")
        while not isinstance(running, KafkaBroker) or running.pid is not None:
            time.sleep(0.5)  # Python sees a signal that comes just before a wait only after it
        fail(
            "Kafka has ended by itself, and its data is removed. Something has killed it, or its memory was too small."
        )
        return EXIT_PROBLEM
