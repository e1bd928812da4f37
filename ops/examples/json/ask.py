"""Embeds texts and prints the similarity of each to the first, with JSON and any Kafka client: nothing of penstock.

python ask.py SERVERS MODEL TEXT...
"""

import asyncio
import json
import sys
import uuid
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

REPLIES = TopicPartition("penstock.replies", 0)
TIMEOUT_S = 30


async def ask(servers: str, model: str, request: dict[str, Any]) -> dict[str, Any]:
    """The reply to one request, or its error."""
    call = uuid.uuid4().bytes
    headers = [
        ("kafka_correlationId", call),
        ("kafka_replyTopic", REPLIES.topic.encode()),
        ("kafka_replyPartition", REPLIES.partition.to_bytes(4, "big")),
    ]
    replies = AIOKafkaConsumer(bootstrap_servers=servers)
    async with asyncio.timeout(TIMEOUT_S), AIOKafkaProducer(bootstrap_servers=servers) as producer, replies:
        replies.assign([REPLIES])
        await replies.seek_to_end(REPLIES)  # before the request is sent: no reply can be missed
        await producer.send_and_wait(f"penstock.requests.{model}", json.dumps(request).encode(), headers=headers)
        async for record in replies:
            if dict(record.headers).get("kafka_correlationId") == call:
                reply: dict[str, Any] = json.loads(record.value)
                return reply
    raise AssertionError("The consumer has ended.")


async def main(servers: str, model: str, texts: list[str]) -> None:
    reply = await ask(servers, model, {"text": texts, "task": "embed", "opts": {"normalize": True}})
    if not reply["ok"]:
        sys.exit("{code}: {message}".format(**reply["error"]))
    first = reply["rows"][0]
    for vector, text in zip(reply["rows"], texts, strict=True):
        print(f"{sum(a * b for a, b in zip(first, vector, strict=True)):.3f}  {text}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
