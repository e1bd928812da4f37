"""Result files: JSON, with Markdown and a picture beside it under the same name."""

import json
import math
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any


class PlotsUnavailable(Exception):
    """matplotlib is not installed. The message says what to do."""


def require_plots() -> None:
    """Found out before anything is measured, and not after minutes of it. Raises PlotsUnavailable."""
    if find_spec("matplotlib") is None:
        raise PlotsUnavailable("The plots need matplotlib. Run: pip install 'penstock[bench]'")


def write(record: Mapping[str, Any], markdown: str, path: Path) -> Path:
    """Write `path` and the document beside it; returns where the picture goes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    path.with_suffix(".md").write_text(markdown, encoding="utf-8")
    return path.with_suffix(".png")


def finite(value: Any) -> Any:
    """As JSON has it: null for what is infinite or no number."""
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
