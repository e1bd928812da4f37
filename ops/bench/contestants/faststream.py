"""The alternative through Kafka: FastStream batch subscribers around sentence-transformers, and their client.

A subscriber takes up to 64 records at a time and encodes them in a thread, so that the consumer's heartbeats continue.
It answers with one batch of records. The session timeout and the heartbeats are those of a worker.
`python -m penstock.ops.bench.contestants.faststream <spec as JSON>` is one member of their group: see `serve`.
"""

import asyncio
import contextlib
import itertools
import json
import secrets
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import uvloop
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from penstock.ops.bench.common.processes import ProcessFailed, module_command, start, stop, tail
from penstock.ops.bench.contestants.stand_in import Encode, poisonable, sleeping_encode
from penstock.ops.bench.load.client_process import UP_TIMEOUT_S, Call, ClientSpec
from penstock.ops.bench.load.load_bench import LoadBench, open_clients
from penstock.ops.bench.load.loads import Load
from penstock.ops.kafka import KafkaBroker
from penstock.producer.transport.cluster import KafkaCluster
from penstock.producer.transport.connection import ensure_topics

CLIENT = "contestants.faststream:connect"  # see ClientSpec
REQUESTS, REPLIES = "plain.requests", "plain.replies"
ID_BYTES = 16
ACK = "ack"  # after the answer. FastStream's default is "ack_first": every five seconds, answered or not
SUBSCRIBER = {"session_timeout_ms": 10_000, "heartbeat_interval_ms": 1000}
MAX_RECORDS = 64
_GROUP = "plain"
_LOOK_EVERY_S = 0.5  # FastStream's own supervisor looks as often for workers that have ended
_JOIN_TIMEOUT_S = 90.0


class FastStreamMembers:
    """Members of one group. A context manager: they have joined when it is entered, and end with it."""

    def __init__(
        self,
        servers: str,
        log: Path,
        *,
        count: int = 1,
        partitions: int = 1,
        ack_policy: str = ACK,
        model: Mapping[str, Any] | None = None,
    ) -> None:
        """`model`: its directory, dtype, and the cores that it may use; None: the stand-in, which sleeps."""
        self._servers = servers
        self._spec = {"bootstrap_servers": servers, "ack_policy": ack_policy, "model": model}
        self._count = count
        self._partitions = partitions
        self._log = log
        self._processes: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        if find_spec("faststream") is None:
            raise ProcessFailed("FastStream is not installed. Run: pip install 'penstock[bench]'")
        asyncio.run(_create_topics(self._servers, self._partitions))
        self._processes = [self._start() for _ in range(self._count)]
        self._wait_until_joined()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stop(self._processes)

    def watched(self) -> dict[str, int]:
        """Label -> process id."""
        return {f"member {index}": process.pid for index, process in enumerate(self._processes)}

    def kill_one(self) -> float:
        """Kill the oldest member with SIGKILL when all are in the group, and start another as a supervisor would.

        Returns the Unix time of the kill.
        """
        self._wait_until_joined()
        process, at = self._processes.pop(0), time.time()
        process.kill()
        process.wait()
        time.sleep(_LOOK_EVERY_S)
        self._processes.append(self._start())
        return at

    def _wait_until_joined(self) -> None:
        ends = time.monotonic() + _JOIN_TIMEOUT_S
        while asyncio.run(self._num_joined()) < self._count:
            if time.monotonic() > ends:
                raise ProcessFailed(f"FastStream had not joined after {_JOIN_TIMEOUT_S:.0f} s.\n{tail(self._log)}")
            time.sleep(_LOOK_EVERY_S)

    def _start(self) -> subprocess.Popen[str]:
        return start(module_command("contestants.faststream", self._spec), self._log)

    async def _num_joined(self) -> int:
        """Members of the group when all of them have their partitions."""
        admin = AIOKafkaAdminClient(bootstrap_servers=self._servers)
        await admin.start()
        try:
            (answer,) = await admin.describe_consumer_groups([_GROUP])
        except KafkaError:  # the broker makes the topic of the groups' offsets when the first member comes
            return 0
        finally:
            await admin.close()
        _, _, state, _, _, members, *_ = answer.groups[0]
        return len(members) if state == "Stable" else 0


@contextmanager
def open_faststream(
    broker: KafkaBroker, folder: Path, name: str, **members: Any
) -> Iterator[tuple[LoadBench, FastStreamMembers]]:
    """Members, and one client process for them. `members`: as of FastStreamMembers."""
    with (
        FastStreamMembers(broker.bootstrap_servers, folder / f"{name}.log", **members) as found,
        open_clients(broker, folder, name, found.watched, connect=CLIENT) as side,
    ):
        yield side, found


async def _create_topics(servers: str, partitions: int) -> None:
    await ensure_topics(KafkaCluster(servers), [REQUESTS], partitions)
    await ensure_topics(KafkaCluster(servers), [REPLIES], 1)


@asynccontextmanager
async def connect(spec: ClientSpec, load: Load) -> AsyncIterator[Call]:
    """A client with aiokafka alone. It sends JSON with an id; a reply is that id and the bytes of the vector."""
    prefix, ids = secrets.token_hex(ID_BYTES // 4), itertools.count()  # late replies to an earlier load are dropped
    expected: dict[str, asyncio.Future[bytes]] = {}
    async with (
        AIOKafkaProducer(bootstrap_servers=spec.bootstrap_servers) as producer,
        AIOKafkaConsumer(bootstrap_servers=spec.bootstrap_servers) as consumer,
    ):
        replies = TopicPartition(REPLIES, 0)
        consumer.assign([replies])
        await consumer.seek_to_end(replies)
        await consumer.position(replies)

        def take(reply: bytes) -> None:
            answer = expected.get(reply[:ID_BYTES].decode())
            if answer is not None and not answer.done():
                answer.set_result(reply[ID_BYTES:])

        async def read() -> None:
            while True:
                polled = await consumer.getmany(timeout_ms=1000)
                for record in itertools.chain.from_iterable(polled.values()):
                    take(record.value)

        async def call(texts: list[str]) -> list[str]:
            (text,) = texts
            request_id = f"{prefix}{next(ids):0{ID_BYTES // 2}x}"
            answer = expected[request_id] = asyncio.get_running_loop().create_future()
            await producer.send(REQUESTS, json.dumps({"id": request_id, "text": text}).encode())
            try:
                await asyncio.wait_for(answer, load.timeout_s)
            finally:
                del expected[request_id]
            return []

        reader = asyncio.create_task(read())
        try:
            await _until_answered(call)
            yield call
        finally:
            reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reader


async def _until_answered(call: Call) -> None:
    async with asyncio.timeout(UP_TIMEOUT_S):
        while not await _is_answered(call):
            pass


async def _is_answered(call: Call) -> bool:
    try:
        await call(["a text"])
    except TimeoutError:
        return False
    return True


def encoder(directory: str, dtype: str, cores: int) -> Encode:
    """sentence-transformers, warm."""
    import torch  # these take seconds to import, and only this process needs them
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(cores)
    transformer: Any = SentenceTransformer(directory, device="cpu").to(getattr(torch, dtype))
    transformer.encode(["warm up"] * MAX_RECORDS, show_progress_bar=False)
    return lambda texts: transformer.encode(texts, show_progress_bar=False)


async def serve(bootstrap_servers: str, encode: Encode, ack_policy: str) -> None:
    """One member, until SIGTERM."""
    from faststream import AckPolicy, FastStream
    from faststream.kafka import KafkaBroker as FastStreamBroker
    from pydantic import BaseModel

    class Request(BaseModel):
        id: str
        text: str

    # With the producer's default of 16 KiB, publish_batch raises for more than ten replies, and they are lost.
    broker = FastStreamBroker(bootstrap_servers, max_batch_size=1 << 20, logger=None)

    async def answer(requests: list[Request]) -> None:
        vectors = await asyncio.to_thread(encode, [request.text for request in requests])
        replies = [request.id.encode() + row.tobytes() for request, row in zip(requests, vectors, strict=True)]
        await broker.publish_batch(*replies, topic=REPLIES)

    broker.subscriber(
        REQUESTS,
        batch=True,
        max_records=MAX_RECORDS,
        group_id=_GROUP,
        auto_offset_reset="earliest",
        ack_policy=AckPolicy(ack_policy),
        session_timeout_ms=SUBSCRIBER["session_timeout_ms"],
        heartbeat_interval_ms=SUBSCRIBER["heartbeat_interval_ms"],
    )(answer)
    await FastStream(broker, logger=None).run()


def main(spec_json: str) -> None:
    """`spec_json`: see FastStreamMembers. A text of poison raises."""
    spec = json.loads(spec_json)
    encode = sleeping_encode if spec["model"] is None else poisonable(encoder(**spec["model"]))
    uvloop.run(serve(spec["bootstrap_servers"], encode, spec["ack_policy"]))


if __name__ == "__main__":
    main(sys.argv[1])
