"""The parts of a run, in order: the cheap and decisive ones first, the compiler last."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Part:
    """`module`.`function`(bench) returns the part's figures, ready for JSON."""

    module: str  # of this package
    function: str
    budget_s: float  # what it should take on an H200; it is stopped at three times that


PARTS: Mapping[str, Part] = {
    "ceilings": Part("part_ceilings", "run", 10),
    "parity": Part("part_parity", "run", 25),
    "kernels": Part("part_kernels", "run", 20),
    "products": Part("part_products", "run", 20),
    "single": Part("part_single", "run", 40),
    "grid": Part("part_grid", "run_grid", 75),
    "backlog": Part("part_backlog", "run", 45),
    "ablation": Part("part_ablation", "run", 20),
    "fill": Part("part_grid", "run_fill", 15),
    "deberta": Part("part_deberta", "run", 30),
    "memory": Part("part_memory", "run", 20),
    "families": Part("part_families", "run", 150),
    "compile": Part("part_compile", "run", 110),
}
STOPPED_AFTER = 3.0  # times the budget
DEVICE_IS_SICK = 3  # a worker's exit code: the parts that are left need a new process
