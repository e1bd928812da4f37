"""Sends support messages as JSON, and prints the enriched ones with their similarity to the first.

python support.py SERVERS < messages.jsonl
"""

import asyncio
import json
import sys
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

INPUT, OUTPUT = "support.messages", "support.messages.enriched"
TIMEOUT_S = 120


async def main(servers: str, messages: dict[bytes, bytes]) -> None:
    found: dict[bytes, dict[str, Any]] = {}
    enriched = AIOKafkaConsumer(
        OUTPUT, bootstrap_servers=servers, auto_offset_reset="earliest", metadata_max_age_ms=500
    )
    async with asyncio.timeout(TIMEOUT_S), AIOKafkaProducer(bootstrap_servers=servers) as producer, enriched:
        for key, message in messages.items():
            await producer.send_and_wait(INPUT, message, key)
        while len(found) < len(messages):
            record = await enriched.getone()
            if record.key in messages:
                found[record.key] = json.loads(record.value)
    first = next(iter(messages))
    for key in messages:
        pairs = zip(found[first]["embedding"], found[key]["embedding"], strict=True)
        print(f"{sum(a * b for a, b in pairs):.3f}  {found[key]['subject']}")


if __name__ == "__main__":
    lines = [line.encode() for line in sys.stdin.read().splitlines()]
    asyncio.run(main(sys.argv[1], {str(json.loads(line)["id"]).encode(): line for line in lines}))
