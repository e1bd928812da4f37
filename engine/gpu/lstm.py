"""LSTM chains by fused kernels: for each step one product for input and recurrent weights, and one pointwise launch."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from penstock.engine.cells.contract import CellBatch, CellSpec
from penstock.engine.errors import InvalidBatch
from penstock.engine.gpu.cell_batches import DeviceBatch, row_bucket
from penstock.engine.gpu.state_pool import StatePool
from penstock.engine.kernels.lstm import Chains, lstm_begin, lstm_step


@dataclass(frozen=True, slots=True)
class LstmLayer:
    """Weights of a layer, halves of one type on the device, gates in the order of torch."""

    weight: Tensor  # [4H, I + H]: of the input, then of h
    addend: Tensor  # [1, 4H]: the biases; or, of a folded layer, [V, 4H]: with a token's input product
    words: Tensor | None  # [V, I]: of the first layer unless it is folded


@dataclass(frozen=True, slots=True)
class LstmCell:
    """A chain of LSTM steps over token ids, of one layer or more.

    The specification has one input, no emission, and the states h (in the weights' type) and c (float32) of each layer
    in turn.
    """

    spec: CellSpec
    layers: tuple[LstmLayer, ...]

    @property
    def vocabulary(self) -> int:
        """Tokens of the embedding table."""
        first = self.layers[0]
        return len(first.addend if first.words is None else first.words)


def lstm_cell(spec: CellSpec, module: nn.LSTM, words: Tensor, *, device: torch.device, folded: bool = True) -> LstmCell:
    """The cell of an `nn.LSTM` over an embedding table [V, I], with weights in the type of the states h.

    folded: whether the first layer's input products are computed here, for every token. It takes 8 H bytes a token, and
    halves the product of a step. ValueError for a module or specification that no kernel supports.
    """
    if module.bidirectional or module.proj_size or not module.batch_first:
        raise ValueError("an LSTM cell has one direction, no projection, and a module with batch_first=True.")
    states = spec.states
    dtypes = states[0].dtype if states else None, torch.float32
    is_supported = dtypes[0] in (torch.float16, torch.bfloat16) and len(states) == 2 * module.num_layers
    is_supported &= all((s.dtype, s.width) == (dtypes[i % 2], module.hidden_size) for i, s in enumerate(states))
    if not is_supported or len(spec.inputs) != 1 or spec.emits or spec.arity != 1:
        raise ValueError(f"{spec.name} has not the states, inputs and emissions of an LSTM cell.")
    layers = [_layer(module, index, words, states[0].dtype, device, folded) for index in range(module.num_layers)]
    return LstmCell(spec, tuple(layers))


@torch.no_grad()
def _layer(
    module: nn.LSTM, index: int, words: Tensor, dtype: torch.dtype, device: torch.device, folded: bool
) -> LstmLayer:
    of_input, of_state = (getattr(module, f"weight_{kind}_l{index}").to(device).float() for kind in ("ih", "hh"))
    bias = torch.zeros(len(of_state), device=device)
    for kind in ("ih", "hh") if module.bias else ():
        bias += getattr(module, f"bias_{kind}_l{index}").to(device)
    if index == 0 and folded:
        table = torch.addmm(bias, words.to(device).float(), of_input.t())
        return LstmLayer(of_state.to(dtype).contiguous(), table.to(dtype), None)
    weight = torch.cat((of_input, of_state), 1).to(dtype).contiguous()
    return LstmLayer(weight, bias[None].to(dtype), words.to(device, dtype).contiguous() if index == 0 else None)


class LstmQuantum:
    """Runs batches of an LSTM cell: a launch that gathers, then two launches a layer and step."""

    def __init__(self, cell: LstmCell, pool: StatePool) -> None:
        self._cell = cell
        self._pool = pool
        hidden, max_rows = cell.spec.states[0].width, row_bucket(cell.spec.max_rows)
        like = cell.layers[0].weight
        self._operands = [like.new_zeros(max_rows, layer.weight.shape[1]) for layer in cell.layers]
        self._gates = like.new_zeros(max_rows, 4 * hidden)

    def check(self, batch: CellBatch) -> None:
        """Raise InvalidBatch for a token outside of the table."""
        (tokens,) = (batch.inputs[name] for name in self._cell.spec.inputs)
        if tokens.min() >= 0 and tokens.max() < self._cell.vocabulary:
            return
        read = tokens[np.arange(batch.quantum) < batch.steps[:, None]]  # those of the steps that run
        if read.min() < 0 or read.max() >= self._cell.vocabulary:
            raise InvalidBatch(f"a token of {batch.cell} is outside of the {self._cell.vocabulary} embeddings")

    def launch(self, batch: DeviceBatch) -> None:
        """Queue the steps of a batch. There are no results: no row stops early."""
        rows = len(batch.steps)
        chains = Chains(batch.read.view(rows), batch.write, batch.steps)
        (tokens,) = batch.inputs.values()
        operands = [operand[:rows] for operand in self._operands]
        for layer, operand, (states, _) in zip(self._cell.layers, operands, self._states(), strict=True):
            lstm_begin(operand, states, chains, tokens[0], layer.words)
        for step in range(batch.quantum):
            self._step(step, tokens, chains, operands)

    def _step(self, step: int, tokens: Tensor, chains: Chains, operands: Sequence[Tensor]) -> None:
        gates = self._gates[: len(operands[0])]
        next_tokens = tokens[step + 1] if step + 1 < len(tokens) else None
        above = [*operands[1:], None]
        for index, (layer, (states, cells)) in enumerate(zip(self._cell.layers, self._states(), strict=True)):
            torch.mm(operands[index], layer.weight.t(), out=gates)
            is_folded = len(layer.addend) > 1
            lstm_step(
                gates,
                layer.addend,
                tokens[step] if is_folded else None,
                cells,
                states,
                chains,
                step,
                operands[index],
                above[index],
                next_tokens,
                layer.words,
            )

    def _states(self) -> list[tuple[Tensor, Tensor]]:
        """h and c of each layer, in the pool."""
        pooled = [self._pool.states[state] for state in self._cell.spec.states]
        return list(zip(pooled[::2], pooled[1::2], strict=True))
