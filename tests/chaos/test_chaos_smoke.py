"""Short runs of the chaos suite with fixed seeds: three real brokers, real members, and every record judged."""

import itertools
import json
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from penstock.ops.chaos.chaos_report import run_chaos
from penstock.ops.chaos.chaos_settings import ChaosSettings
from penstock.ops.chaos.faults.faults import moments
from penstock.ops.chaos.verdict.fault_effects import SLOW_RECOVERY, SLOW_ROLL

AT_LEAST_ONCE = ChaosSettings(
    seed=32,  # a member is killed first
    minutes=1.0,
    rate=60,
    callers=4,
    partitions=4,
    gap_s=(2.0, 3.0),
    outage_s=6.0,
    most_at_once=1,
    min_moments=2,  # a busy machine gets to no more
    kinds=(
        "member_killed",
        "broker_killed",
        "rebalance_storm",
        "supervisor_killed",
        "cache_damaged",
        "partitions_added",
        "replies_copied",
    ),
)
EXACTLY_ONCE = replace(
    AT_LEAST_ONCE,
    seed=31,  # a member is killed first
    minutes=0.4,
    rate=40,
    callers=2,
    kinds=("member_killed", "broker_killed", "rebalance_storm"),
    delivery="exactly_once",
)
ROUTES = replace(
    AT_LEAST_ONCE,
    seed=3,
    minutes=0.2,
    rate=100,
    kinds=("member_killed", "broker_restarted", "registry_restarted"),
    load="routes",
)

_SHOWN_LINES = 60
_OF_KAFKA = re.compile(r'"logger": "penstock\.(transactions|consumer|commits|kafka)"')


@pytest.mark.parametrize("settings", [AT_LEAST_ONCE, EXACTLY_ONCE], ids=lambda settings: settings.delivery)
def test_a_member_is_killed_among_the_faults_that_must_come(settings: ChaosSettings) -> None:
    coming = moments(settings.kinds, settings.most_at_once, random.Random(settings.seed))
    assert ["member_killed"] in [*itertools.islice(coming, settings.min_moments)]


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.parametrize("settings", [AT_LEAST_ONCE, EXACTLY_ONCE], ids=lambda settings: settings.delivery)
def test_no_fault_loses_or_falsifies_a_request(settings: ChaosSettings, tmp_path: Path) -> None:
    report = run_chaos(settings, print, tmp_path / "worker.log")
    bounds_of_time = {SLOW_RECOVERY, SLOW_ROLL}  # not for a machine that other tests share
    if not report["violations"].keys() <= bounds_of_time:
        print(json.dumps(report["faults"]), *_last_of_kafka(tmp_path / "worker.log"), sep="\n")
    assert report["violations"].keys() <= bounds_of_time, report["examples"]
    injected = [fault for fault in report["faults"] if "error" not in fault]  # one that did nothing excuses nothing
    assert len({fault["kind"] for fault in injected}) >= 2
    assert report["counts"]["requests"] > 0
    assert report["counts"]["bombs"] > 0
    assert all(fault["effect"] for fault in injected)
    assert report["counts"]["commits"] > 0
    assert report["members_killed"] > 0


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_no_fault_loses_or_reorders_a_record_of_a_route(
    delivery: Literal["at_least_once", "exactly_once"], tmp_path: Path
) -> None:
    report = run_chaos(replace(ROUTES, delivery=delivery), print, tmp_path / "worker.log")
    if report["violations"]:
        print(json.dumps(report["faults"]), *_last_of_kafka(tmp_path / "worker.log"), sep="\n")
    assert not report["violations"], report["examples"]
    assert len({fault["kind"] for fault in report["faults"] if "error" not in fault}) >= 2
    assert report["counts"]["outputs"] > 0
    assert report["counts"]["bad_inputs"] > 0


def _last_of_kafka(log: Path) -> list[str]:
    """The last lines of the worker about Kafka: its log is removed after the run."""
    lines = log.read_text("utf-8", errors="replace").splitlines()
    return [line for line in lines if _OF_KAFKA.search(line)][-_SHOWN_LINES:]
