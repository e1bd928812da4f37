"""The speed of `penstock logs`: `python -m penstock.ops.bench.logs --gb 1`.

The log is of four workers that each log 100 batches and two requests a second, and their load every ten seconds;
or with `--only request_done` of requests alone.
"""

import json
import os
import random
import resource
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import pyarrow
import typer

_WORKERS = 4
_BATCHES_A_SECOND = 100
_START = datetime(2026, 1, 1, tzinfo=UTC)
_MINUTE = b"@@@@-@@-@@T@@:@@"


def write_log(path: Path, num_bytes: int, only: str = "") -> None:
    """Write a log of about this size: a minute of events, again and again with other times. `only`: one event."""
    minute = _minute(only).encode()
    with path.open("wb") as file:
        for number in range(-(-num_bytes // len(minute))):
            moment = (_START + timedelta(minutes=number)).strftime("%Y-%m-%dT%H:%M")
            file.write(minute.replace(_MINUTE, moment.encode()))


def _minute(only: str) -> str:
    rng = random.Random(1)
    lines = []
    for second in range(60):
        for event, make, count in (
            ("batch_done", _batch, _BATCHES_A_SECOND * _WORKERS),
            ("request_done", _request, 2 * _WORKERS),
            ("worker_load", _load, 0 if second % 10 else _WORKERS),
        ):
            if only in ("", event):
                lines += [_line(rng, second, place, event, make(rng)) for place in range(count)]
    return "".join(lines)


def _line(rng: random.Random, second: int, place: int, event: str, fields: dict[str, Any]) -> str:
    worker = place % _WORKERS
    time = f"{_MINUTE.decode()}:{second:02}.{rng.randrange(1_000_000):06}Z"
    ends = {"event": event, "logger": "penstock.load_monitor", "level": "info", "timestamp": time}
    return json.dumps({"worker": worker, "pid": 4000 + worker, **fields, **ends}) + "\n"


def _batch(rng: random.Random) -> dict[str, Any]:
    sequences = rng.randint(1, 64)
    longest = rng.randint(8, 128)
    tokens = int(sequences * longest * rng.uniform(0.4, 1.0)) or 1
    predicted_s = 0.001 + tokens * 1e-6
    return {
        "trigger": rng.choice(("hungry", "timeout", "max_batch", "half_slo")),
        "partition": rng.choice(("fifo", "dp")),
        "dp_gain": round(rng.random() / 10, 4),
        "sequences": sequences,
        "tokens": tokens,
        "max_seqlen": longest,
        "padding_avoided": round(1 - tokens / (sequences * longest), 4),
        "predicted_s": round(predicted_s, 6),
        "device_s": round(predicted_s * rng.lognormvariate(0, 0.1), 6),
    }


def _request(rng: random.Random) -> dict[str, Any]:
    times = {f"{stage}_ms": round(rng.lognormvariate(0, 1), 3) for stage in ("kafka", "tokenize", "cache")}
    total_ms = round(rng.uniform(5, 50), 3)
    return {
        "sample": rng.choice(("first", "slowest")),
        "topic": "penstock.requests.bench",
        "partition": rng.randrange(32),
        "offset": rng.randrange(10**6),
        "correlation_id": f"{rng.getrandbits(128):032x}",
        "class": "online",
        "sequences": 1,
        "cached": 0,
        **times,
        "total_ms": total_ms,
        "ago_ms": round(rng.uniform(0, 1000), 3),
        "left_ms": None,
        "schedule_ms": round(rng.lognormvariate(0, 1), 3),
        "compute_ms": round(total_ms / 2, 3),
        "trigger": rng.choice(("hungry", "timeout", "max_batch", "half_slo")),
        "batch_sequences": rng.randint(1, 64),
        "batch_tokens": rng.randint(8, 4096),
    }


def _load(rng: random.Random) -> dict[str, Any]:
    latencies = {"0.005": 1000, "0.01": 20_000, "0.025": 3000, "0.05": rng.randrange(500)}
    counts = {"answered": sum(latencies.values()), "batches": 3000, "sequences": 30_000, "tokens": 900_000}
    return {"queued_sequences": 3, "backlog_s": 0.004, **counts, "latency_le_s": latencies, "overloaded": 0}


def _compressed(path: Path, compression: str) -> Path:
    packed = path.with_suffix(f".{compression}")
    with path.open("rb") as file, pyarrow.CompressedOutputStream(str(packed), compression) as stream:
        while data := file.read(1 << 20):
            stream.write(data)
    path.unlink()
    return packed


def main(
    gb: Annotated[float, typer.Option(help="Size of the log.")] = 1.0,
    threads: Annotated[int, typer.Option(help="Threads of polars.")] = 1,
    only: Annotated[str, typer.Option(help="The event of all lines: batch_done or request_done.")] = "",
    compression: Annotated[str, typer.Option(help="gzip or zstd.")] = "",
) -> None:
    """Write a log, add it up three times, and print the rate by processor time and by the clock."""
    os.environ["POLARS_MAX_THREADS"] = str(threads)  # before polars is imported
    from penstock.ops.logs.lines.filters import Filters
    from penstock.ops.logs.lines.reader import LogReader
    from penstock.ops.logs.lines.source import LogSource
    from penstock.ops.logs.totals.digest import Digest

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "worker.log"
        write_log(path, round(gb * 1e9), only)
        size_mb = path.stat().st_size / 1e6
        if compression:
            path = _compressed(path, compression)
        for _ in range(3):
            cpu_s, wall_s = time.process_time(), time.perf_counter()
            digest = Digest(LogReader([LogSource(path.name, path)], Filters()))
            cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - wall_s
            memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
            print(
                f"{size_mb:,.0f} MB, {digest.lines.events:,} events: {size_mb / cpu_s:,.0f} MB/s of processor time, "
                f"{size_mb / wall_s:,.0f} MB/s by the clock, {memory_mb:,.0f} MB of memory at most"
            )


if __name__ == "__main__":
    typer.run(main)
