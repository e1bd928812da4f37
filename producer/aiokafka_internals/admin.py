"""aiokafka's admin client with the client that leaves brokers that hang, and with requests that it has no method for.

aiokafka (0.14) cannot take a member out of a group, and creates the topics that it describes. To go, it needs both as
methods, and what `client.py` and `committed_offsets.py` say.
"""

from typing import Any

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import for_code
from aiokafka.protocol.group import LeaveGroupRequest
from aiokafka.protocol.metadata import MetadataRequest

from penstock.producer.aiokafka_internals.client import FailoverClient
from penstock.producer.aiokafka_internals.committed_offsets import check_offsets


class FailoverAdmin(AIOKafkaAdminClient):  # type: ignore[misc]  # aiokafka has no type information
    """Used on one event loop."""

    _client: Any

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._client = FailoverClient(self._client)

    async def leave_group(self, coordinator: int, group_id: str, member_id: str) -> None:
        """Take a member out of its group. Raises UnknownMemberIdError if it is not in it, and other KafkaError."""
        left = await self._send_request_to_node(coordinator, LeaveGroupRequest(group_id, member_id))
        if left.error_code:
            raise for_code(left.error_code)

    async def num_partitions(self, topic: str) -> int:
        """Number of partitions of a topic, which is not created. Raises UnknownTopicOrPartitionError and KafkaError.

        Metadata is asked for by name: without names, a broker hides denied topics.
        """
        answer = await self._send_request(MetadataRequest([topic], allow_auto_topic_creation=False))
        (found,) = answer.to_object()["topics"]
        if found["error_code"]:
            raise for_code(found["error_code"])(topic)
        return len(found["partitions"])

    async def topic_config(self, topic: str, name: str) -> str:
        """The value of one property of a topic. Raises TopicAuthorizationFailedError and other KafkaError."""
        (answer,) = await self.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {name: None})])
        (found,) = answer.to_object()["resources"]
        if found["error_code"]:
            raise for_code(found["error_code"])(topic)
        (entry,) = found["config_entries"]
        return str(entry["config_value"])

    async def _send_request(self, request: Any, node_id: int | None = None) -> Any:
        answer = await super()._send_request(request, node_id)
        check_offsets(request, answer)
        return answer
