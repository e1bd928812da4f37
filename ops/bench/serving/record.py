"""Result files: JSON, with Markdown and a picture beside it under the same name."""

import json
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any


class PlotsUnavailable(Exception):
    """matplotlib is not installed. The message says what to do."""


def require_plots() -> None:
    """Check for matplotlib before anything is measured. Raises PlotsUnavailable."""
    if find_spec("matplotlib") is None:
        raise PlotsUnavailable("The plots need matplotlib. Run: pip install 'penstock[bench]'")


def write(record: Mapping[str, Any], markdown: str, path: Path) -> Path:
    """Write `path` and the document beside it; returns where the picture goes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    path.with_suffix(".md").write_text(markdown, encoding="utf-8")
    return path.with_suffix(".png")
