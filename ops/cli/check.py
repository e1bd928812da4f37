"""`penstock check`: what is wrong with a set-up, in one screen."""

import asyncio
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.ops.cli import probes
from penstock.ops.cli.options import takes
from penstock.ops.cli.probes import CheckSettings, Finding
from penstock.ops.cli.screen import EXIT_OK, EXIT_PROBLEM, narrate_logs

_PROBES = (
    probes.model,
    probes.head,
    probes.cache,
    probes.metrics,
    probes.processor,
    probes.gpu,
    probes.local_kafka,
)
_STYLES = {"OK": "green", "problem": "bold red", "not checked": "dim"}


@takes(CheckSettings)
def check(settings: CheckSettings) -> int:
    """Say in one screen what is wrong with a set-up. Takes the worker's options and looks at what they name.

    $ penstock check --bootstrap-servers kafka:9092 --model ./checkpoint

    Exit code 0: nothing wrong was found; 1: at least one problem.
    """
    narrate_logs(settings.bootstrap_servers)
    findings = list(_find(settings))
    _show(findings)
    return EXIT_PROBLEM if any(finding.state == "problem" for finding in findings) else EXIT_OK


def _find(settings: CheckSettings) -> Iterator[Finding]:
    yield from asyncio.run(probes.kafka(settings))
    probe: Callable[[CheckSettings], Finding]
    for probe in _PROBES:
        yield probe(settings)


def _show(findings: list[Finding]) -> None:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        told = Text(finding.found)
        if finding.remedy:
            told.append(f"\n→ {finding.remedy}", style="bold" if finding.state == "problem" else "dim")
        table.add_row(Text(finding.state, style=_STYLES[finding.state]), finding.what, told)
    console = Console(highlight=False)
    console.print(table)
    problems = sum(finding.state == "problem" for finding in findings)
    console.print()
    if problems:
        console.print(f"{problems} problem{'s' if problems > 1 else ''} found.", style="bold red")
    else:
        console.print("Nothing wrong was found.", style="green")
