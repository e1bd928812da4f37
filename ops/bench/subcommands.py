"""`penstock bench`: workers behind Kafka (pipeline), and batching (serve, cellular)."""

from pathlib import Path
from typing import Literal

import typer
from pydantic import Field, field_validator

from penstock.ops.bench.pipeline.pipeline_settings import PipelineSettings
from penstock.ops.cli.setting_options import takes
from penstock.producer.settings_sources import Settings

_CELL_PARTS = "lstm,tree"

bench = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Measure workers behind Kafka, or batching policies.",
)


class CellularSettings(Settings):
    """Settings of the measurement."""

    parts: str = Field(_CELL_PARTS, description="Workloads to measure.")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="Where cells run. A CPU has small models.")
    time_limit_s: float = Field(240.0, gt=0, description="No load begins after it.")
    commit: str | None = Field(None, description="Commit that is measured, where there is no git checkout.")
    output: Path | None = Field(None, description="Folder of kept runs. Default: ops/bench/results, if all parts run.")

    @field_validator("parts")
    @classmethod
    def _known_parts(cls, listed: str) -> str:
        return _each_of(listed, tuple(_CELL_PARTS.split(",")))


@bench.command("pipeline")
@takes(PipelineSettings)
def bench_pipeline(settings: PipelineSettings) -> int:
    """Measure workers behind a real Kafka, as a user starts them, beside the engine alone.

    $ penstock bench pipeline --worker-args "--processes auto"

    Client processes saturate the workers, offer open loops, twice the load
    that saturates, and kill a member. The same run measures the engine alone,
    SentenceTransformer.encode, a null engine and an aiokafka echo. Needs Java
    and Maven. Takes about five minutes.
    """
    from penstock.ops.bench.pipeline.pipeline_run import run_pipeline_benchmark

    return run_pipeline_benchmark(settings, lambda line: print(line, flush=True))


@bench.command("serve")
def bench_serve() -> None:
    """Measure the share of requests that each batching policy answers in time, through a real Kafka.

    $ penstock bench serve

    Loads are Poisson, at shares of what a policy without deadlines can
    answer. Needs Java and Maven. Takes some four minutes on two cores.
    """
    from penstock.ops.bench.serving.__main__ import SUITE

    raise typer.Exit(SUITE.run(SUITE.parser("Batching policies through Kafka.").parse_args([])))


@bench.command("cellular")
@takes(CellularSettings)
def bench_cellular(settings: CellularSettings) -> int:
    """Measure cellular batching beside the policies before it: an LSTM and a TreeLSTM, as BatchMaker's paper.

    $ penstock bench cellular

    The tables show each policy's peak throughput, and its latency, split into
    queueing and computation, under Poisson loads. All policies use
    the same engine and kernels; each is tuned in the run. On one GPU with the
    paper's sizes; on a CPU with small ones. Needs no Kafka. Takes at most four
    minutes.
    """
    from penstock.engine import choose_device
    from penstock.ops.bench.cellular.__main__ import SUITE

    parts = [] if settings.parts == _CELL_PARTS else list(_names(settings.parts))
    options = {"--output": settings.output, "--commit": settings.commit}
    given = [str(text) for name, value in options.items() if value is not None for text in (name, value)]
    limit = ["--time-limit-s", str(settings.time_limit_s)]
    return SUITE.main([*parts, "--device", choose_device(settings.device), *limit, *given])


def _names(listed: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in listed.split(",") if name.strip())


def _each_of(listed: str, known: tuple[str, ...]) -> str:
    if not _names(listed) or not set(_names(listed)) <= set(known):
        raise ValueError(f"Expected some of {', '.join(known)}")
    return listed
