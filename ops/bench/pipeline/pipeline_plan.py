"""The plan of a run: plain data, made from the options of `penstock bench pipeline`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# In their order. The second line shares one fleet: what needs the fleet whole comes first.
PARTS = (
    "alone",
    *("idle", "closed", "open", "overload", "kill", "drain"),
    *("null", "echo", "scale"),
)
FLEET_PARTS = ("idle", "closed", "open", "overload", "kill", "drain")
NULL = "null"


@dataclass(frozen=True, slots=True)
class PipelinePlan:
    """One run. None and empty leave a value to the device's defaults."""

    parts: Sequence[str]
    model: str | None  # checkpoint, "null", or a name of prepare_process.SHAPES; None: by the device
    worker_arguments: Sequence[str]  # of `penstock worker`, for the model's fleets
    null_arguments: Sequence[str]  # the same for the fleets of the null engine
    commands: int  # of the model's fleet
    members: int | None  # that the model's fleet has; None: as many as come up
    null_members: Sequence[int]  # commands of each fleet of the null engine
    gpus: Sequence[int]  # fleet sizes of part `scale`
    brokers: int  # of each fleet
    clients: int | None
    rates_per_s: Sequence[float]
    warm_s: float
    seconds: float
    time_limit_s: float
    commit: str | None
    output: Path | None


# Large batches and one lane, because there is no computation. As on a GPU, no batch waits to become fuller.
NULL_WORKER: Sequence[str] = (
    *("--lanes", "1", "--max-wait-ms", "0"),
    *("--max-batch-tokens", "65536", "--max-batch-sequences", "1024"),
)
NULL_RATES_PER_S = (1000.0,)
SCALE_RATE_PER_S = 60_000.0  # open loop of the largest fleet of part `scale`
