"""CUDA's Multi-Process Service: kernels of several processes share a GPU at the same moment, not in turns."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Literal

import structlog

Mode = Literal["off", "on", "auto"]

TOGETHER_S = 2.0  # one fault ends the members of a GPU within a tenth of a second

_PROGRAM = "nvidia-cuda-mps-control"
_PIPES_OF_A_SYSTEM = "/tmp/nvidia-mps"
_START_S = 20.0
_QUIT_S = 20.0

log = structlog.get_logger("penstock.supervisor")


class MpsUnavailable(Exception):
    """The daemon is not installed, or does not start. The message says why."""


def mps_program() -> str:
    """Path of the program that runs the daemon. Raises MpsUnavailable."""
    program = shutil.which(_PROGRAM)
    if program is None:
        raise MpsUnavailable(
            f"--mps on: {_PROGRAM} is not installed. It comes with the NVIDIA driver; or use --mps off."
        )
    return program


@contextmanager
def mps_daemon() -> Iterator[Mapping[str, str]]:
    """Run a daemon of one's own, with its own pipes and logs. Yields the variables of the processes that use it.

    The daemon ends with the context, or with this process. Raises MpsUnavailable.
    """
    program = mps_program()
    folder = tempfile.mkdtemp(prefix="penstock-mps-")
    variables = {f"CUDA_MPS_{use.upper()}_DIRECTORY": str(Path(folder, use)) for use in ("pipe", "log")}
    for directory in variables.values():
        Path(directory).mkdir()
    environment = {**os.environ, **variables}
    with ExitStack() as stack:
        try:
            stack.enter_context(_guard(program, folder, environment))
            subprocess.run([program, "-d"], env=environment, check=True, timeout=_START_S, stdin=subprocess.DEVNULL)
        except (OSError, subprocess.SubprocessError) as error:
            raise MpsUnavailable(f"--mps on: {_PROGRAM} does not start ({error}). Use --mps off.") from error
        yield variables


@contextmanager
def _guard(program: str, folder: str, environment: Mapping[str, str]) -> Iterator[None]:
    """Run a process that ends the daemon and removes its folder, after the context or when this process ends.

    The kernel closes the guard's input when this process ends, also by SIGKILL. A daemon that was told to quit accepts
    no new clients and waits for those that it has: members that have lost their supervisor still drain.
    """
    guard = subprocess.Popen(
        ["/bin/sh", "-c", 'trap "" HUP INT TERM; read -r _; echo quit | "$0"; /bin/rm -rf "$1"', program, folder],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        process_group=0,
    )
    try:
        yield
    finally:
        with suppress(subprocess.TimeoutExpired):  # the members have ended, and the guard goes on
            guard.communicate(timeout=_QUIT_S)


class MpsClients:
    """Variables of the members that start: with them, a member uses the service.

    The service passes a fault of one member on to all members of its GPU. With `auto` the members that follow such a
    fault run without it: a request at fault then ends its own member only, and is found and set aside.
    """

    def __init__(self, mode: Mode) -> None:
        self.variables: Mapping[str, str] = {}
        self._mode = mode
        self._last_death: dict[str, float] = {}  # device -> monotonic seconds

    def enter(self, stack: ExitStack) -> None:
        """Run a daemon until `stack` is closed. Called before any member starts, where two share a GPU.

        Raises MpsUnavailable with `on`. With `auto`, members run without the service where it does not start, and use
        the machine's own where one runs.
        """
        if self._mode == "off" or (self._mode == "auto" and _runs_already()):
            return
        try:
            self.variables = stack.enter_context(mps_daemon())
        except MpsUnavailable as error:
            if self._mode == "on":
                raise
            log.info("mps_unavailable", reason=str(error))

    def on_start_failed(self, reason: str) -> bool:
        """Called for a member that was started with the variables. Returns whether it may start again without them.

        Several may fail at the same time; each may start again.
        """
        self._give_up(f"a member did not start with it: {reason}")
        return not self.variables

    def on_death(self, device: str, now_s: float) -> None:
        """Called for each member that ends unasked, with the monotonic clock."""
        last_s, self._last_death[device] = self._last_death.get(device), now_s
        if last_s is not None and now_s - last_s <= TOGETHER_S:
            self._give_up(f"members of {device} ended at the same moment")

    def _give_up(self, reason: str) -> None:
        if self._mode == "auto" and self.variables:
            self.variables = {}
            log.warning("mps_given_up", reason=reason)


def _runs_already() -> bool:
    return "CUDA_MPS_PIPE_DIRECTORY" in os.environ or Path(_PIPES_OF_A_SYSTEM, "control").exists()
