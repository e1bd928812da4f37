"""Sequence-length-aware memory planning: TurboTransformers (PPoPP '21), section 4.2 and Algorithm 1. No torch here.

`Tape` records the lifetimes of buffers in one dry run; `MemoryPlanner` turns the tokens of a batch into a `MemoryPlan`;
`Arena` holds the chunks of the device that plans name.
"""

from penstock.engine.memory.arena import Arena
from penstock.engine.memory.lifetimes import BufferId, Lifetime, Tape
from penstock.engine.memory.plan import MemoryPlan, MemoryPlanner

__all__ = ["Arena", "BufferId", "Lifetime", "MemoryPlan", "MemoryPlanner", "Tape"]
