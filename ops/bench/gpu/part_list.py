"""The parts of a run, in their order. torch.compile is last: it takes longest, and may not finish."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Part:
    """`module`.`function`(bench) returns the figures of the part, ready for JSON."""

    module: str  # in the folder parts
    function: str
    budget_s: float  # expected on an H200; the part is stopped at three times that


PARTS: Mapping[str, Part] = {
    "ceilings": Part("ceilings", "run", 5),
    "parity": Part("parity", "run", 8),
    "kernels": Part("kernels", "run", 5),
    "products": Part("products", "run", 5),
    "single": Part("single", "run", 32),
    "grid": Part("grid", "run_grid", 58),
    "backlog": Part("backlog", "run", 58),
    "ablation": Part("ablation", "run", 13),
    "fill": Part("grid", "run_fill", 8),
    "deberta": Part("deberta", "run", 10),
    "memory": Part("memory", "run", 12),
    "families": Part("families", "run", 80),
    "compile": Part("compile", "run", 75),
}
STOPPED_AFTER = 3.0  # times the budget
DEVICE_IS_SICK = 3  # exit code of the measuring process: the parts that are left need a new one
