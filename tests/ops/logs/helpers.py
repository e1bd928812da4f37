"""Logs of real workers, trimmed, and lines to make others of.

fleet.log: two members of the demo's model under a supervisor; overload, a kill, a roll. host-a.log and host-b.log: two
workers with a fixed batch time; poison, an overload, and host-b killed and started again.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from penstock.ops.logs.lines.filters import parse_filters
from penstock.ops.logs.lines.reader import LogReader
from penstock.ops.logs.lines.source import find_sources
from penstock.ops.logs.totals.digest import Digest

SAMPLES = Path(__file__).parent / "samples"
FLEET, HOST_A, HOST_B = (SAMPLES / name for name in ("fleet.log", "host-a.log", "host-b.log"))
NOW_S = 1_800_000_000.0


def digest(*paths: Path | str, filters: tuple[str, ...] = ()) -> Digest:
    return Digest(LogReader(find_sources([str(path) for path in paths])[0], parse_filters(filters, NOW_S)))


def lines(path: Path) -> list[dict[str, Any]]:
    """Every line as JSON: what the digest is compared with."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def rejections(path: Path) -> Counter[str]:
    """By code: what the loads count, and the lines of processes that ended before their next load."""
    counted: Counter[str] = Counter()
    waiting: dict[object, Counter[str]] = {}
    for one in lines(path):
        process = one.get("pid")
        if one["event"] == "request_refused":
            waiting.setdefault(process, Counter())[one["code"]] += one["records"]
        elif one["event"] == "worker_load":
            counted += Counter(one["rejected"])
            waiting.pop(process, None)
        elif one["event"] == "worker_starting":
            counted += waiting.pop(process, Counter())
    return sum(waiting.values(), counted)


def line(event: str, time: str | None = "2026-11-22T03:00:00.000000Z", **fields: Any) -> str:
    """A line as a worker writes it."""
    made = {**fields, "event": event, "logger": "penstock.test", "level": fields.get("level", "info")}
    return json.dumps(made if time is None else {**made, "timestamp": time}) + "\n"


def batch(second: int = 0, **fields: Any) -> str:
    """A batch_done line."""
    values: dict[str, Any] = {
        "trigger": "hungry",
        "partition": "fifo",
        "dp_gain": 0.0,
        "sequences": 4,
        "tokens": 60,
        "max_seqlen": 20,
        "padding_avoided": 0.25,
        "predicted_s": 0.012,
        "device_s": 0.01,
    }
    minutes, seconds = divmod(second, 60)
    return line("batch_done", f"2026-11-22T03:{minutes:02}:{seconds:02}.000000Z", **{**values, **fields})
