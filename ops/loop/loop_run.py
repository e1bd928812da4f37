"""One run: start all parts, write rows while the worker is killed, wait until the tables agree, and judge."""

import asyncio
import contextlib
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psycopg
from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec  # type: ignore[attr-defined]  # without saying so

from penstock.ops.bench.load.records import Record, read_topics
from penstock.ops.demo.banking77 import read_messages
from penstock.ops.demo.worker_child import WorkerProcess
from penstock.ops.kafka import KafkaBroker
from penstock.ops.loop.connect import ConnectWorker
from penstock.ops.loop.loop_settings import (
    INPUT_TOPIC,
    OUTPUT_TOPIC,
    RESULT,
    ROUTE,
    TARGET_TABLE,
    LoopSettings,
    sink_config,
    source_config,
)
from penstock.ops.loop.postgres import PostgresServer
from penstock.ops.loop.reference import Reference
from penstock.ops.loop.tables import SourceWriter, create_tables, different_rows
from penstock.ops.loop.verdict import Verdict

_LOOK_EVERY_S = 0.5
_NUM_QUERIES = 50
_CHANGES_PER_ROW = 0.5


class LoopFailed(Exception):
    """The loop did not come to rest. The message says how far it is."""


class LoopRun:
    """Makes one run, with the parts started already: `run_loop` starts them."""

    def __init__(
        self,
        settings: LoopSettings,
        broker: KafkaBroker,
        postgres: PostgresServer,
        connect: ConnectWorker,
        reference: Reference,
        folder: Path,
        say: Callable[[str], None],
    ) -> None:
        """`folder` is empty, and gets the worker's logs. `say` gets a line for each phase."""
        self._settings, self._folder, self._say = settings, folder, say
        self._servers = broker.bootstrap_servers
        self._postgres, self._connect, self._reference = postgres, connect, reference
        self._verdict = Verdict()
        self._admin = AdminClient({"bootstrap.servers": self._servers})
        self._texts = [message.text for message in read_messages()]
        self._ends = time.monotonic() + settings.timeout_s
        self._num_workers = 0

    async def run(self) -> Verdict:
        """Run, and judge. Raises LoopFailed where it does not come to rest, BrokerFailed where a connector ends."""
        settings, started, reference = self._settings, time.monotonic(), self._reference
        with self._postgres.connect() as connection:
            create_tables(connection, reference.dimension)
            self._create_topics()
            writer = SourceWriter(connection, self._texts, settings.seed)
            await asyncio.to_thread(writer.write, *self._part())  # Debezium reads these in a snapshot
            await asyncio.to_thread(self._add_connectors)
            await self._write_and_kill(writer)
            self._verdict.figures |= {"changes": writer.num_changes, "kills": settings.kills}
            async with self._worker() as worker:
                self._say("waiting until the tables agree")
                await worker.while_alive(self._come_to_rest(connection))
            self._verdict.figures["seconds"] = round(time.monotonic() - started, 1)
            self._say("judging")
            await asyncio.to_thread(self._judge, connection)
        return self._verdict

    def _part(self) -> tuple[int, int]:
        """Rows and changes of each part: before the source, for each worker that is killed, and for the last one."""
        rows = self._settings.rows // (self._settings.kills + 2)
        return rows, round(rows * _CHANGES_PER_ROW)

    def _create_topics(self) -> None:
        topics = [NewTopic(name, self._settings.partitions, 1) for name in (INPUT_TOPIC, OUTPUT_TOPIC)]
        for created in self._admin.create_topics(topics).values():
            created.result()

    def _add_connectors(self) -> None:
        self._connect.add("source", source_config(self._postgres.port))
        self._connect.add("sink", sink_config(self._postgres.port))

    async def _write_and_kill(self, writer: SourceWriter) -> None:
        """Write a part for each worker, and kill the worker as soon as it has computed some; then write the last part.

        The last change is a row: where the target has it, Debezium has sent all changes before it.
        """
        for kill in range(self._settings.kills):
            async with self._worker() as worker:
                writing = asyncio.create_task(asyncio.to_thread(writer.write, *self._part()))
                await worker.while_alive(_until_computing(worker))
                os.kill(worker.pid, signal.SIGKILL)
                waiting = self._num_written(INPUT_TOPIC) - self._num_written(OUTPUT_TOPIC)
                self._say(f"worker killed, {kill + 1} of {self._settings.kills}, with {waiting} records or more to do")
                await writing
        await asyncio.to_thread(writer.write, *self._part())
        await asyncio.to_thread(writer.write, 1, 0)

    @contextlib.asynccontextmanager
    async def _worker(self) -> AsyncIterator[WorkerProcess]:
        self._num_workers += 1
        values = {
            "model": self._settings.model,
            "bootstrap-servers": self._servers,
            "delivery": "exactly_once",
            "dtype": "float32",
            "cost-path": self._folder / "costs.sqlite",
            "cache-path": self._folder / "answers.sqlite",
            "log-format": "json",
            **ROUTE,
        }
        arguments = [part for name, value in values.items() for part in (f"--{name}", str(value))]
        async with WorkerProcess(arguments, self._folder / f"worker-{self._num_workers}.log") as worker:
            yield worker

    def _num_written(self, topic: str) -> int:
        """Records of a topic, with those of open and aborted transactions, and with their markers."""
        end = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        asked = {TopicPartition(topic, n): end for n in range(self._settings.partitions)}
        found = self._admin.list_offsets(asked, isolation_level=IsolationLevel.READ_UNCOMMITTED)
        return sum(one.result().offset for one in found.values())

    async def _come_to_rest(self, connection: psycopg.Connection) -> None:
        """Wait until the tables agree, and each input record has an output record. Else the verdict says what has not.

        Raises LoopFailed if the tables do not agree in time.
        """
        while (different := different_rows(connection)) or not await asyncio.to_thread(self._is_all_committed):
            if time.monotonic() > self._ends:
                if not different:
                    return
                raise LoopFailed(f"{len(different)} rows differ, the first of them {different[:10]}.")
            for name in ("source", "sink"):
                await asyncio.to_thread(self._connect.is_running, name)
            await asyncio.sleep(_LOOK_EVERY_S)

    def _is_all_committed(self) -> bool:
        counts = [sum(1 for _ in self._read(topic)) for topic in (INPUT_TOPIC, OUTPUT_TOPIC)]
        return counts[0] == counts[1]

    def _read(self, topic: str) -> Iterator[Record]:
        return read_topics(self._servers, [topic], "read_committed")

    def _judge(self, connection: psycopg.Connection) -> None:
        verdict, reference = self._verdict, self._reference
        verdict.check_records(self._read(INPUT_TOPIC), self._read(OUTPUT_TOPIC))
        statement = f"SELECT id, body, {RESULT}::real[] FROM {TARGET_TABLE} WHERE {RESULT} IS NOT NULL ORDER BY id"
        ids, texts, vectors = zip(*connection.execute(statement).fetchall(), strict=True)
        expected = reference.encode(texts)
        verdict.check_vectors(ids, np.array(vectors, np.float32), expected)
        queries = random.Random(self._settings.seed).sample(self._texts, _NUM_QUERIES)
        verdict.check_neighbours(connection, ids, expected, reference.encode(queries))


async def _until_computing(worker: WorkerProcess) -> None:
    while not worker.events("batch_done"):  # noqa: ASYNC110 — a log has no event to wait for
        await asyncio.sleep(_LOOK_EVERY_S)


def run_loop(settings: LoopSettings, folder: Path, say: Callable[[str], None] = lambda _: None) -> Verdict:
    """Start all parts, run, and end them; see `LoopRun`. `folder` is empty, and gets the worker's logs.

    Raises:
        BrokerError: a part cannot be had or started, or a connector has failed.
        WorkerFailed: the worker ended by itself.
        LoopFailed: the tables do not agree in time.
    """
    say("starting Kafka, PostgreSQL and Kafka Connect")
    with (
        ThreadPoolExecutor(1) as pool,
        KafkaBroker() as broker,
        PostgresServer() as postgres,
    ):
        loading = pool.submit(Reference, settings.model)
        with ConnectWorker(broker.bootstrap_servers) as connect:
            return asyncio.run(LoopRun(settings, broker, postgres, connect, loading.result(), folder, say).run())
