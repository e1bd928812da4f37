"""Routes in turn with the RPC path, FastStream and calls of a server for each record; and routes without a model."""

import http.client
import json
import shlex
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import msgpack
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from penstock.ops.bench.common.processes import ProcessFailed, module_command, start, stop, tail
from penstock.ops.bench.common.setup import ROUNDS, Details, Setup, shuffled_texts
from penstock.ops.bench.contestants import null_worker
from penstock.ops.bench.contestants.plain_pipeline import embed
from penstock.ops.bench.contestants.worker_fleet import PENSTOCK, READY_TIMEOUT_S, FleetSpec, WorkerFleet
from penstock.ops.bench.load.backlog import Backlog, Sent, create_topics, json_records, key_of
from penstock.ops.bench.pipeline.pipeline_bench import NULL_WORKER
from penstock.ops.kafka import KafkaBroker, RegistryServer
from penstock.ops.kafka.ports import ReservedPorts
from penstock.producer.wire.topics import request_topic

CALLS = {"one call at a time": 1, "64 calls at a time": 64}  # of the server
_REPLIES = "penstock.replies.raw"
_NUM_TEXTS, _NUM_SLOW = 2000, 800  # some 4 s each
_NUM_NULL, _NULL_BYTES = 80_000, 200
_SERVER_START_S = 120.0
_ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "string"}, {"name": "text", "type": "string"}],
}

Opened = AbstractContextManager[Backlog]


def run_texts(setup: Setup) -> Details:
    """Part `texts`: MiniLM and the texts of Banking77, one a record."""
    texts, few = shuffled_texts(setup.count(_NUM_TEXTS)), shuffled_texts(setup.count(_NUM_SLOW))
    with KafkaBroker() as broker, RegistryServer() as registry:
        route = ("--text", "text", "--result-field", "vector")
        avro = ("--record-format", "avro", "--schema-registry-url", registry.url)
        opened = {
            "requests": _worker(setup, broker, "requests", (), _requests("requests", texts)),
            "JSON": _worker(setup, broker, "json", route, json_records(texts)),
            "Avro": _worker(setup, broker, "avro", (*route, *avro), _avro(registry, texts)),
            "FastStream": _pipeline(setup, broker, "faststream", json_records(few), model=_model(setup)),
        }
        return _in_turns(opened)


def run_http(setup: Setup) -> Details:
    """Part `http`: of `--server`, a command that serves {model} on {port} at /v1/embeddings."""
    records = json_records(shuffled_texts(setup.count(_NUM_SLOW)))
    with KafkaBroker() as broker, _server(setup) as (url, pid):
        opened = {
            name: _pipeline(setup, broker, f"http-{calls}", records, {"server": pid}, url=url, calls=calls)
            for name, calls in CALLS.items()
        }
        return _in_turns(opened)


def run_null(setup: Setup) -> Details:
    """Part `null`: records of 200 bytes, a tokenizer and no model, in both deliveries."""
    records = _padded(shuffled_texts(setup.count(_NUM_NULL)))
    route = ("--text", "text", "--result-field", "vector", *NULL_WORKER)
    with KafkaBroker() as broker:
        opened = {
            mode: _worker(setup, broker, mode, (*route, "--delivery", mode), records, null_worker.PROGRAM)
            for mode in ("at_least_once", "exactly_once")
        }
        return _in_turns(opened)


def _in_turns(opened: Mapping[str, Opened]) -> Details:
    """Each contestant once to warm up, and then in `ROUNDS` turns."""
    with ExitStack() as stack:
        sides = {name: stack.enter_context(one) for name, one in opened.items()}
        for side in sides.values():
            side.measure()
        found: dict[str, list[Any]] = {name: [] for name in sides}
        for number in range(ROUNDS):
            for name in list(sides) if number % 2 == 0 else reversed(sides):
                found[name].append(sides[name].measure())
    return {"loads": found}


@contextmanager
def _worker(
    setup: Setup,
    broker: KafkaBroker,
    name: str,
    options: Sequence[str],
    records: Sequence[Sent],
    program: Sequence[str] = PENSTOCK,
) -> Iterator[Backlog]:
    """A worker with one route, or without options for one that answers requests."""
    topics = (f"{name}.in", f"{name}.out") if options else (request_topic(name), _REPLIES)
    create_topics(broker, topics)
    arguments = ["--device", "cpu", "--cost-path", str(setup.logs / f"{name}.sqlite"), *options]
    arguments += ["--input-topic", topics[0], "--output-topic", topics[1]] if options else []
    spec = FleetSpec(str(setup.model), arguments, members=1, program=program)
    with WorkerFleet(spec, name, broker.bootstrap_servers, setup.logs / name) as workers:
        workers.wait_until_ready(READY_TIMEOUT_S)
        yield Backlog(name, broker, topics, records, workers.watched)


@contextmanager
def _pipeline(
    setup: Setup, broker: KafkaBroker, name: str, records: Sequence[Sent], others: Any = None, **spec: Any
) -> Iterator[Backlog]:
    """One of `plain_pipeline`. `others`: further processes that work for it, by label."""
    topics = (f"{name}.in", f"{name}.out")
    create_topics(broker, topics)
    log = setup.logs / f"{name}.log"
    whole = {"bootstrap_servers": broker.bootstrap_servers, "topics": topics, **spec}
    process = start(module_command("contestants.plain_pipeline", whole), log)
    try:
        yield Backlog(name, broker, topics, records, lambda: {name: process.pid, **(others or {})})
    finally:
        stop([process])


@contextmanager
def _server(setup: Setup) -> Iterator[tuple[str, int]]:
    """The URL and the process id of the server, once it answers."""
    ports = ReservedPorts(1)
    (port,) = ports.numbers
    command = shlex.split(setup.options["server"].format(model=setup.model, port=port))
    log = setup.logs / "server.log"
    process = start(command, log)
    try:
        ends = time.monotonic() + _SERVER_START_S
        while not _answers(port):
            if process.poll() is not None or time.monotonic() > ends:
                raise ProcessFailed(f"The server does not answer.\n{tail(log)}")
            time.sleep(0.5)
        yield f"http://127.0.0.1:{port}/v1/embeddings", process.pid
    finally:
        stop([process])
        ports.release()


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    try:
        return bool(embed(connection, "/v1/embeddings", "a text"))
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _model(setup: Setup) -> dict[str, Any]:
    return {"directory": str(setup.model), "dtype": "float32", "cores": setup.cores}


def _requests(name: str, texts: Sequence[str]) -> list[Sent]:
    """The same as requests, whose replies go to `_REPLIES`."""
    head = {"v": 1, "model": name, "task": "embed"}
    return [Sent(key_of(n), msgpack.packb(head | {"text": [text]}), _addressed()) for n, text in enumerate(texts)]


def _addressed() -> list[tuple[str, bytes]]:
    return [("kafka_replyTopic", _REPLIES.encode()), ("kafka_correlationId", uuid.uuid4().bytes)]


def _padded(texts: Sequence[str]) -> list[Sent]:
    """JSON of 200 bytes, or longer where a text is."""
    records = [{"id": str(n), "text": text, "note": ""} for n, text in enumerate(texts)]
    room = [max(0, _NULL_BYTES - len(json.dumps(record))) for record in records]
    return [Sent(key_of(n), json.dumps(record | {"note": "x" * room[n]}).encode()) for n, record in enumerate(records)]


def _avro(registry: RegistryServer, texts: Sequence[str]) -> list[Sent]:
    with SchemaRegistryClient({"url": registry.url}) as client:
        write: Callable[..., bytes] = AvroSerializer(client, json.dumps(_ORDER))
        place = SerializationContext("avro.in", MessageField.VALUE)
        return [Sent(key_of(n), write({"id": str(n), "text": text}, place)) for n, text in enumerate(texts)]
