"""Reader of the worker's log: its precision and its batches."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Batches:
    """Totals of the `batch_done` events of one log."""

    count: int
    sequences: int
    tokens: int
    padded_tokens: int  # tokens of the same batches with each sequence padded to the longest of its batch
    triggers: dict[str, int]  # trigger -> batches, most frequent first

    @property
    def padding_avoided(self) -> float:
        """Fraction of `padded_tokens` that would be padding."""
        return 1 - self.tokens / self.padded_tokens if self.padded_tokens else 0.0


def read_batches(log_path: Path) -> Batches:
    """Add up the `batch_done` events of a JSON log."""
    events = list(_events(log_path, "batch_done"))
    return Batches(
        count=len(events),
        sequences=sum(event["sequences"] for event in events),
        tokens=sum(event["tokens"] for event in events),
        padded_tokens=sum(event["sequences"] * event["max_seqlen"] for event in events),
        triggers=dict(Counter(event["trigger"] for event in events).most_common()),
    )


def read_dtype(log_path: Path) -> str:
    """Precision of the loaded model; "unknown" before it is loaded."""
    return next((str(event["dtype"]) for event in _events(log_path, "model_loaded")), "unknown")


def _events(log_path: Path, name: str) -> Iterator[dict[str, Any]]:
    """Events of one name. Lines that are not JSON (a library's warning, a traceback) are skipped."""
    for line in log_path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and event.get("event") == name:
            yield event
