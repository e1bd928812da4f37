"""Every wait for Kafka has a bound: each command, and each way into a client, where nothing answers."""

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock import Client, KafkaUnreachable, SyncClient
from penstock.ops.cli.command_settings import settings_by_command
from penstock.ops.cli.main import COMMANDS, app
from penstock.producer.settings import KafkaSettings

TIMEOUT_S = 0.2
DOES_NOT_ANSWER = f"does not answer within {TIMEOUT_S:g} s"
# Commands that wait for Kafka -> their arguments.
WAITING = {
    "check": ["check"],
    "embed": ["embed", "--model", "m", "--text", "x"],
    "classify": ["classify", "--model", "m", "IN", "OUT"],
    "generate": ["generate", "--model", "m", "--wait", "IN", "OUT"],
    "rerank": ["rerank", "--model", "m", "--query-column", "text", "IN", "OUT"],
    "dlq ls": ["dlq", "ls", "--model", "m"],
    "dlq show": ["dlq", "show", "--model", "m", "0:0"],
    "dlq replay": ["dlq", "replay", "--model", "m", "--execute"],
    "dlq answer": ["dlq", "answer", "--model", "null", "--execute"],
    "replay": ["replay", "--topic", "t", "--partition", "0", "--from", "0"],
    "worker": ["worker", "--model", "null"],  # with the option; without it, it goes on trying
}
# Those that have settings of Kafka, and do not connect.
CONFIG = {"config worker", "config client"}


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
    assert {name for name in found if name.split()[0] in COMMANDS and not name.startswith("bench")} - CONFIG == {
        *WAITING
    }


@pytest.mark.parametrize("command", WAITING)
def test_a_command_ends_and_says_who_does_not_answer(command: str, address: str, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("text\nhello\n")
    paths = {"IN": str(tmp_path / "in.csv"), "OUT": str(tmp_path / "out.csv")}
    arguments = [paths.get(argument, argument) for argument in WAITING[command]]
    environment = {
        "PENSTOCK_BOOTSTRAP_SERVERS": address,
        "PENSTOCK_CONNECT_TIMEOUT_S": str(TIMEOUT_S),
        "COLUMNS": "400",
        "NO_COLOR": "1",
    }
    result = CliRunner().invoke(app, arguments, env=environment)
    assert result.exit_code == (3 if command == "worker" else 1), result.output
    assert f"{address} {DOES_NOT_ANSWER}" in result.output
    assert "Traceback" not in result.output


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
    defaults = {name: by_command[name].model_fields["connect_timeout_s"].default for name in WAITING}
    assert defaults == dict.fromkeys(WAITING, 30.0) | {"worker": None, "check": None}  # a check waits 5 s
