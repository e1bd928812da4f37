"""LSTM language models of random weights: the module for torch, and cells for the step engine."""

from copy import deepcopy
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn

from penstock.engine.cells.contract import Cell, CellSpec, StateSpec
from penstock.engine.cells.models.layers import Table, read_stack, weights_of
from penstock.engine.cells.models.lstm import read_cell
from penstock.engine.gpu.cells import lstm
from penstock.engine.gpu.cells.lstm import LstmCell


@dataclass(frozen=True, slots=True)
class LstmModel:
    """An embedding table [V, I] and an `nn.LSTM`, in float16 on a device."""

    module: nn.LSTM
    words: Tensor

    @classmethod
    def random(cls, vocabulary: int, hidden: int, layers: int, device: torch.device, seed: int) -> "LstmModel":
        """Weights as torch initialises them. Inputs are as wide as the state."""
        torch.manual_seed(seed)
        module = nn.LSTM(hidden, hidden, layers, batch_first=True).eval().requires_grad_(False)
        return cls(module.half().to(device), torch.randn(vocabulary, hidden).half().to(device))

    def cell(
        self, kind: str, max_rows: int, max_steps: int, *, max_short_rows: int = 0, max_chain_rows: int = 0
    ) -> Cell | LstmCell:
        """The cell "lstm": of "torch", or of fused kernels with "folded" or "unfolded" weights.

        The last two: of batches whose steps, or all of which, are one launch.
        """
        device, width = self.words.device, self.words.shape[1]
        stack = read_stack(weights_of(lstm=deepcopy(self.module).cpu()), "lstm.", width, self.words.dtype)
        cell = read_cell("lstm", Table(self.words), stack.to(device), max_rows)
        cell = replace(cell, spec=replace(cell.spec, max_steps=max_steps))
        if kind == "torch":
            return cell
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(lstm, "_MOST_FOLDED_BYTES", 1 << 40 if kind == "folded" else 0)
            made = lstm.fused(cell)
        assert isinstance(made, LstmCell)
        return replace(made, max_short_rows=max_short_rows, max_chain_rows=max_chain_rows)

    def reader(self, max_rows: int) -> Cell:
        """A cell of one step that emits the last layer's h and leaves it where it is."""
        h = StateSpec(f"h{self.module.num_layers - 1}", self.module.hidden_size, self.words.dtype)
        spec = CellSpec("reader", states=(h,), emits=(StateSpec("value", h.width),), max_rows=max_rows, max_steps=1)
        return Cell(spec, lambda states, inputs: (states, {"value": states[h.name].float()}))
