"""The alternative end to end: a FastStream batch subscriber around sentence-transformers.

It takes up to 64 records at a time and encodes them in a thread, so that the consumer's heartbeats continue. It answers
with one batch of records and acknowledges after that.
`python -m penstock.ops.bench.cpu.faststream_service <spec as JSON>`.
"""

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any

import uvloop

from penstock.engine.types import Float32Array
from penstock.ops.bench.cpu.plain_client import REPLIES, REQUESTS

_MAX_RECORDS = 64

Encode = Callable[[list[str]], Float32Array]


def encoder(model: str, dtype: str, cores: int) -> Encode:
    """sentence-transformers, warm."""
    import torch  # these take seconds to import, and only this process needs them
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(cores)
    transformer: Any = SentenceTransformer(model, device="cpu").to(getattr(torch, dtype))
    transformer.encode(["warm up"] * _MAX_RECORDS, show_progress_bar=False)
    return lambda texts: transformer.encode(texts, show_progress_bar=False)


async def serve(bootstrap_servers: str, encode: Encode, ack_policy: str = "ack", **subscriber: Any) -> None:
    """Runs until SIGTERM. `subscriber`: further arguments of FastStream's subscriber."""
    from faststream import AckPolicy, FastStream
    from faststream.kafka import KafkaBroker
    from pydantic import BaseModel

    class Request(BaseModel):
        id: str
        text: str

    # With the producer's default of 16 KiB, publish_batch raises for more than ten replies, and they are lost.
    broker = KafkaBroker(bootstrap_servers, max_batch_size=1 << 20, logger=None)

    async def answer(requests: list[Request]) -> None:
        vectors = await asyncio.to_thread(encode, [request.text for request in requests])
        replies = [request.id.encode() + row.tobytes() for request, row in zip(requests, vectors, strict=True)]
        await broker.publish_batch(*replies, topic=REPLIES)

    broker.subscriber(
        REQUESTS,
        batch=True,
        max_records=_MAX_RECORDS,
        group_id="plain",
        auto_offset_reset="earliest",
        ack_policy=AckPolicy(ack_policy),
        **subscriber,
    )(answer)
    await FastStream(broker, logger=None).run()


def main() -> None:
    spec = json.loads(sys.argv[1])
    encode = encoder(spec["model"], spec["dtype"], spec["cores"])
    uvloop.run(serve(spec["bootstrap_servers"], encode))


if __name__ == "__main__":
    main()
