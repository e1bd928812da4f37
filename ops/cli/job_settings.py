"""Settings of `penstock embed` and `penstock classify`."""

from typing import Literal

from pydantic import Field

from penstock.producer.settings import ClientSettings


class JobSettings(ClientSettings):
    """Settings of both commands: the client's, and how a file is read."""

    timeout_s: float = Field(
        3600.0, gt=0, description="Longest wait of a row for its answer, outages of Kafka and workers included."
    )
    column: str = Field("text", description="Column (CSV, Parquet) or key (JSONL) that holds the text.")
    overwrite: bool = Field(False, description="Replace the output file if it exists.")
    truncate: bool = Field(False, description="Truncate texts that are too long. Otherwise their rows fail.")


class EmbedSettings(JobSettings):
    """Settings of `penstock embed`."""

    pooling: Literal["cls", "mean", "max", "last"] | None = Field(
        None, description="How token vectors become one vector: cls, mean, max or last. Default: the checkpoint's."
    )


class ClassifySettings(JobSettings):
    """Settings of `penstock classify`."""

    top_k: int = Field(1, ge=0, description="Number of labels for each text, best first. 0: all.")
