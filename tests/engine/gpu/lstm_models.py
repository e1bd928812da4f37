"""LSTM language models of random weights: the module for torch, and cells for the step engine."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from penstock.engine.cells.contract import Cell, CellSpec, StateSpec, Tensors
from penstock.engine.gpu.cells.lstm import LstmCell, lstm_cell


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

    def cell(self, kind: str, max_rows: int, max_steps: int, **most: int) -> Cell | LstmCell:
        """The cell "lstm": of "torch", or of fused kernels with "folded" or "unfolded" weights, as `fused_cell`."""
        if kind == "torch":
            return self.torch_cell("lstm", max_rows, max_steps)
        return self.fused_cell("lstm", max_rows, max_steps, folded=kind == "folded", **most)

    def fused_cell(
        self,
        name: str,
        max_rows: int,
        max_steps: int,
        *,
        folded: bool,
        max_short_rows: int = 0,
        max_chain_rows: int = 0,
    ) -> LstmCell:
        """The cell of fused kernels. The last two: of batches whose steps, or all of which, are one launch."""
        spec = self._spec(name, max_rows, max_steps)
        most = {"max_short_rows": max_short_rows, "max_chain_rows": max_chain_rows}
        return lstm_cell(spec, self.module, self.words, folded=folded, **most)

    def torch_cell(self, name: str, max_rows: int, max_steps: int) -> Cell:
        """The same cell of plain torch operations. One layer."""
        module, words = self.module, self.words
        of_input, of_state, *biases = (parameter.detach() for parameter in module.parameters())
        weight = torch.cat((of_input, of_state), 1).t()
        bias = torch.stack(biases).float().sum(0).to(words.dtype)

        def step(states: Tensors, inputs: Tensors) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
            operand = torch.cat((nn.functional.embedding(inputs["token"], words), states["h0"]), 1)
            entered, forgot, gate, out = torch.addmm(bias, operand, weight).float().chunk(4, 1)
            c = forgot.sigmoid() * states["c0"] + entered.sigmoid() * gate.tanh()
            return {"h0": (out.sigmoid() * c.tanh()).to(words.dtype), "c0": c}, {}

        return Cell(self._spec(name, max_rows, max_steps), step)

    def reader(self, max_rows: int) -> Cell:
        """A cell of one step that emits the last layer's h and leaves it where it is."""
        *_, h, _ = self._spec("", 1, 1).states
        spec = CellSpec("reader", states=(h,), emits=(StateSpec("value", h.width),), max_rows=max_rows, max_steps=1)
        return Cell(spec, lambda states, inputs: (states, {"value": states[h.name].float()}))

    def _spec(self, name: str, max_rows: int, max_steps: int) -> CellSpec:
        width = self.module.hidden_size
        states = [
            state
            for layer in range(self.module.num_layers)
            for state in (StateSpec(f"h{layer}", width, self.words.dtype), StateSpec(f"c{layer}", width))
        ]
        return CellSpec(name, tuple(states), inputs=("token",), max_rows=max_rows, max_steps=max_steps)
