"""Output for the terminal: messages on stderr, exit codes, and sentences in place of tracebacks."""

import errno
import functools
import logging
import os
import signal
import sys
import termios
import threading
import traceback
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, ParamSpec

import typer
from rich.console import Console
from rich.text import Text

Arguments = ParamSpec("Arguments")

EXIT_OK, EXIT_PROBLEM, EXIT_USAGE, EXIT_BUG = 0, 1, 2, 70
EXIT_HUNG_UP, EXIT_INTERRUPTED, EXIT_TERMINATED = 129, 130, 143

_READABLE = ("penstock.", "aiokafka.")  # packages whose errors are sentences; any other exception is a bug

INSTALL_WORKER = "pip install 'penstock[worker]'"
_OF_WORKER = frozenset({"huggingface_hub", "numba", "safetensors", "torch", "transformers"})  # libraries of the extra

_UNWRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG})  # of an open file, without its name


class BadUsage(Exception):
    """Options that are wrong or do not fit together. `exit_code_of` makes it exit code 2."""


def hold_standard_files() -> None:
    """Open those of the standard files that the command was started without on the null device.

    Python has None for them, and the first sockets and files would take their numbers: those of a child process are
    others, and what a library prints to stderr would go into them.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)  # at the lowest free number, which is its own
            os.set_inheritable(opened, True)
            setattr(sys, name, open(opened, mode, encoding="utf-8"))  # noqa: SIM115


def stderr() -> Console:
    """A console on the current stderr. Markup is off, because messages quote user input."""
    return Console(stderr=True, markup=False, highlight=False, soft_wrap=True)


def say(sentence: str, style: str = "") -> None:
    """Print one line on stderr."""
    _print(Text(sentence, style=style))


def fail(sentence: str) -> None:
    """Print one red line on stderr: the fault, and the expected value."""
    _print(Text("Error: ", style="bold red") + Text(sentence, style="red"))


def _print(text: Text) -> None:
    """Print on sys.stderr, which a bar that is on the screen replaces to keep lines apart; consoles look past that."""
    console = stderr()
    with console.capture() as captured:
        console.print(text)
    try:
        sys.stderr.write(captured.get())
        sys.stderr.flush()
    except BrokenPipeError:  # stderr is closed; the exit code still tells how the command ended
        _write_to_nowhere(2)


def ends_with_code(*bad_usage: type[Exception]) -> Callable[[Callable[Arguments, int]], Callable[Arguments, None]]:
    """A command of typer is a function that returns its exit code. `bad_usage`: errors that are the caller's."""

    def decorate(body: Callable[Arguments, int]) -> Callable[Arguments, None]:
        @functools.wraps(body)
        def command(*given: Arguments.args, **named: Arguments.kwargs) -> None:
            raise typer.Exit(exit_code_of(lambda: body(*given, **named), bad_usage=bad_usage))

        return command

    return decorate


def exit_code_of(
    body: Callable[[], int], failed: int = EXIT_PROBLEM, bad_usage: tuple[type[Exception], ...] = ()
) -> int:
    """Run the body of a command. Penstock's errors become a sentence; any other exception keeps its traceback.

    `failed`: the code after a sentence. `bad_usage`: errors that are treated as BadUsage.

    Ctrl-C becomes 130. SIGTERM, and SIGHUP of a terminal that is closed, interrupt the body as Ctrl-C does, so that
    clean-up runs, and become 143 and 129. A body with its own handlers (worker, demo) keeps them, and nohup's choice is
    kept. All also work in the background of a script, where a shell ignores SIGINT.
    """
    terminated, hung_up = threading.Event(), threading.Event()
    usage_errors: tuple[type[Exception], ...] = (BadUsage, *bad_usage)
    try:
        with _like_ctrl_c(signal.SIGTERM, terminated), _like_ctrl_c(signal.SIGHUP, hung_up):
            return body()
    except KeyboardInterrupt:
        say("Stopped.")
        return EXIT_TERMINATED if terminated.is_set() else EXIT_HUNG_UP if hung_up.is_set() else EXIT_INTERRUPTED
    except usage_errors as error:
        fail(str(error))
        return EXIT_USAGE
    except Exception as error:
        sentence = _sentence(error)
        if sentence is None:
            traceback.print_exc()
            fail("This is a bug. Please report it with the lines above.")
            return EXIT_BUG
        fail(sentence)
        return failed


@contextmanager
def _like_ctrl_c(number: signal.Signals, seen: threading.Event) -> Iterator[None]:
    """Make a signal do what Ctrl-C does, and set `seen`.

    No effect outside the main thread, as in tests, and for SIGHUP that is ignored, as under nohup.
    """
    is_ignored = number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN
    if is_ignored or threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: object) -> None:
        seen.set()
        if number == signal.SIGHUP:
            _leave_closed_terminal()
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(number, interrupt)
    ctrl_c_before = signal.getsignal(signal.SIGINT)
    if ctrl_c_before is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(number, before)
        signal.signal(signal.SIGINT, ctrl_c_before)


def _leave_closed_terminal() -> None:
    """Write to nowhere what would go to a terminal that is closed: each write would be an error, amid the clean-up."""
    for place in (1, 2):
        try:
            termios.tcgetattr(place)
        except termios.error as error:
            if error.args[0] == errno.EIO:
                _write_to_nowhere(place)


def _write_to_nowhere(place: int) -> None:
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), place)


def _sentence(error: Exception) -> str | None:
    if type(error).__module__.startswith(_READABLE):
        return str(error) or type(error).__name__
    if isinstance(error, ModuleNotFoundError) and error.name in _OF_WORKER:
        return f"This needs {error.name}, which is not installed: {INSTALL_WORKER}"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, OSError) and error.errno in _UNWRITABLE:
        return f"The output cannot be written: {error.strerror}."
    return None


def narrate_logs(bootstrap_servers: str) -> None:
    """Print client-side log events as sentences on stderr, without repeats. For interactive commands."""
    import structlog

    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # logs each retry; penstock's own events do not repeat
    said = ""

    def narrate(logger: Any, method: str, event: MutableMapping[str, Any]) -> str:
        nonlocal said
        sentence = _narrated(method, event, bootstrap_servers)
        if sentence and sentence != said:
            said = sentence
            say(sentence, "yellow" if method != "info" else "")
        raise structlog.DropEvent

    structlog.configure(
        processors=[narrate],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        cache_logger_on_first_use=False,
    )


def _narrated(method: str, event: MutableMapping[str, Any], servers: str) -> str:
    match event["event"]:
        case "kafka_unreachable":
            return f"Kafka at {servers} does not answer yet. Trying again; Ctrl-C ends."
        case "kafka_back":
            return f"Kafka at {servers} is back."
        case "send_failed":
            return f"Kafka at {servers} was lost. Waiting for it to come back; Ctrl-C ends."
        case "topics_created" if event["topics"]:
            return f"Created topics: {', '.join(event['topics'])}."
        case name if method != "info":
            details = ", ".join(f"{key}={value}" for key, value in event.items() if key != "event")
            return f"{name}: {details}" if details else str(name)
    return ""
