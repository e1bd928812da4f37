"""`penstock capacity`: its arithmetic, and simulated devices with the load that it gives each."""

import asyncio
import math
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from penstock.cache import CostKey, CostTables
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
from tests.scheduler.simulation import Arrival, Simulation

H200 = PackedCost(floor_s=0.6e-3, alpha_s=0.1e-3, beta_s=0.39e-6, gamma_s=4e-11)
CPU = PackedCost(floor_s=1e-3, alpha_s=0.3e-3, beta_s=12e-6, gamma_s=2e-9)
GPU_CAPS, CPU_CAPS = (1024, 16_384), (256, 1024)
FOUR_CORES = DeviceCapacity(is_gpu=False, lanes=4, members=1)
ONE_GPU = DeviceCapacity(is_gpu=True, lanes=1, members=3)
SHORT: Lengths = np.random.default_rng(5).integers(2, 101, 20_000)


def plan_for(
    cost: PackedCost, device: DeviceCapacity, rate_per_s: float, slo_s: float, lengths: Lengths = SHORT
) -> CapacityPlan:
    max_sequences, max_tokens = GPU_CAPS if device.is_gpu else CPU_CAPS
    return plan_capacity(
        cost,
        device,
        lengths,
        rate_per_s=rate_per_s,
        slo_s=slo_s,
        max_sequences=max_sequences,
        max_tokens=max_tokens,
    )


class OneDevice:
    """A second of Poisson arrivals on one device. Each request has its own key, so devices share a load evenly."""

    def __init__(self, plan: CapacityPlan, cost: PackedCost, rate_per_s: float, lengths: Lengths = SHORT) -> None:
        caps = GPU_CAPS if plan.device.is_gpu else CPU_CAPS
        max_wait_s = 0.0 if plan.device.is_gpu else 0.002
        settings = SchedulerSettings(max_wait_s, *caps, slo_s=plan.slo_s, num_lanes=plan.device.lanes)
        self.busy_s = 0.0  # of all lanes together
        random = np.random.default_rng(0)
        times = np.cumsum(random.exponential(1 / rate_per_s, max(400, int(rate_per_s))))
        drawn = random.choice(lengths, len(times))
        arrivals = [Arrival(at, tokens) for at, tokens in zip(times.tolist(), drawn.tolist(), strict=True)]
        self.outcome = Simulation(settings, cost, run_s=self._run_s).run(arrivals)
        self.share_in_time = self.outcome.num_in_time / len(times)  # what is rejected is not in time
        self.span_s = float(times[-1])

    def _run_s(self, predicted_s: float) -> float:
        self.busy_s += predicted_s
        return predicted_s


def check_promises(plan: CapacityPlan, cost: PackedCost, lengths: Lengths = SHORT) -> None:
    """Of one of the plan's devices: latencies, and that lanes are not less busy than the plan says."""
    device = OneDevice(plan, cost, plan.rate_per_s / plan.devices, lengths)
    assert plan.slo_s is not None
    assert device.share_in_time >= 0.999
    assert device.outcome.quantile(0.99) <= plan.slo_s
    busy = device.busy_s / (plan.device.lanes * device.span_s)
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
def test_a_simulated_device_of_the_plan_meets_the_objective_and_a_saturated_one_does_not(
    cost: PackedCost, device: DeviceCapacity, rate_per_s: float, slo_s: float
) -> None:
    plan = plan_for(cost, device, rate_per_s, slo_s)
    check_promises(plan, cost)
    saturated = int(plan.rate_per_s / plan.device_per_s)  # full batches would not suffice
    if saturated:
        assert OneDevice(plan, cost, plan.rate_per_s / saturated).share_in_time < 0.99


@pytest.mark.slow
def test_a_simulated_device_of_a_plan_for_a_mean_and_a_percentile_meets_the_objective() -> None:
    lengths = lengths_of(40, 120)
    check_promises(plan_for(CPU, FOUR_CORES, 8000.0, 0.1, lengths), CPU, lengths)


@pytest.mark.slow
@pytest.mark.parametrize(("cost", "device", "caps"), [(H200, ONE_GPU, GPU_CAPS), (CPU, FOUR_CORES, CPU_CAPS)])
def test_the_simulated_throughput_of_a_saturated_device_is_that_of_full_batches(
    cost: PackedCost, device: DeviceCapacity, caps: tuple[int, int]
) -> None:
    """So that a plan's load is the part of the capacity that is in use."""
    plan = plan_for(cost, device, 10_000.0, 1.0)
    settings = SchedulerSettings(0.0, *caps, slo_s=None, num_lanes=device.lanes)
    waiting = [Arrival(0.0, tokens) for tokens in SHORT.tolist()]
    outcome = Simulation(settings, cost).run(waiting)
    assert len(waiting) / outcome.end == pytest.approx(plan.device_per_s, rel=0.05)


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


MEASURE_INTENTS = "penstock calibrate --model CHECKPOINT --served-name intents measures one."


@pytest.fixture
def costs(tmp_path: Path) -> Path:
    """A file with the costs of the model `intents` on a GPU."""
    table = CostTable(H200, samples=(Sample(100, 1000, 10, 10, H200.seconds(100, 1000, 10, 10)),))
    measured = MeasuredCosts(table, (), 1.7e9, 9.0, *GPU_CAPS)
    key = CostKey("NVIDIA H200", "acme/intents", "r", "float16", "penstock")
    assert asyncio.run(CostTables(tmp_path / "costs.sqlite").put(key, measured.to_dict()))
    return tmp_path / "costs.sqlite"


def capacity(costs: Path, *args: str, **options: str) -> tuple[int, str]:
    given = {"model": "intents", "rate": "1", "lengths": "5/9", "costs": str(costs)} | options
    return penstock("capacity", *[f"--{name}={value}" for name, value in given.items()], *args)


class TestCommand:
    def test_it_shows_the_arithmetic(self, costs: Path) -> None:
        code, text = capacity(costs, "--slo-ms", "50", rate="100000", lengths="51/95")
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
        code, text = capacity(costs, lengths=lengths)
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
        code, text = capacity(costs, lengths=str(tmp_path / "lengths.txt"))
        assert code == 2, text
        assert says in text

    def test_a_pipe_of_lengths_is_read_once(self, tmp_path: Path, costs: Path) -> None:
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)

        def write() -> None:
            pipe.write_text("51\n" * 100)

        writer = threading.Thread(target=write, daemon=True)
        writer.start()
        code, text = capacity(costs, lengths=str(pipe))
        writer.join(10.0)
        assert code == 0, text
        assert "mean 51.0 tokens, p95 51" in text

    @pytest.mark.parametrize("option", ["rate", "slo-ms"])
    @pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "1e308", "many"])
    def test_numbers_at_fault(self, costs: Path, option: str, value: str) -> None:
        code, text = capacity(costs, **{option: value})
        assert code == 2, text
        assert f"--{option} (or " in text
        assert f"Given: '{value}'" in text

    def test_another_model_and_no_file(self, costs: Path) -> None:
        code, text = capacity(costs, model="other")
        assert code == 1
        assert "has no cost table of 'other'. It has tables of intents. penstock calibrate --model CHECKPOINT" in text
        code, text = capacity(costs.parent / "nowhere")
        assert code == 2
        assert f"--costs (or PENSTOCK_COSTS): There is no file {costs.parent / 'nowhere'}." in text

    @pytest.mark.parametrize("content", [b"", b"no database" * 1000])
    def test_a_file_of_costs_at_fault(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "costs.sqlite").write_bytes(content)
        code, text = capacity(tmp_path / "costs.sqlite")
        assert code == 1, text
        assert "has no cost table of 'intents'" in text
