"""Policies behind one broker at shares of saturation: how many of all requests are answered in time."""

import dataclasses
from contextlib import AbstractContextManager
from typing import Any

from penstock.ops.bench.common.setup import Details, Setup
from penstock.ops.bench.contestants.worker_fleet import FleetSpec, open_workers
from penstock.ops.bench.load.load_bench import LoadBench, say, with_costs
from penstock.ops.bench.load.loads import SHORT, Load
from penstock.ops.bench.serving.policies import KEEPS_DEADLINES, LOADS, POLICIES, TEI
from penstock.ops.kafka import KafkaBroker

_SLO_S = 0.15  # five times the longest request alone, on two cores
_PATIENCE_S = 30.0  # of a call without a deadline: longer than the backlog of an overloaded load
_CALLERS, _SATURATED_S = 256, 6.0
_WARM_S, _SECONDS = 2.0, 10.0  # in a load of 4 s a single stall decides
_MOST_IN_FLIGHT = 65_536  # records: an open loop is not held back


def run(setup: Setup) -> Details:
    """Part `loads`. Saturation is what TEI's rule answers to many callers: it refuses none."""
    low, high = SHORT
    closed = Load("saturation", "ids", low, high, callers=_CALLERS, warm_s=_WARM_S, timeout_s=_PATIENCE_S)
    rows: list[dict[str, Any]] = []
    with KafkaBroker() as broker:
        with _policy(setup, broker, TEI, "saturation") as side:
            closed = dataclasses.replace(closed, seconds=setup.seconds(_SATURATED_S))
            saturation = float(with_costs(closed, side.offer(closed))["requests_per_s"])
        for number, policy in enumerate(POLICIES):
            with _policy(setup, broker, policy, f"policy-{number}") as side:
                side.offer(dataclasses.replace(closed, name="warm-up", callers=16, warm_s=0.0, seconds=_WARM_S))
                rows += [_offered(setup, side, policy, load, saturation) for load in LOADS]
    return {"lengths": f"{low}-{high}", "slo_s": _SLO_S, "saturation_per_s": saturation, "rows": rows}


def _offered(setup: Setup, side: LoadBench, policy: str, share: float, saturation: float) -> dict[str, Any]:
    deadline_s = _SLO_S if policy in KEEPS_DEADLINES else _PATIENCE_S
    load = Load(f"{policy} at {share:g}", "ids", *SHORT, rate_per_s=share * saturation, timeout_s=deadline_s)
    load = dataclasses.replace(load, warm_s=_WARM_S, seconds=setup.seconds(_SECONDS))
    record, calls = side.watch(load)
    measured = calls.begun_within(load.warm_s, load.span_s)
    in_time_per_s = measured.in_time_per_s(_SLO_S, load.seconds)
    say(f"{load.name}: {in_time_per_s:,.0f} of {record['offered_per_s']:,.0f}/s in time")
    return {**record, "load": share, "slo_s": _SLO_S, "system": policy, "goodput_per_s": in_time_per_s}


def _policy(setup: Setup, broker: KafkaBroker, policy: str, name: str) -> AbstractContextManager[LoadBench]:
    """A worker with a topic and group of its own, so that nothing of the policy before remains."""
    costs = str(setup.logs / "costs.sqlite")  # measured once for all
    options = ("--device", "cpu", "--cost-path", costs, *POLICIES[policy])
    spec = FleetSpec(str(setup.model), options, members=1)
    return open_workers(broker, setup.logs, name, spec, setup.model, max_in_flight=_MOST_IN_FLIGHT)
