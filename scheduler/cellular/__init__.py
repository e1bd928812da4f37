"""Schedules cells of many requests: a request joins at its next step and leaves at its last."""

from penstock.scheduler.cellular.jobs import JobRows
from penstock.scheduler.cellular.scheduler import CellScheduler
from penstock.scheduler.cellular.types import CellGraph, CellJob, CellRule, CellTask

__all__ = ["CellGraph", "CellJob", "CellRule", "CellScheduler", "CellTask", "JobRows"]
