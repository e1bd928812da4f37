"""Every wait for Kafka has a bound: each command, and each way into a client, where nothing answers."""

import contextlib
import inspect
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock import Client, Expired, KafkaUnreachable, SyncClient
from penstock.ops.cli.checks import probes
from penstock.ops.cli.checks.probes import Finding
from penstock.ops.cli.command_settings import settings_by_command
from penstock.ops.kafka import MockBroker
from penstock.producer.caller import raise_first
from penstock.producer.settings import KafkaSettings
from penstock.producer.wire.messages import Request
from penstock.worker.control_socket import EXIT_CANNOT_START
from tests.ops.command_line import penstock

TIMEOUT_S = 0.2
DOES_NOT_ANSWER = f"does not answer within {TIMEOUT_S:g} s"
# Commands that wait for Kafka -> their arguments.
WAITING = {
    "check": ["check"],
    "embed": ["embed", "--model", "m", "--text", "x"],
    "classify": ["classify", "--model", "m", "IN", "OUT"],
    "generate": ["generate", "--model", "m", "--wait", "IN", "OUT"],
    "rerank": ["rerank", "--model", "m", "--query-column", "text", "--document-column", "text", "IN", "OUT"],
    "dlq ls": ["dlq", "ls", "--model", "m"],
    "dlq show": ["dlq", "show", "--model", "m", "0:0"],
    "dlq replay": ["dlq", "replay", "--model", "m", "--execute"],
    "dlq answer": ["dlq", "answer", "--model", "null", "--execute"],
    "drift": ["drift", "first", "second"],
    "replay": ["replay", "--topic", "t", "--partition", "0", "--from", "0"],
}
# Others with settings of Kafka: a worker, which goes on trying without the option, and two that do not connect.
OTHERS = {"worker", "config worker", "config client"}
CALLS: dict[str, Callable[[SyncClient], object]] = {
    "embed": lambda client: client.embed("x"),
    "embed_sparse": lambda client: client.embed_sparse("x"),
    "embed_tokens": lambda client: client.embed_tokens("x"),
    "embed_all": lambda client: client.embed_all("x"),
    "classify": lambda client: client.classify("x"),
    "rerank": lambda client: client.rerank("x", ["y"]),
    "token_classify": lambda client: client.token_classify("x"),
    "generate": lambda client: client.generate("x"),
    "stream": lambda client: list(client.stream("x")),
    "sequence": lambda client: client.sequence([{"tokens": [1]}]),
    "map": lambda client: raise_first(client.map("embed", ["x"])),
    "map_rows": lambda client: raise_first([result for _, result in client.map_rows("embed", ["x"])]),
    "request": lambda client: client.request(Request("m", "embed", text=("x",))),
}


def refused(stack: contextlib.ExitStack) -> str:
    bound = stack.enter_context(socket.socket())
    bound.bind(("127.0.0.1", 0))
    return f"127.0.0.1:{bound.getsockname()[1]}"


def silent(stack: contextlib.ExitStack) -> str:
    """A port that accepts and says nothing."""
    listening = stack.enter_context(socket.socket())
    listening.bind(("127.0.0.1", 0))
    listening.listen(64)
    return f"127.0.0.1:{listening.getsockname()[1]}"


def black_hole(stack: contextlib.ExitStack) -> str:
    """A port whose queue is full: the kernel drops what asks for a connection."""
    listening = stack.enter_context(socket.socket())
    listening.bind(("127.0.0.1", 0))
    listening.listen(0)
    for _ in range(3):
        caller = stack.enter_context(socket.socket())
        caller.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            caller.connect(listening.getsockname())
    return f"127.0.0.1:{listening.getsockname()[1]}"


def without_a_host(_: contextlib.ExitStack) -> str:
    return "no-such-host.invalid:9092"


@pytest.fixture(params=[refused, silent, black_hole, without_a_host], ids=lambda make: make.__name__)
def address(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    make: Callable[[contextlib.ExitStack], str] = request.param
    for name in [name for name in os.environ if name.startswith("PENSTOCK_")]:
        monkeypatch.delenv(name)
    with contextlib.ExitStack() as stack:
        yield make(stack)


def test_every_command_with_an_address_is_among_them() -> None:
    found = {name for name, of in settings_by_command().items() if issubclass(of, KafkaSettings)}
    assert {name for name in found if not name.startswith("bench")} == WAITING.keys() | OTHERS


@pytest.mark.parametrize("command", WAITING)
def test_a_command_ends_and_says_who_does_not_answer(
    command: str, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for probe in ("gpu", "processor"):  # they load torch
        monkeypatch.setattr(probes, probe, lambda settings: Finding("", "not checked", ""))
    (tmp_path / "in.csv").write_text("text\nhello\n")
    paths = {"IN": str(tmp_path / "in.csv"), "OUT": str(tmp_path / "out.csv")}
    arguments = [paths.get(argument, argument) for argument in WAITING[command]]
    environment = {"PENSTOCK_BOOTSTRAP_SERVERS": address, "PENSTOCK_CONNECT_TIMEOUT_S": str(TIMEOUT_S)}
    code, text = penstock(*arguments, env=environment)
    assert code == 1, text
    assert f"{address} {DOES_NOT_ANSWER}" in text
    assert "Traceback" not in text


@pytest.mark.parametrize("command", ["embed", "classify", "generate"])
def test_one_text_waits_for_kafka_as_long_as_for_its_answer(command: str, address: str) -> None:
    arguments = [command, "--model", "m", "--text", "x", "--timeout-s", str(TIMEOUT_S), "--bootstrap-servers", address]
    code, text = penstock(*arguments)
    assert code == 1, text
    assert f"{address} {DOES_NOT_ANSWER}" in text


async def test_a_client_that_starts(address: str) -> None:
    client = Client(bootstrap_servers=address, model="m", connect_timeout_s=TIMEOUT_S)
    with pytest.raises(KafkaUnreachable, match=f"Kafka at {address} {DOES_NOT_ANSWER}"):
        await client.start()
    with pytest.raises(KafkaUnreachable, match=f"Kafka at {address} {DOES_NOT_ANSWER}"):
        async with client:
            raise AssertionError("It has started.")


def test_a_sync_client_that_starts(address: str) -> None:
    with (
        pytest.raises(KafkaUnreachable, match=f"Kafka at {address} {DOES_NOT_ANSWER}"),
        SyncClient(bootstrap_servers=address, model="m", connect_timeout_s=TIMEOUT_S),
    ):
        raise AssertionError("It has started.")


def test_the_default_is_thirty_seconds_and_a_worker_goes_on() -> None:
    by_command = settings_by_command()
    defaults = {name: by_command[name].model_fields["connect_timeout_s"].default for name in (*WAITING, "worker")}
    assert defaults == dict.fromkeys(WAITING, 30.0) | {"worker": None, "check": None}  # a check waits 5 s


@pytest.mark.slow
def test_a_worker_ends_where_it_is_told_so() -> None:
    arguments = ["worker", "--model", "null", "--bootstrap-servers", "127.0.0.1:1", "--connect-timeout-s", "0.2"]
    done = subprocess.run([sys.executable, "-m", "penstock", *arguments], capture_output=True, text=True, timeout=300)
    assert done.returncode == EXIT_CANNOT_START, done.stderr
    assert f"Kafka at 127.0.0.1:1 {DOES_NOT_ANSWER}" in done.stderr


@pytest.mark.slow
def test_a_call_ends_by_its_deadline_when_the_broker_is_lost() -> None:
    with MockBroker() as broker:
        servers = broker.bootstrap_servers
        client = SyncClient(model="m", bootstrap_servers=servers, fetch_max_wait_ms=5, timeout_s=TIMEOUT_S)
        client.start()
    with client:
        for call in CALLS.values():
            with pytest.raises(Expired, match=f"Kafka at {servers} did not take the request"):
                call(client)


def test_every_call_of_a_client_is_among_them() -> None:
    public = {name for name, _ in inspect.getmembers(Client, inspect.isfunction) if not name.startswith("_")}
    assert public == CALLS.keys() | {"start", "close"}
    assert public <= set(dir(SyncClient))
