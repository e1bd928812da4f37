"""The demo from end to end: broker, worker, 3,080 messages, the same messages again, results."""

import asyncio
import contextlib
import logging
import os
import signal
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import structlog
import uvloop
from rich.console import Console

from penstock.ops.demo.banking77 import HEAD, Message, read_messages
from penstock.ops.demo.closed_loop import Pass, send_all
from penstock.ops.demo.demo_model import SERVED_NAME, ModelUnavailable, model_directory
from penstock.ops.demo.results_screen import (
    MIN_ACCURACY,
    DemoResults,
    make_console,
    progress_of,
    show_results,
    show_step,
    show_title,
)
from penstock.ops.demo.worker_child import WorkerFailed, WorkerProcess
from penstock.ops.kafka import BrokerError, MockBroker
from penstock.producer import Client, Expired, PenstockError
from penstock.producer.wire.messages import Request

NUM_ALONE = 100
IN_FLIGHT = 64
READY_TIMEOUT_S = 60.0
FETCH_MAX_WAIT_MS = 5
EXIT_FAILED = 1
EXIT_INTERRUPTED = 130


def run(console: Console | None = None) -> int:
    """Run the demo and show it on `console` (default: standard output).

    Returns 0; 1 if something failed or the accuracy is below `MIN_ACCURACY`; 130 after Ctrl-C or SIGTERM. In every case
    the worker process has ended.
    """
    console = console or make_console()
    try:
        results = _run(console)
    except (BrokerError, ModelUnavailable, PenstockError, WorkerFailed) as error:
        console.print(f"\nThe demo failed. {error}", style="red", markup=False, soft_wrap=True)
        return EXIT_FAILED
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("\nInterrupted. Nothing is left running.")
        return EXIT_INTERRUPTED
    show_results(console, results)
    return 0 if results.accuracy >= MIN_ACCURACY else EXIT_FAILED


def _run(console: Console) -> DemoResults:
    messages = read_messages()
    show_title(console, len(messages), len({message.category for message in messages}))
    model = model_directory()
    _clean_environment()
    logs = Path(tempfile.mkdtemp(prefix="penstock-demo-"))  # kept for the user
    _log_to(logs / "client.jsonl")
    with tempfile.TemporaryDirectory(prefix="penstock-cache-") as cache, MockBroker() as broker:
        where = f"librdkafka's mock cluster in this process, at {broker.bootstrap_servers}, for development only"
        show_step(console, "Broker", where)
        arguments = {
            "--model": str(model),
            "--served-name": SERVED_NAME,
            "--head": str(HEAD),
            "--bootstrap-servers": broker.bootstrap_servers,
            "--cache-path": str(Path(cache) / "cache.db"),
            "--log-format": "json",
            "--processes": "1",  # the messages do not need more, and more take longer to start
        }
        worker = WorkerProcess([part for pair in arguments.items() for part in pair], logs / "worker.jsonl")
        alone, loaded, again = uvloop.run(_measure(console, worker, broker.bootstrap_servers, messages))
    # The worker has ended, so its log is complete.
    return DemoResults(
        messages=messages,
        answers=alone.answers + loaded.answers,
        alone=alone,
        loaded=loaded,
        again=again,
        batches=worker.batches(),
        log_path=worker.log_path,
    )


async def _measure(
    console: Console, worker: WorkerProcess, bootstrap_servers: str, messages: Sequence[Message]
) -> tuple[Pass, Pass, Pass]:
    """Start the worker, send all messages (a few one by one, the rest under load), then send all again."""
    _cancel_on_sigterm()
    texts = [message.text for message in messages]
    async with (
        worker,
        Client(bootstrap_servers=bootstrap_servers, model=SERVED_NAME, timeout_s=READY_TIMEOUT_S) as client,
    ):
        await worker.while_alive(_wait_until_ready(console, client, worker))

        async def send(label: str, part: Sequence[str], in_flight: int) -> Pass:
            with progress_of(console, label, len(part)) as on_answer:
                return await worker.while_alive(send_all(client, SERVED_NAME, part, in_flight, on_answer))

        return (
            await send("One caller", texts[:NUM_ALONE], 1),
            await send(f"{IN_FLIGHT} callers", texts[NUM_ALONE:], IN_FLIGHT),
            await send("All again, from the cache", texts, IN_FLIGHT),
        )


async def _wait_until_ready(console: Console, client: Client, worker: WorkerProcess) -> None:
    """Wait for the first answer. Raises WorkerFailed at the request's deadline."""
    started = time.monotonic()
    with console.status("Starting a worker: loading the model, timing it, joining the consumer group ..."):
        try:
            await client.request(Request(SERVED_NAME, "classify", text=("Are you ready?",)))
        except Expired as error:
            raise WorkerFailed(f"The worker was not ready in {READY_TIMEOUT_S:g} s.\n{worker.log_tail()}") from error
    dtype = next((event["dtype"] for event in worker.events("model_loaded")), "unknown")
    what = f"process {worker.pid}, all-MiniLM-L6-v2 and a linear head, {dtype}"
    show_step(console, "Worker", f"{what}; first answer after {time.monotonic() - started:.1f} s")


def _cancel_on_sigterm() -> None:
    """Make SIGTERM end the demo as Ctrl-C does, so that the worker ends too."""
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("There is no current task. This is a bug.")
    with contextlib.suppress(NotImplementedError):  # no signal handlers on this platform's event loop
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)


def _clean_environment() -> None:
    """Remove PENSTOCK_* variables, which may point worker or client at another cluster."""
    for name in [name for name in os.environ if name.startswith("PENSTOCK_")]:
        del os.environ[name]
    # The mock holds each fetch for its longest wait, even if there are records.
    os.environ["PENSTOCK_FETCH_MAX_WAIT_MS"] = str(FETCH_MAX_WAIT_MS)


def _log_to(path: Path) -> None:
    """Send this process's logs (client, aiokafka) to a file, away from the demo's screen."""
    logging.basicConfig(filename=path, level=logging.WARNING, format="%(message)s", force=True)
    structlog.configure(
        processors=[
            structlog.stdlib.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
    )
