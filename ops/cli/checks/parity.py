"""`penstock parity`: compare a checkpoint's outputs here with those of transformers."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from pydantic import Field
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from penstock.ops.cli.setting_options import takes
from penstock.ops.cli.terminal import EXIT_OK, EXIT_PROBLEM, say, stderr
from penstock.producer.settings_sources import Settings

if TYPE_CHECKING:
    from penstock.ops.parity.compare import Agreement, Check
    from penstock.ops.parity.sides import Runtime

_PACKS = {"cuda": 1000, "cpu": 20}

MODEL_HELP = "Checkpoint: a directory, or a Hugging Face id. Only safetensors are read; no code of it is run."


class ParitySettings(Settings):
    """Settings of the comparison."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto",
        description="Arithmetic of penstock's side. auto: as a worker on this machine. A GPU has no float32, a CPU no "
        "float16.",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="Where both sides run. auto: on a GPU if there is one and CuPy is installed."
    )
    reference: str | None = Field(
        None,
        description="The checkpoint that transformers loads, if MODEL is a converted copy of it. Default: MODEL.",
    )
    packs: int | None = Field(
        None,
        ge=1,
        description="Number of random packs of 1 to 32 sequences. More: rarer shapes. Default: 1000 on a GPU, 20 on a "
        "CPU.",
    )
    seed: int = Field(0, ge=0, description="Seed of the random packs.")


@takes(ParitySettings)
def parity(
    settings: ParitySettings,
    model: Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP, show_default=False)],
) -> int:
    """Compare a checkpoint's outputs with those of transformers. Needs no Kafka.

    $ penstock parity ./checkpoint

    The reference is transformers in float32, on random token ids. It is
    compared with penstock, and with transformers in penstock's arithmetic.

    Lengths, random packs: hidden states, with a cosine for each token. The
    error is the largest difference divided by the largest value.

    Alone vs pack: one sequence alone, compared with the same in its pack.

    Vectors, scores: the results that a caller receives.

    A line passes if no cosine is below 0.9999. In bfloat16, which has three
    digits, no angle may exceed twice the largest angle of transformers.

    Exit code 0: all passed. 1: a line missed, or the checkpoint cannot be run.
    """
    _quieten_transformers()
    from penstock.engine.model.checkpoint import resolve_model

    say("Loading the checkpoint here and in transformers ...", style="dim")
    directory = resolve_model(model)
    reference = directory if settings.reference is None else resolve_model(settings.reference)
    return _compare(settings, model, directory, reference)


def _compare(settings: ParitySettings, model: str, directory: Path, reference: Path) -> int:
    import torch

    from penstock.ops.parity.compare import Comparison
    from penstock.ops.parity.sides import Runtime, Transformers, require_original

    runtime = Runtime(directory, settings.dtype, settings.device)
    exact = Transformers(reference, runtime.task, torch.float32, runtime.device)
    if settings.reference is not None:
        require_original(runtime, exact, settings.reference)
    beside = None
    if runtime.info.dtype != "float32":
        beside = Transformers(reference, runtime.task, getattr(torch, runtime.info.dtype), runtime.device)
    packs = settings.packs or _PACKS[runtime.device]
    comparison = Comparison(runtime, exact, beside, packs=packs, seed=settings.seed)
    with _progress(comparison.num_packs) as done:
        checks = list(comparison.run(done))
    _show(checks, runtime, model, settings.reference)
    return EXIT_OK if all(check.passed for check in checks) else EXIT_PROBLEM


def _show(checks: Sequence["Check"], runtime: "Runtime", model: str, reference: str | None) -> None:
    console = Console(highlight=False, markup=False, soft_wrap=True)
    info = runtime.info
    of = "" if reference is None else f" of {reference}"
    console.print(
        f"{model}: {runtime.config.model_type}, {info.dtype} on {info.device}, beside transformers{of} in float32"
    )
    console.print()
    names = ["penstock"] if checks[0].theirs is None else ["penstock", f"transformers {info.dtype}"]
    console.print(" " * 19 + "".join(f"  {name:>24}" for name in names), style="bold")
    console.print(" " * 13 + "inputs" + "  cos min     mean   error" * len(names), style="dim")
    for check in checks:
        console.print(_line(check))
    console.print()
    console.print(_verdict(checks))


def _line(check: "Check") -> Text:
    line = Text(f"{check.what:<13}{check.num_sequences:>6,}" + _numbers(check.ours) + _numbers(check.theirs))
    return line if check.passed else line.append(" missed", style="bold red")


def _numbers(agreement: "Agreement | None") -> str:
    if agreement is None:
        return ""
    return f"  {agreement.cosine_min:8.6f} {agreement.cosine_mean:8.6f} {agreement.error:.1e}"


def _verdict(checks: Sequence["Check"]) -> Text:
    missed = [check for check in checks if not check.passed]
    if not missed:
        worst = min(checks, key=lambda check: check.ours.cosine_min)
        found = f"{worst.ours.cosine_min:.6f} ({worst.what}; required: {worst.needed:.6f})"
        return Text(f"It agrees: the smallest cosine is {found}.", style="green")
    told = Text(f"It does not agree: {len(missed)} of {len(checks)} lines missed.", style="bold red")
    for check in missed:
        told.append(f"\n{check.what}: a cosine of {check.ours.cosine_min:.6f}; required: {check.needed:.6f}.")
        if check.theirs is not None and check.theirs.cosine_min < check.needed:
            told.append(f" transformers reaches {check.theirs.cosine_min:.6f}: this model needs a wider --dtype.")
    return told


@contextmanager
def _progress(total: int) -> Iterator[Callable[[], None]]:
    console = stderr()
    columns = TextColumn("Comparing packs"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=total)
        yield lambda: progress.advance(task)


def _quieten_transformers() -> None:
    """Silence progress bars, and warnings about heads that the comparison does not use."""
    import transformers

    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # transformers
    logging.getLogger("transformers").setLevel(logging.CRITICAL)
