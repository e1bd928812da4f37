"""`penstock capacity`: members, devices and partitions for a load, from kept cost tables."""

from pathlib import Path

import numpy as np
import uvloop
from pydantic import Field
from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.cache import CostKey
from penstock.ops.cli.planning.capacity_plan import (
    PARTITIONS_PER_MEMBER,
    UTILISATION,
    CapacityPlan,
    DeviceCapacity,
    ImpossibleLoad,
    Lengths,
    lengths_in,
    lengths_of,
    plan_capacity,
)
from penstock.ops.cli.setting_options import takes
from penstock.ops.cli.terminal import EXIT_OK, EXIT_PROBLEM, BadUsage, fail, say
from penstock.producer.settings_sources import Settings, env_name
from penstock.worker.batching.kept_tables import REVISION_CHARS, tables_of
from penstock.worker.batching.startup_costs import MeasuredCosts


class CapacitySettings(Settings):
    """Settings of `penstock capacity`."""

    model: str = Field(
        description="Served name, or the directory of a checkpoint, which selects the tables of its revision alone."
    )
    rate: float = Field(gt=0, le=1e9, allow_inf_nan=False, description="Sequences a second that the fleet must answer.")
    lengths: str = Field(
        description="Tokens of a sequence: MEAN/P95, such as 40/120, or a file with one number of tokens a line."
    )
    slo_ms: float | None = Field(
        None, gt=0, le=1e9, allow_inf_nan=False, description="Latency objective. Default: none, as for bulk."
    )
    costs: Path | None = Field(
        None,
        description="File of cost tables (SQLite), such as another machine's. Default: where penstock calibrate and "
        "the workers of this machine keep them (--cost-path).",
    )


@takes(CapacitySettings)
def capacity(settings: CapacitySettings) -> int:
    """Compute how many members, devices and partitions serve a load, and show the arithmetic.

    $ penstock capacity --model minilm --rate 5000 --lengths 40/120 --slo-ms 100

    $ penstock capacity --model minilm --rate 5000 --lengths lengths.txt --costs h200.sqlite

    The time of a batch comes from the cost tables that this machine keeps of the model, or from those of --costs.
    `penstock calibrate` measures one.

    Exit code 0: a plan is shown. 1: there is no cost table, or no fleet meets the objective.
    """
    try:
        lengths = _sample(settings.lengths)
    except ValueError as error:
        raise BadUsage(f"--lengths (or {env_name('lengths')}): {error}.") from error
    if settings.costs is not None and not settings.costs.is_file():
        raise BadUsage(f"--costs (or {env_name('costs')}): There is no file {settings.costs}.")
    return uvloop.run(_show_plans(settings, lengths))


async def _show_plans(settings: CapacitySettings, lengths: Lengths) -> int:
    kept = await tables_of(settings.model, settings.costs)
    if not kept.costs:
        fail(kept.note)
        return EXIT_PROBLEM
    if kept.note:
        say(kept.note, "yellow")
    code = EXIT_OK
    for key, costs in kept.costs.items():
        try:
            plan = plan_capacity(
                costs.table,
                DeviceCapacity.of(key.device),
                lengths,
                rate_per_s=settings.rate,
                slo_s=None if settings.slo_ms is None else settings.slo_ms / 1e3,
                max_sequences=costs.max_sequences,
                max_tokens=costs.max_tokens,
            )
        except ImpossibleLoad as error:
            fail(f"{key.device}, {key.dtype}, revision {key.revision[:REVISION_CHARS]}: {error}")
            code = EXIT_PROBLEM
            continue
        _show(plan, kept.name, key, costs, lengths)
    return code


def _show(plan: CapacityPlan, name: str, key: CostKey, costs: MeasuredCosts, lengths: Lengths) -> None:
    """Print a plan on stdout, a line for each step."""
    console = Console(highlight=False, markup=False, soft_wrap=True)
    console.print(Text(f"{name}, {key.dtype}", style="bold"), f"on {key.device}")
    console.print(f"{key.runtime}; revision {key.revision[:REVISION_CHARS]}", style="dim")
    grid = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(no_wrap=True)
    for name, text in _lines(plan, costs, lengths):
        grid.add_row(name, text)
    console.print(grid)
    console.print()


def _lines(plan: CapacityPlan, costs: MeasuredCosts, lengths: Lengths) -> list[tuple[str, str]]:
    batch, device = plan.batch, plan.device
    what, several = ("GPU", "GPUs") if device.is_gpu else ("machine", "machines")
    mean, p95 = float(lengths.mean()), float(np.percentile(lengths, 95))
    bounds = f"at most {costs.max_tokens:,} tokens, {costs.max_sequences:,} sequences"
    bounds += f", {plan.slo_s * 1e3 / 4:g} ms (a quarter of the SLO)" if plan.slo_s is not None else ""
    lanes = f"{device.lanes} lanes x {_rate(plan.lane_per_s)} = " if device.lanes > 1 else ""
    members = f"{plan.devices} x {device.members} = {plan.members}"
    partitions = f"{PARTITIONS_PER_MEMBER} x {plan.members} = {plan.partitions}"
    without = f"; {plan.load_without_one:.0%} without one {what}" if plan.devices > 1 else ""
    wanted = plan.rate_per_s / (UTILISATION * plan.device_per_s)
    needed = f"{plan.rate_per_s:,.0f} / ({UTILISATION:.0%} of {_rate(plan.device_per_s)}) = {wanted:.2f}"
    return [
        ("lengths", f"mean {mean:,.1f} tokens, p95 {p95:,.0f}"),
        ("a full batch", f"{batch.sequences:,.1f} sequences, {batch.tokens:,.0f} tokens: {batch.seconds * 1e3:.2f} ms"),
        ("", bounds),
        ("one lane", f"{batch.sequences:,.1f} / {batch.seconds * 1e3:.2f} ms = {_rate(plan.lane_per_s)} sequences/s"),
        (f"one {what}", f"{lanes}{_rate(plan.device_per_s)} sequences/s"),
        (several, f"{needed} → {plan.devices}"),
        ("members", f"{members} ({device.members} on each {what})"),
        ("partitions", f"{partitions} (--partitions {plan.partitions})"),
        ("load", f"{plan.load:.0%} of what full batches would answer{without}"),
    ]


def _rate(per_s: float) -> str:
    return f"{per_s:,.0f}" if per_s >= 1000 else f"{per_s:.1f}"


def _sample(given: str) -> Lengths:
    """Lengths as `--lengths` gives them. Raises ValueError."""
    mean, slash, p95 = given.partition("/")
    try:
        numbers = (float(mean), float(p95)) if slash else None
    except ValueError:  # a path
        numbers = None
    if numbers is not None:
        return lengths_of(*numbers)
    try:
        return lengths_in(Path(given))
    except OSError as error:
        raise ValueError(f"expected MEAN/P95 or a file. {given}: {error.strerror}") from error
