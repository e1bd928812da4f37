"""The settings that `penstock check` examines, and a line of its report."""

from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from penstock.worker.settings import WorkerSettings


class CheckSettings(WorkerSettings):
    """A worker's settings, all of them optional. Only what is given is checked."""

    model: str | None = Field(  # type: ignore[assignment]  # wider than the worker's: a model is optional here
        None, description="Checkpoint to load: a directory, or a Hugging Face id."
    )


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    what: str  # the part that was examined
    state: Literal["OK", "problem", "not checked"]
    found: str
    remedy: str = ""  # the action that would help
