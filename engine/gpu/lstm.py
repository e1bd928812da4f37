"""LSTM chains by fused kernels: a step is one product for input and recurrent weights, and one pointwise launch."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from penstock.engine.cells.contract import CellBatch, CellSpec
from penstock.engine.errors import InvalidBatch
from penstock.engine.gpu.cell_batches import DeviceBatch, row_bucket
from penstock.engine.gpu.state_pool import StatePool
from penstock.engine.kernels.lstm import Chains, Embedding, lstm_begin, lstm_step, short_lstm_step, short_order

# Batches of so few rows run each step in one launch. It reads the operand anew for every 32 columns, so the product of
# cuBLAS and a launch behind it are faster for more.
MAX_SHORT_ROWS = 32


@dataclass(frozen=True, slots=True)
class LstmLayer:
    """Weights of a layer, halves of one type on the device, gates in the order of torch."""

    weight: Tensor  # [4H, I + H]: of the input, then of h
    short_weight: Tensor  # the same in `short_order`
    added: Tensor  # [1, 4H]: the biases; or, of a folded layer, [V, 4H]: with a token's input product
    words: Tensor | None  # [V, I]: of the first layer unless it is folded


@dataclass(frozen=True, slots=True)
class LstmCell:
    """A chain of LSTM steps over token ids, of one layer or more.

    The specification has one input, no emission, and the states h (in the weights' type) and c (float32) of each layer
    in turn.
    """

    spec: CellSpec
    layers: tuple[LstmLayer, ...]
    max_short_rows: int  # of a batch whose steps are one launch each

    @property
    def vocabulary(self) -> int:
        """Tokens of the embedding table."""
        first = self.layers[0]
        return len(first.added if first.words is None else first.words)


def lstm_cell(
    spec: CellSpec, module: nn.LSTM, words: Tensor, *, folded: bool = True, max_short_rows: int = MAX_SHORT_ROWS
) -> LstmCell:
    """The cell of an `nn.LSTM` over an embedding table [V, I], on its device, with weights in the type of the states h.

    folded: whether the first layer's input products are computed here, for every token. It takes 8 H bytes a token, and
    halves the product of a step. ValueError for a module or specification that no kernel supports.
    """
    if module.bidirectional or module.proj_size or not module.batch_first:
        raise ValueError("an LSTM cell has one direction, no projection, and a module with batch_first=True.")
    states = spec.states
    dtypes = states[0].dtype if states else None, torch.float32
    is_supported = dtypes[0] in (torch.float16, torch.bfloat16) and len(states) == 2 * module.num_layers
    is_supported &= all((s.dtype, s.width) == (dtypes[i % 2], module.hidden_size) for i, s in enumerate(states))
    if not is_supported or len(spec.inputs) != 1 or spec.emits or spec.feedback or spec.arity != 1:
        raise ValueError(f"{spec.name} has not the states, inputs and emissions of an LSTM cell.")
    layers = [_layer(module, index, words, states[0].dtype, folded) for index in range(module.num_layers)]
    return LstmCell(spec, tuple(layers), max_short_rows)


@torch.no_grad()
def _layer(module: nn.LSTM, index: int, words: Tensor, dtype: torch.dtype, folded: bool) -> LstmLayer:
    def parameter(name: str) -> Tensor:
        found: Tensor = getattr(module, f"{name}_l{index}")
        return found.to(words.device, torch.float32)

    of_input, of_state = parameter("weight_ih"), parameter("weight_hh")
    bias = parameter("bias_ih") + parameter("bias_hh") if module.bias else of_state.new_zeros(len(of_state))
    if index == 0 and folded:
        weight, table = of_state.to(dtype), torch.addmm(bias, words.float(), of_input.t())
        return LstmLayer(weight, short_order(weight), table.to(dtype), None)
    weight = torch.cat((of_input, of_state), 1).to(dtype)
    return LstmLayer(weight, short_order(weight), bias[None].to(dtype), words.to(dtype) if index == 0 else None)


class LstmQuantum:
    """Runs batches of an LSTM cell: a launch that gathers; then two launches a layer and step, or one for few rows."""

    def __init__(self, cell: LstmCell, pool: StatePool) -> None:
        self._cell = cell
        states = [pool.states[state] for state in cell.spec.states]
        self._states = list(zip(states[::2], states[1::2], strict=True))  # h and c of each layer
        max_rows, like = row_bucket(cell.spec.max_rows), cell.layers[0].weight
        # Of the even steps, and of the odd: while a step reads one, it writes the other.
        self._operands = [[like.new_zeros(max_rows, layer.weight.shape[1]) for layer in cell.layers] for _ in range(2)]
        self._gates = like.new_zeros(max_rows, len(like))

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
        operands = [[operand[:rows] for operand in of_turn] for of_turn in self._operands]
        for layer, operand, (states, _) in zip(self._cell.layers, operands[0], self._states, strict=True):
            lstm_begin(operand, states, chains, _embedding(tokens[0], layer.words))
        for step in range(batch.quantum):
            self._step(step, tokens, chains, operands[step % 2], operands[1 - step % 2])

    def _step(
        self, step: int, tokens: Tensor, chains: Chains, operands: Sequence[Tensor], following: Sequence[Tensor]
    ) -> None:
        is_last, rows = step + 1 == len(tokens), len(tokens[step])
        above = [*operands[1:], None]
        for index, (layer, (states, cells)) in enumerate(zip(self._cell.layers, self._states, strict=True)):
            rest = (
                Embedding(tokens[step], layer.added),
                cells,
                states,
                chains,
                step,
                following[index],
                above[index],
                None if is_last else _embedding(tokens[step + 1], layer.words),
            )
            if rows <= self._cell.max_short_rows:
                short_lstm_step(operands[index], layer.short_weight, *rest)
            else:
                gates = torch.mm(operands[index], layer.weight.t(), out=self._gates[:rows])
                lstm_step(gates, *rest)


def _embedding(tokens: Tensor, words: Tensor | None) -> Embedding | None:
    return None if words is None else Embedding(tokens, words)
