"""Pure, synchronous scheduling: jobs in, plans out, `now` as an argument. numpy only."""

from penstock.scheduler.cost import CostFunction, PackedCost, PaddedCost, fit_packed_cost
from penstock.scheduler.partition import Partition, choose_partition, partition_dp, partition_fifo
from penstock.scheduler.scheduler import Scheduler
from penstock.scheduler.settings import SchedulerSettings
from penstock.scheduler.trigger import Hungry, Lazy, TriggerPolicy
from penstock.scheduler.types import Job, Plan, Trigger, Wait

__all__ = [
    "CostFunction",
    "Hungry",
    "Job",
    "Lazy",
    "PackedCost",
    "PaddedCost",
    "Partition",
    "Plan",
    "Scheduler",
    "SchedulerSettings",
    "Trigger",
    "TriggerPolicy",
    "Wait",
    "choose_partition",
    "fit_packed_cost",
    "partition_dp",
    "partition_fifo",
]
