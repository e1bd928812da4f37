"""The options of `penstock bench pipeline`, which are the plan of a run."""

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from penstock.ops.bench.pipeline.pipeline_loads import PARTS
from penstock.producer.settings_sources import Settings


class PipelineSettings(Settings):
    """Settings of the measurement."""

    model: str | None = Field(
        None,
        description="Checkpoint. Default: the demo's all-MiniLM-L6-v2; on a GPU 'bert-base', that shape with random "
        "weights. 'minilm' and 'bert-tiny' are smaller ones; 'null' measures the null engine in place of a model.",
    )
    parts: str = Field(",".join(PARTS), description="What to measure.")
    worker_args: str = Field("", description="Further arguments of the model's `penstock worker`, in one string.")
    null_args: str = Field("", description="The same for the null engine's workers.")
    commands: int = Field(1, ge=1, description="Worker commands of the model's fleet, each started in the same way.")
    members: int | None = Field(
        None, ge=1, description="Members of the model's fleet, to wait for. Default: as many as come up."
    )
    null_members: str = Field("1,3", description="Sizes of the null engine's fleets.")
    gpus: str = Field("", description="Numbers of GPUs for part scale, such as 1,2,4. Default: none.")
    brokers: Literal["1", "3"] = Field(
        "1", description="Brokers of each fleet. Three share the partitions; each record is on one of them."
    )
    clients: int | None = Field(None, ge=1, description="Client processes. Default: one for two cores, at most 32.")
    rates: str = Field("", description="Open loops, requests/s. Default: 1000,8000,10000,25000; on a CPU 50,200.")
    warm_s: float = Field(2.0, ge=0, description="Seconds of each load that are not measured.")
    seconds: float = Field(4.0, gt=0, description="Measured seconds of each load.")
    time_limit_s: float = Field(
        600.0, gt=0, description="Time of the whole run. What is not begun by then is left out."
    )
    commit: str | None = Field(None, description="Commit that is measured, where there is no git checkout.")
    output: Path | None = Field(
        None, description="Folder of kept runs. Default: ops/bench/results if all parts run, else none."
    )

    @field_validator("parts")
    @classmethod
    def _known_parts(cls, listed: str) -> str:
        if not listed or not set(listed.split(",")) <= set(PARTS):
            raise ValueError(f"Expected some of {', '.join(PARTS)}")
        return listed

    @field_validator("null_members", "gpus", "rates")
    @classmethod
    def _whole_numbers(cls, listed: str) -> str:
        if listed and not all(number.isdigit() and int(number) > 0 for number in listed.split(",")):
            raise ValueError("Expected whole numbers above 0 with commas between them")
        return listed

    @property
    def is_whole(self) -> bool:
        """Whether all parts run."""
        return set(self.parts.split(",")) == set(PARTS)


def numbers(listed: str) -> list[int]:
    """Of a setting that lists them."""
    return [int(number) for number in listed.split(",") if number]
