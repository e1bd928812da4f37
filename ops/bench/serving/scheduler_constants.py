"""Every constant of the scheduler: its value, read from its module, and what chose it."""

from collections.abc import Mapping
from importlib import import_module

from penstock.ops.bench.common.markdown import table
from penstock.scheduler import SchedulerSettings

# Place, in dots below penstock.scheduler: what the number counts, and what chose it.
CONSTANTS: Mapping[str, tuple[str, str]] = {
    "queueing.work_estimator.BATCH_SHARE": (
        "of the SLO",
        "table, CPU: 1/2 gains 2.0, drift and padded, loses bursts; 1/8 gains drift and padded, loses the rest",
    ),
    "queueing.work_estimator._NUM_RECENT": ("batches", "table: 16 breaks more promises"),
    "queueing.work_estimator._BLOCK": ("batches", "table: one window without blocks breaks twice as many promises"),
    "queueing.work_estimator._HIGH": ("quantile", "table: 0.5 breaks more promises (0.9 was then that of blocks too)"),
    "queueing.work_estimator._MAX_SHARE": (
        "of the predicted seconds",
        "guarantee: an idle worker admits a job that leaves half its SLO (test_lateness)",
    ),
    "queueing.work_estimator._DECAY": (
        "of the margin, for each reply that took less",
        "guarantee: a slow reply is forgotten within 500 (test_lateness)",
    ),
    "costs.table._NUM_RECENT": (
        "batches",
        "guarantee: seven outliers change nothing (test_learning); table: 45 gains in one run, loses in one",
    ),
    "costs.errors._NUM_ERRORS": ("batches", "reports only: p50 and p95 of the errors"),
    "costs.table._ABSURD": ("times", "guarantee: no impossible time is learned (test_learning)"),
    "costs.fit._MAX_SIZES": ("knots", "guarantee: a fit takes milliseconds (test_cost_fit)"),
    "costs.fit._MAX_LENGTHS": ("knots", "the same"),
    "costs.fit._KNOT_RATIO": ("times", "guarantee: unseen batches within 6 % (test_cost_fit)"),
    "costs.fit._STIFFNESS": ("of a timing's weight", "the same"),
    "costs.fit._LEAST_FACTOR": ("times", "the same"),
    "costs.fit._MOST_FACTOR": ("times", "the same"),
    "costs.fit._ABSURD": ("times", "guarantee: one timing out of proportion changes nothing (test_cost_fit)"),
    "costs.fit._MAX_S": ("s", "guarantee: impossible timings are left out (test_cost_fit)"),
    "costs.table._MAX_NUMBER": ("s, or tokens", "guarantee: a corrupt file is no table (test_cost_table)"),
    "costs.table._MAX_ENTRIES": ("numbers", "the same"),
    "policies.partition.MIN_GAIN": ("of the seconds", "less is within the error of predictions (p95 error)"),
    "policies.partition.MIN_DP_GAIN": ("of the seconds", "a requirement; table: dp at any gain"),
    "policies.partition._MAX_REST": (
        "plans",
        "the DP takes 1 ms at most, so 16 us a plan; a change of the mix is seen within 64 plans",
    ),
    "policies.bulk_share._LOAD_WINDOW_S": (
        "s",
        "guarantee: with the last plan alone bulk adds 2.9 ms where 2.7 ms are stated (test_bulk)",
    ),
    "scheduler._HOLD_S": (
        "s",
        "not measured: a few small batches of a CPU; no job waits longer (test_lane_driver)",
    ),
    "trials.TRIAL_EVERY_S": (
        "s",
        "guarantee: predictions far too high are corrected (test_lane_driver, test_admission)",
    ),
    "settings.bulk_slice_s": ("s", "a requirement: bulk may add 2 ms to the online p99 (test_bulk)"),
    "settings.bulk_quiet_s": ("s", "not measured: long against the pauses of online traffic"),
    "settings.window": ("jobs", "bounds a plan's time: the DP over 1,024 jobs takes about 1 ms"),
    "cellular.types.MAX_PASSES": ("tasks", "guarantee: no cell type starves (test_scheduler); not measured"),
    "cellular.choice.FULL_STEPS": ("steps", "a requirement: joins wait 4 to 8 steps under load, if the host keeps up"),
    "cellular.choice._STRIDE": ("steps", "simulated: p90 0.66 ms at half load, 0.81 with powers of two (not kept)"),
    "cellular.cost._WEIGHT": ("of the mean", "not measured: follows a change within some ten tasks"),
    "cellular.cost._FAR": ("times", "guarantee: one task out of proportion changes little; the number is not measured"),
    "cellular.cost._NUM_RECENT": ("tasks", "guarantee: one outlier does not move a median; the number is not measured"),
    "cellular.waiting._BULK_SHARE": ("of the slots", "guarantee: an online job finds a free slot; not measured"),
    "cellular.waiting._FEW": ("jobs", "not measured: entries of jobs that have left which are not worth a removal"),
    "cellular.waiting._SMALL": ("jobs", "not measured: a block that is too small costs each look at the queue a turn"),
    "cellular.waiting._WINDOW": ("jobs", "not measured: bounds a look at the queue; more than join at once"),
    "cellular.deadlines._FEW": ("deadlines", "the same"),
    "cellular.backlog._DECAY": ("of the sums, for each job that ends", "not measured: fifty jobs"),
    "cellular.backlog._LEAST": (
        "times",
        "guarantee: one stall does not close admission (test_admission)",
    ),
    "cellular.backlog._MOST": ("times", "the same"),
    "cellular.arriving._LEAST_LEFT": ("of the work", "not measured: a chain longer than expected is nearly done"),
    "cellular.index._SPREAD": ("", "2^64 over the golden ratio (Knuth, TAOCP volume 3, section 6.4)"),
}


def constant_table() -> str:
    """Table `scheduler-constants` of scheduler/ABLATION.md."""
    rows = [[place, f"{value(place):,g} {unit}", chosen_by] for place, (unit, chosen_by) in CONSTANTS.items()]
    return table(["constant", "value", "chosen by"], rows)


def value(place: str) -> float:
    """The number at a key of CONSTANTS. AttributeError if there is none."""
    module, _, name = place.rpartition(".")
    if module == "settings":
        return float(getattr(SchedulerSettings(0.0, 1, 1, None), name))
    return float(getattr(import_module(f"penstock.scheduler.{module}"), name))
