"""Whether a fleet serves a job's model, asked of a mock broker, which tells of topics and of no group."""

from typing import Any

from aiokafka import AIOKafkaConsumer

from penstock.ops.cli.jobs.classify import ClassifySettings
from penstock.ops.cli.jobs.fleet_probe import missing_fleet
from penstock.ops.kafka import MockBroker
from penstock.producer.wire.topics import bulk_topic, request_topic
from tests.ops.test_cli import no_settings_from_outside

__all__ = ["no_settings_from_outside"]  # a fixture that is used by being here


async def fault_of(**given: Any) -> str:
    return await missing_fleet(ClassifySettings(**given))


async def test_a_model_that_no_worker_has_served_is_missing_on_a_mock_broker() -> None:
    with MockBroker() as broker:
        servers = broker.bootstrap_servers
        async with AIOKafkaConsumer(bulk_topic(request_topic("mini")), bootstrap_servers=servers):  # as a worker does
            assert await fault_of(model="mini", bootstrap_servers=servers) == ""
        fault = await fault_of(model="typo", bootstrap_servers=servers)
        assert fault.startswith(
            f"No worker serves 'typo' at {servers}: there is no topic penstock.requests.typo.bulk. Start one"
        )
