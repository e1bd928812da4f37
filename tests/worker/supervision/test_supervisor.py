"""Restarts, rolls, resizing and the end of members, with members that follow a script."""

import asyncio
import errno
import os
import signal
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from penstock.producer.transport.cluster import KafkaCluster
from penstock.worker.control_socket import Report
from penstock.worker.settings import WorkerSettings
from penstock.worker.supervision import member_starter, resizing, restart_policy
from penstock.worker.supervision import standbys as standbys_module
from penstock.worker.supervision import supervisor as supervisor_module
from penstock.worker.supervision.member_process import MemberTimeouts
from penstock.worker.supervision.placement import Gpu, Machine, Placement, place, standbys
from penstock.worker.supervision.supervisor import Supervisor
from tests.worker.supervision.fakes import FakeMember, FakeProcesses

MACHINE = Machine((0, 1, 2, 3), (Gpu("MIG-0", "A", None), Gpu("MIG-1", "B", None)))
NO_PROCESS = OSError(errno.EAGAIN, "Resource temporarily unavailable")

Events = list[Any]


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> FakeProcesses:
    """Members without processes, started again without a pause."""
    fakes = FakeProcesses()
    monkeypatch.setattr(member_starter, "MemberProcess", fakes)
    monkeypatch.setattr(member_starter, "free_host_bytes", lambda: None)  # not this machine's
    monkeypatch.setattr("penstock.worker.supervision.machine.resident_bytes", lambda pid: 0)  # the pids are made up
    monkeypatch.setattr(restart_policy, "FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr(standbys_module, "_LOOK_EVERY_S", 0.0)
    return fakes


class Running:
    """A supervisor that runs: its events so far, its metrics, and its exit code."""

    def __init__(self, supervisor: Supervisor, running: asyncio.Task[int], events: Events) -> None:
        self._supervisor = supervisor
        self._running = running
        self.events = events

    def named(self, name: str) -> Events:
        return [event for event in self.events if event["event"] == name]

    async def event(self, name: str, count: int = 1) -> Any:
        """Wait for an event."""
        async with asyncio.timeout(300):
            while len(self.named(name)) < count:  # noqa: ASYNC110 — there is no event to wait for
                await asyncio.sleep(0)
        return self.named(name)[-1]

    async def serving(self, count: int, **others: int) -> None:
        """Wait until so many members serve, and there are no others than these."""
        async with asyncio.timeout(300):
            while self.states() != {"serving": count, **others}:  # noqa: ASYNC110 — as above
                await asyncio.sleep(0)

    def states(self) -> dict[str, int]:
        (family,) = [f for f in self._supervisor._metrics.collect() if f.name == "penstock_members"]
        return {sample.labels["state"]: int(sample.value) for sample in family.samples if sample.value}

    def restarts(self) -> dict[str, int]:
        """By worker."""
        (family,) = [f for f in self._supervisor._metrics.collect() if f.name == "penstock_worker_restarts"]
        counts: Counter[str] = Counter()
        for sample in family.samples:
            counts[sample.labels["worker"]] += int(sample.value)
        return dict(counts)

    def not_ready(self) -> str:
        return self._supervisor._not_ready()

    async def exit_code(self) -> int:
        async with asyncio.timeout(300):
            return await self._running


@asynccontextmanager
async def supervisor(
    count: int, gpus: Sequence[int] = (), *, with_standbys: bool = False, is_all: bool = False, **more: Any
) -> AsyncIterator[Running]:
    """`is_all`: the GPUs are those of `--gpus all`."""
    named = "all" if is_all or not gpus else ",".join(map(str, gpus))
    settings = WorkerSettings.model_validate({"model": "null", "processes": count, "gpus": named, **more})
    made = Supervisor(settings, MACHINE, MemberTimeouts())
    with capture_logs() as events:
        placements = place(MACHINE, gpus, count)
        running = asyncio.create_task(made.run(placements, standbys(placements) if with_standbys else ()))
        yield Running(made, running, events)
        if not running.done():
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.wait_for(running, 60)


def scripted(*steps: Callable[[FakeMember], object]) -> Callable[[FakeMember], object]:
    """The first members follow these steps, one each; the others load and join."""
    left = list(steps)
    return lambda member: left.pop(0)(member) if left else None


def works(member: FakeMember) -> None:
    pass


def fails(member: FakeMember) -> None:
    member.report = Report()
    member.end(9)


def refuses(member: FakeMember) -> None:
    raise NO_PROCESS


def loads_slowly(member: FakeMember) -> None:
    member.report = Report()
    member.may_load.clear()


def free(num_bytes: int) -> Callable[[Placement], Awaitable[int]]:
    """In place of `free_bytes`."""

    async def free_bytes(placement: Placement) -> int:
        return num_bytes

    return free_bytes


def does_not_join(member: FakeMember) -> None:
    member.joins = False


def ends_before_it_joins(member: FakeMember) -> None:
    does_not_join(member)
    asyncio.get_running_loop().call_later(0.01, member.end, 1)


async def test_members_drain_and_end_on_sigterm(processes: FakeProcesses) -> None:
    async with supervisor(2) as running:
        await processes.until(2)
        assert running.states() == {"serving": 2}
        os.kill(os.getpid(), signal.SIGTERM)
        assert await running.exit_code() == 0
    assert all(member.is_stopping for member in processes.members)


@pytest.fixture
def authorities(tmp_path: Path) -> Path:
    """A file of certificates."""
    file = tmp_path / "ca.pem"
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", str(tmp_path / "key")]
    subprocess.run(["openssl", "req", "-x509", *kind, "-subj", "/CN=ca", "-out", file], check=True, capture_output=True)
    return file


async def test_a_stop_while_a_process_is_being_started_ends_it(processes: FakeProcesses) -> None:
    processes.may_start.clear()
    async with supervisor(1) as running, asyncio.timeout(300):
        while not processes.members:  # noqa: ASYNC110 — there is no event to wait for
            await asyncio.sleep(0)
        os.kill(os.getpid(), signal.SIGTERM)
        while running.states() != {"stopping": 1}:  # noqa: ASYNC110 — as above
            await asyncio.sleep(0)
        processes.may_start.set()
        assert await running.exit_code() == 0
    assert processes.members[0].is_stopping


async def test_a_stop_while_members_are_about_to_move_to_the_cpu_ends_all(
    processes: FakeProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`nvidia-smi`, which is asked before, may take seconds."""
    asked, answered = asyncio.Event(), asyncio.Event()

    async def free_bytes(placement: Placement) -> None:
        if processes.members:  # one has loaded
            asked.set()
            await answered.wait()

    monkeypatch.setattr(member_starter, "free_bytes", free_bytes)
    async with supervisor(1, (0, 1), is_all=True) as running:
        await asyncio.wait_for(asked.wait(), 60)
        os.kill(os.getpid(), signal.SIGTERM)
        await running.event("supervisor_stopping")
        answered.set()
        assert await running.exit_code() == 0
        assert running.named("members_moved_to_cpu") == []
    assert len(processes.members) == 1


@pytest.fixture
def evicted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Members of whose death the group was told."""
    found: list[str] = []

    async def evict(cluster: KafkaCluster, group_id: str, member_id: str) -> None:
        found.append(member_id)

    monkeypatch.setattr(supervisor_module, "evict", evict)
    return found


async def test_a_member_that_dies_while_a_certificate_is_renewed_is_replaced(
    processes: FakeProcesses, authorities: Path, evicted: list[str]
) -> None:
    """The supervisor tells the group of its death, with the certificates that it has read before."""
    async with supervisor(1, security_protocol="SSL", ssl_ca_location=authorities) as running:
        (member,) = await processes.until(1)
        os.truncate(authorities, 0)
        member.report = Report(phase="joined", group_id="g", member_id="m")
        member.end(-9, served_s=100.0)
        await processes.until(2)
        await running.serving(1)
    assert evicted == ["m"]


@pytest.mark.parametrize(("asked", "code"), [("SIGHUP", -9), ("SIGTTOU", -9), ("SIGHUP", 0), ("SIGTTOU", 0)])
async def test_the_group_is_told_of_a_member_that_dies_while_it_drains(
    processes: FakeProcesses, evicted: list[str], asked: str, code: int
) -> None:
    """One that ends in order has left the group itself."""
    async with supervisor(2) as running:
        members = (await processes.until(2))[:]
        for number, member in enumerate(members):
            member.report = Report(phase="joined", group_id="g", member_id=f"m{number}")
            member.drains = number == (asked == "SIGTTOU")
        (draining,) = [member for member in members if member.drains]
        os.kill(os.getpid(), signal.Signals[asked])
        async with asyncio.timeout(300):
            while not draining.is_stopping:  # noqa: ASYNC110 — there is no event to wait for
                await asyncio.sleep(0)
        draining.end(code, served_s=100.0)
        await running.event("member_exited")
        await asyncio.sleep(0.01)
        assert evicted == ([] if code == 0 else [draining.report.member_id])


async def test_it_is_ready_while_all_members_serve(processes: FakeProcesses) -> None:
    processes.script = scripted(works, does_not_join)
    async with supervisor(2) as running:
        await running.event("member_loaded", 2)
        assert running.not_ready() == "worker 1 is starting"
        processes.members[1].joins = True
        processes.members[1].join()
        await processes.until(2)
        assert running.not_ready() == ""
        processes.members[0].report = Report(phase="joined", denied="Kafka denies requests")
        assert running.not_ready() == "Kafka denies requests"
        processes.members[0].report = Report(phase="joined")
        os.kill(os.getpid(), signal.SIGTTOU)
        await running.serving(1)
        assert running.not_ready() == ""  # one fewer was asked for
        os.kill(os.getpid(), signal.SIGTERM)
        await running.event("supervisor_stopping")
        assert running.not_ready() == "draining"


async def test_members_that_wait_until_the_first_has_loaded_are_starting(processes: FakeProcesses) -> None:
    """They have not run yet, so they do not start again: `/readyz` and the metrics said `restarting`."""
    processes.script = scripted(lambda member: member.may_load.clear())
    async with supervisor(2) as running:
        await running.event("member_started")
        assert running.states() == {"starting": 2}
        assert running.not_ready() == "worker 0 is starting; worker 1 is starting"
        processes.members[0].may_load.set()
        await running.serving(2)


async def test_a_member_in_the_place_of_another_is_told_if_others_serve_from_its_gpu(processes: FakeProcesses) -> None:
    async with supervisor(2, gpus=[0, 1]) as running:
        await processes.until(4)
        await running.serving(4)
        processes.members[0].end(-9, served_s=30.0)
        await processes.until(5)
        await running.serving(4)
        both = [member for member in processes.members if member.placement.gpu == 1]
        for member in both:
            member.end(-9, served_s=30.0)
        await processes.until(7)
    told = [member.is_beside for member in processes.members]
    assert told[:5] == [False] * 4 + [True]
    assert not told[5]  # nothing serves there


async def test_a_member_that_ends_is_started_again(processes: FakeProcesses) -> None:
    async with supervisor(2) as running:
        first, _ = await processes.until(2)
        first.end(-11, served_s=30.0)
        new = (await processes.until(3))[2]
        assert new.placement == first.placement
        assert running.named("member_exited")[0]["signal"] == "SIGSEGV"
        assert running.states() == {"serving": 2}


async def test_members_of_a_gpu_that_is_given_up_do_not_decide_the_exit_code(processes: FakeProcesses) -> None:
    """One that has not ended yet may die of the same, after it was told to stop."""
    on_gpu_1 = scripted(lambda member: setattr(member, "drains", True), fails, fails, fails)
    processes.script = lambda member: on_gpu_1(member) if member.placement.gpu == 1 else None
    async with supervisor(2, gpus=[0, 1]) as running:
        await running.event("device_given_up")
        (other,) = [one for one in processes.members if one.placement.gpu == 1 and one.is_running]
        other.end(9)
        await running.event("member_exited", 4)
    assert await running.exit_code() == 1


async def test_a_member_that_joins_and_ends_at_once_three_times_is_given_up(processes: FakeProcesses) -> None:
    async with supervisor(1) as running:
        for count in (1, 2, 3):
            (await processes.until(count))[-1].end(1, served_s=0.5)
        assert await running.exit_code() == 3
        assert running.named("could_not_start")[0]["reason"].endswith("the last with exit code 1")


async def test_a_process_that_the_machine_refuses_is_started_again(processes: FakeProcesses) -> None:
    processes.script = scripted(refuses, works, refuses)
    async with supervisor(2) as running:
        await processes.until(2)
        assert running.states() == {"serving": 2}
        assert [event["restart_in_s"] for event in running.named("member_not_started")] == [0.0, 0.0]


async def test_a_machine_that_refuses_every_process_ends_all(processes: FakeProcesses) -> None:
    processes.script = refuses
    async with supervisor(2) as running:
        assert await running.exit_code() == 3
        assert "Resource temporarily unavailable" in running.not_ready()
        assert "Resource temporarily unavailable" in running.named("could_not_start")[0]["reason"]


async def test_members_of_a_gpu_that_is_given_up_stay_in_the_metrics(processes: FakeProcesses) -> None:
    processes.script = lambda member: fails(member) if member.placement.gpu == 1 else None
    async with supervisor(2, gpus=[0, 1]) as running:
        event = await running.event("device_given_up")
        assert (event["device"], event["members_left"]) == ("gpu 1", 2)
        await running.event("member_loaded", 2)
        for _ in range(20):
            await asyncio.sleep(0)
        assert running.states() == {"serving": 2, "given_up": 2}
        assert running.not_ready() == "gpu 1 is given up"
    assert await running.exit_code() == 1


@pytest.fixture
def mps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon of the Multi-Process Service that starts and does nothing."""
    program = tmp_path / "nvidia-cuda-mps-control"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)


async def test_members_that_a_fault_ends_together_are_started_again_without_the_service(
    processes: FakeProcesses, mps: None
) -> None:
    async with supervisor(2, gpus=[0]) as running:
        first, second = await processes.until(2)
        assert all("CUDA_MPS_PIPE_DIRECTORY" in member.environment for member in (first, second))
        for member in (first, second):
            member.end(-6, served_s=30.0)
        await processes.until(4)
        assert [member.environment for member in processes.members[2:]] == [{}, {}]
        assert running.named("mps_given_up")[0]["reason"] == "members of gpu 0 ended at the same moment"
        assert running.states() == {"serving": 2}


async def test_a_worker_starts_where_the_service_does_not_work(processes: FakeProcesses, mps: None) -> None:
    processes.script = scripted(fails)
    async with supervisor(2, gpus=[0]) as running:
        await processes.until(3)
        assert [bool(member.environment) for member in processes.members] == [True, False, False]
        assert running.states() == {"serving": 2}
        assert len(running.named("mps_given_up")) == 1


async def test_members_that_fail_with_the_service_at_the_same_time_are_all_started_without_it(
    processes: FakeProcesses, mps: None
) -> None:
    def fails_with_the_service(member: FakeMember) -> None:
        if member.environment:
            member.may_load.clear()
            fails(member)

    processes.script = scripted(works, fails_with_the_service, fails_with_the_service)
    async with supervisor(2, gpus=[0, 1]) as running:
        await running.event("member_started", 3)
        for member in processes.members[1:]:
            assert "CUDA_MPS_PIPE_DIRECTORY" in member.environment
            member.may_load.set()
        await processes.until(6)
        assert [member.environment for member in processes.members[3:]] == [{}, {}, {}]
        assert running.states() == {"serving": 4}
        assert len(running.named("mps_given_up")) == 1
        assert running.named("member_exited") == []  # which would count as a failed start


async def test_a_model_that_does_not_load_is_not_tried_again_without_the_service(
    processes: FakeProcesses, mps: None
) -> None:
    def has_no_model(member: FakeMember) -> None:
        member.report = Report(failure="no such checkpoint")
        member.end(3)

    processes.script = has_no_model
    async with supervisor(2, gpus=[0]) as running:
        assert await running.exit_code() == 3
        assert len({member.placement.worker for member in processes.members}) == len(
            processes.members
        )  # one start each
        assert running.named("mps_given_up") == []


async def test_a_roll_replaces_each_member(processes: FakeProcesses) -> None:
    async with supervisor(2) as running:
        old = (await processes.until(2))[:]
        os.kill(os.getpid(), signal.SIGHUP)
        await running.event("roll_finished")
        assert not any(member.is_running for member in old)
        assert running.states() == {"serving": 2}


@pytest.mark.parametrize("step", [fails, refuses], ids=["ends", "is not started"])
async def test_a_roll_whose_new_member_does_not_load_keeps_the_old_one(
    processes: FakeProcesses, step: Callable[[FakeMember], None]
) -> None:
    processes.script = scripted(works, works, step)
    async with supervisor(2) as running:
        await processes.until(2)
        os.kill(os.getpid(), signal.SIGHUP)
        assert (await running.event("roll_failed"))["note"] == "The old member stays."
        assert running.states() == {"serving": 2}
        assert all(member.is_running for member in processes.members[:2])


async def test_a_roll_whose_new_member_does_not_join_stops_there(processes: FakeProcesses) -> None:
    processes.script = scripted(works, works, ends_before_it_joins)
    async with supervisor(2) as running:
        first, second = await processes.until(2)
        os.kill(os.getpid(), signal.SIGHUP)
        event = await running.event("roll_failed")
        assert event["reason"] == "the new member did not join the group"
        assert not first.is_running
        assert second.is_running
        assert running.named("roll_finished") == []


async def test_a_hangup_during_a_roll_starts_another(processes: FakeProcesses) -> None:
    processes.script = scripted(works, does_not_join)
    async with supervisor(1) as running:
        await processes.until(1)
        os.kill(os.getpid(), signal.SIGHUP)
        await running.event("member_started", 2)
        os.kill(os.getpid(), signal.SIGHUP)
        await running.event("roll_queued")
        processes.members[1].joins = True
        processes.members[1].join()
        await running.event("roll_finished", 2)
        assert len(processes.members) == 3


async def test_members_are_added_and_removed_but_not_the_last(processes: FakeProcesses) -> None:
    async with supervisor(2) as running:
        await processes.until(2)
        os.kill(os.getpid(), signal.SIGTTIN)
        assert (await processes.until(3))[2].placement.worker == 2
        for left in (2, 1):
            os.kill(os.getpid(), signal.SIGTTOU)
            await running.serving(left)
        os.kill(os.getpid(), signal.SIGTTOU)
        await running.event("member_not_removed")


async def test_members_added_at_the_same_time_have_different_numbers(processes: FakeProcesses) -> None:
    async with supervisor(2) as running:
        await processes.until(2)
        os.kill(os.getpid(), signal.SIGTTIN)
        await asyncio.sleep(0)
        os.kill(os.getpid(), signal.SIGTTIN)
        assert sorted(member.placement.worker for member in await processes.until(4)) == [0, 1, 2, 3]
        assert running.states() == {"serving": 4}


async def test_a_member_that_a_real_time_signal_ends_is_started_again(processes: FakeProcesses) -> None:
    async with supervisor(2) as running:
        (first, _) = await processes.until(2)
        first.end(-40, served_s=100.0)
        assert (await running.event("member_exited"))["signal"] == "signal 40"
        await processes.until(3)


async def test_a_member_that_waits_takes_the_place_of_one_that_dies(processes: FakeProcesses) -> None:
    async with supervisor(2, gpus=[0], with_standbys=True) as running:
        await running.event("standby_ready")
        assert running.states() == {"serving": 2, "standby": 1}
        assert running.not_ready() == ""
        first, _, waiting = processes.members
        assert (waiting.joined_at, waiting.is_beside) == (None, True)
        assert waiting.cpus == waiting.placement.cpus  # one of them while it loaded
        first.end(-9, served_s=30.0)
        await running.event("standby_ready", 2)
        assert waiting.joined_at is not None
        assert waiting.placement.cpus == first.placement.cpus
        assert running.named("member_exited")[0]["replaced_by"] == waiting.pid
        assert [member.placement.worker for member in processes.members] == [0, 1, 2, 0]
        assert running.states() == {"serving": 2, "standby": 1}
        os.kill(os.getpid(), signal.SIGTERM)
        assert await running.exit_code() == 0
    assert not any(member.is_running for member in processes.members)


async def test_a_member_waits_on_each_gpu_for_a_place_there(processes: FakeProcesses) -> None:
    async with supervisor(2, gpus=[0, 1], with_standbys=True) as running:
        await running.event("standby_ready", 2)
        waiting = {member.placement.device: member for member in processes.members[4:]}
        victim = next(member for member in processes.members if member.placement.gpu == 1)
        victim.end(-9, served_s=30.0)
        await running.event("standby_ready", 3)
        assert waiting["gpu 1"].joined_at is not None
        assert waiting["gpu 0"].joined_at is None


async def test_a_member_that_waits_and_ends_is_loaded_again_three_times(processes: FakeProcesses) -> None:
    processes.script = scripted(works, works, works, fails, fails)
    async with supervisor(2, gpus=[0], with_standbys=True) as running:
        await running.event("standby_ready")
        processes.members[2].end(-9)
        await running.event("standby_given_up")
        reasons = [event["reason"] for event in running.named("standby_failed")]
        assert reasons == ["it ended with SIGKILL", *["it ended with exit code 9"] * 2]
        assert len(processes.members) == 5
        assert running.states() == {"serving": 2}


async def test_a_member_waits_only_where_memory_holds_it(
    processes: FakeProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standbys_module, "free_bytes", free(1 << 20))
    async with supervisor(2, gpus=[0], with_standbys=True) as running:
        event = await running.event("standby_given_up")
        assert event["reason"].startswith("1 member needs 1 x 1.0 GiB")
        assert len(processes.members) == 2


async def test_a_roll_replaces_what_waits_too(processes: FakeProcesses) -> None:
    async with supervisor(2, gpus=[0], with_standbys=True) as running:
        await running.event("standby_ready")
        old = processes.members[:]
        os.kill(os.getpid(), signal.SIGHUP)
        await running.event("roll_finished")
        await running.event("standby_ready", 2)
        assert not any(member.is_running for member in old)
        assert running.states() == {"serving": 2, "standby": 1}
        assert running.named("standby_failed") == []


async def test_what_waits_ends_with_its_gpu(processes: FakeProcesses) -> None:
    async with supervisor(1, gpus=[0, 1], with_standbys=True) as running:
        await running.event("standby_ready", 2)
        sick = [member for member in processes.members if member.placement.gpu == 1]
        processes.script = fails
        for member in sick[:1]:
            member.end(-6, served_s=0.0)
        sick[1].end(-6, served_s=0.0)
        await running.event("device_given_up")
        assert not any(member.is_running for member in processes.members if member.placement.gpu == 1)


async def test_a_member_that_is_added_has_another_number_than_what_waits(processes: FakeProcesses) -> None:
    async with supervisor(2, gpus=[0], with_standbys=True) as running:
        await running.event("standby_ready")
        os.kill(os.getpid(), signal.SIGTTIN)
        await running.serving(3, standby=1)
        assert sorted(member.placement.worker for member in processes.members) == [0, 1, 2, 3]


async def test_a_member_that_waits_and_is_being_stopped_takes_no_place(processes: FakeProcesses) -> None:
    async with supervisor(2, gpus=[0], with_standbys=True) as running:
        await running.event("standby_ready")
        first, _, waiting = processes.members
        waiting.drains = True
        processes.script = scripted(loads_slowly)
        os.kill(os.getpid(), signal.SIGHUP)
        await running.event("member_started", 4)  # of the roll
        assert running.states() == {"serving": 2}
        first.end(-9, served_s=30.0)
        assert "replaced_by" not in await running.event("member_exited")
        waiting.end(0)


async def test_what_is_being_started_to_wait_when_a_roll_begins_leaves_its_memory_to_the_roll(
    processes: FakeProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, may_answer = asyncio.Event(), asyncio.Event()

    async def slow(placement: Placement) -> None:
        asked.set()
        await may_answer.wait()

    monkeypatch.setattr(standbys_module, "free_bytes", slow)
    processes.script = scripted(works, works, does_not_join)
    async with supervisor(2, gpus=[0], with_standbys=True) as running:
        await asked.wait()
        os.kill(os.getpid(), signal.SIGHUP)
        await running.event("member_started", 3)
        may_answer.set()
        standby = await running.event("member_started", 4)
        assert not processes.members[standby["member_pid"] - 100].is_running
        processes.members[2].joins = True
        processes.members[2].join()
        await running.event("roll_finished")
        await running.serving(2, standby=1)
        assert running.named("standby_failed") == []


async def test_ends_of_members_that_waited_for_long_are_not_failures_in_a_row(processes: FakeProcesses) -> None:
    async with supervisor(2, gpus=[0], with_standbys=True) as running:
        for count in range(1, 6):
            await running.event("standby_ready", count)
            processes.members[-1].uptime_s = 100.0
            processes.members[-1].end(-9)
        await running.event("standby_ready", 6)
        assert running.named("standby_given_up") == []


async def test_a_member_that_took_a_place_ends_a_row_of_failures(processes: FakeProcesses) -> None:
    async with supervisor(2, gpus=[0], with_standbys=True) as running:
        for count in (1, 2):
            await running.event("standby_ready", count)
            processes.members[-1].end(-9)
        await running.event("standby_ready", 3)
        processes.members[0].end(-9, served_s=30.0)
        await running.event("standby_ready", 4)
        processes.members[-1].end(-9)
        await running.event("standby_ready", 5)


async def test_a_member_that_waits_is_the_one_that_is_added(
    processes: FakeProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resizing, "free_bytes", free(1 << 20))
    async with supervisor(2, gpus=[0], with_standbys=True) as running:
        await running.event("standby_ready")
        monkeypatch.setattr(standbys_module, "free_bytes", free(1 << 20))
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTTIN)
            await asyncio.sleep(0)
        await running.event("standby_given_up")
        await running.event("member_not_added")  # the second
        assert running.states() == {"serving": 3}
        assert set(running.restarts()) == {"0", "1", "2"}
        assert [member.placement.worker for member in processes.members] == [0, 1, 2]
        assert set(processes.members[2].placement.cpus) == set(MACHINE.cpus)


async def test_memory_that_what_will_wait_is_loading_into_is_not_free_for_another(
    processes: FakeProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resizing, "free_bytes", free(3 << 29))
    processes.script = scripted(works, works, loads_slowly)
    async with supervisor(2, gpus=[0], with_standbys=True) as running:
        await running.event("member_started", 3)
        os.kill(os.getpid(), signal.SIGTTIN)
        event = await running.event("member_not_added")
        assert event["reason"] == "2 members need 2 x 1.0 GiB, 1.5 GiB are free: 1 fits"


async def test_a_fault_that_ends_a_member_and_what_waits_for_its_place_is_not_a_failed_start(
    processes: FakeProcesses,
) -> None:
    async with supervisor(2, gpus=[0], with_standbys=True) as running:
        await running.event("standby_ready")
        first, _, waiting = processes.members
        waiting.joins = False
        first.end(-6, served_s=30.0)
        assert (await running.event("member_exited"))["replaced_by"] == waiting.pid
        waiting.end(-6)
        for count in (4, 5):  # failed starts
            processes.script = does_not_join
            await running.event("member_started", count)
            processes.members[count - 1].end(-6)
        await running.event("member_started", 6)
        assert running.named("could_not_start") == []


async def test_the_number_of_what_waits_is_in_the_metrics_once_it_serves(processes: FakeProcesses) -> None:
    async with supervisor(2, gpus=[0], with_standbys=True) as running:
        await running.event("standby_ready")
        assert set(running.restarts()) == {"0", "1"}
        processes.members[0].end(-9, served_s=30.0)
        await running.event("standby_ready", 2)
        assert running.restarts() == {"0": 1, "1": 0, "2": 0}
