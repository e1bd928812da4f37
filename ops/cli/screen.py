"""What a person sees: sentences on stderr, answers on stdout, and no traceback that is not a bug."""

import logging
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.text import Text

EXIT_OK, EXIT_PROBLEM, EXIT_USAGE, EXIT_BUG, EXIT_INTERRUPTED, EXIT_TERMINATED = 0, 1, 2, 70, 130, 143

# Errors of these packages are sentences for a person; any other exception is a bug.
_SPEAKING = ("penstock.", "aiokafka.")


def stderr() -> Console:
    """A console on today's stderr; markup stays off, for messages quote what users typed."""
    return Console(stderr=True, markup=False, highlight=False, soft_wrap=True)


def say(sentence: str, style: str = "") -> None:
    """One line for the person who waits."""
    stderr().print(Text(sentence, style=style))


def fail(sentence: str) -> None:
    """One red line: what is wrong, and what was expected instead."""
    stderr().print(Text("Error: ", style="bold red") + Text(sentence, style="red"))


def exit_code_of(body: Callable[[], int]) -> int:
    """Run a command's body. Our own errors become a sentence, the rest keeps its traceback.

    Ctrl-C becomes 130. SIGTERM ends the body just as Ctrl-C does, so that nothing is left behind, and becomes 143; a
    body that has a handler of its own for it (worker, demo) keeps it. Both work in the background of a script as well,
    where a shell has SIGINT ignored.
    """
    terminated = threading.Event()
    try:
        with _like_ctrl_c(signal.SIGTERM, terminated):
            return body()
    except KeyboardInterrupt:
        say("Stopped.")
        return EXIT_TERMINATED if terminated.is_set() else EXIT_INTERRUPTED
    except Exception as error:
        sentence = _sentence(error)
        if sentence is None:
            traceback.print_exc()
            fail("This is a bug. Please report it with the lines above.")
            return EXIT_BUG
        fail(sentence)
        return EXIT_PROBLEM


@contextmanager
def _like_ctrl_c(number: signal.Signals, seen: threading.Event) -> Iterator[None]:
    """Inside, the signal does what Ctrl-C does, and is noted. Without effect beside the main thread, as in tests."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: object) -> None:
        seen.set()
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


def _sentence(error: Exception) -> str | None:
    if type(error).__module__.startswith(_SPEAKING):
        return str(error) or type(error).__name__
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return None


def narrate_logs(bootstrap_servers: str) -> None:
    """Client-side log events as sentences on stderr, each only when it is news. For commands that a person watches."""
    import structlog

    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # repeats each retry; our own events say it once
    structlog.configure(
        processors=[_Narrator(bootstrap_servers)],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        cache_logger_on_first_use=False,
    )


class _Narrator:
    """A structlog processor that ends the line of processors: it prints and drops."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._servers = bootstrap_servers
        self._said = ""

    def __call__(self, logger: Any, method: str, event: MutableMapping[str, Any]) -> str:
        import structlog

        sentence = self._sentence(method, event)
        if sentence and sentence != self._said:
            self._said = sentence
            say(sentence, "yellow" if method != "info" else "")
        raise structlog.DropEvent

    def _sentence(self, method: str, event: MutableMapping[str, Any]) -> str:
        name = event["event"]
        if name == "kafka_unreachable":
            return f"Kafka at {self._servers} does not answer. Waiting for it; Ctrl-C ends."
        if name == "kafka_back":
            return f"Kafka at {self._servers} is back."
        if name == "send_failed":
            return f"Kafka at {self._servers} was lost. Waiting for it to come back; Ctrl-C ends."
        if name == "topics_created" and event["topics"]:
            return f"Created topics: {', '.join(event['topics'])}."
        if method == "info":
            return ""
        details = ", ".join(f"{key}={value}" for key, value in event.items() if key != "event")
        return f"{name}: {details}" if details else str(name)
