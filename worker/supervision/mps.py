"""CUDA's Multi-Process Service: kernels of several processes share a GPU at the same moment, not in turns."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import structlog

_PROGRAM = "nvidia-cuda-mps-control"
_ANSWER_S = 20.0

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

    Raises MpsUnavailable.
    """
    program = mps_program()
    with tempfile.TemporaryDirectory(prefix="penstock-mps-") as folder:
        variables = {f"CUDA_MPS_{use.upper()}_DIRECTORY": str(Path(folder, use)) for use in ("pipe", "log")}
        for directory in variables.values():
            Path(directory).mkdir()
        environment = {**os.environ, **variables}
        try:
            subprocess.run([program, "-d"], env=environment, check=True, timeout=_ANSWER_S, stdin=subprocess.DEVNULL)
        except (OSError, subprocess.SubprocessError) as error:
            raise MpsUnavailable(f"--mps on: {_PROGRAM} does not start ({error}). Use --mps off.") from error
        try:
            yield variables
        finally:
            subprocess.run([program], env=environment, check=False, timeout=_ANSWER_S, input=b"quit\n")


def enter_mps(stack: ExitStack, *, is_required: bool) -> Mapping[str, str]:
    """Run a daemon until `stack` is closed. Returns the variables of the processes that use it.

    Where it cannot run, raises MpsUnavailable if it is required, and else logs why and returns none.
    """
    try:
        return stack.enter_context(mps_daemon())
    except MpsUnavailable as error:
        if is_required:
            raise
        log.warning("mps_unavailable", reason=str(error))
        return {}
