"""Settings of `penstock embed` and `penstock classify`: the client's, and how a file is read."""

from typing import Literal

from pydantic import Field

from penstock.producer.settings import ClientSettings


class JobSettings(ClientSettings):
    """What both commands share."""

    timeout_s: float = Field(
        3600.0, gt=0, description="How long a row may wait for its answer while Kafka or the workers are away."
    )
    column: str = Field("text", description="Column (CSV, Parquet) or key (JSONL) that holds the text.")
    overwrite: bool = Field(False, description="Replace the output file if it exists.")
    truncate: bool = Field(False, description="Cut texts that are too long instead of failing their rows.")


class EmbedSettings(JobSettings):
    """Settings of `penstock embed`."""

    pooling: Literal["cls", "mean", "max", "last"] | None = Field(
        None, description="How token vectors become one: cls, mean, max or last. Default: as the checkpoint says."
    )


class ClassifySettings(JobSettings):
    """Settings of `penstock classify`."""

    top_k: int = Field(1, ge=0, description="How many labels a text, best first; 0: all.")
