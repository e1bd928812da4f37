"""`penstock calibrate`: how long batches take here, measured, kept and shown."""

import asyncio
import contextlib
from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import create_model
from pydantic_settings import BaseSettings, SettingsConfigDict

from penstock.ops.cli.options import takes
from penstock.ops.cli.screen import EXIT_OK, EXIT_PROBLEM, fail, narrate_logs, say, stderr
from penstock.worker.settings import WorkerSettings


class _Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="PENSTOCK_", env_ignore_empty=True, frozen=True, extra="forbid")


# Those of a worker's settings that its times depend on, and no others.
_NAMES = {"model", "served_name", "head", "dtype", "device", "engine"}
_NAMES |= {"max_batch_sequences", "max_batch_tokens", "cost_path"}
_FIELDS: dict[str, Any] = {
    name: (field.annotation, deepcopy(field)) for name, field in WorkerSettings.model_fields.items() if name in _NAMES
}
CalibrateSettings = create_model("CalibrateSettings", __base__=_Settings, **_FIELDS)


@takes(CalibrateSettings)
def calibrate(
    settings: BaseSettings,
    show: Annotated[bool, typer.Option("--show", help="Print the table that is kept; measure nothing.")] = False,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="PNG", help="Draw predicted against measured. Needs penstock\\[bench]."),
    ] = None,
) -> int:
    """Time batches of a model here, for ten seconds at most; keep the costs.

    $ penstock calibrate --model sentence-transformers/all-MiniLM-L6-v2

    A worker does so by itself where nothing is kept for its device, model,
    arithmetic and version. Do it beforehand, on an idle machine, or look at
    what the scheduler believes.

    Exit code 0: measured, or shown. 1: it could not be done.
    """
    if plot is not None and find_spec("matplotlib") is None:
        fail("--plot draws with matplotlib, which is not installed: pip install 'penstock[bench]'")
        return EXIT_PROBLEM
    if plot is not None and not plot.absolute().parent.is_dir():
        fail(f"--plot {plot}: there is no directory {plot.absolute().parent}.")
        return EXIT_PROBLEM
    # Not asyncio.run, whose handler of Ctrl-C waits for the loop, which the timings hold for seconds.
    with contextlib.closing(asyncio.new_event_loop()) as loop:
        return loop.run_until_complete(_calibrate(settings, show, plot))


async def _calibrate(settings: BaseSettings, show: bool, plot: Path | None) -> int:
    from penstock.cache import CostTables
    from penstock.ops.cli.calibrate_screen import show_costs
    from penstock.worker.batching.startup_costs import cost_key, default_cost_path, kept_costs, measure_costs, why_none
    from penstock.worker.process import load, suited

    narrate_logs(bootstrap_servers="")
    worker = WorkerSettings(**settings.model_dump(exclude_unset=True))
    with stderr().status(f"Loading {worker.model}"):
        engine = load(worker)
    worker = suited(worker, engine)
    path = worker.cost_path or default_cost_path()
    tables, key = CostTables(path), cost_key(engine.info, worker.model)
    if show:
        costs = await kept_costs(tables, key)
        if costs is None:
            fail(f"{path} has no table for this: {await why_none(tables, key)}. Measure it: the same without --show.")
            return EXIT_PROBLEM
        is_kept = True
    else:
        caps = {"max_sequences": worker.max_batch_sequences, "max_tokens": worker.max_batch_tokens}
        with stderr().status("Timing batches, for ten seconds at most"):
            costs = measure_costs(engine, **caps, reason="asked for")
        is_kept = await tables.put(key, costs.to_dict())
    show_costs(key, costs, path if is_kept else None)
    if plot is not None:
        from penstock.ops.cli.calibrate_plot import draw

        draw(key, costs, plot)
        say(f"Drawn: {plot}")
    return EXIT_OK if is_kept else EXIT_PROBLEM
