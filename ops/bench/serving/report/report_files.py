"""Files beside a kept run, under its name: its tables as Markdown, and a picture."""

from importlib.util import find_spec
from pathlib import Path


class PlotsUnavailable(Exception):
    """matplotlib is not installed. The message says what to do."""


def require_plots() -> None:
    """Called before anything is measured. Raises PlotsUnavailable."""
    if find_spec("matplotlib") is None:
        raise PlotsUnavailable("The plots need matplotlib. Run: pip install 'penstock[bench]'")


def write_beside(path: Path, markdown: str) -> Path:
    """Write the document of the run at `path`; returns the path of its picture."""
    path.with_suffix(".md").write_text(markdown, encoding="utf-8")
    return path.with_suffix(".png")
