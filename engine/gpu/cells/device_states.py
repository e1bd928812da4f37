"""Slots on the device for the states of nodes, between the batches of cells that write and read them."""

from collections.abc import Iterable

import torch
from torch import Tensor

from penstock.engine.cells.contract import CellSpec, StateSpec


class DeviceStates:
    """A tensor [slots, width] for each state that a cell has; cells with an equal state share it.

    A chain's slot also keeps, by cell, what its last step has emitted and whether it has stopped. Slot NO_SLOT is
    zeros. A slot beyond those of the scheduler, `scratch`, takes what spare rows write.
    """

    def __init__(self, specs: Iterable[CellSpec], num_slots: int, device: torch.device) -> None:
        self.num_slots = num_slots  # NO_SLOT included
        self.scratch = num_slots
        self.states: dict[StateSpec, Tensor] = {}
        self.stopped: dict[str, Tensor] = {}  # int32 [slots]: 1 or 0
        self.emitted: dict[tuple[str, str], Tensor] = {}  # by cell and emission: int32 [slots]
        for spec in specs:
            for state in spec.states:
                if state not in self.states:
                    self.states[state] = torch.zeros(num_slots + 1, state.width, dtype=state.dtype, device=device)
            self.stopped[spec.name] = self._flags(device)
            for emission in spec.feedback.values():
                self.emitted[spec.name, emission] = self._flags(device)

    def _flags(self, device: torch.device) -> Tensor:
        return torch.zeros(self.num_slots + 1, dtype=torch.int32, device=device)
