"""Pure, synchronous scheduling: jobs in, plans out, `now` as an argument. Imports numpy, numba for compiled loops."""

from penstock.scheduler.costs.cost import CostFunction, PackedCost, PaddedCost
from penstock.scheduler.costs.fit import fit_cost_table
from penstock.scheduler.costs.table import CorruptTable, CostTable, LearnedCost
from penstock.scheduler.lane_driver import Dispatch, LaneBatch, LaneDriver
from penstock.scheduler.scheduler import Scheduler
from penstock.scheduler.settings import SchedulerSettings
from penstock.scheduler.types import Batch, Cause, Job, Plan, RejectedJob, Trigger, Wait

__all__ = [
    "Batch",
    "Cause",
    "CorruptTable",
    "CostFunction",
    "CostTable",
    "Dispatch",
    "Job",
    "LaneBatch",
    "LaneDriver",
    "LearnedCost",
    "PackedCost",
    "PaddedCost",
    "Plan",
    "RejectedJob",
    "Scheduler",
    "SchedulerSettings",
    "Trigger",
    "Wait",
    "fit_cost_table",
]
