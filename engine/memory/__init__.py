"""Sequence-length-aware memory: one dry run gives the lifetimes, and every batch gets its own plan of addresses.

`Tape` records a dry run; `Planner` turns (tokens, sequences) into a `Plan`; `Arena` holds the device's chunks and turns
the plan into addresses. TurboTransformers (PPoPP '21), section 4.2 and Algorithm 1. No torch here.
"""

from penstock.engine.memory.arena import Arena
from penstock.engine.memory.lifetimes import BufferId, Lifetime, Tape
from penstock.engine.memory.plan import Plan, Planner

__all__ = ["Arena", "BufferId", "Lifetime", "Plan", "Planner", "Tape"]
