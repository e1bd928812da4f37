"""The results of a probe as lines in a terminal."""

from collections.abc import Mapping
from typing import Any

from penstock.ops.bench.cellular.steps.probe import Probe


def show_summary(probe: Probe) -> int:
    """Print the tables. Exit code as `main`."""
    records = {name: part for name, part in probe.results.items() if isinstance(part, dict) and "error" in part}
    _show_steps(records)
    _show_loops(records)
    print()
    for name in ("lengths", "nn_lstm_sorted", "nn_lstm_padded"):
        print(f"{name}: {records[name]['result']}")
    checks = {name: part["result"] for name, part in records.items() if name.startswith("check_")}
    print("\nchecks: " + ", ".join(f"{name} {bool(found and found['passed'])}" for name, found in checks.items()))
    failed = {name: part["error"] for name, part in records.items() if part["error"]}
    print(f"failed parts: {failed or 'none'}\nwritten to {probe.output}", flush=True)
    return 1 if failed or not all(found and found["passed"] for found in checks.values()) else 0


def _show_steps(records: Mapping[str, Any]) -> None:
    products = (records.get("products") or {}).get("result") or {}
    print("\nMicroseconds of a step by quantum, the product alone, and the ratio at the largest quantum")
    for kind in ("unfolded", "folded", "short_unfolded", "short", "chain", "torch"):
        alone = products.get("folded" if kind in ("folded", "short", "chain") else "unfolded", {})
        for rows, by_quantum in (records[f"steps_{kind}"]["result"] or {}).items():
            times = " ".join(f"{quantum}:{us:7.2f}" for quantum, us in by_quantum.items())
            product = alone.get(rows, float("nan"))
            ratio = list(by_quantum.values())[-1] / product
            print(f"{kind:14} rows {rows:>4}  {times}  product {product:7.2f}  ratio {ratio:5.2f}")


def _show_loops(records: Mapping[str, Any]) -> None:
    print("\nClosed loop: requests a second, fill, microseconds of a batch on the host, on the device, and waiting")
    for kind in ("folded", "unfolded", "torch"):
        for quantum, f in (records[f"loop_{kind}"]["result"] or {}).items():
            figures = " ".join(f"{f[name]:8.1f}" for name in ("host_us", "device_us", "wait_us"))
            print(f"{kind:9} quantum {quantum}  {f['requests_per_s']:10.0f} req/s  fill {f['fill']:.2f}  {figures}")
