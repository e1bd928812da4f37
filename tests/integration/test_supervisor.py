"""`penstock worker --processes N` as an operator meets it: real members, a real broker, real signals."""

import asyncio
import itertools
import json
import os
import pty
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.ops.kafka import KafkaBroker
from penstock.producer import Client
from tests.engine.helpers import save_encoder
from tests.integration.conftest import PENSTOCK, Event, StartWorker, Unique, WorkerProcess

# The command with a short ping bound.
IMPATIENT = """
from penstock.worker.supervision import member_process
member_process.MemberTimeouts.__init__.__defaults__ = (900.0, 4.0)
from penstock.ops.cli.main import main; main()
"""
NVIDIA_SMI = """#!/bin/sh
echo "0, GPU-0, Fake, {free}"
echo "1, GPU-1, Fake, {free}"
"""

Start = Callable[..., WorkerProcess]


@pytest.fixture
def start(kafka: KafkaBroker, start_worker: StartWorker) -> Start:
    """Start the command with null engines."""
    return lambda program=PENSTOCK, **settings: start_worker(kafka, program, **settings)


@pytest.fixture
def fake_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Two GPUs, as far as the supervisor sees: members with null engines do not use them."""

    def make(free_mib: int) -> None:
        program = tmp_path / "nvidia-smi"
        program.write_text(NVIDIA_SMI.format(free=free_mib))
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    return make


async def members(worker: WorkerProcess, count: int) -> dict[int, int]:
    """Wait until `count` members have joined. Returns worker -> process id, of those that joined last."""

    def joined() -> dict[int, int]:
        return {event["worker"]: event["pid"] for event in worker.events("partitions_assigned")}

    await worker.until(lambda: {} if len(joined()) >= count else None, f"{count} members", 60)
    return joined()


async def exited(worker: WorkerProcess, pid: int, timeout_s: float = 300.0) -> Event:
    return await worker.event("member_exited", timeout_s, member_pid=pid)


@asynccontextmanager
async def calls(kafka: KafkaBroker, model: str) -> AsyncIterator[Callable[[int], Any]]:
    """Calls that go on inside; each must be answered. Yields a wait for so many further answers."""
    answers = itertools.count()
    answered, is_over = 0, False

    async def call() -> None:
        nonlocal answered
        while not is_over:
            await client.embed(ids=[[next(answers) % 30_000 + 1, 5]], timeout_s=300)
            answered += 1

    async def more(count: int) -> None:
        goal = answered + count
        async with asyncio.timeout(300):
            while answered < goal:  # noqa: ASYNC110 — there is no event to wait for
                await asyncio.sleep(0.05)

    async with (
        Client(bootstrap_servers=kafka.bootstrap_servers, model=model, batch_calls=False) as client,
        asyncio.TaskGroup() as group,
    ):
        for _ in range(16):
            group.create_task(call())
        yield more
        is_over = True


def scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=300) as answer:
        return str(answer.read().decode())


async def not_ready(port: int) -> str:
    """The reason that `/readyz` gives; empty for a worker that is ready."""

    def ask() -> str:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=300).close()
        except urllib.error.HTTPError as answer:
            return str(json.load(answer)["reason"])
        return ""

    return await asyncio.to_thread(ask)


async def until_ready(port: int) -> None:
    """Members that stood still with the machine are asked again."""
    async with asyncio.timeout(300):
        while await not_ready(port):  # noqa: ASYNC110 — there is no event to wait for
            await asyncio.sleep(0.1)


async def port_of(worker: WorkerProcess) -> int:
    """The one port of all members; each has its own too."""
    return int((await worker.event("metrics_served", pid=worker.process.pid))["port"])


async def test_a_killed_member_is_started_again_and_no_request_is_lost(
    kafka: KafkaBroker, unique: Unique, start: Start
) -> None:
    model = unique("killed")
    worker = start(served_name=model, processes=3, metrics_port=0)
    port = await port_of(worker)
    pids = await members(worker, 3)
    async with calls(kafka, model) as more:
        await more(100)
        await until_ready(port)
        os.kill(pids[1], signal.SIGKILL)
        event = await exited(worker, pids[1])
        assert await not_ready(port) in ("worker 1 is restarting", "worker 1 is starting")
        assert (event["worker"], event["signal"], event["restart_in_s"]) == (1, "SIGKILL", 1.0)
        await worker.event("member_evicted")  # the others do not wait for it
        await worker.until(
            lambda: next((e for e in worker.events("partitions_assigned") if e["pid"] not in pids.values()), None),
            "the new member",
            60,
        )
        await more(100)
    await until_ready(port)
    lines = {'penstock_worker_restarts_total{reason="signal",worker="1"} 1.0', 'penstock_members{state="serving"} 3.0'}
    lines |= {f'penstock_queued_tokens{{worker="{n}"}} 0.0' for n in range(3)}
    async with asyncio.timeout(300):  # a member that does not answer at once is missing from a scrape
        while not lines <= set((await asyncio.to_thread(scrape, port)).splitlines()):  # noqa: ASYNC110 — as above
            await asyncio.sleep(0.1)
    await worker.stop()
    assert len(worker.events("stopped")) == 3


async def test_a_member_that_waits_takes_the_place_of_one_that_is_killed(
    kafka: KafkaBroker, unique: Unique, start: Start
) -> None:
    model = unique("standby")
    worker = start(served_name=model, processes=2, standby="on")
    pids = await members(worker, 2)
    waiting = (await worker.event("standby_ready"))["member_pid"]
    cores = os.sched_getaffinity(pids[0])
    async with calls(kafka, model) as more:
        await more(100)
        os.kill(pids[0], signal.SIGKILL)
        event = await exited(worker, pids[0])
        assert event["replaced_by"] == waiting
        await worker.event("partitions_assigned", pid=waiting)
        assert {frozenset(os.sched_getaffinity(int(one))) for one in os.listdir(f"/proc/{waiting}/task")} == {
            frozenset(cores)
        }
        await worker.until(lambda: next(iter(worker.events("standby_ready")[1:]), None), "the next one that waits", 60)
        await more(100)
    await worker.stop()


async def test_a_member_whose_event_loop_stands_still_is_replaced(unique: Unique, start: Start) -> None:
    worker = start(program=["-c", IMPATIENT, "worker"], served_name=unique("silent"), processes=2)
    pids = await members(worker, 2)
    os.kill(pids[0], signal.SIGSTOP)
    event = await worker.event("member_unresponsive")
    assert (event["member_pid"], event["worker"]) == (pids[0], 0)
    assert (await exited(worker, pids[0]))["signal"] == "SIGKILL"
    await worker.event("member_loaded", worker=0, device="cpu")
    await worker.stop()


async def test_a_roll_replaces_every_member_and_loses_nothing(kafka: KafkaBroker, unique: Unique, start: Start) -> None:
    model = unique("rolled")
    worker = start(served_name=model, processes=2, metrics_port=0)
    port = await port_of(worker)
    old = await members(worker, 2)
    async with calls(kafka, model) as more:
        await more(50)
        await until_ready(port)  # a member that does not serve yet is left out
        worker.process.send_signal(signal.SIGHUP)
        await worker.event("roll_finished")
        await more(50)
    for pid in old.values():
        ended = await exited(worker, pid)
        new = await worker.event("member_loaded", member_pid=ended["replaced_by"])
        assert new["timestamp"] < ended["timestamp"]  # the new member was loaded before the old one left
        assert ended["exit_code"] == 0
    assert set((await members(worker, 2)).values()).isdisjoint(old.values())
    await worker.stop()


async def test_a_signal_to_resize_before_any_member_starts_suspends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unique: Unique, start: Start
) -> None:
    """While the machine's GPUs are listed, which may take seconds."""
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nkill -TTIN $PPID\nkill -TTOU $PPID\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    worker = start(served_name=unique("early"), processes=2)
    await members(worker, 2)
    await worker.stop()


async def test_a_second_signal_ends_at_once(unique: Unique, start: Start) -> None:
    worker = start(served_name=unique("hurried"), processes=2)
    pids = await members(worker, 2)
    os.kill(pids[0], signal.SIGSTOP)  # it cannot drain
    worker.process.send_signal(signal.SIGINT)
    await exited(worker, pids[1])
    assert worker.process.poll() is None
    worker.process.send_signal(signal.SIGINT)
    assert await worker.exit_code() == 128 + signal.SIGINT


async def test_a_signal_to_supervisor_and_members_alike_drains_them(unique: Unique, start: Start) -> None:
    """As systemd sends it, to the whole control group."""
    worker = start(served_name=unique("grouped"), processes=2)
    pids = await members(worker, 2)
    for pid in (*pids.values(), worker.process.pid):
        os.kill(pid, signal.SIGTERM)
    assert await worker.exit_code() == 0
    assert len(worker.events("stopped")) == 2
    assert [event["exit_code"] for event in worker.events("member_exited")] == [0, 0]


async def test_members_end_with_a_supervisor_that_is_killed(unique: Unique, start: Start) -> None:
    worker = start(served_name=unique("orphaned"), processes=2)
    pids = await members(worker, 2)
    worker.process.kill()
    async with asyncio.timeout(300):
        while any(Path(f"/proc/{pid}").exists() for pid in pids.values()):  # noqa: ASYNC110, ASYNC240 — as above; procfs
            await asyncio.sleep(0.1)
    assert len(worker.events("stopped")) == 2  # they drained


async def test_each_member_ends_at_the_end_of_the_topics(kafka: KafkaBroker, unique: Unique, start: Start) -> None:
    model = unique("once")
    async with Client(bootstrap_servers=kafka.bootstrap_servers, model=model) as client:
        pending = [asyncio.create_task(client.embed(ids=[[n + 1, 2]], timeout_s=300)) for n in range(50)]
        worker = start(served_name=model, processes=2, once=True)
        await asyncio.gather(*pending)
        assert await worker.exit_code() == 0
    assert len(worker.events("end_reached")) == 2


async def test_a_member_without_a_partition_says_so(unique: Unique, start: Start) -> None:
    worker = start(served_name=unique("few"), processes=3, partitions=2)
    event = await worker.event("member_idle", worker=2)
    assert "fewer partitions" in event["reason"]
    assert {event["worker"] for event in worker.events("member_idle")} == {2}


async def test_members_move_to_the_cpu_if_the_model_does_not_run_on_a_gpu(
    tmp_path: Path, unique: Unique, start: Start, fake_gpus: Callable[[int], None]
) -> None:
    """`--device auto` sees two GPUs here, and torch none."""
    fake_gpus(64_000)
    save_encoder(tmp_path / "tiny", "bert")
    few = {"cost_path": tmp_path / "costs", "max_batch_tokens": 64, "max_batch_sequences": 4}  # batches to be timed
    worker = start(model=str(tmp_path / "tiny"), served_name=unique("moved"), engine="padded", **few)
    await worker.event("members_moved_to_cpu", timeout_s=300)
    pids = await members(worker, 1)
    (settings,) = [event for event in worker.events("settings_resolved") if event["pid"] == pids[0]]
    assert settings["lanes"] == len(os.sched_getaffinity(0))
    await worker.stop()


@contextmanager
def in_a_terminal(log: Path, *, ignores_hangups: bool) -> Iterator[tuple[int, int]]:
    """The command in a terminal of its own, with its log in a file: its process id, and the terminal."""
    pid, terminal = pty.fork()
    if pid == 0:
        # Whatever the tests have inherited: they may run under nohup.
        signal.signal(signal.SIGHUP, signal.SIG_IGN if ignores_hangups else signal.SIG_DFL)
        os.dup2(os.open(log, os.O_CREAT | os.O_WRONLY), 2)
        options = ["--model", "null", "--processes", "2", "--bootstrap-servers", "127.0.0.1:1"]
        os.execv(sys.executable, [sys.executable, *PENSTOCK, *options])
    try:
        yield pid, terminal
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        raise


def until_logged(log: Path, event: str) -> None:
    deadline = time.monotonic() + 300
    while not log.exists() or f'"event": "{event}"' not in log.read_text():
        assert time.monotonic() < deadline, f"no {event}"
        time.sleep(0.05)


def test_members_end_with_their_terminal_wherever_they_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with in_a_terminal(log, ignores_hangups=False) as (pid, terminal):
        until_logged(log, "member_started")
        os.close(terminal)  # the kernel sends SIGHUP
        until_logged(log, "supervisor_stopping")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_under_nohup_members_outlive_their_terminal(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with in_a_terminal(log, ignores_hangups=True) as (pid, terminal):
        until_logged(log, "member_started")
        os.close(terminal)
        until_logged(log, "roll_started")
        os.kill(pid, signal.SIGTERM)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.fixture
def sick_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake_gpus: Callable[[int], None]) -> Callable[..., None]:
    """Two GPUs, of which the named ones end each process that uses them, while it loads."""

    def make(*sick: str) -> None:
        fake_gpus(64_000)
        code = f"import os\nif os.environ.get('CUDA_VISIBLE_DEVICES') in {sick!r}: os._exit(9)\n"
        (tmp_path / "sitecustomize.py").write_text(code)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)

    return make


async def test_of_two_gpus_one_that_is_sick_ends_only_its_members(
    unique: Unique, start: Start, sick_gpus: Callable[..., None]
) -> None:
    sick_gpus("GPU-1")
    worker = start(served_name=unique("sick"), gpus="0,1", processes=2)
    event = await worker.event("device_given_up")
    assert (event["device"], event["members_left"]) == ("gpu 1", 2)
    assert event["reason"] == "3 starts in a row failed, the last with exit code 9"
    assert set(await members(worker, 2)) == {0, 2}
    assert worker.process.poll() is None
    worker.process.terminate()
    assert await worker.exit_code() == 1


async def test_no_more_members_start_than_memory_holds(
    unique: Unique, start: Start, fake_gpus: Callable[[int], None]
) -> None:
    fake_gpus(2500)  # a member's share is 1 GiB here: null engines take nothing beside it
    worker = start(served_name=unique("small"), gpus="0", processes=4, standby="off")
    event = await worker.event("members_limited_by_memory")
    assert event["reason"] == "4 members need 4 x 1.0 GiB, 2.4 GiB are free: 2 fit"
    await members(worker, 2)
    worker.process.send_signal(signal.SIGTERM)
    assert await worker.exit_code() == 0
    assert len(worker.events("member_started")) == 2
