"""The shared broker, worker processes and clients of the integration tests."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgpack
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from confluent_kafka.schema_registry import SchemaRegistryClient

from penstock.ops.cli.dead_letters.dead_letter import DeadLetter
from penstock.ops.demo.demo_model import model_directory
from penstock.ops.kafka import BrokerCluster, KafkaBroker
from penstock.producer.transport.cluster import KafkaCluster
from penstock.producer.wire.codec import encode_request
from penstock.producer.wire.headers import CORRELATION_ID, DEADLINE_MS, REPLY_TOPIC
from penstock.producer.wire.messages import Request, join_tokens
from penstock.producer.wire.topics import dead_letter_topic, request_topic
from penstock.worker.kafka.fetching.group import evict
from tests.integration.schema_registry import shared_registry
from tests.log_events import unlisted_in

ECHO = [str(Path(__file__).with_name("echo_worker.py"))]
PENSTOCK = ["-c", "from penstock.ops.cli.main import main; main()", "worker"]

Event = dict[str, Any]


class WorkerProcess:
    """A worker as an operator runs it, logging JSON to a file. With model "null" its engine is `EchoEngine`."""

    def __init__(self, log_path: Path, settings: dict[str, Any], program: list[str] | None = None) -> None:
        is_null = settings.setdefault("model", "null") == "null"
        settings.setdefault("partitions", 8)  # each costs the broker time
        options = {_variable(name): str(value) for name, value in settings.items()}
        self.log_path = log_path
        with log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, *(program or (ECHO if is_null else PENSTOCK))],
                env={**os.environ, "PENSTOCK_LOG_FORMAT": "json", **options},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def events(self, name: str | None = None) -> list[Event]:
        """The events logged so far, or those called `name`."""
        lines = self.log_path.read_text(errors="replace").splitlines()
        events = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
        return [event for event in events if name is None or event["event"] == name]

    async def event(self, name: str, timeout_s: float = 300.0, **values: Any) -> Event:
        """Wait for the first event called `name` that holds `values`."""
        return await self.until(
            lambda: next((e for e in self.events(name) if values.items() <= e.items()), None), name, timeout_s
        )

    async def ready(self) -> Self:
        """Wait until the worker has its partitions."""
        await self.event("partitions_assigned")
        return self

    async def exit_code(self, timeout_s: float = 300.0) -> int:
        """Wait for the end of the process. Returns the exit code."""
        return await asyncio.to_thread(self.process.wait, timeout_s)

    async def stop(self) -> None:
        """End it by SIGTERM, without an error."""
        self.process.terminate()
        assert await self.exit_code() == 0

    async def until(self, look: Callable[[], Event | None], what: str, timeout_s: float) -> Event:
        """Wait until `look` finds something. Fails with the end of the log if the process ends first."""
        deadline = time.monotonic() + timeout_s
        while (found := look()) is None:
            if self.process.poll() is not None and look() is None:
                raise AssertionError(f"The worker ended ({self.process.returncode}) without {what}:\n{self.tail()}")
            if time.monotonic() > deadline:
                raise AssertionError(f"No {what} after {timeout_s} s:\n{self.tail()}")
            await asyncio.sleep(0.05)
        return found

    def tail(self) -> str:
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-30:])

    @property
    def cpu_s(self) -> float:
        """Processor time used so far, user and system, in seconds."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _variable(setting: str) -> str:
    return setting.upper() if setting.startswith("echo_") else f"PENSTOCK_{setting.upper()}"


Unique = Callable[[str], str]  # a name for a purpose
Post = Callable[..., Coroutine[Any, Any, list[Event]]]
Committed = Callable[[KafkaBroker, str], Awaitable[dict[TopicPartition, int]]]
CountRecords = Callable[[KafkaBroker, str], Awaitable[int]]
StartWorker = Callable[..., WorkerProcess]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.integration)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """The shared broker ends with the last test of this folder: idle, it takes time from all other tests."""
    if nextitem is None or Path(__file__).parent not in nextitem.path.parents:
        _RUNNING.close()


def pytest_sessionfinish() -> None:
    """Where a run ends early."""
    _RUNNING.close()


_RUNNING = contextlib.ExitStack()  # the shared broker, while it runs


@cache
def shared_broker() -> KafkaBroker:
    """A machine that stands still for less than its session costs it no leader and no coordinator."""
    _RUNNING.callback(shared_broker.cache_clear)
    return _RUNNING.enter_context(KafkaBroker(num_partitions=4, config={"broker.session.timeout.ms": "60000"}))


@pytest.fixture(scope="module")
def kafka() -> KafkaBroker:
    """The shared broker of this process. A test that stops or kills a broker starts its own `KafkaBroker` instead."""
    return shared_broker()


@pytest.fixture(scope="session")
def registry_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of the schema registry of all test processes. Subjects are the names of topics, which are unique."""
    own = tmp_path_factory.getbasetemp()
    with shared_registry(own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) as url:
        yield url


@pytest.fixture
def registry(registry_url: str) -> Iterator[SchemaRegistryClient]:
    """A user's client of the schema registry."""
    with SchemaRegistryClient({"url": registry_url}) as client:
        yield client


@pytest.fixture(autouse=True)
def patient_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls without a timeout of their own outlast a machine that stands still, and the start of a worker."""
    monkeypatch.setenv("PENSTOCK_TIMEOUT_S", "300")


@pytest.fixture
def unique() -> Unique:
    """Names that are unique on the shared broker: `unique("requests")` is a topic or group of this test alone."""
    return lambda purpose: f"{purpose}-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def start_worker(tmp_path: Path) -> Iterator[StartWorker]:
    """`start_worker(kafka, max_wait_ms=1)` starts a worker process with these settings; all end with the test.

    Settings called `echo_…` are those of echo_worker.py. `program`: Python's arguments, in place of the worker's.
    """
    with contextlib.ExitStack() as stack:

        def start(broker: KafkaBroker, program: list[str] | None = None, **settings: Any) -> WorkerProcess:
            log_path = tmp_path / f"worker-{uuid.uuid4().hex[:8]}.log"
            settings = {"bootstrap_servers": broker.bootstrap_servers, **settings}
            return stack.enter_context(WorkerProcess(log_path, settings, program))

        yield start
    logs = [path.read_text(errors="replace").splitlines() for path in tmp_path.glob("worker-*.log")]
    assert set().union(*map(unlisted_in, logs)) == set(), "ops/docs/log-events.md does not list these"


@pytest.fixture
def post(unique: Unique) -> Post:
    """`await post(kafka, model, [(ids, headers), …])`: one request each, by plain aiokafka; their answers, in order.

    With `timeout_s` each has a deadline, so long after it was sent.
    """

    async def ask(
        broker: KafkaBroker,
        model: str,
        requests: Sequence[tuple[list[int], list[tuple[str, bytes]]]],
        timeout_s: float | None = None,
    ) -> list[Event]:
        topic, replies = request_topic(model), unique("penstock.replies.")
        answers: dict[bytes, Event] = {}
        servers = broker.bootstrap_servers
        async with AIOKafkaProducer(bootstrap_servers=servers) as producer:
            await producer.partitions_for(topic)
            for number, (ids, own) in enumerate(requests):
                value = encode_request(Request(model, "embed", join_tokens([ids])))
                headers = [(REPLY_TOPIC, replies.encode()), (CORRELATION_ID, b"%d" % number), *own]
                if timeout_s is not None:
                    headers.append((DEADLINE_MS, b"%d" % int((time.time() + timeout_s) * 1000)))
                await producer.send_and_wait(topic, value, headers=headers)
        consumer = reader_of(broker, replies)
        async with consumer, asyncio.timeout(300):
            while len(answers) < len(requests):
                record = await consumer.getone()
                answers[dict(record.headers)[CORRELATION_ID]] = msgpack.unpackb(record.value)
        return [answers[b"%d" % number] for number in range(len(requests))]

    return ask


@contextlib.asynccontextmanager
async def open_admin(broker: KafkaBroker | BrokerCluster) -> AsyncIterator[AIOKafkaAdminClient]:
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    await admin.start()
    try:
        yield admin
    finally:
        await admin.close()


def reader_of(broker: KafkaBroker | BrokerCluster, *topics: str, **options: Any) -> AIOKafkaConsumer:
    """Reads from the first record on, also of a topic that is made later. Started by `async with`."""
    found = {"auto_offset_reset": "earliest", "metadata_max_age_ms": 500, **options}
    return AIOKafkaConsumer(*topics, bootstrap_servers=broker.bootstrap_servers, **found)


async def letters_of(broker: KafkaBroker, topic: str, count: int) -> list[DeadLetter]:
    """Wait until `count` records of a topic have a dead letter. Returns one for each record, committed ones only.

    Neighbours in a partition that end in one step share a letter, and a machine decides which do: a test that waits for
    a number of letters does not end on a slow one.
    """
    found: list[DeadLetter] = []
    reader = reader_of(broker, dead_letter_topic(topic), isolation_level="read_committed")
    async with reader, asyncio.timeout(300):
        while len(found) < count:
            found += DeadLetter.all_of(await reader.getone(), bulk=False)
    return found


async def only_member(broker: KafkaBroker, group: str) -> str:
    """The id of a group's only member; whoever evicts it when it is killed need not wait for the session's 10 s."""
    (member,) = await _members_of(broker, group)
    return member


async def evict_members(broker: KafkaBroker, group: str) -> None:
    """Tell a group that all its members were killed, as a supervisor does: the next need not wait for their session."""
    for member in await _members_of(broker, group):
        await evict(KafkaCluster(broker.bootstrap_servers), group, member)


async def _members_of(broker: KafkaBroker, group: str) -> list[str]:
    async with open_admin(broker) as admin:
        (answer,) = await admin.describe_consumer_groups([group])
    (described,) = answer.groups
    return [str(member[0]) for member in described[5]]


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The published all-MiniLM-L6-v2, as the demo finds it."""
    return model_directory()


@pytest.fixture
def committed() -> Committed:
    """`await committed(kafka, group)`: the group's committed offset of each partition of each topic."""

    async def ask(broker: KafkaBroker, group: str) -> dict[TopicPartition, int]:
        async with open_admin(broker) as admin:
            offsets = await admin.list_consumer_group_offsets(group)
        return {source: found.offset for source, found in offsets.items() if found.offset >= 0}

    return ask


@pytest.fixture
def count_records() -> CountRecords:
    """`await count_records(kafka, topic)`: records that were ever written to a topic."""

    async def ask(broker: KafkaBroker, topic: str) -> int:
        async with AIOKafkaConsumer(topic, bootstrap_servers=broker.bootstrap_servers) as consumer:
            return sum((await consumer.end_offsets(consumer.assignment())).values())

    return ask
