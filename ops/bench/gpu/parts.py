"""The parts of a run, in their order. torch.compile is last: it takes longest, and may not finish."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Part:
    """`module`.`function`(bench) returns the figures of the part, ready for JSON."""

    module: str  # of this package
    function: str
    budget_s: float  # expected on an H200; the part is stopped at three times that


PARTS: Mapping[str, Part] = {
    "ceilings": Part("part_ceilings", "run", 5),
    "parity": Part("part_parity", "run", 8),
    "kernels": Part("part_kernels", "run", 5),
    "products": Part("part_products", "run", 5),
    "single": Part("part_single", "run", 32),
    "grid": Part("part_grid", "run_grid", 58),
    "backlog": Part("part_backlog", "run", 58),
    "ablation": Part("part_ablation", "run", 13),
    "fill": Part("part_grid", "run_fill", 8),
    "deberta": Part("part_deberta", "run", 10),
    "memory": Part("part_memory", "run", 12),
    "families": Part("part_families", "run", 80),
    "compile": Part("part_compile", "run", 75),
}
STOPPED_AFTER = 3.0  # times the budget
DEVICE_IS_SICK = 3  # exit code of the measuring process: the parts that are left need a new one
