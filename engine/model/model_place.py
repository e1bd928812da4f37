"""Directories and hub ids that models are named by. Imports no torch, so that a wrong name is told at once."""

from pathlib import Path

from penstock.engine.errors import CheckpointError


def local_directory(model: str) -> Path | None:
    """The directory that is the model; None for a name that has the form of a Hugging Face id.

    Raises CheckpointError for anything else.
    """
    path = Path(model)
    if path.is_dir():
        return path
    if path.exists() or model.count("/") != 1 or model.startswith((".", "/", "~")):
        raise CheckpointError(
            f"{model!r} is not a directory. Give a model directory, or a Hugging Face id such as org/name."
        )
    return None
