"""A measured load as one line."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock.ops.bench.pipeline.loads import Load


def load_line(load: Load, record: Mapping[str, Any]) -> str:
    """Rate, latencies, failures and cores of a load."""
    answered = f"{record['requests_per_s']:,.0f} req/s, p50 {record['p50_ms']:.1f} p99 {record['p99_ms']:.1f} ms"
    failures = f", not answered {record['failures']}" if record["failures"] else ""
    return f"{load.name}: {answered}{failures}; {busiest_cores(record['cores'])}"


def busiest_cores(cores: dict[str, float]) -> str:
    """Cores of the broker, of each member, and of the busiest client."""

    def of(kind: str) -> Sequence[float]:
        return [used for label, used in cores.items() if label.startswith(kind)]

    groups: list[tuple[str, Callable[[Sequence[float]], Sequence[float]]]] = [
        ("broker", list),
        ("member", list),
        ("supervisor", list),
        ("client", lambda used: [max(used)]),
    ]
    shown = [f"{kind} {' '.join(f'{used:.2f}' for used in pick(of(kind)))}" for kind, pick in groups if of(kind)]
    return f"cores: {', '.join(shown)}"
