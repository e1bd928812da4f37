"""`penstock bench`: workers behind Kafka (pipeline), batching (serve, cellular), and a simulated fleet (simulate)."""

from pathlib import Path
from typing import Literal

import typer
from pydantic import Field, ValidationError, field_validator

from penstock.ops.bench.pipeline.pipeline_settings import PipelineSettings
from penstock.ops.bench.serving.loads.length_ranges import DISTRIBUTIONS
from penstock.ops.cli.setting_options import takes
from penstock.producer.settings import KafkaSettings
from penstock.producer.settings_sources import Settings

_PARTS = "saturation,goodput,bursts,classes"
_CELL_PARTS = "lstm,tree"
_MOST_WORKERS = 1024  # one for each of the simulated topic's partitions

bench = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Measure workers behind Kafka or batching policies, or simulate a fleet.",
)


class ServeSettings(Settings):
    """Settings of the measurement."""

    model: str | None = Field(
        None,
        description="Checkpoint. Default: the demo's all-MiniLM-L6-v2. 'bert-base': that shape, with random weights.",
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="Where the model runs.")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field("auto", description="Arithmetic.")
    lengths: str = Field(
        "2-100,5-500",
        description="Tokens per request: 2-100, 5-500, squad, banking77. The tables about objectives use the first.",
    )
    parts: str = Field(_PARTS, description="Tables to measure. Through Kafka: kafka, loads.")
    bootstrap_servers: str | None = Field(
        None,
        description="An existing broker for kafka and loads. Default: a local Kafka, which needs Java.",
    )
    slo_ms: float | None = Field(
        None, gt=0, description="Latency objective. Default: 50, or five times the longest request alone."
    )
    seconds: float = Field(2.0, gt=0, description="Least duration of each run.")
    output: Path | None = Field(
        None,
        description="Folder of kept runs. Default: ops/bench/results if all parts and lengths run, else none.",
    )

    @field_validator("lengths")
    @classmethod
    def _known_lengths(cls, listed: str) -> str:
        return _each_of(listed, (*DISTRIBUTIONS, "banking77"))

    @field_validator("parts")
    @classmethod
    def _known_parts(cls, listed: str) -> str:
        return _each_of(listed, (*_PARTS.split(","), "kafka", "loads"))

    @field_validator("bootstrap_servers")
    @classmethod
    def _addresses(cls, servers: str | None) -> str | None:
        if servers is None:
            return None
        try:
            return KafkaSettings.model_validate({"bootstrap_servers": servers}).bootstrap_servers
        except ValidationError as error:
            raise ValueError(error.errors()[0]["msg"]) from error


class SimulateSettings(Settings):
    """Settings of the simulation."""

    result: Path | None = Field(
        None, description="Result file of `penstock bench serve`, for its measured cost. Default: a model of an H200."
    )
    workers: str = Field("1,4,16,64,256", description="Fleet sizes.")
    requests: int = Field(1_000_000, ge=1000, description="Requests in each simulated run.")
    lengths: str = Field("2-100", description="Tokens per request: 2-100, 5-500, squad.")
    slo_ms: float = Field(50.0, gt=0, description="Latency objective.")
    load: float = Field(0.8, gt=0, description="Fraction of saturation at which the fleet size varies.")
    seed: int = Field(0, ge=0, description="The same seed gives the same requests.")

    @field_validator("workers")
    @classmethod
    def _counts(cls, listed: str) -> str:
        if not _names(listed) or not all(name.isdigit() and 1 <= int(name) <= _MOST_WORKERS for name in _names(listed)):
            raise ValueError(f"Expected whole numbers from 1 to {_MOST_WORKERS} with commas between them")
        return listed

    @field_validator("lengths")
    @classmethod
    def _known_lengths(cls, name: str) -> str:
        return _each_of(name, tuple(DISTRIBUTIONS), most=1)


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
@takes(ServeSettings)
def bench_serve(settings: ServeSettings) -> int:
    """Measure the load that each batching policy sustains on this machine, and print the serving tables.

    $ penstock bench serve

    The load is open-loop, Poisson or bursty. The tables show throughput at
    saturation, goodput within objectives, two classes and the cost model's
    errors; through Kafka also each system's critical point. Only the parts
    kafka and loads need a broker. Takes a few minutes on two cores.
    """
    from penstock.ops.bench.serving.run_plan import RunPlan
    from penstock.ops.bench.serving.serving_benchmark import run_serving_benchmark

    plan = RunPlan(
        parts=_names(settings.parts),
        lengths=_names(settings.lengths),
        slo_s=None if settings.slo_ms is None else settings.slo_ms / 1e3,
        seconds=settings.seconds,
        bootstrap_servers=settings.bootstrap_servers,
    )
    return run_serving_benchmark(
        plan, model=settings.model, device=settings.device, dtype=settings.dtype, output=settings.output
    )


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


@bench.command("simulate")
@takes(SimulateSettings)
def bench_simulate(settings: SimulateSettings) -> int:
    """Simulate a fleet: the product's scheduler on a simulated clock, with measured costs.

    $ penstock bench simulate --workers 1,16,256 --requests 1000000

    The tables show how cost and p99 grow with load and fleet size, and the
    effect of popular keys. Needs no model and no Kafka.
    """
    from penstock.ops.bench.serving.simulation.sweep import SweepPlan, run_sweep

    plan = SweepPlan(
        workers=tuple(int(workers) for workers in _names(settings.workers)),
        num_requests=settings.requests,
        lengths=settings.lengths,
        slo_s=settings.slo_ms / 1e3,
        load=settings.load,
        seed=settings.seed,
    )
    return run_sweep(plan, result=settings.result)


def _names(listed: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in listed.split(",") if name.strip())


def _each_of(listed: str, known: tuple[str, ...], most: int | None = None) -> str:
    names = _names(listed)
    if not names or not set(names) <= set(known) or len(names) > (most or len(known)):
        raise ValueError(f"Expected {'one' if most == 1 else 'some'} of {', '.join(known)}")
    return listed
