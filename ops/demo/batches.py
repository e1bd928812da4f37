"""What the worker's log tells about its batches."""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Batches:
    """Totals of the `batch_done` events of one log."""

    count: int
    sequences: int
    tokens: int
    padded_slots: int  # tokens the same batches would have had, each sequence padded to its batch's longest
    device_s: float
    triggers: dict[str, int]  # trigger -> batches, most frequent first

    @property
    def padding_avoided(self) -> float:
        """Share of the padded batches' slots that would have been padding."""
        return 1 - self.tokens / self.padded_slots if self.padded_slots else 0.0


def read_batches(log_path: Path) -> Batches:
    """Add up the `batch_done` events of a JSON log; other lines, also those of other programs, are passed over."""
    events = []
    for line in log_path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and event.get("event") == "batch_done":
            events.append(event)
    return Batches(
        count=len(events),
        sequences=sum(event["sequences"] for event in events),
        tokens=sum(event["tokens"] for event in events),
        padded_slots=sum(event["sequences"] * event["max_seqlen"] for event in events),
        device_s=sum(event["device_s"] for event in events),
        triggers=dict(Counter(event["trigger"] for event in events).most_common()),
    )
