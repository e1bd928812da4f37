"""LSTM chains by fused kernels: a step is one product for input and recurrent weights, and one pointwise launch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import structlog
import torch
from torch import Tensor

from penstock.engine.cells.contract import Cell, CellSpec
from penstock.engine.cells.models.layers import LstmStack
from penstock.engine.cells.models.lstm import ReadStep
from penstock.engine.gpu.buckets import row_bucket
from penstock.engine.gpu.cells.cell_batches import DeviceBatch
from penstock.engine.gpu.cells.device_states import DeviceStates
from penstock.engine.kernels.chain_lstm import TILES, chain_lstm, new_exchange, supports_chains
from penstock.engine.kernels.library import VECTOR
from penstock.engine.kernels.lstm import Chains, Embedding, lstm_begin, lstm_step, short_lstm_step, short_order

log = structlog.get_logger("penstock.engine")

# Batches of so few rows run each step in one launch. It reads the operand anew for every 32 columns, so the product of
# cuBLAS and a launch behind it are faster for more.
MAX_SHORT_ROWS = 32
# Batches of so few rows of one folded layer run all steps in one launch, if there are several. One alone is no faster
# so: of 64 rows it takes 11 us, and a product and a launch 9 (H200, h = 1024).
MAX_CHAIN_ROWS = TILES[-1]
_MOST_FOLDED_BYTES = 512 << 20  # of a table with a token's input product


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
    max_chain_rows: int  # of a batch whose steps are one launch in all, if there is but one layer and it is folded

    @property
    def vocabulary(self) -> int:
        """Tokens of the embedding table."""
        first = self.layers[0]
        return len(first.added if first.words is None else first.words)


def fused(cell: Cell) -> Cell | LstmCell:
    """A cell by the kernels, where it reads tokens through LSTM layers that they support; else the cell itself.

    Its module lies on the device already. The first layer's input products are computed here for every token, if that
    table is not too large: they take 8 H bytes a token, and halve the product of a step.
    """
    step = cell.step
    if type(step) is not ReadStep or not _is_supported(cell.spec, step.stack):
        return cell
    stack, words = step.stack, step.words.get_buffer("weight")
    folded = len(words) * 4 * stack.width * words.itemsize <= _MOST_FOLDED_BYTES
    if words.dtype != stack.top.dtype or stack.width % VECTOR or (not folded and words.shape[1] % VECTOR):
        return cell
    above = [_layer(stack, index, None) for index in range(1, stack.num_layers)]
    first = _folded(stack, words) if folded else _layer(stack, 0, words)
    return LstmCell(cell.spec, (first, *above), MAX_SHORT_ROWS, MAX_CHAIN_ROWS)


def _is_supported(spec: CellSpec, stack: LstmStack) -> bool:
    is_supported = spec.states == stack.states and stack.top.dtype in (torch.float16, torch.bfloat16)
    return is_supported and len(spec.inputs) == 1 and not (spec.emits or spec.feedback) and spec.arity == 1


def _layer(stack: LstmStack, index: int, words: Tensor | None) -> LstmLayer:
    weight, bias = stack.get_buffer(f"weight{index}").contiguous(), stack.get_buffer(f"bias{index}")
    return LstmLayer(weight, short_order(weight), bias[None], words)


@torch.no_grad()
def _folded(stack: LstmStack, words: Tensor) -> LstmLayer:
    """The first layer, with a token's input product in place of its words."""
    weight, bias = stack.get_buffer("weight0"), stack.get_buffer("bias0")
    of_input, of_state = weight[:, : -stack.width], weight[:, -stack.width :].contiguous()
    added = torch.addmm(bias.float(), words.float(), of_input.float().t()).to(weight.dtype)
    return LstmLayer(of_state, short_order(of_state), added, None)


class LstmQuantum:
    """Runs batches of an LSTM cell: a launch that gathers; then two launches a layer and step, or one for few rows.

    Several steps of few rows of a single folded layer are one launch in all.
    """

    def __init__(self, cell: LstmCell, pool: DeviceStates) -> None:
        self._cell = cell
        states = [pool.states[state] for state in cell.spec.states]
        self._states = list(zip(states[::2], states[1::2], strict=True))  # h and c of each layer
        max_rows, like = row_bucket(cell.spec.max_rows), cell.layers[0].weight
        # Of the even steps, and of the odd: while a step reads one, it writes the other.
        self._operands = [[like.new_zeros(max_rows, layer.weight.shape[1]) for layer in cell.layers] for _ in range(2)]
        self._gates = like.new_zeros(max_rows, len(like))
        is_folded = len(cell.layers) == 1 and cell.layers[0].words is None
        is_chain = is_folded and supports_chains(like.shape[1], like.device)
        self._max_chain_rows = min(cell.max_chain_rows, max_rows, TILES[-1]) if is_chain else 0
        self._exchange = new_exchange(like, self._max_chain_rows)
        if self._max_chain_rows and not self._runs_chains():
            self._max_chain_rows = 0

    @property
    def input_sizes(self) -> Mapping[str, int]:
        """See `Quantum.input_sizes`."""
        return dict.fromkeys(self._cell.spec.inputs, self._cell.vocabulary)

    def launch(self, batch: DeviceBatch) -> None:
        """Queue the steps of a batch. There are no results: no row stops early."""
        rows = len(batch.steps)
        chains = Chains(batch.read.view(rows), batch.write, batch.steps)
        (tokens,) = batch.inputs.values()
        if rows <= self._max_chain_rows and batch.quantum > 1:
            self._chain(tokens, chains)
            return
        operands = [[operand[:rows] for operand in of_turn] for of_turn in self._operands]
        for layer, operand, (states, _) in zip(self._cell.layers, operands[0], self._states, strict=True):
            lstm_begin(operand, states, chains, _embedding(tokens[0], layer.words))
        for step in range(batch.quantum):
            self._step(step, tokens, chains, operands[step % 2], operands[1 - step % 2])

    def _chain(self, tokens: Tensor, chains: Chains) -> None:
        (layer,), ((states, cells),) = self._cell.layers, self._states
        chain_lstm(layer.short_weight, Embedding(tokens, layer.added), cells, states, chains, self._exchange)

    def _runs_chains(self) -> bool:
        """Whether the driver takes the largest launch: a client of MPS may have fewer multiprocessors than are named.

        It runs no step, so it changes no state.
        """
        nothing = torch.zeros(2, self._max_chain_rows, dtype=torch.int32, device=self._gates.device)
        try:
            self._chain(nothing, Chains(nothing[0], nothing[0], nothing[0]))
        except RuntimeError as error:
            log.warning("chain_lstm_off", error=str(error).partition("\n")[0])
            return False
        return True

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
