"""`penstock check`: problems of a set-up, on one screen."""

import asyncio

from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.ops.cli.checks import probes
from penstock.ops.cli.checks.kafka_probe import probe_kafka
from penstock.ops.cli.checks.probes import CheckSettings, Finding, MemberMemory
from penstock.ops.cli.setting_options import takes
from penstock.ops.cli.terminal import EXIT_OK, EXIT_PROBLEM, narrate_logs
from penstock.worker.supervision.machine import this_machine

_STYLES = {"OK": "green", "problem": "bold red", "not checked": "dim"}


@takes(CheckSettings)
def check(settings: CheckSettings) -> int:
    """Find problems of a set-up. Takes the worker's options and examines what they name.

    $ penstock check --bootstrap-servers kafka:9092 --model ./checkpoint

    Exit code 0: no problem found. 1: at least one problem.
    """
    narrate_logs(settings.bootstrap_servers)
    machine = this_machine()
    memory = MemberMemory(machine)
    findings = [
        *asyncio.run(probe_kafka(settings)),
        probes.model(settings, memory),
        probes.head(settings),
        probes.cache(settings),
        probes.metrics(settings),
        probes.processor(settings),
        probes.gpu(settings),
        probes.members(settings, machine, memory),
        probes.local_kafka(settings),
    ]
    problems = sum(finding.state == "problem" for finding in findings)
    _show(findings, problems)
    return EXIT_PROBLEM if problems else EXIT_OK


def _show(findings: list[Finding], problems: int) -> None:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        found = Text(finding.found)
        if finding.remedy:
            found.append(f"\n→ {finding.remedy}", style="bold" if finding.state == "problem" else "dim")
        table.add_row(Text(finding.state, style=_STYLES[finding.state]), finding.what, found)
    console = Console(highlight=False)
    console.print(table)
    console.print()
    if problems:
        console.print(f"{problems} problem{'s' if problems > 1 else ''} found.", style="bold red")
    else:
        console.print("No problem found.", style="green")
