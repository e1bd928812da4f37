"""The settings of a model: which one to run, how, and in batches of what size."""

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from penstock.engine.model.model_place import local_directory
from penstock.producer.settings_sources import FileSettings
from penstock.producer.wire.topics import check_served_name

NULL_MODEL = "null"  # the engine that does no work


class ModelSettings(FileSettings):
    """Batch times depend on these settings and on no others."""

    table: ClassVar[str] = "worker"

    model: str = Field(
        min_length=1,
        description="Checkpoint: a directory, or a Hugging Face id. 'null' is an engine that does no work, for "
        "measuring the pipeline.",
    )
    served_name: Annotated[str | None, AfterValidator(check_served_name)] = Field(
        None, description="Name that requests use. Default: the last part of the checkpoint's path."
    )
    cells: str | None = Field(
        None,
        min_length=1,
        description="A model made of cells from own code, as package.module:attribute, which is a CellModel or a "
        "function that returns one. The code runs in the worker; `model` is then only a name.",
    )
    state_slots: int | None = Field(
        None,
        ge=1,
        description="Sequences, or nodes of trees, of a model made of cells that have a state at the same time; others "
        "wait. Default: as many as 256 MiB hold, from 1024 to 16384.",
    )
    page_memory_mib: int | None = Field(
        None,
        ge=1,
        description="Memory of the keys and values of a model that generates; sequences wait while none is free. "
        "At least what one row of the longest source and result needs, also where less is set. "
        "Default: an eighth of the free memory, at most 2048 on a CPU and 8192 on a GPU.",
    )
    head: Path | None = Field(
        None, description="A linear classification head (safetensors, labels in its metadata) on the embeddings."
    )
    int8_ranges: Path | None = Field(
        None,
        description="Ranges of vectors that are asked for as int8 or uint8: an array [2, dim] in a .npy file, the "
        "least and the greatest value of each place in vectors of a sample. Default: such requests are rejected.",
    )
    dtype: Literal["auto", "auto-int8", "float32", "bfloat16", "float16", "int8"] = Field(
        "auto",
        description="Arithmetic. auto: float16 on a GPU, but bfloat16 for models that overflow it (T5); on a CPU "
        "bfloat16 where the processor multiplies it faster, else float32. int8: encoders on a CPU with AVX-512 VNNI "
        "or a Hopper GPU; ask penstock parity first what it loses. auto-int8: int8 where the model loses "
        "little by it here, measured once, else as auto.",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="Where the model runs. auto: on a GPU if there is one and CuPy is installed."
    )
    engine: Literal["auto", "packed", "padded"] = Field(
        "auto",
        description="packed: this project's runtime, without padding. padded: transformers, with each batch padded to "
        "its longest sequence. auto: packed, or padded for what the runtime does not support on the device.",
    )
    max_batch_sequences: int | None = Field(
        None, ge=1, description="Most sequences in a batch. Default: 256 on a CPU, 1024 on a GPU."
    )
    max_batch_tokens: int | None = Field(
        None,
        ge=1,
        le=1 << 30,
        description="Most tokens in a batch. More: fewer launches. Less: shorter waits, warmer caches. Default: 1024 "
        "on a CPU, 16384 on a GPU.",
    )
    cost_path: Path | None = Field(
        None,
        description="File of measured cost tables (SQLite), which several workers may share. Default: "
        "penstock/costs.sqlite in the user's cache directory (XDG_CACHE_HOME, else ~/.cache).",
    )

    def require_model(self) -> None:
        """Raise CheckpointError for a model that is neither a directory nor an id. Called before torch is imported."""
        if self.cells is None and self.model != NULL_MODEL:
            local_directory(self.model)
