"""`penstock capacity`: its arithmetic, and simulated fleets of the sizes that it gives."""

import asyncio
import math
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from penstock.cache import CostKey, CostTables
from penstock.ops.bench import capacity_check
from penstock.ops.bench.serving.loads import length_ranges
from penstock.ops.bench.serving.loads.length_ranges import draw
from penstock.ops.bench.serving.simulation.simulated_fleet import Fleet, FleetOutcome, Traffic, simulate_fleet
from penstock.ops.cli.planning.capacity_plan import (
    CapacityPlan,
    DeviceCapacity,
    ImpossibleLoad,
    Lengths,
    full_batches,
    lengths_in,
    lengths_of,
    plan_capacity,
)
from penstock.scheduler import CostTable, PackedCost, SchedulerSettings
from penstock.scheduler.costs.table import Sample
from penstock.worker.batching.startup_costs import MeasuredCosts
from tests.ops.command_line import penstock

H200 = PackedCost(floor_s=0.6e-3, alpha_s=0.1e-3, beta_s=0.39e-6, gamma_s=4e-11)
CPU = PackedCost(floor_s=1e-3, alpha_s=0.3e-3, beta_s=12e-6, gamma_s=2e-9)
GPU_CAPS, CPU_CAPS = (1024, 16_384), (256, 1024)
FOUR_CORES = DeviceCapacity(is_gpu=False, lanes=4, members=1)
ONE_GPU = DeviceCapacity(is_gpu=True, lanes=1, members=3)


def plan_for(cost: PackedCost, device: DeviceCapacity, rate_per_s: float, slo_s: float) -> CapacityPlan:
    max_sequences, max_tokens = GPU_CAPS if device.is_gpu else CPU_CAPS
    return plan_capacity(
        cost,
        device,
        draw("2-100", 20_000, 5),
        rate_per_s=rate_per_s,
        slo_s=slo_s,
        max_sequences=max_sequences,
        max_tokens=max_tokens,
    )


def simulated(plan: CapacityPlan, cost: PackedCost, devices: int, lengths: str = "2-100") -> FleetOutcome:
    """A second of the plan's load on so many devices."""
    caps = GPU_CAPS if plan.device.is_gpu else CPU_CAPS
    max_wait_s = 0.0 if plan.device.is_gpu else 0.002
    settings = SchedulerSettings(max_wait_s, *caps, slo_s=plan.slo_s, num_lanes=plan.device.lanes)
    fleet = Fleet(devices, settings, cost, num_partitions=plan.partitions)
    return simulate_fleet(Traffic(plan.rate_per_s, int(plan.rate_per_s), lengths), fleet)


def share_in_time(plan: CapacityPlan, outcome: FleetOutcome) -> float:
    """Requests that are rejected are not in time."""
    return float(np.mean(outcome.finish - outcome.arrival <= (plan.slo_s or 0.0)))


def check_promises(plan: CapacityPlan, outcome: FleetOutcome) -> None:
    """Of the plan's own fleet: latencies, and that lanes are not less busy than the plan says."""
    assert plan.slo_s is not None
    assert share_in_time(plan, outcome) >= 0.999
    assert outcome.percentile_s(99) <= plan.slo_s
    busy = float(outcome.busy_s.sum()) / (plan.devices * plan.device.lanes * outcome.span_s)
    assert busy >= 0.95 * plan.load  # most of the time more than that: batches that are not full cost more


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cost", "device", "rate_per_s", "slo_s"),
    [
        (H200, ONE_GPU, 60_000.0, 0.05),
        (CPU, FOUR_CORES, 12_000.0, 0.1),
        (CPU, FOUR_CORES, 400.0, 0.02),
    ],
)
def test_a_simulated_fleet_of_the_plan_meets_the_objective_and_a_saturated_one_does_not(
    cost: PackedCost, device: DeviceCapacity, rate_per_s: float, slo_s: float
) -> None:
    plan = plan_for(cost, device, rate_per_s, slo_s)
    check_promises(plan, simulated(plan, cost, plan.devices))
    saturated = int(plan.rate_per_s / plan.device_per_s)  # full batches would not suffice
    if saturated:
        assert share_in_time(plan, simulated(plan, cost, saturated)) < 0.99


@pytest.mark.slow
def test_a_simulated_fleet_of_a_plan_for_a_mean_and_a_percentile_meets_the_objective(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lengths = lengths_of(40, 120)

    def drawn(count: int, seed: int) -> Lengths:
        return np.random.default_rng(seed).choice(lengths, count)

    monkeypatch.setattr(length_ranges, "DISTRIBUTIONS", {"40/120": drawn})
    max_sequences, max_tokens = CPU_CAPS
    caps = {"max_sequences": max_sequences, "max_tokens": max_tokens}
    plan = plan_capacity(CPU, FOUR_CORES, lengths, rate_per_s=8000.0, slo_s=0.1, **caps)
    check_promises(plan, simulated(plan, CPU, plan.devices, "40/120"))


@pytest.mark.slow
@pytest.mark.parametrize(("cost", "device", "caps"), [(H200, ONE_GPU, GPU_CAPS), (CPU, FOUR_CORES, CPU_CAPS)])
def test_the_simulated_throughput_of_a_saturated_device_is_that_of_full_batches(
    cost: PackedCost, device: DeviceCapacity, caps: tuple[int, int]
) -> None:
    """So that a plan's load is the part of the capacity that is in use."""
    plan = plan_for(cost, device, 10_000.0, 1.0)
    settings = SchedulerSettings(0.0, *caps, slo_s=None, num_lanes=device.lanes)
    outcome = simulate_fleet(Traffic(1e6, 50_000, "2-100"), Fleet(1, settings, cost))
    assert 50_000 / float(outcome.finish.max()) == pytest.approx(plan.device_per_s, rel=0.05)


def test_batches_are_as_full_as_every_bound_allows() -> None:
    tens = np.full(1000, 10, np.int64)
    cost = PackedCost(0.0, 1e-3, 1e-5, 0.0)
    by_tokens = full_batches(cost, tens, max_sequences=1000, max_tokens=64, most_s=1.0)
    assert (by_tokens.sequences, by_tokens.tokens) == (6, 60)
    assert by_tokens.seconds == pytest.approx(1.6e-3)
    assert full_batches(cost, tens, max_sequences=4, max_tokens=64, most_s=1.0).sequences == 4
    assert full_batches(cost, tens, max_sequences=1000, max_tokens=10**6, most_s=1.3e-3).sequences == 3
    assert full_batches(cost, tens, max_sequences=1000, max_tokens=10**6, most_s=1e-9).sequences == 1


def test_devices_members_and_partitions_follow_from_the_rate() -> None:
    plan = plan_for(H200, ONE_GPU, 60_000.0, 0.05)
    assert plan.devices == int(np.ceil(60_000 / (0.6 * plan.device_per_s)))
    assert (plan.members, plan.partitions) == (3 * plan.devices, 12 * plan.devices)
    assert plan.load <= 0.6
    assert plan_for(CPU, FOUR_CORES, 1.0, 0.1).devices == 1


def test_sequences_that_take_more_than_half_of_the_slo_are_an_error() -> None:
    with pytest.raises(
        ImpossibleLoad, match=r"100 tokens or more and takes 1\.5 ms alone: more than half of the SLO of 2"
    ):
        plan_for(CPU, FOUR_CORES, 10.0, 0.002)


@pytest.mark.parametrize("per_token_s", [0.0, 1e308])
def test_costs_that_are_no_times_are_an_error(per_token_s: float) -> None:
    with pytest.raises(ImpossibleLoad, match=r"By the cost table a full batch takes (0|inf) s\. Measure it again"):
        plan_for(PackedCost(0.0, 0.0, per_token_s, 0.0), FOUR_CORES, 10.0, math.inf)


def test_the_largest_load_has_a_plan() -> None:
    plan = plan_capacity(
        *(CPU, FOUR_CORES, lengths_of(1e6, 1e6)), rate_per_s=1e9, slo_s=None, max_sequences=256, max_tokens=1024
    )
    assert 1e9 < plan.devices < 1e16


@pytest.mark.parametrize(("name", "is_gpu", "lanes"), [("Xeon (6/143), 16 cores", False, 16), ("NVIDIA H200", True, 1)])
def test_the_name_of_a_device_tells_its_lanes(name: str, is_gpu: bool, lanes: int) -> None:
    assert (DeviceCapacity.of(name).is_gpu, DeviceCapacity.of(name).lanes) == (is_gpu, lanes)


@pytest.mark.parametrize(("mean", "p95"), [(40.0, 120.0), (51.0, 95.0), (300.0, 300.0)])
def test_lengths_have_the_mean_and_the_percentile(mean: float, p95: float) -> None:
    lengths = lengths_of(mean, p95)
    assert lengths.mean() == pytest.approx(mean, rel=0.02)
    assert np.percentile(lengths, 95) == pytest.approx(p95, rel=0.02)


def test_lengths_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "lengths.txt").write_text("5\n7\n")
    assert set(lengths_in(tmp_path / "lengths.txt").tolist()) == {5, 7}


def test_the_real_check_holds_exactly_if_one_machine_is_enough_where_the_plan_says_so() -> None:
    good, bad = ({"in_time": share} for share in (0.999, 0.998))
    held = [
        capacity_check.holds({"machines": machines, "simulated": first, "real": second})
        for machines, first, second in [(1, good, good), (2, bad, bad), (1, good, bad), (1, bad, good), (2, good, bad)]
    ]
    assert held == [True, True, False, False, False]


def test_the_table_of_the_real_check() -> None:
    answers = {"p99_s": 0.1, "in_time": 1.0, "busy": 0.8}
    rejected = {"p99_s": None, "in_time": 0.8, "busy": 1.0}
    loads = [{"name": "much", "rate_per_s": 76.2, "machines": 1, "simulated": answers, "real": rejected}]
    last = capacity_check.grid([{"lanes": 2, "loads": loads}]).splitlines()[-1]
    assert last == "| 2, much | 76 | 1 | 100, rejected | 100.0%, 80.0% | 80.0%, 100.0% |"


MEASURE_INTENTS = "penstock calibrate --model CHECKPOINT --served-name intents measures one."


@pytest.fixture
def costs(tmp_path: Path) -> Path:
    """A file with the costs of the model `intents` on a GPU."""
    table = CostTable(H200, samples=(Sample(100, 1000, 10, 10, H200.seconds(100, 1000, 10, 10)),))
    measured = MeasuredCosts(table, (), 1.7e9, 9.0, *GPU_CAPS)
    key = CostKey("NVIDIA H200", "acme/intents", "r", "float16", "penstock")
    assert asyncio.run(CostTables(tmp_path / "costs.sqlite").put(key, measured.to_dict()))
    return tmp_path / "costs.sqlite"


class TestCommand:
    def test_it_shows_the_arithmetic(self, costs: Path) -> None:
        load = ("--rate", "100000", "--lengths", "51/95", "--slo-ms", "50")
        code, text = penstock("capacity", "--model", "intents", *load, "--costs", str(costs))
        assert code == 0, text
        for part in (
            "intents, float16 on NVIDIA H200",
            "mean 51.0 tokens, p95 95",
            "at most 16,384 tokens, 1,024 sequences, 12.5 ms (a quarter of the SLO)",
            "GPUs 100,000 / (60% of ",
            "members 4 x 5 = 20 (5 on each GPU)",
            "partitions 4 x 20 = 80 (--partitions 80)",
        ):
            assert part in text

    def test_without_a_table(self, tmp_path: Path) -> None:
        code, text = penstock(
            *("capacity", "--model", "intents", "--rate", "1", "--lengths", "5/9"),
            env={"XDG_CACHE_HOME": str(tmp_path)},
        )
        assert code == 1
        assert f"{os.sep}costs.sqlite has no cost table of 'intents'. {MEASURE_INTENTS}" in text

    @pytest.mark.parametrize(
        ("lengths", "says"),
        [
            ("40/20", "expected a mean and a 95th percentile of 1 to 3.87 times the mean"),
            ("0/0", "from 1 to 1,000,000 tokens. Given: 0/0"),
            ("-1/-1", "Given: -1/-1"),
            ("nan/nan", "Given: nan/nan"),
            ("5/nan", "Given: 5/nan"),
            ("inf/inf", "Given: inf/inf"),
            ("1e308/1e308", "Given: 1e+308/1e+308"),
            ("1e-300/1", "Given: 1e-300/1"),
            ("40/", "40/: No such file or directory"),
            ("nowhere.txt", "expected MEAN/P95 or a file. nowhere.txt: No such file or directory"),
            ("/", "Is a directory"),
        ],
    )
    def test_lengths_at_fault(self, costs: Path, lengths: str, says: str) -> None:
        code, text = penstock(
            "capacity", "--model", "intents", "--rate", "1", f"--lengths={lengths}", "--costs", str(costs)
        )
        assert code == 2, text
        assert text.startswith("Error: --lengths (or PENSTOCK_LENGTHS): ")
        assert says in text

    @pytest.mark.parametrize(
        ("content", "says"),
        [
            (b"", "lengths.txt has no number of tokens; expected one a line."),
            (b" \n\n", "has no number of tokens"),
            (b"5\nlots\n", "line 2 of "),
            (b"5\nlots\n", "must be a number of tokens from 1 to 1,000,000. Found: 'lots'."),
            (b"5\n\n0\n", "line 3 of "),
            (b"-5\n", "Found: '-5'"),
            (b"5.5\n", "Found: '5.5'"),
            (b"1000001\n", "Found: '1000001'"),
            (b"9" * 100_000, f"Found: '{'9' * 40}…'."),
            (b"\xff\xfe5\x00", "line 1 of "),
            ("²".encode(), "Found: '²'"),
        ],
    )
    def test_a_file_of_lengths_at_fault(self, tmp_path: Path, costs: Path, content: bytes, says: str) -> None:
        (tmp_path / "lengths.txt").write_bytes(content)
        args = ("--rate", "1", "--lengths", str(tmp_path / "lengths.txt"), "--costs", str(costs))
        code, text = penstock("capacity", "--model", "intents", *args)
        assert code == 2, text
        assert says in text

    def test_a_pipe_of_lengths_is_read_once(self, tmp_path: Path, costs: Path) -> None:
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)

        def write() -> None:
            pipe.write_text("51\n" * 100)

        writer = threading.Thread(target=write, daemon=True)
        writer.start()
        code, text = penstock(
            *("capacity", "--model", "intents", "--rate", "1", "--lengths", str(pipe), "--costs", str(costs))
        )
        writer.join(10.0)
        assert code == 0, text
        assert "mean 51.0 tokens, p95 51" in text

    @pytest.mark.parametrize("option", ["--rate", "--slo-ms"])
    @pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "1e308", "many"])
    def test_numbers_at_fault(self, costs: Path, option: str, value: str) -> None:
        given = {"--rate": "1", "--slo-ms": "50", "--lengths": "5/9", "--costs": str(costs), option: value}
        code, text = penstock("capacity", "--model", "intents", *(f"{name}={one}" for name, one in given.items()))
        assert code == 2, text
        assert f"{option} (or " in text
        assert f"Given: '{value}'" in text

    def test_another_model_and_no_file(self, costs: Path) -> None:
        args = ("--rate", "1", "--lengths", "5/9", "--costs")
        code, text = penstock("capacity", "--model", "other", *args, str(costs))
        assert code == 1
        assert "has no cost table of 'other'. It has tables of intents. penstock calibrate --model CHECKPOINT" in text
        code, text = penstock("capacity", "--model", "intents", *args, str(costs.parent / "nowhere"))
        assert code == 2
        assert f"--costs (or PENSTOCK_COSTS): There is no file {costs.parent / 'nowhere'}." in text

    @pytest.mark.parametrize("content", [b"", b"no database" * 1000])
    def test_a_file_of_costs_at_fault(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "costs.sqlite").write_bytes(content)
        args = ("--rate", "1", "--lengths", "5/9", "--costs", str(tmp_path / "costs.sqlite"))
        code, text = penstock("capacity", "--model", "intents", *args)
        assert code == 1, text
        assert "has no cost table of 'intents'" in text
