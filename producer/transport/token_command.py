"""A program that prints an access token, such as the command line of a cloud or of a vault."""

import asyncio
import contextlib
import os
import select
import shlex
import signal
import time
from subprocess import DEVNULL, PIPE, Popen, TimeoutExpired

from aiokafka.errors import AuthenticationFailedError

from penstock.producer.transport.access_token import MAX_BYTES, AccessToken, NoToken, read_token

_SETTING = "sasl_oauthbearer_token_command"
_MOST_S = 10.0
_REUSED_S = 10.0  # a client makes several connections at once; the program need not run for each


async def run_token_command(command: str) -> AccessToken:
    """Run a program and its arguments, without a shell, and read the token from its standard output.

    Raises AuthenticationFailedError, which quotes nothing that the program has printed.
    """
    return await asyncio.to_thread(_run, shlex.split(command))


def _run(arguments: list[str]) -> AccessToken:
    until = time.monotonic() + _MOST_S
    try:
        process = Popen(arguments, stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL, start_new_session=True)
    except OSError as error:
        raise _failed(arguments, f"cannot be run: {error.strerror}") from error
    with process:
        try:
            printed = _read(process, until)
            status = 0 if len(printed) > MAX_BYTES else process.wait(max(0.0, until - time.monotonic()))
        except TimeoutExpired as error:
            raise _failed(arguments, f"has not ended after {_MOST_S:g} s") from error
        finally:
            _kill(process)
    if status:
        raise _failed(arguments, f"ended with exit status {status}")
    try:
        return read_token(printed, _REUSED_S)
    except NoToken as error:
        raise _failed(arguments, f"printed {error}") from error


def _read(process: "Popen[bytes]", until: float) -> bytes:
    """All that the program prints, or somewhat more than may be. Raises TimeoutExpired."""
    if process.stdout is None:
        raise RuntimeError("A token command without a pipe. This is a bug.")
    pipe, printed = process.stdout.fileno(), b""
    ready = select.poll()
    ready.register(pipe, select.POLLIN)
    while len(printed) <= MAX_BYTES:
        if not ready.poll(max(0.0, until - time.monotonic()) * 1e3):
            raise TimeoutExpired("", _MOST_S)
        part = os.read(pipe, MAX_BYTES)
        if not part:
            break
        printed += part
    return printed


def _kill(process: "Popen[bytes]") -> None:
    """Kill the program and its children, if it still runs."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _failed(arguments: list[str], what: str) -> AuthenticationFailedError:
    return AuthenticationFailedError(f"{_SETTING}: {arguments[0]} {what}")
