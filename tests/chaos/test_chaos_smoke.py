"""A short run of the chaos suite with a fixed seed: three real brokers, real members, and every record judged."""

import pytest

from penstock.ops.chaos.chaos_run import ChaosSettings, run_chaos

SMOKE = ChaosSettings(
    seed=20,
    minutes=1.0,
    rate=60,
    callers=4,
    partitions=4,
    gap_s=(2.0, 3.0),
    outage_s=6.0,
    kinds=(
        "member_killed",
        "broker_killed",
        "rebalance_storm",
        "supervisor_killed",
        "engine_hung",
        "cache_damaged",
        "replies_copied",
    ),
)


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.timeout(300)  # about 90 s on two free cores
def test_no_fault_loses_or_falsifies_a_request() -> None:
    report = run_chaos(SMOKE, print)
    assert report["violations"] == {}, report["examples"]
    assert set(report["faults"]) == set(SMOKE.kinds)
    assert report["faults_not_injected"] == []
    assert report["counts"]["requests"] > 500
    assert report["members_ended"] > 0
