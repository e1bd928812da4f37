"""Load generator and simulator: seeds, rates, conservation, and a queue whose waits are known in closed form."""

import numpy as np
import pytest

from penstock.ops.bench.serving.loads.arrivals import ON_S, PERIOD_S, bursty, poisson
from penstock.ops.bench.serving.loads.length_ranges import DISTRIBUTIONS, draw
from penstock.ops.bench.serving.loads.measured_driver import MeasuredDriver
from penstock.ops.bench.serving.loads.outcome import Outcome
from penstock.ops.bench.serving.loads.stream import BULK_WAITING, TOGETHER, Arrivals, Stream
from penstock.ops.bench.serving.simulation.simulate import NO_SCATTER, Scatter, noisy, scatter_of, simulate
from penstock.ops.bench.serving.simulation.simulated_fleet import Fleet, Traffic, simulate_fleet
from penstock.scheduler import CostTable, PackedCost, Scheduler, SchedulerSettings
from penstock.scheduler.costs.table import Sample

pytestmark = pytest.mark.slow

COST = PackedCost(floor_s=0.4e-3, alpha_s=0.1e-3, beta_s=0.4e-6, gamma_s=1e-10)
SCATTER: list[float] = np.random.default_rng(0).lognormal(0, 0.1, 500).tolist()


def settings(**changes: object) -> SchedulerSettings:
    plain: dict[str, object] = {
        "max_wait_s": 0.002,
        "max_batch_sequences": 256,
        "max_batch_tokens": 4096,
        "slo_s": None,
        "trigger": "hungry",
        "partition": "fifo",
        "order": "arrival",
        "admission": "accept",
    }
    return SchedulerSettings(**{**plain, **changes})  # type: ignore[arg-type]  # one dict of all kinds of values


def run(chosen: SchedulerSettings, stream: Stream, cost: PackedCost = COST, scatter: Scatter = SCATTER) -> Outcome:
    driver = MeasuredDriver(Scheduler(chosen, cost), chosen.num_lanes)
    return simulate(stream, driver, noisy(cost, scatter, seed=0))


def stream(rate_per_s: float, count: int = 5000, seed: int = 0, lengths: str = "2-100") -> Stream:
    return Stream(poisson(rate_per_s, count, seed), draw(lengths, count, seed))


@pytest.mark.parametrize("arrivals", [poisson, bursty])
def test_the_same_seed_gives_the_same_arrivals_at_the_asked_rate(arrivals: object) -> None:
    assert callable(arrivals)
    times = arrivals(500.0, 20_000, 3)
    assert np.array_equal(times, arrivals(500.0, 20_000, 3))
    assert not np.array_equal(times, arrivals(500.0, 20_000, 4))
    assert np.all(np.diff(times) >= 0)
    assert len(times) / times[-1] == pytest.approx(500, rel=0.03)


def test_poisson_gaps_scatter_as_much_as_their_mean() -> None:
    gaps = np.diff(poisson(100.0, 50_000, 0))
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.03)


def test_bursts_come_at_their_peak_and_nothing_between_them() -> None:
    times = bursty(200.0, 10_000, 0)
    assert np.all(times % PERIOD_S <= ON_S)
    within = times[(times >= 2.0) & (times < 2.0 + ON_S)]
    assert len(within) == pytest.approx(200 * PERIOD_S, rel=0.2)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_a_rate_that_cannot_be_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="arrival rate"):
        poisson(rate, 10, 0)


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [("2-100", 2, 100), ("5-500", 5, 500), ("squad", 41, 384)],
)
def test_lengths_stay_in_their_range_and_follow_their_seed(name: str, low: int, high: int) -> None:
    lengths = draw(name, 4000, 1)
    assert len(lengths) == 4000
    assert low <= lengths.min() < lengths.max() <= high
    assert np.array_equal(lengths, draw(name, 4000, 1))
    assert not np.array_equal(lengths, draw(name, 4000, 2))
    if name != "squad":
        assert lengths.mean() == pytest.approx((low + high) / 2, rel=0.05)


def test_an_unknown_distribution_is_named() -> None:
    with pytest.raises(ValueError, match="'3-7'"):
        draw("3-7", 1, 0)
    assert "squad" in DISTRIBUTIONS


@pytest.mark.parametrize("load", [0.3, 0.7, 0.9])
def test_the_mean_wait_of_one_at_a_time_is_that_of_an_m_d_1_queue(load: float) -> None:
    service_s = 0.01
    constant = PackedCost(floor_s=service_s, alpha_s=0, beta_s=0, gamma_s=0)
    one_by_one = settings(partition="none", max_batch_sequences=1)
    outcome = run(one_by_one, stream(load / service_s, 40_000), constant, NO_SCATTER)
    expected_s = load * service_s / (2 * (1 - load))  # Pollaczek and Khinchine, no variance of service
    assert float(np.mean(outcome.start - outcome.arrival)) == pytest.approx(expected_s, rel=0.08)


@pytest.mark.parametrize("lanes", [1, 2, 4])
@pytest.mark.parametrize("partition", ["none", "naive", "fifo", "sorted", "dp"])
def test_every_request_is_answered_once_after_it_came(partition: str, lanes: int) -> None:
    outcome = run(settings(partition=partition, num_lanes=lanes, max_batch_sequences=64), stream(4000.0, 3000))
    assert np.all(np.isfinite(outcome.finish))
    assert np.all(outcome.finish > outcome.start)
    assert np.all(outcome.start >= outcome.arrival)
    assert sum(batch.count for batch in outcome.batches) == 3000
    assert sum(batch.tokens for batch in outcome.batches) == int(draw("2-100", 3000, 0).sum())


def test_what_is_refused_is_not_run_and_what_is_run_is_not_refused() -> None:
    strict = settings(trigger="lazy", slo_s=0.02, order="edf", admission="deadline")
    outcome = run(strict, stream(400_000.0, 20_000))
    answered = int(np.isfinite(outcome.finish).sum())
    assert sum(outcome.refused.values()) > 1000
    assert answered + sum(outcome.refused.values()) == 20_000


def test_lanes_never_run_more_batches_at_once_than_there_are() -> None:
    outcome = run(settings(num_lanes=2), stream(200_000.0, 3000))  # more than one can take: it is not held back
    begins = np.array([batch.started for batch in outcome.batches])
    ends = begins + [batch.measured_s for batch in outcome.batches]
    running = [int(((begins <= moment) & (ends > moment)).sum()) for moment in begins]
    assert max(running) == 2


def test_a_simulation_repeats_itself() -> None:
    one, other = (run(settings(), stream(20_000.0)) for _ in range(2))
    assert np.array_equal(one.finish, other.finish)


def test_bulk_is_handed_over_as_it_is_worked_off_and_never_much_at_once() -> None:
    online = poisson(1000.0, 50, 0)
    supply = Arrivals(Stream.beside_bulk(online, np.full(20_050, 10)), chunk=7)
    assert supply.next_at == 0
    waiting: list[int] = []
    seen: list[int] = []
    now = 0.0
    while True:
        jobs = supply.take(now, len(waiting))
        assert len(jobs) <= TOGETHER
        assert all(job.bulk == (job.ids[0] < 20_000) for job in jobs)
        assert all(job.arrival <= now for job in jobs)
        waiting += [job.ids[0] for job in jobs]
        seen += [job.ids[0] for job in jobs]
        assert len(waiting) <= BULK_WAITING + 50
        if not waiting and supply.next_at == np.inf:
            break
        del waiting[:300]
        now += 1e-3
    assert sorted(seen) == list(range(20_050))


def test_online_requests_that_gathered_come_in_parts() -> None:
    supply = Arrivals(Stream(np.linspace(0, 1, 1200), np.full(1200, 5)))
    taken = [len(supply.take(1.0, 0)) for _ in range(4)]
    assert taken == [512, 512, 176, 0]


def test_bulk_fills_what_online_requests_leave() -> None:
    online = poisson(4000.0, 2000, 0)
    beside = Stream.beside_bulk(online, draw("2-100", 12_000, 0))
    outcome = run(settings(trigger="lazy", partition="dp"), beside)
    assert np.all(np.isfinite(outcome.finish))
    assert len(outcome.latency_s) == 2000
    assert outcome.bulk_per_s() > 1000


def test_accepted_are_all_that_were_not_turned_away_when_they_came() -> None:
    arrival = np.arange(10) / 10
    finish = arrival + 0.01
    finish[5:] = np.nan
    refused = {"overloaded": 1, "arrived_late": 2, "queued": 2}
    outcome = Outcome(arrival, arrival, finish, refused, (), 0.0)
    assert outcome.in_time_of_accepted(0.05) == pytest.approx(5 / 7)  # the two that were refused later count as late
    assert np.isnan(Outcome(arrival[:1], arrival[:1], finish[9:], {"overloaded": 1}, (), 0.0).in_time_of_accepted(0.05))


def test_batches_scatter_as_the_timings_of_their_table_did() -> None:
    timings = tuple(Sample(10, 100, 10, 1, factor * COST.seconds(10, 100, 10, 1)) for factor in (0.8, 1.25))
    scatter = scatter_of(CostTable(COST, samples=timings))
    np.testing.assert_allclose(sorted(scatter), [0.8, 1.25])
    seconds = noisy(COST, scatter, seed=0)
    drawn = {round(seconds(10, 100, 10, 1) / COST.seconds(10, 100, 10, 1), 6) for _ in range(100)}
    assert drawn == {0.8, 1.25}
    assert scatter_of(CostTable(COST)) is NO_SCATTER


def fleet(workers: int, num_partitions: int = 1024) -> Fleet:
    return Fleet(workers, settings(trigger="lazy"), COST, SCATTER, num_partitions)


def test_workers_share_the_work_and_a_popular_key_does_not_spread() -> None:
    even = simulate_fleet(Traffic(40_000.0, 20_000, "2-100"), fleet(8))
    assert even.num_answered == 20_000
    assert np.all(even.finish >= even.arrival)
    assert even.busy_s.max() < 1.5 * even.busy_s.mean()
    skewed = simulate_fleet(Traffic(40_000.0, 20_000, "2-100", num_keys=1000, zipf=1.2), fleet(8))
    assert skewed.busy_s.max() > 1.5 * skewed.busy_s.mean()


def test_processes_give_the_same_outcome_as_one() -> None:
    traffic = Traffic(40_000.0, 100_000, "2-100")
    one, other = (simulate_fleet(traffic, fleet(4), num_processes=count) for count in (1, 2))
    assert np.array_equal(one.finish, other.finish)


def test_a_fleet_needs_a_partition_for_each_worker() -> None:
    with pytest.raises(ValueError, match="partitions"):
        fleet(9, num_partitions=8)
