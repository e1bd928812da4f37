"""`penstock calibrate`: measure, keep and show the batch times of a model on this machine."""

import asyncio
import contextlib
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from penstock.ops.cli.setting_options import takes
from penstock.ops.cli.terminal import EXIT_OK, EXIT_PROBLEM, fail, narrate_logs, say, stderr
from penstock.worker.model_settings import ModelSettings


@takes(ModelSettings)
def calibrate(
    settings: ModelSettings,
    show: Annotated[bool, typer.Option("--show", help="Print the kept table without measuring.")] = False,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="PNG", help="Draw predicted against measured times. Needs penstock\\[bench]."),
    ] = None,
) -> int:
    """Time batches of a model on this machine, for ten seconds at most, and keep the costs.

    $ penstock calibrate --model sentence-transformers/all-MiniLM-L6-v2

    A worker calibrates at its start if no costs are kept for its device, model,
    arithmetic and version. Calibrate beforehand on an idle machine, or look at
    the costs that the scheduler assumes.

    Exit code 0: measured, or shown. 1: failed.
    """
    if plot is not None and find_spec("matplotlib") is None:
        fail("--plot needs matplotlib, which is not installed: pip install 'penstock[bench]'")
        return EXIT_PROBLEM
    if plot is not None and not plot.absolute().parent.is_dir():
        fail(f"--plot {plot}: there is no directory {plot.absolute().parent}.")
        return EXIT_PROBLEM
    settings.require_model()
    # asyncio.run would delay Ctrl-C: its handler waits for the event loop, which the timings block for seconds.
    with contextlib.closing(asyncio.new_event_loop()) as loop:
        return loop.run_until_complete(_calibrate(settings, show, plot))


async def _calibrate(settings: ModelSettings, show: bool, plot: Path | None) -> int:
    from penstock.cache import CostTables
    from penstock.ops.cli.planning.calibrate_screen import draw, show_costs
    from penstock.worker.batching.startup_costs import cost_key, kept_costs, measure_costs, why_none
    from penstock.worker.process import load_encoder
    from penstock.worker.resolved_settings import batch_caps, default_cost_path

    narrate_logs(bootstrap_servers="")
    with stderr().status(f"Loading {settings.model}"):
        engine = load_encoder(settings)
    path = settings.cost_path or default_cost_path()
    tables, key = CostTables(path), cost_key(engine.info, settings.model)
    if show:
        costs = await kept_costs(tables, key)
        if costs is None:
            reason = await why_none(tables, key)
            fail(f"{path} has no table for this: {reason}. To measure one, repeat the command without --show.")
            return EXIT_PROBLEM
        is_kept = True
    else:
        max_sequences, max_tokens = batch_caps(settings, engine.info)
        with stderr().status("Timing batches, for ten seconds at most"):
            costs = measure_costs(engine, max_sequences=max_sequences, max_tokens=max_tokens, reason="requested")
        is_kept = await tables.put(key, costs.to_dict())
        await tables.add_served_name(key.revision, engine.info.name)
    show_costs(key, costs, path if is_kept else None)
    if plot is not None:
        draw(key, costs, plot)
        say(f"Drawn: {plot}")
    return EXIT_OK if is_kept else EXIT_PROBLEM
